"""CUDA graphs of training steps: a step of a small network costs a GPU less than its launches cost the processor."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from protoseal.simulation.batched.feed import StackedBatch

_log = logging.getLogger("protoseal.simulation")
WARM_STEPS = 2
"""Steps of a shape that are taken before one is captured: in their first steps libraries set themselves up."""


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


class Captures:
    """Captures of one run's programs: once one failed, no further one is tried, as torch would keep unused memory."""

    failed = False


class GraphedSteps:
    """A program's steps, captured once for each number of sites and their lengths of batches, and then replayed.

    A graph computes with the tensors that were there at its capture, so that inputs are copied to these. A step
    that cannot be captured, which is logged, is taken without a graph.
    """

    def __init__(self, captures: Captures) -> None:
        self._captures = captures
        self._captured: dict[object, tuple[StackedBatch, torch.cuda.CUDAGraph]] = {}
        self._taken: Counter[object] = Counter()
        self._pool: Any = None
        self.bytes = 0
        """Size of the graphs' inputs and intermediate results."""

    def __call__(self, step: Callable[[StackedBatch], None], batch: StackedBatch) -> None:
        """Take a ``step``, which is not kept: a program that kept itself would keep its memory when it is dropped."""
        shape = batch.sites, batch.lengths, batch.inputs.shape
        self._taken[shape] += 1
        if shape not in self._captured and (
            self._taken[shape] <= WARM_STEPS or not self._capture(step, batch, shape)
        ):
            step(batch)
            return
        captured, graph = self._captured[shape]
        captured.inputs.copy_(batch.inputs)
        captured.labels.copy_(batch.labels)
        graph.replay()

    def _capture(self, step: Callable[[StackedBatch], None], batch: StackedBatch, shape: object) -> bool:
        """Capture a step of this shape; return False if none can be captured."""
        if self._captures.failed:
            return False
        batch = replace(batch, inputs=batch.inputs.clone(), labels=batch.labels.clone())
        torch.cuda.empty_cache()  # as a capture does at its start, so that the difference is the graph's own
        before = torch.cuda.memory_reserved()
        try:
            graph = capture(lambda: step(batch), self._pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            _log.warning("steps are taken without CUDA graphs, since one could not be captured: %s", error)
            self._captures.failed = True
            return False
        self._pool = graph.pool()
        self._captured[shape] = batch, graph
        self.bytes += torch.cuda.memory_reserved() - before + batch.inputs.nbytes + batch.labels.nbytes
        return True
