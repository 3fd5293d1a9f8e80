"""Program of several sites' training: jobs of one kind, with a step of all sites at a time.

Sites train independently, so steps of different sites may have any order: see
:class:`protoseal.simulation.batched.feed.Feed`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor

from algorithms.losses import Outputs, Terms
from algorithms.prototypes import Guide
from protoseal.simulation.batched.feed import Feed, StackedBatch
from protoseal.simulation.batched.flat_models import CannotStack
from protoseal.simulation.batched.graphs import Captures, GraphedSteps
from protoseal.simulation.batched.layers import Draws, index_sites
from protoseal.simulation.batched.network import Stack
from protoseal.simulation.batched.optimisers import build_stacked_optimiser
from secure_client.training.batches import TensorSource, copy_to
from secure_client.training.job import Job, Losses, check_finite, has_batch_norm, trained_parameters

BUCKETS = 8
"""Most numbers of sites for which a graph is captured."""


class Program:
    """Training of S sites, which can be repeated with the jobs of later rounds.

    Its tensors stay where they are from round to round, and a step is a function of them alone, which a GPU can replay
    as a graph: with ``captures`` it does.
    """

    def __init__(
        self, jobs: Sequence[Job], *, precision: torch.dtype | None = None, captures: Captures | None = None
    ) -> None:
        """Stack the jobs; raise :class:`CannotStack` for a network or a source that does not allow it."""
        first = jobs[0]
        if any(job.dp_sgd is not None for job in jobs):
            raise CannotStack("training by DP-SGD")
        if not isinstance(first.source, TensorSource):
            raise CannotStack("data that are read on demand")
        self._objective, self._proximal, self._epochs = first.objective, first.proximal, first.epochs
        self._guide_kind, self._device = cast("Any", type(first.guide)), first.device
        self._stack = Stack([job.model for job in jobs], precision)
        values = self._stack.values
        self._trained = self._stack.trainable & set(trained_parameters(first.model, first.trains))
        self._optimiser = build_stacked_optimiser(
            first.schedule, {name: values[name] for name in values if name in self._trained}
        )
        self._guides = _stack_guides(jobs)
        self._anchors = self._stack_anchors(jobs)
        self._sums = torch.zeros(len(jobs), 3, device=first.device)
        self._grouped: dict[object, list[_Group]] = {}
        self._loaded: Sequence[Job] | None = jobs
        self._batch_size = first.schedule.batch_size
        self._ends: set[tuple[int, ...]] = set()
        # A graph would not draw from the sites' own generators.
        self._graphs = None if captures is None or self._stack.is_random else GraphedSteps(captures)
        if self._graphs is not None:
            self._optimiser.lr = torch.tensor(first.schedule.lr, device=first.device)
        kept = [*values.values(), *values.values(), *self._optimiser.tensors()]  # values and gradients
        self._bytes = sum(tensor.nbytes for tensor in kept)

    @property
    def bytes(self) -> int:
        """Size of the memory that the program keeps: numbers of parameters and the optimiser, gradients, and graphs."""
        return self._bytes + (0 if self._graphs is None else self._graphs.bytes)

    def run(self, jobs: Sequence[Job]) -> None:
        """Take all steps of these jobs, of the kind and the number of the jobs at construction.

        A GPU may still be computing them afterwards. Raises :class:`CannotStack` in the first step, before any model
        changes, for a network that does not allow stacking.
        """
        self._load(jobs)
        # On a CPU the padding takes longer than a step of fewer sites.
        padded = self._stack.grouped and not has_batch_norm(jobs[0].model)
        feed = Feed(jobs, padded=padded)
        self._ends_come_again = feed.ends in self._ends
        self._ends.add(feed.ends)
        orders = [torch.Generator().manual_seed(job.seed) for job in jobs]
        # On a CPU a site's masks follow its orders in one stream, as in the one-by-one loop.
        self._masks = orders
        if self._device.type != "cpu":
            self._masks = [torch.Generator(self._device).manual_seed(job.seed) for job in jobs]
        augmenting = [job.augmentation.generator(job.seed) for job in jobs if job.augmentation is not None]
        self._channels_last = _has_channels_last(jobs[0])
        losses = []
        for _ in range(self._epochs):
            self._sums.zero_()
            steps = feed.epoch(orders, self._pad, augmenting)
            for (sites, rows), alike in groupby(steps, lambda step: (step.sites, len(step.inputs))):
                with self._standing_still(range(len(sites), rows)):
                    for step in alike:
                        self._step_padded(step)
            losses.append(self._sums.clone())
        self._losses, self._batches = torch.stack(losses), torch.tensor(feed.batches).unsqueeze(1)

    def finish(self, jobs: Sequence[Job]) -> list[Losses]:
        """Wait for the steps of these jobs, change their models, and return the losses of the last epoch.

        Raises :class:`secure_client.errors.TrainingError`, without a change, when a loss is not finite.
        """
        means = self._losses.cpu() / self._batches
        epochs = [[Losses(*row) for row in epoch] for epoch in means.tolist()]
        for losses in zip(*epochs, strict=True):
            check_finite(losses, jobs[0].schedule.lr)
        self._stack.unload([job.model for job in jobs])
        if any(job.optimiser_state is not None for job in jobs):
            for job, state in zip(jobs, self._optimiser.states(), strict=True):
                if job.optimiser_state is not None:
                    job.optimiser_state.update(state)
        return epochs[-1]

    def _load(self, jobs: Sequence[Job]) -> None:
        loaded, self._loaded = self._loaded, None  # those of the constructor, until the first run
        if jobs is not loaded:
            self._stack.load([job.model for job in jobs])
            lr, rate = self._optimiser.lr, jobs[0].schedule.lr
            self._optimiser.lr = lr.fill_(rate) if isinstance(lr, Tensor) else rate
            for guide, current in zip(self._guides, _stack_guides(jobs), strict=True):
                guide.copy_(current)
            for name, anchors in self._stack_anchors(jobs).items():
                self._anchors[name].copy_(anchors)
        self._optimiser.load([job.optimiser_state or {} for job in jobs])

    def _step_padded(self, batch: StackedBatch) -> None:
        more = len(batch.inputs) - len(batch.sites)
        if more:  # rows of sites that stand still
            lengths = (*batch.lengths, *batch.lengths[:1] * more)
            batch = replace(batch, sites=range(len(batch.inputs)), lengths=lengths)
        # A step of other sites than neighbours copies their numbers, and those copies to new places.
        if self._graphs is not None and isinstance(batch.sites, range) and self._come_again(batch.lengths):
            self._graphs(self.step, batch)
        else:
            self.step(batch)

    def step(self, batch: StackedBatch) -> None:
        """Take one step: change the sites' values, their optimiser's state and their sums of losses, in place."""
        sites, lengths = batch.sites, batch.lengths
        values = self._stack.use(sites, self._trained)
        leaves = {name: values[name] for name in values if name in self._trained}
        draws = None
        if self._stack.is_random:
            draws = Draws([self._masks[site] for site in sites], lengths, self._channels_last)
        outputs = self._stack.outputs(batch.inputs, draws=draws)
        totals = []
        for group in self._groups(sites, lengths):
            terms = self._terms(outputs, batch.labels, group)
            totals.append(terms.total.sum())
            figures = torch.stack(terms, dim=1).detach().to(self._sums.dtype)
            if isinstance(group.sites, slice):
                self._sums[group.sites] += figures
            else:
                self._sums.index_add_(0, group.sites, figures)
        gradients = torch.autograd.grad(
            sum(totals[1:], start=totals[0]), list(leaves.values()), allow_unused=True
        )
        reached = {
            name: gradient for name, gradient in zip(leaves, gradients, strict=True) if gradient is not None
        }
        if self._proximal:  # the gradient of μ/2·‖w − anchor‖²
            chosen = index_sites(sites, self._device)
            for name, gradient in reached.items():
                moved = leaves[name].detach() - self._anchors[name][chosen]
                reached[name] = gradient.add(moved, alpha=self._proximal)
        self._optimiser.step(reached, sites)
        self._stack.keep_statistics()

    def _terms(self, outputs: Outputs, labels: Tensor, group: _Group) -> Terms:
        """Return the terms of the sites of a group, (S″,) each."""
        given = [group.choose(output) for output in outputs if output is not None]
        guides = [guide[group.sites] for guide in self._guides]

        def site_terms(parts: list[Tensor], labels: Tensor, guide: list[Tensor]) -> tuple[Tensor, ...]:
            rest = iter(parts)
            site = Outputs(*(None if output is None else next(rest) for output in outputs))  # type: ignore[arg-type]
            return tuple(self._objective(site, labels, self._guide_kind(*guide) if guide else None))

        return Terms(*torch.vmap(site_terms, in_dims=0)(given, group.choose(labels), guides))

    def _come_again(self, lengths: tuple[int, ...]) -> bool:
        """Return False for last batches of new lengths, which hardly recur if other sites take part in each round."""
        return min(lengths) == self._batch_size or self._ends_come_again

    def _groups(self, sites: Sequence[int], lengths: tuple[int, ...]) -> list[_Group]:
        """Return the sites with equally many samples, for which the objective is one computation."""
        groups = self._grouped.get((sites, lengths))
        if groups is None:
            groups = []
            for length in sorted(set(lengths)):
                places = [place for place, other in enumerate(lengths) if other == length]
                if len(places) == len(lengths) and isinstance(sites, range):
                    groups.append(_Group(length, slice(sites.start, sites.stop), None))
                    continue
                numbers = copy_to(self._device, torch.tensor([sites[place] for place in places]))
                groups.append(_Group(length, numbers, copy_to(self._device, torch.tensor(places))))
            if self._come_again(lengths):
                self._grouped[sites, lengths] = groups
        return groups

    def _stack_anchors(self, jobs: Sequence[Job]) -> dict[str, Tensor]:
        names = self._trained if jobs[0].proximal else ()
        return {name: torch.stack([job.anchor[name] for job in jobs]) for name in names}

    def _pad(self, sites: int) -> int:
        """Return the number of sites for which a graph is captured that serves so many."""
        width = math.ceil(len(self._sums) / BUCKETS)
        return sites if self._graphs is None else min(len(self._sums), math.ceil(sites / width) * width)

    @contextmanager
    def _standing_still(self, sites: range) -> Iterator[None]:
        """Restore the numbers of these sites, which take steps for nothing, after the ``with`` block."""
        chosen = slice(sites.start, sites.stop)
        tensors = [*self._stack.values.values(), *self._optimiser.tensors(), self._sums] if sites else []
        before = [tensor[chosen].clone() for tensor in tensors]
        yield
        for tensor, value in zip(tensors, before, strict=True):
            tensor[chosen].copy_(value)


@dataclass(frozen=True)
class _Group:
    """Sites of a step, int64 (S″,), whose batches have ``length`` samples; ``places`` in the step, None for all."""

    length: int
    sites: Tensor | slice
    places: Tensor | None

    def choose(self, values: Tensor) -> Tensor:
        """Return the part (S″, length, …) of values (S′, B, …)."""
        chosen = values if self.places is None else values.index_select(0, self.places)
        return chosen[:, : self.length]


def _has_channels_last(job: Job) -> bool:
    """Return True if the one-by-one loop's batches have their channels side by side in memory, as image files have.

    On a CPU all images of the network then have. Augmented images never have.
    """
    inputs, _ = cast("TensorSource", job.source).tensors
    return inputs.ndim == 4 and inputs.stride(1) == 1 and job.augmentation is None


def _stack_guides(jobs: Sequence[Job]) -> list[Tensor]:
    return [torch.stack(tensors) for tensors in zip(*(guide_tensors(job.guide) for job in jobs), strict=True)]


def guide_tensors(guide: Guide | None) -> tuple[Tensor, ...]:
    """Return the tensors of a guide, in the order of its fields."""
    return () if guide is None else tuple(vars(guide).values())
