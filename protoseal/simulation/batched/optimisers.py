"""Optimisers of stacked parameters: all sites take a step in one operation, each as torch's optimiser would alone.

Sites may have taken different numbers of steps. A site that takes no part in a step, and a parameter without a
gradient, stand still, momentum and weight decay included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from agreement import Optimiser
from protoseal.simulation.batched.layers import Values, index_sites
from secure_client.training.job import OptimiserState, Schedule


class StackedOptimiser(ABC):
    """Optimiser of S sites, whose ``state`` is (S, *shape) by torch's key and the parameter's name.

    ``lr`` may be a float32 tensor ().
    """

    def __init__(self, schedule: Schedule, parameters: Values, keys: Sequence[str]) -> None:
        """Begin with zeros under torch's ``keys``, for contiguous parameters, which steps change in place."""
        self.lr: float | Tensor = schedule.lr
        self._momentum, self._weight_decay = schedule.momentum, schedule.weight_decay
        self._parameters = parameters
        self.state = {
            key: {name: torch.zeros_like(value) for name, value in parameters.items()} for key in keys
        }

    @abstractmethod
    def step(self, gradients: Values, sites: Sequence[int]) -> None:
        """Change the parameters of these sites by the gradients (S′, *shape) of some of the parameters."""

    def tensors(self) -> list[Tensor]:
        """Return all of the state, (S, …) each."""
        return [value for values in self.state.values() for value in values.values()]

    def load(self, states: Sequence[OptimiserState]) -> None:
        """Continue from each site's state of torch's optimiser, with a tensor (*shape) by parameter and key.

        A parameter without a state begins afresh.
        """
        for key, tensors in self.state.items():
            torch._foreach_zero_(list(tensors.values()))
            for name, tensor in tensors.items():
                for site, state in enumerate(states):
                    if key in (values := state.get(name, {})):
                        tensor[site].copy_(values[key])

    def states(self) -> list[OptimiserState]:
        """Return a copy of each site's state in the form of :meth:`load`."""
        sites = len(next(iter(self._parameters.values())))
        return [
            {
                name: {key: tensors[name][site].clone() for key, tensors in self.state.items()}
                for name in self._parameters
            }
            for site in range(sites)
        ]


def build_stacked_optimiser(schedule: Schedule, parameters: Values) -> StackedOptimiser:
    """Return the optimiser of ``schedule.optimise``, for all sites of the parameters, which it changes in place."""
    return (StackedAdam if schedule.optimiser is Optimiser.ADAM else StackedSgd)(schedule, parameters)


class StackedSgd(StackedOptimiser):
    """SGD whose momentum starts at zero, which gives torch's first step too."""

    def __init__(self, schedule: Schedule, parameters: Values) -> None:
        super().__init__(schedule, parameters, ("momentum_buffer",) if schedule.momentum else ())

    def step(self, gradients: Values, sites: Sequence[int]) -> None:
        """Change the parameters of these sites by the gradients (S′, *shape) of some of the parameters."""
        # Neighbouring sites' numbers lie side by side, so that a tensor for each parameter is enough.
        pieces = _ranges if isinstance(sites, range) else _by_site
        torch._fused_sgd_(
            pieces(self._parameters, gradients, sites),
            _gradients(gradients, by_site=not isinstance(sites, range)),
            [piece for state in self.state.values() for piece in pieces(state, gradients, sites)],
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )


class StackedAdam(StackedOptimiser):
    """Adam with the bias corrections of each site's own number of ``steps``, float32 (S,)."""

    def __init__(self, schedule: Schedule, parameters: Values) -> None:
        super().__init__(schedule, parameters, ("exp_avg", "exp_avg_sq"))
        first = next(iter(parameters.values()))
        self.steps = torch.zeros(len(first), device=first.device)

    def step(self, gradients: Values, sites: Sequence[int]) -> None:
        """Change the parameters of these sites by the gradients (S′, *shape) of some of the parameters."""
        self.steps[index_sites(sites, self.steps.device)] += 1
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
        return [self.steps, *super().tensors()]

    def load(self, states: Sequence[OptimiserState]) -> None:
        """Continue from each site's state of torch's optimiser, with its number of steps under the key ``step``."""
        super().load(states)
        for site, state in enumerate(states):
            # Torch counts the steps of each parameter, and they are the same for all that have had gradients.
            counts = [float(values["step"]) for values in state.values() if values]
            self.steps[site] = max(counts, default=0.0)

    def states(self) -> list[OptimiserState]:
        """Return a copy of each site's state in the form of :meth:`load`."""
        return [
            {name: {"step": step.clone(), **values} for name, values in state.items()}
            for step, state in zip(self.steps.cpu(), super().states(), strict=True)
        ]


def _ranges(tensors: Values, names: Values, sites: Sequence[int]) -> list[Tensor]:
    return [tensors[name][sites[0] : sites[-1] + 1] for name in names]


def _by_site(tensors: Values, names: Values, sites: Sequence[int]) -> list[Tensor]:
    return [tensors[name][site] for name in names for site in sites]


def _gradients(gradients: Values, *, by_site: bool) -> list[Tensor]:
    # The fused kernels read parameters and gradients as they lie in memory.
    whole = [gradient.contiguous() for gradient in gradients.values()]
    return [piece for gradient in whole for piece in gradient.unbind(0)] if by_site else whole
