"""Batches of a site's data set: a pair of tensors stays on the device, any other data set is read as needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from secure_client.error_containment import reraise_fatal
from secure_client.errors import DataError

Batch = tuple[Tensor, Tensor]
R = TypeVar("R")
_PARTS = 4
"""Parts of a failing batch: quarters find one record in as many computations as halves, and several in fewer."""


def copy_to(device: torch.device, values: Tensor) -> Tensor:
    """Return a CPU's values on the device; a GPU's earlier operations need not have ended."""
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


class BatchSource(Protocol):
    """Samples by index, in batches, on the device that trains."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Yield (inputs, int64 labels) for each group of indices, in the given order."""
        ...


class TensorSource:
    """Source over a pair of tensors, copied to the device once."""

    def __init__(self, dataset: TensorDataset, device: torch.device) -> None:
        inputs, labels = dataset.tensors
        self._inputs = inputs.to(device)
        self._labels = labels.to(device, torch.int64)

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def tensors(self) -> Batch:
        """All inputs and labels on the device."""
        return self._inputs, self._labels

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Yield (inputs, int64 labels) for each group of indices, in the given order."""
        for group in groups:
            chosen = copy_to(self._labels.device, torch.tensor(group, dtype=torch.int64))
            yield self._inputs[chosen], self._labels[chosen]


class SharedSource:
    """Source over some rows of a pair of tensors that several sites share, copied to the device batch by batch."""

    def __init__(self, subset: Subset[Any], shared: TensorDataset, device: torch.device) -> None:
        self._inputs, self._labels = shared.tensors
        self._rows = torch.tensor(list(subset.indices), dtype=torch.int64)
        self._device = device

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Yield (inputs, int64 labels) for each group of indices, in the given order."""
        for group in groups:
            chosen = self._rows[torch.tensor(group)]
            yield self._inputs[chosen].to(self._device), self._labels[chosen].to(self._device, torch.int64)


class DatasetSource:
    """Source over any map-style data set of (tensor, int label), decoded in this process at each read."""

    def __init__(self, dataset: Dataset[Any], device: torch.device) -> None:
        self._dataset = dataset
        self._device = device

    def __len__(self) -> int:
        return len(cast("Sized", self._dataset))

    def batches(self, groups: Sequence[Sequence[int]]) -> Iterator[Batch]:
        """Yield (inputs, int64 labels) for each group of indices, in the given order."""
        loader = DataLoader(
            self._dataset,
            batch_sampler=groups,  # type: ignore[arg-type]  # any iterable will do
            generator=torch.Generator(),  # its own generator, not that of shuffling and dropout
        )
        for inputs, labels in loader:
            yield inputs.to(self._device), torch.as_tensor(labels, dtype=torch.int64).to(self._device)


def open_source(dataset: Dataset[Any], device: torch.device) -> BatchSource:
    """Return the source for a data set; raise :class:`DataError` for one that has no length or no samples."""
    if not hasattr(dataset, "__len__"):
        raise DataError(
            f"the data set, a {type(dataset).__name__}, has no length; give a map-style Dataset with __len__"
        )
    if len(dataset) == 0:
        raise DataError("the data set has no samples; leave the test set out or give the site some data")
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return TensorSource(dataset, device)
    if isinstance(dataset, Subset):
        whole = dataset.dataset
        if isinstance(whole, TensorDataset) and len(whole.tensors) == 2:
            return SharedSource(dataset, whole, device)
    return DatasetSource(dataset, device)


def batch_in_order(count: int, size: int) -> list[list[int]]:
    """Return indices 0 … count − 1 in batches of ``size``."""
    return split_batches(list(range(count)), size)


def split_batches(order: Sequence[int], size: int, *, join_single: bool = False) -> list[list[int]]:
    """Split ``order`` into batches of ``size``; the last may be shorter.

    With ``join_single`` a last batch of one sample joins the one before it, because batch normalisation
    cannot train on a single sample and leaving it out would lose it.
    """
    groups = [list(order[start : start + size]) for start in range(0, len(order), size)]
    if join_single and len(groups) > 1 and len(groups[-1]) == 1:
        last = groups.pop()
        groups[-1] += last
    return groups


def count_batches(count: int, size: int, *, join_single: bool = False) -> tuple[int, int]:
    """Return how many batches of ``size`` :func:`split_batches` makes, and the length of another last one, or 0."""
    batches = -(-count // size)
    last = count - (batches - 1) * size
    if join_single and batches > 1 and last == 1:
        batches, last = batches - 1, last + size
    return (batches, 0) if last == size else (batches - 1, last)


def isolate_failures(
    group: Sequence[int],
    compute: Callable[[Sequence[int]], R],
    *,
    probe: Callable[[Sequence[int]], object],
    fallback: Callable[[int, BaseException], R],
) -> tuple[list[R], Tensor]:
    """Compute a batch of different records in parts, so that a record on which ``compute`` raises fails alone.

    Return the results of the parts, and the int64 indices (B,) that put the parts' rows into the order of ``group``. A
    record on which ``compute`` raises, given that record alone, has the result of ``fallback``.

    ``probe`` is a cheaper computation that raises on the same records. It decides how a failing batch is split, and no
    result. If it raises on k of B records, and ``compute`` on the same, there are at most k + 2 calls of ``compute``.
    The calls of ``probe``, at most 4·k·⌈log4 B⌉, take B + k·(B/3 + ⌈log4 B⌉) records together.
    """
    # The probe finds all failing records first: bisection by `compute`, which may pad each part to a whole batch, would
    # compute some k·log B whole batches in place of k + 2.
    results: list[R] = []
    places: list[int] = []
    pending = [list(group)]
    while pending:
        part = pending.pop()
        try:
            result = compute(part)
        except BaseException as error:
            reraise_fatal(error)
            if len(part) > 1:
                pending += _split_failing(part, probe)
                continue
            result = fallback(part[0], error)
        results.append(result)
        places += part
    position = {record: place for place, record in enumerate(places)}
    return results, torch.tensor([position[record] for record in group])


def _split_failing(group: Sequence[int], probe: Callable[[Sequence[int]], object]) -> list[list[int]]:
    """Return smaller parts of a failing batch: the records on which ``probe`` raises, one by one, and the others."""
    raising = _find_raising(group, probe)
    if not raising:  # the probe was wrong
        return _quarter(group)
    others = [record for record in group if record not in set(raising)]
    return [[record] for record in raising] + ([others] if others else [])


def _find_raising(group: Sequence[int], probe: Callable[[Sequence[int]], object]) -> list[int]:
    """Return the records on which ``probe`` raises, in a batch with such records."""
    raising: list[int] = []
    for part in _quarter(group):
        try:
            probe(part)
        except BaseException as error:
            reraise_fatal(error)
            raising += part if len(part) == 1 else _find_raising(part, probe)
    return raising


def _quarter(group: Sequence[int]) -> list[list[int]]:
    return split_batches(group, -(-len(group) // _PARTS))
