"""The site: data, model, training, and its half of the protocol."""
