"""Attacks on a configuration: what each adversary of the trust model gets from its view of a recorded run."""
