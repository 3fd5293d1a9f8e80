"""Simulated runs here must equal those of the sites' processes, bit for bit: one thread in both."""

import torch

torch.set_num_threads(1)
