"""Optimisers of stacked parameters: all sites take a step in one operation, each as torch's optimiser would alone.

Sites may have taken different numbers of steps. A site that takes no part in a step, and a parameter without a
gradient, stand still, momentum and weight decay included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from agreement import Optimiser
from secure_client.training.job import OptimiserState, Schedule

Stacked = Mapping[str, Tensor]
"""A tensor for each parameter by name, (S, *shape), contiguous."""


class StackedOptimiser(Protocol):
    """Optimiser of S sites, ``state`` by torch's key and the parameter's name. ``lr`` may be a float32 tensor ()."""

    lr: float | Tensor
    state: dict[str, dict[str, Tensor]]

    def step(self, gradients: Stacked, sites: Sequence[int]) -> None:
        """Change the parameters of these sites by the gradients (S′, *shape) of some of the parameters."""
        ...

    def tensors(self) -> list[Tensor]:
        """Return all of the state, (S, …) each."""
        ...

    def load(self, states: Sequence[OptimiserState]) -> None:
        """Continue from each site's state of torch's optimiser; without a parameter's state, as if fresh."""
        ...

    def states(self) -> list[OptimiserState]:
        """Return a copy of each site's state, as torch's optimiser would have it."""
        ...


def stacked_optimiser(schedule: Schedule, parameters: Stacked) -> StackedOptimiser:
    """Return the optimiser of ``schedule.optimise``, for all sites of the parameters, which it changes in place."""
    return (StackedAdam if schedule.optimiser is Optimiser.ADAM else StackedSgd)(schedule, parameters)


class StackedSgd:
    """SGD whose momentum starts at zero, which gives torch's first step too."""

    def __init__(self, schedule: Schedule, parameters: Stacked) -> None:
        self.lr: float | Tensor = schedule.lr
        self._momentum, self._weight_decay = schedule.momentum, schedule.weight_decay
        self._parameters = parameters
        keys = ("momentum_buffer",) if schedule.momentum else ()
        self.state = {key: _zeros(parameters) for key in keys}

    def step(self, gradients: Stacked, sites: Sequence[int]) -> None:
        """Change the parameters of these sites by the gradients (S′, *shape) of some of the parameters."""
        # Neighbouring sites' numbers lie side by side, so that a tensor for each parameter is enough.
        pieces = _ranges if isinstance(sites, range) else _by_site
        torch._fused_sgd_(
            pieces(self._parameters, gradients, sites),
            _gradients(gradients, by_site=pieces is _by_site),
            [piece for state in self.state.values() for piece in pieces(state, gradients, sites)],
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    def tensors(self) -> list[Tensor]:
        """Return all of the state, (S, …) each."""
        return [value for values in self.state.values() for value in values.values()]

    def load(self, states: Sequence[OptimiserState]) -> None:
        """Continue from each site's state of torch's optimiser; without a parameter's state, as if fresh."""
        _load(self.state, states)

    def states(self) -> list[OptimiserState]:
        """Return a copy of each site's state, as torch's optimiser would have it."""
        return _by_parameter(self.state, self._parameters)


class StackedAdam:
    """Adam with the bias corrections of each site's own number of ``steps``, float32 (S,)."""

    def __init__(self, schedule: Schedule, parameters: Stacked) -> None:
        self.lr: float | Tensor = schedule.lr
        self._weight_decay = schedule.weight_decay
        self._parameters = parameters
        self.state = {key: _zeros(parameters) for key in ("exp_avg", "exp_avg_sq")}
        first = next(iter(parameters.values()))
        self.steps = torch.zeros(len(first), device=first.device)

    def step(self, gradients: Stacked, sites: Sequence[int]) -> None:
        """Change the parameters of these sites by the gradients (S′, *shape) of some of the parameters."""
        chosen = slice(sites.start, sites.stop) if isinstance(sites, range) else list(sites)
        self.steps[chosen] += 1
        torch._fused_adam_(
            _by_site(self._parameters, gradients, sites),
            _gradients(gradients, by_site=True),
            _by_site(self.state["exp_avg"], gradients, sites),
            _by_site(self.state["exp_avg_sq"], gradients, sites),
            [],
            [self.steps[site] for site in sites] * len(gradients),
            lr=self.lr,
            beta1=0.9,
            beta2=0.999,
            weight_decay=self._weight_decay,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )

    def tensors(self) -> list[Tensor]:
        """Return all of the state, (S, …) each."""
        return [self.steps, *(value for values in self.state.values() for value in values.values())]

    def load(self, states: Sequence[OptimiserState]) -> None:
        """Continue from each site's state of torch's optimiser; without a parameter's state, as if fresh."""
        _load(self.state, states)
        # Torch counts the steps of each parameter, and they are the same for all that have had gradients.
        counts = [[float(values["step"]) for values in state.values() if values] for state in states]
        self.steps.copy_(torch.tensor([max(steps, default=0.0) for steps in counts]))

    def states(self) -> list[OptimiserState]:
        """Return a copy of each site's state, as torch's optimiser would have it."""
        steps = self.steps.cpu()
        return [
            {name: {"step": step.clone(), **values} for name, values in state.items()}
            for step, state in zip(steps, _by_parameter(self.state, self._parameters), strict=True)
        ]


def _load(stacked: Mapping[str, Stacked], states: Sequence[OptimiserState]) -> None:
    for key, tensors in stacked.items():
        for name, tensor in tensors.items():
            tensor.zero_()
            for site, state in enumerate(states):
                if key in (values := state.get(name, {})):
                    tensor[site].copy_(values[key])


def _by_parameter(stacked: Mapping[str, Stacked], parameters: Stacked) -> list[OptimiserState]:
    sites = len(next(iter(parameters.values())))
    return [
        {name: {key: tensors[name][site].clone() for key, tensors in stacked.items()} for name in parameters}
        for site in range(sites)
    ]


def _zeros(parameters: Stacked) -> dict[str, Tensor]:
    return {name: torch.zeros_like(value) for name, value in parameters.items()}


def _ranges(tensors: Stacked, names: Stacked, sites: Sequence[int]) -> list[Tensor]:
    return [tensors[name][sites[0] : sites[-1] + 1] for name in names]


def _by_site(tensors: Stacked, names: Stacked, sites: Sequence[int]) -> list[Tensor]:
    return [tensors[name][site] for name in names for site in sites]


def _gradients(gradients: Stacked, *, by_site: bool) -> list[Tensor]:
    # The fused kernels read parameters and gradients as they lie in memory.
    whole = [gradient.contiguous() for gradient in gradients.values()]
    return [piece for gradient in whole for piece in gradient.unbind(0)] if by_site else whole
