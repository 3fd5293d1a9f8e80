"""Several sites' training of one architecture as one batched program, with the one-by-one loop's results.

Sites train independently, so steps of different sites may have any order: in each epoch first the full batches, one of
each site at a time, then the sites' short last batches. See :mod:`protoseal.simulation.batched.network` for the
network.

The number of sites in a program affects the rounding of its sums. A run that was killed in a round and then trains only
the remaining sites therefore gives the same results up to rounding; training one by one gives them bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from agreement import Optimiser
from algorithms.losses import Outputs, Terms
from algorithms.prototypes import Clusters, Guide, Targets
from protoseal.simulation.batched.flat_models import CannotStack
from protoseal.simulation.batched.network import Stack, signature
from secure_client.training.batches import TensorSource, count_batches
from secure_client.training.job import (
    Job,
    Losses,
    Schedule,
    Sgd,
    check_finite,
    has_batch_norm,
    trained_parameters,
)
from secure_client.training.loop import run_job

BLOCK_BYTES = 2**25
"""Number of bytes of batches that are gathered from the sites' data at a time: 32 MiB."""

CACHE_BYTES, MOST_ON_CPU = 2**25, 10
"""Limits on a CPU: numbers of parameters, gradients and momentum of sites that train together, and of these sites."""
GPU_BYTES = 2**33
"""Limit on a GPU: number of parameters, gradients and momentum of sites that train together."""


class Batching(StrEnum):
    """Batching of sites into one program: where it is faster, where it is possible, or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def run_together(
    jobs: Sequence[Job], batching: Batching = Batching.AUTO, *, at_once: int | None = None
) -> list[Losses]:
    """Train each job's model in place, as :func:`secure_client.training.loop.run_job` would; give its losses in order.

    The jobs are of different models, such as different sites' first stages of one round. Those with the same
    architecture, schedule, stage, loss, device and kind of guide train as one program, at most ``at_once`` of them, and
    on a CPU as many programs side by side as torch has threads, each with one thread. The others train one by one:
    models with dropout or with layers that :mod:`protoseal.simulation.batched.network` does not support, data that are
    not a pair of tensors, and training by DP-SGD. Results are equal up to the order of sums in floating point.

    Raises :class:`secure_client.errors.TrainingError` when a loss is not finite, ``ValueError`` when two jobs have one
    model. After an error some models are unchanged and others are trained.
    """
    if len({id(job.model) for job in jobs}) < len(jobs):
        raise ValueError("two jobs of one model cannot run together: run one after the other")
    if batching is Batching.NEVER:
        return [run_job(job) for job in jobs]
    losses: dict[int, Losses] = {}
    groups = [(group, [jobs[number] for number in group]) for group in _groups(jobs, batching, at_once)]
    losses_by_group = _side_by_side([group_jobs for _, group_jobs in groups])
    for (numbers, group_jobs), stacked in zip(groups, losses_by_group, strict=True):
        losses.update(zip(numbers, stacked or [run_job(job) for job in group_jobs], strict=True))
    return [losses[number] for number in range(len(jobs))]


def sites_at_once(job: Job, batching: Batching = Batching.AUTO) -> int:
    """Return the number of sites that train as one program.

    On a GPU the memory limits the number. On a CPU a step is faster only while the data that the optimiser reads and
    writes stay in the cache, so networks of about 1.4 million parameters or more train one by one there
    (docs/adr/0011); ``always`` takes two of these at a time.
    """
    parameters = sum(value.numel() * value.element_size() for value in job.model.parameters())
    with_gradient_and_momentum = 3 * max(1, parameters)
    if job.device.type != "cpu":
        return max(1, GPU_BYTES // with_gradient_and_momentum)
    fitting = min(MOST_ON_CPU, CACHE_BYTES // with_gradient_and_momentum)
    return max(2 if batching is Batching.ALWAYS else 1, fitting)


def _groups(jobs: Sequence[Job], batching: Batching, at_once: int | None) -> Iterator[list[int]]:
    """Yield the jobs' numbers, those that train as one program in one list."""
    alike: dict[object, list[int]] = {}
    for number, job in enumerate(jobs):
        alike.setdefault(_kind(job, number), []).append(number)
    for numbers in alike.values():
        first = jobs[numbers[0]]
        limit = at_once or sites_at_once(first, batching)
        programs, sides = -(-len(numbers) // limit), _threads(first)
        size = -(-len(numbers) // (-(-programs // sides) * sides))  # every thread has work
        ordered = sorted(numbers, key=lambda number: _count_batches(jobs[number]), reverse=True)
        yield from (ordered[start : start + size] for start in range(0, len(ordered), size))


def _threads(job: Job) -> int:
    return torch.get_num_threads() if job.device.type == "cpu" else 1


def _side_by_side(groups: Sequence[list[Job]]) -> list[list[Losses] | None]:
    """Return each group's losses; None for a group that must train one by one, which uses torch's generator."""
    # Small matrices gain nothing from several threads each, so that programs take one thread each, side by side.
    threads = min([len(groups), *(_threads(jobs[0]) for jobs in groups)], default=1)
    if threads < 2:
        return [_as_one(jobs) if len(jobs) > 1 else None for jobs in groups]
    before = torch.get_num_threads()
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(_as_one, groups))
    finally:
        torch.set_num_threads(before)  # the setting also applies to threads that start later


def _as_one(jobs: list[Job]) -> list[Losses] | None:
    with suppress(CannotStack):  # raised before or in the first step, which changes only copies
        return _Together(jobs).run()
    return None


def _kind(job: Job, number: int) -> object:
    """Return a key that is equal for jobs that can be stacked; other jobs get a unique key."""
    if not isinstance(job.source, TensorSource) or job.dp_sgd is not None:
        return number
    if job.augmentation is not None or job.optimiser_state is not None:
        return number
    try:
        architecture = signature(job.model)
    except CannotStack:
        return number
    inputs, labels = job.source.tensors
    tensors = [inputs[0], labels[0], *_guide_tensors(job.guide)]
    return (
        architecture,
        job.objective,
        job.schedule,
        job.epochs,
        job.trains,
        job.device,
        job.proximal,
        type(job.guide),
        tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors),
    )


