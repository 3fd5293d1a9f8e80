"""Differential privacy at a site: what is released with noise, what that costs, what was spent.

Only ``dp_sgd``, ``per_sample`` and ``gradient_units`` import torch.
"""
