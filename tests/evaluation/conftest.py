"""One thread: several test processes may share the machine."""

import torch

torch.set_num_threads(1)
