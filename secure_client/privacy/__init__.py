"""Differential privacy at a site: the noisy query, what it costs, and the budget that pays for it."""
