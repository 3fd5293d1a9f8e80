"""Differential privacy at a site: what is released with noise, what that costs, what was spent.

Only ``dp_sgd`` and ``per_sample`` import torch.
"""
