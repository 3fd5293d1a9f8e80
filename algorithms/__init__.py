"""Mathematics of the federated methods, on arrays and tensors, without keys and networks."""
