"""Check of a GPU in one call: every path gives what the CPU gives, and how fast training is beside its limits."""