def _count_batches(job: Job) -> tuple[int, int]:
    """Return the number of an epoch's full batches, and the size of a shorter last batch, or 0."""
    return count_batches(len(job.source), job.schedule.batch_size, join_single=has_batch_norm(job.model))


def _guide_tensors(guide: Guide | None) -> tuple[Tensor, ...]:
    match guide:
        case Targets(rows, present):
            return rows, present
        case Clusters(rows, labels, weights):
            return rows, labels, weights
    return ()


@dataclass(frozen=True)
class _Step:
    """A batch (S′, B, …) of each of the sites ``first`` … ``last`` − 1."""

    first: int
    last: int
    inputs: Tensor
    labels: Tensor


class _Together:
    """Training of jobs of one kind, sorted by batches, most first."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        """Stack the jobs; raise :class:`CannotStack` for a network or a source that does not allow it."""
        self._jobs = jobs
        self._job = jobs[0]
        if any(job.dp_sgd is not None for job in jobs):
            raise CannotStack("training by DP-SGD")
        if not isinstance(self._job.source, TensorSource):
            raise CannotStack("data that are read on demand")
        self._stack = Stack([job.model for job in jobs])
        self._trained = self._stack.trainable & set(trained_parameters(self._job.model, self._job.trains))
        values = self._stack.values
        self._steps = fresh_steps(self._job.schedule, {name: values[name] for name in self._trained})
        self._anchors = {
            name: torch.stack([job.anchor[name] for job in jobs])
            for name in (self._trained if self._job.proximal else ())
        }
        self._guides = [
            torch.stack(tensors) for tensors in zip(*(_guide_tensors(job.guide) for job in jobs), strict=True)
        ]
        self._feed = _Feed(jobs)
        self._rows: dict[str, Tensor] = {}
        self._range = (0, 0)

    def run(self) -> list[Losses]:
        epochs = [self._epoch() for _ in range(self._job.epochs)]
        for of_site in zip(*epochs, strict=True):
            check_finite(of_site, self._job.schedule.lr)
        self._stack.unload()
        return epochs[-1]

    def _epoch(self) -> list[Losses]:
        sums = torch.zeros(len(self._jobs), 3, device=self._job.device)
        for step in self._feed.epoch():
            sums[step.first : step.last] += self._take(step)
        means = sums.cpu() / torch.tensor(self._feed.batches).unsqueeze(1)
        return [Losses(*row) for row in means.tolist()]

    def _take(self, step: _Step) -> Tensor:
        """Take one step of some sites; return their losses (S′, 3)."""
        leaves = self._leaves(step.first, step.last)
        terms = self._terms(self._stack.outputs(step.inputs), step)
        torch.autograd.backward(terms.total.sum())
        self._pull(leaves, step)
        self._steps.step(leaves, step.first, step.last)
        return torch.stack(terms, dim=1).detach()

    def _leaves(self, first: int, last: int) -> Leaves:
        """Return the trained parameters of some sites, without gradients; the network computes with them."""
        if self._range != (first, last):
            self._range = first, last
            self._rows = self._stack.rows(first, last, self._trained)
            self._stack.use(self._rows)
        leaves = {name: self._rows[name] for name in sorted(self._trained)}
        for leaf in leaves.values():
            leaf.grad = None
        return leaves

    def _terms(self, outputs: Outputs, step: _Step) -> Terms:
        """Return each site's terms, (S′,) each."""
        kind = type(self._job.guide)
        given = [output for output in outputs if output is not None]
        guides = [guide[step.first : step.last] for guide in self._guides]

        def of_site(parts: list[Tensor], labels: Tensor, guide: list[Tensor]) -> tuple[Tensor, ...]:
            rest = iter(parts)
            site = Outputs(*(None if output is None else next(rest) for output in outputs))  # type: ignore[arg-type]
            return tuple(self._job.objective(site, labels, cast("Any", kind)(*guide) if guide else None))

        return Terms(*torch.vmap(of_site, in_dims=0)(given, step.labels, guides))

    def _pull(self, leaves: Leaves, step: _Step) -> None:
        """Add the gradient of μ/2·‖w − anchor‖²."""
        for name, anchors in self._anchors.items():
            leaf = leaves[name]
            if leaf.grad is not None:
                leaf.grad.add_(leaf.detach() - anchors[step.first : step.last], alpha=self._job.proximal)


