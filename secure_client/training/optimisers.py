"""Optimisers of local training: torch's own SGD and Adam, without torch's compiler.

Methods of torch's optimisers import ``torch._dynamo``, which takes a second and 150 MB in each process, to tell the
compiler to leave them out. Nothing here is compiled, so these classes have the same methods without that wrapper.
"""

from __future__ import annotations

import inspect

import torch
from torch.optim import Optimizer


class Sgd(torch.optim.SGD):
    """Torch's SGD with steps equal to it bit for bit."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


class Adam(torch.optim.Adam):
    """Torch's Adam with steps equal to it bit for bit."""

    add_param_group = inspect.unwrap(Optimizer.add_param_group)
    zero_grad = inspect.unwrap(Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))
