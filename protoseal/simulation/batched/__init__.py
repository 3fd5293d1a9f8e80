"""Training of many simulated sites as one batched program."""
