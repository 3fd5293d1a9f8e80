"""CUDA graphs of training steps: a step of a small network costs a GPU less than its launches cost the processor."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger("protoseal.simulation")
WARM_STEPS = 2
"""Steps that are taken before one is captured, as libraries set themselves up in the first."""
StepFunction = Callable[[Sequence[int], Tensor, Tensor, tuple[int, ...]], None]
"""Step of some sites, with inputs and labels, and the number of samples that count at each site."""


def capture(function: Callable[[], None], pool: Any = None) -> torch.cuda.CUDAGraph:
    """Return a graph that computes on the GPU what ``function`` does with the tensors that it uses now.

    Its intermediate results take memory of ``pool``, which must not be used by a graph that runs at the same time.
    """
    # Libraries keep working memory for each stream, so that a stream's own graphs alone may share it.
    stream = torch.cuda.current_stream()
    captured_in = None if stream == torch.cuda.default_stream() else stream
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, stream=captured_in):
        function()
    return graph


@dataclass
class _Graphed:
    """A step of one shape: its count so far, and once captured its inputs and its graph."""

    inputs: Tensor
    labels: Tensor
    taken: int = 0
    graph: torch.cuda.CUDAGraph | None = None


class GraphedSteps:
    """A program's steps, captured once for each number of sites and each length of batches, and then replayed.

    A graph computes with the tensors that were there at its capture, so that inputs are copied to these. If a step
    cannot be captured, which is logged, all further ones are taken without a graph.
    """

    def __init__(self, step: StepFunction) -> None:
        self._step = step
        self._steps: dict[object, _Graphed] = {}
        self._pool: Any = None
        self._fails = False

    def __call__(
        self, sites: Sequence[int], inputs: Tensor, labels: Tensor, lengths: tuple[int, ...]
    ) -> None:
        """Take a step."""
        step = self._steps.setdefault((sites, lengths, inputs.shape), _Graphed(inputs, labels))
        step.taken += 1
        if step.graph is None and (self._fails or step.taken <= WARM_STEPS):
            self._step(sites, inputs, labels, lengths)
        elif step.graph is None:
            step.inputs, step.labels = inputs.clone(), labels.clone()
            try:
                step.graph = capture(lambda: self._step(sites, step.inputs, step.labels, lengths), self._pool)
            except RuntimeError as error:
                _log.warning(
                    "steps are taken without CUDA graphs, since one could not be captured: %s", error
                )
                self._fails = True
                self._step(sites, inputs, labels, lengths)
            else:
                self._pool = step.graph.pool()
                step.graph.replay()
        else:
            step.inputs.copy_(inputs)
            step.labels.copy_(labels)
            step.graph.replay()