class _Feed:
    """Source of the sites' batches, in the orders of their seeds."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._data = [cast("TensorSource", job.source).tensors for job in jobs]
        self._generators = [torch.Generator().manual_seed(job.seed) for job in jobs]
        self._device = jobs[0].device
        self._size = jobs[0].schedule.batch_size
        counts = [_count_batches(job) for job in jobs]
        self._full = [full for full, _ in counts]
        self.batches = [full + bool(rest) for full, rest in counts]
        sample = self._data[0][0][0]
        batch_bytes = self._size * sample.numel() * sample.element_size()
        self._block = max(1, BLOCK_BYTES // (batch_bytes * len(jobs)))

    def epoch(self) -> Iterator[_Step]:
        """Yield the full batches, of all sites that have another at a time, then the batches of other sizes."""
        orders = [
            torch.randperm(len(labels), generator=generator).to(self._device)
            for (_, labels), generator in zip(self._data, self._generators, strict=True)
        ]
        for start in range(0, self._full[0], self._block):
            yield from self._block_steps(orders, start)
        yield from self._end_steps(orders)

    def _block_steps(self, orders: list[Tensor], start: int) -> Iterator[_Step]:
        """Gather batches ``start`` … ``start + block`` − 1 at once."""
        size = self._size
        gathered = []
        for site, order in enumerate(orders):
            stop = min(start + self._block, self._full[site])
            if start >= stop:
                break
            inputs, labels = self._at(site, order[start * size : stop * size])
            gathered.append((inputs.reshape(-1, size, *inputs.shape[1:]), labels.reshape(-1, size)))
        for number in range(len(gathered[0][0])):
            active = [batches for batches in gathered if len(batches[0]) > number]
            inputs, labels = (torch.stack([batches[part][number] for batches in active]) for part in (0, 1))
            yield _Step(0, len(active), inputs, labels)

    def _end_steps(self, orders: list[Tensor]) -> Iterator[_Step]:
        """Yield the last, shorter batches; neighbouring sites with equal sizes share a step."""
        ends = [order[full * self._size :] for order, full in zip(orders, self._full, strict=True)]
        for length, sites in groupby(range(len(ends)), key=lambda site: len(ends[site])):
            if length:
                numbers = list(sites)
                inputs, labels = zip(*(self._at(site, ends[site]) for site in numbers), strict=True)
                yield _Step(numbers[0], numbers[-1] + 1, torch.stack(inputs), torch.stack(labels))

    def _at(self, site: int, chosen: Tensor) -> tuple[Tensor, Tensor]:
        inputs, labels = self._data[site]
        return inputs[chosen], labels[chosen]


# Optimisers: they step several sites' parameters at once, each site's as torch's own optimiser would alone

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
        moved = parameters if schedule.momentum else {}
        self._momenta = {name: torch.zeros_like(value) for name, value in moved.items()}

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
        self._means = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self._squares = {name: torch.zeros_like(value) for name, value in parameters.items()}
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
        of_mean, of_square = (_beside(correction, leaf) for correction in corrections)
        leaf.sub_(mean / of_mean * self._schedule.lr / (square.sqrt() / of_square.sqrt() + EPSILON))


def _beside(values: Tensor, leaf: Tensor) -> Tensor:
    """Reshape one value for each site, (S′,), to multiply (S′, *shape)."""
    return values.to(leaf.dtype).view(-1, *(1,) * (leaf.ndim - 1))
