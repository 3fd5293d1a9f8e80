"""CUDA graphs of training steps: a step of a small network costs a GPU less than its launches cost the processor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_log = logging.getLogger("protoseal.simulation")
WARM_STEPS = 2
"""Steps that are taken before one is captured, as libraries set themselves up in the first."""
StepFunction = Callable[[Sequence[int], Tensor, Tensor, tuple[int, ...]], None]
"""Step of some sites, with inputs and labels, and the number of samples that count at each site."""


def capture(function: Callable[[], None]) -> Callable[[], None]:
    """Return a function that computes on the GPU what ``function`` does with the tensors that it uses now."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


@dataclass
class _Graphed:
    """A step of one shape: its count so far, and once captured its inputs and its graph."""

    taken: int = 0
    inputs: Tensor | None = None
    labels: Tensor | None = None
    replay: Callable[[], None] | None = None


class GraphedSteps:
    """A program's steps, captured once for each number of sites and each length of batches, and then replayed.

    A graph computes with the tensors that were there at its capture, so that inputs are copied to these. If a step
    cannot be captured, which is logged, all further ones are taken without a graph.
    """

    def __init__(self, step: StepFunction) -> None:
        self._step = step
        self._graphs: dict[object, _Graphed] = {}
        self._fails = False

    def __call__(
        self, sites: Sequence[int], inputs: Tensor, labels: Tensor, lengths: tuple[int, ...]
    ) -> None:
        """Take a step."""
        graph = self._graphs.setdefault((sites, lengths, inputs.shape), _Graphed())
        graph.taken += 1
        if graph.replay is None and (self._fails or graph.taken <= WARM_STEPS):
            self._step(sites, inputs, labels, lengths)
            return
        if graph.replay is None or graph.inputs is None or graph.labels is None:
            graph.inputs, graph.labels = inputs.clone(), labels.clone()
            at_rest = graph.inputs, graph.labels
            try:
                graph.replay = capture(lambda: self._step(sites, *at_rest, lengths))
            except RuntimeError as error:
                _log.warning(
                    "steps are taken without CUDA graphs, since one could not be captured: %s", error
                )
                self._fails = True
                self._step(sites, inputs, labels, lengths)
                return
        else:
            graph.inputs.copy_(inputs)
            graph.labels.copy_(labels)
        graph.replay()
