"""Batched optimiser: steps several sites' parameters at once, each as torch's own optimiser would alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from agreement import Optimiser
from secure_client.training.job import Schedule, Sgd

Leaves = Mapping[str, Tensor]
"""Parameters of some of the sites by name, (S′, *shape), with their gradients."""
BETAS = (0.9, 0.999)
EPSILON = 1e-8
"""Epsilon of torch's Adam."""


class Steps(Protocol):
    """Optimiser state of S sites; consecutive sites take a step together."""

    def step(self, leaves: Leaves, first: int, last: int) -> None:
        """Change the leaves, of sites ``first`` … ``last`` − 1, by their gradients; those without one stay."""
        ...


def fresh_steps(schedule: Schedule, parameters: Mapping[str, Tensor]) -> Steps:
    """Return the optimiser of ``schedule.optimise``, for all sites of ``parameters`` (S, *shape)."""
    return (_Adam if schedule.optimiser is Optimiser.ADAM else _Sgd)(schedule, parameters)


class _Sgd:
    """SGD whose momentum starts at zero, which gives torch's first step too."""

    def __init__(self, schedule: Schedule, parameters: Mapping[str, Tensor]) -> None:
        self._schedule = schedule
        kept = parameters if schedule.momentum else {}
        self._momenta = {name: torch.zeros_like(each) for name, each in kept.items()}

    def step(self, leaves: Leaves, first: int, last: int) -> None:
        schedule = self._schedule
        optimiser = Sgd(
            leaves.values(),
            lr=schedule.lr,
            momentum=schedule.momentum,
            weight_decay=schedule.weight_decay,
            fused=True,
        )
        for name, momentum in self._momenta.items():
            optimiser.state[leaves[name]]["momentum_buffer"] = momentum[first:last]
        optimiser.step()


class _Adam:
    """Adam with bias corrections of each site, since sites may have taken different numbers of steps."""

    def __init__(self, schedule: Schedule, parameters: Mapping[str, Tensor]) -> None:
        self._schedule = schedule
        self._means = {name: torch.zeros_like(each) for name, each in parameters.items()}
        self._squares = {name: torch.zeros_like(each) for name, each in parameters.items()}
        any_of_them = next(iter(parameters.values()))
        self._steps = torch.zeros(len(any_of_them), dtype=torch.float64, device=any_of_them.device)

    def step(self, leaves: Leaves, first: int, last: int) -> None:
        self._steps[first:last] += 1
        corrections = [1.0 - beta ** self._steps[first:last] for beta in BETAS]
        with torch.no_grad():
            for name, leaf in leaves.items():
                if leaf.grad is not None:
                    self._change(leaf, leaf.grad, name, slice(first, last), corrections)

    def _change(self, leaf: Tensor, grad: Tensor, name: str, sites: slice, corrections: list[Tensor]) -> None:
        if self._schedule.weight_decay:
            grad = grad.add(leaf, alpha=self._schedule.weight_decay)
        mean, square = self._means[name][sites], self._squares[name][sites]
        mean.lerp_(grad, 1.0 - BETAS[0])
        square.mul_(BETAS[1]).addcmul_(grad, grad, value=1.0 - BETAS[1])
        of_mean, of_square = (_beside(each, leaf) for each in corrections)
        leaf.sub_(mean / of_mean * self._schedule.lr / (square.sqrt() / of_square.sqrt() + EPSILON))


def _beside(values: Tensor, leaf: Tensor) -> Tensor:
    """Reshape one value for each site, (S′,), to multiply (S′, *shape)."""
    return values.to(leaf.dtype).view(-1, *(1,) * (leaf.ndim - 1))
