"""The site: its data, model and training, and its half of the protocol."""
