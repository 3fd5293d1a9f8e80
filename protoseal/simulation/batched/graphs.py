"""CUDA graphs of training steps: a step of a small network costs a GPU less than its launches cost the processor."""

from __future__ import annotations

import logging
from collections import Counter
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

    Its intermediate results take memory of ``pool``, or new memory, which no graph may use that runs at the same time.
    Call this function in the stream in which the graph will be replayed, another one than the default stream.
    """
    graph = torch.cuda.CUDAGraph()
    # In this stream, as libraries keep working memory for each stream: graphs of one stream never use it together.
    with torch.cuda.graph(graph, pool=pool, stream=torch.cuda.current_stream()):
        function()
    return graph


@dataclass
class _Captured:
    """A step's graph, and the inputs and labels that it reads."""

    inputs: Tensor
    labels: Tensor
    graph: torch.cuda.CUDAGraph


class GraphedSteps:
    """A program's steps, captured once for each number of sites and each length of batches, and then replayed.

    A graph computes with the tensors that were there at its capture, so that inputs are copied to these. If a step
    cannot be captured, which is logged, all further ones are taken without a graph.
    """

    def __init__(self, step: StepFunction) -> None:
        self._step = step
        self._captured: dict[object, _Captured] = {}
        self._taken: Counter[object] = Counter()
        self._pool: Any = None
        self._fails = False

    def __call__(
        self, sites: Sequence[int], inputs: Tensor, labels: Tensor, lengths: tuple[int, ...]
    ) -> None:
        """Take a step."""
        shape = sites, lengths, inputs.shape
        self._taken[shape] += 1
        captured = self._captured.get(shape)
        if captured is not None:
            captured.inputs.copy_(inputs)
            captured.labels.copy_(labels)
        elif self._taken[shape] > WARM_STEPS and not self._fails:
            captured = self._capture(sites, inputs.clone(), labels.clone(), lengths)
        if captured is None:
            self._step(sites, inputs, labels, lengths)
        else:
            self._captured[shape] = captured
            captured.graph.replay()

    def _capture(
        self, sites: Sequence[int], inputs: Tensor, labels: Tensor, lengths: tuple[int, ...]
    ) -> _Captured | None:
        try:
            graph = capture(lambda: self._step(sites, inputs, labels, lengths), self._pool)
        except RuntimeError as error:
            _log.warning("steps are taken without CUDA graphs, since one could not be captured: %s", error)
            self._fails = True
            return None
        self._pool = graph.pool()
        return _Captured(inputs, labels, graph)
