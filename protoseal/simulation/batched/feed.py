"""Batches of several sites, in the orders of their seeds, from the sites' data side by side in one tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from secure_client.training.batches import TensorSource, copy_to, count_batches
from secure_client.training.job import Job, has_batch_norm

BLOCK_BYTES = 2**25
"""Number of bytes of batches that are gathered from the sites' data at a time: 32 MiB."""


@dataclass(frozen=True)
class StackedBatch:
    """Inputs (S′, B, …) and int64 labels (S′, B) of the ``sites``; the first ``lengths[k]`` samples of the k-th count.

    With padding, there are further rows for the sites that follow the last one.
    """

    sites: Sequence[int]
    inputs: Tensor
    labels: Tensor
    lengths: tuple[int, ...]


def batches_of_job(job: Job) -> tuple[int, int]:
    """Return the number of an epoch's full batches, and the size of a shorter last batch, or 0."""
    return count_batches(len(job.source), job.schedule.batch_size, join_single=has_batch_norm(job.model))


class Feed:
    """Source of the batches of sites that are sorted by :func:`batches_of_job`, most first.

    An epoch has first the full batches, of all sites that have another at a time. Then each site's last batch follows:
    if ``padded`` in one step of all sites, padded to the longest, else those of equal length in one step. Batch
    normalisation would read the padding. Limit: several sites' data are copied, to lie side by side.
    """

    def __init__(self, jobs: Sequence[Job], *, padded: bool) -> None:
        counts = [batches_of_job(job) for job in jobs]
        self._size = jobs[0].schedule.batch_size
        self._augmentation = jobs[0].augmentation
        self._padded = padded
        self.batches = [full + bool(rest) for full, rest in counts]
        if padded:  # one step of all sites needs a last batch of each, which may be a full one
            counts = [(full, rest) if rest else (full - 1, self._size) for full, rest in counts]
        self._full = [full for full, _ in counts]
        self.ends = tuple(rest for _, rest in counts)
        """Number of samples of each site's last batch, 0 without one."""
        data = [cast("TensorSource", job.source).tensors for job in jobs]
        self._inputs, self._labels = (
            parts[0] if len(parts) == 1 else torch.cat(parts) for parts in zip(*data, strict=True)
        )
        sizes = [len(labels) for _, labels in data]
        self._orders = list(zip(sizes, torch.tensor([0, *sizes]).cumsum(0).tolist(), strict=False))
        sample = self._inputs[0]
        batch_bytes = self._size * sample.numel() * sample.element_size()
        self._block = max(1, BLOCK_BYTES // (batch_bytes * len(jobs)))

    def epoch(
        self,
        generators: Sequence[torch.Generator],
        pad: Callable[[int], int] = lambda sites: sites,
        augmenting: Sequence[torch.Generator] = (),
    ) -> Iterator[StackedBatch]:
        """Yield an epoch's steps; one of the first n sites has rows for the first ``pad(n)`` ones.

        Orders come from the sites' ``generators``, and the draws of the augmentation, if any, from ``augmenting``.
        """
        steps, size, longest = self._full[0], self._size, max(self.ends)
        # Where a site has no sample, its first one is read.
        width = 1 if self._augmentation is None else 4
        starts = torch.zeros(len(self._orders), 1, width, dtype=torch.int64)
        starts[:, 0, 0] = torch.tensor([start for _, start in self._orders])
        full, last = starts.repeat(steps, 1, size, 1), starts.repeat(1, longest, 1)
        for site, ((count, start), generator) in enumerate(zip(self._orders, generators, strict=True)):
            order = (torch.randperm(count, generator=generator) + start).unsqueeze(1)
            if self._augmentation is not None:
                order = torch.cat([order, self._augmentation.draw(count, augmenting[site])], dim=1)
            split = self._full[site] * size
            full[: self._full[site], site] = order[:split].view(-1, size, width)
            last[site, : self.ends[site]] = order[split:]
        index = copy_to(self._inputs.device, torch.cat([full.flatten(), last.flatten()]))
        full, last = index[: full.numel()].view_as(full), index[full.numel() :].view_as(last)
        for start in range(0, steps, self._block):
            numbers = range(start, min(start + self._block, steps))
            active = [sum(count > number for count in self._full) for number in numbers]
            inputs, labels = self._gather(full[start : start + len(active), : pad(active[0])])
            for at, sites in enumerate(active):
                wide = pad(sites)
                yield StackedBatch(range(sites), inputs[at, :wide], labels[at, :wide], (size,) * sites)
        by_site = last.unbind()
        for chosen in self._last_steps():
            lengths = tuple(self.ends[site] for site in chosen)
            # A list of indices would be copied to a GPU, which would first have to end its earlier steps.
            rows = torch.stack([by_site[site] for site in chosen])
            yield StackedBatch(chosen, *self._gather(rows[:, : max(lengths)]), lengths)

    def _last_steps(self) -> list[Sequence[int]]:
        """Return the sites that share a step of last batches."""
        if self._padded:
            return [range(len(self.ends))]
        alike: dict[int, list[int]] = {}
        for site, length in enumerate(self.ends):
            if length:
                alike.setdefault(length, []).append(site)
        return [
            range(group[0], group[-1] + 1) if group[-1] - group[0] < len(group) else tuple(group)
            for group in alike.values()
        ]

    def _gather(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels (S′, B, …), or (steps, S′, B, …), of an index with one more dimension."""
        chosen = index.flatten(0, -2)
        inputs, labels = (values.index_select(0, chosen[:, 0]) for values in (self._inputs, self._labels))
        if self._augmentation is not None:
            inputs = self._augmentation.apply(inputs, chosen[:, 1:])
        shape = index.shape[:-1]
        return inputs.view(*shape, *inputs.shape[1:]), labels.view(shape)
