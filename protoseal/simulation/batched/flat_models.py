"""Models of one architecture whose parameters and buffers lie in one tensor, a row for each model.

All models are then read, averaged or written with one operation on columns, in place of one for each tensor of each
model. The models themselves work as before: their parameters and buffers are views of their row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from secure_client.training.batches import copy_to


class CannotStack(Exception):
    """The network has a layer or an operation that is not known to work on stacked sites."""


@dataclass(frozen=True)
class Place:
    """Columns ``start`` … ``stop`` − 1 of a tensor, which has this shape in a model."""

    start: int
    stop: int
    shape: torch.Size

    def view_rows(self, rows: Tensor) -> Tensor:
        """Return the view (S, *shape) of the rows (S, P)."""
        return rows[:, self.start : self.stop].view(len(rows), *self.shape)


class Layout:
    """Columns of a model's tensors by name: ``floats`` of one floating-point type, and ``counts`` of type int64.

    ``floats`` are the parameters, then the floating-point buffers, each in order of registration, as in
    :class:`secure_client.training.averaged_parameters.AveragedPart`. Buffers outside the model's state are left out. A
    parameter with two names has the first.
    """

    def __init__(self, model: nn.Module) -> None:
        """Raise :class:`CannotStack` for a model of several floating-point types, or of integers other than int64."""
        tensors = dict(_tensors(model))
        floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        types = {tensor.dtype for tensor in floats.values()}
        others = {tensor.dtype for name, tensor in tensors.items() if name not in floats}
        if len(types) != 1 or not others <= {torch.int64}:
            raise CannotStack(f"tensors of the types {sorted(map(str, types | others))}")
        (self.dtype,) = types
        self.floats = _places(floats)
        self.counts = _places({name: tensor for name, tensor in tensors.items() if name not in floats})

    @property
    def width(self) -> int:
        """Number P of columns of ``floats``."""
        return max(place.stop for place in self.floats.values())

    @property
    def count_width(self) -> int:
        """Number Q of columns of ``counts``."""
        return max((place.stop for place in self.counts.values()), default=0)

    def columns(self, names: Collection[str]) -> list[slice]:
        """Return the columns of these ``floats``, in order, neighbouring ones as one slice."""
        slices: list[slice] = []
        for name, place in self.floats.items():
            if name in names:
                joins = bool(slices) and slices[-1].stop == place.start
                start = slices.pop().start if joins else place.start
                slices.append(slice(start, place.stop))
        return slices

    def __eq__(self, other: object) -> bool:
        """Return True for a layout with the same names, shapes and type."""
        return isinstance(other, Layout) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # a layout is compared, and no key


class FlatModels:
    """Models of one layout, bound to the rows of ``values`` (S, P) and ``counts`` (S, Q) on the models' device.

    Parameters and floating-point buffers are views of ``values``, integer buffers of ``counts``; ``layout`` names the
    columns. Limits: a model that is moved to another device or type, or whose code replaces a tensor, is bound no
    longer, which :meth:`find` notices. A deep copy of a bound model, or :func:`torch.save` of its state, takes the
    buffers of all models along: copy the state's tensors with ``clone()``.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        """Bind the models; raise :class:`CannotStack` unless they are different models of one layout."""
        self.layout = Layout(models[0])
        if len({id(model) for model in models}) < len(models):
            raise CannotStack("one model twice")
        if any(Layout(model) != self.layout for model in models[1:]):
            raise CannotStack("networks of several kinds")
        device = next(models[0].parameters()).device
        size = len(models)
        self.values = torch.empty(size, self.layout.width, dtype=self.layout.dtype, device=device)
        self.counts = torch.empty(size, self.layout.count_width, dtype=torch.int64, device=device)
        for row, model in enumerate(models):
            tensors = dict(_tensors(model))
            for name, view in self._views(row):
                tensors[name].data = view.copy_(tensors[name].detach())
        _BOUND[self.values.untyped_storage().data_ptr()] = self

    @staticmethod
    def find(models: Sequence[nn.Module]) -> tuple[FlatModels, Tensor] | None:
        """Return the object to which all of the models are bound, and their rows, int64 (S,); None without such one."""
        bound = _BOUND.get(next(models[0].parameters()).untyped_storage().data_ptr())
        if bound is None:
            return None
        rows = []
        for model in models:
            tensors = dict(_tensors(model))
            row = int(next(iter(tensors.values())).storage_offset()) // bound.layout.width
            # A tensor at another address was replaced after it was bound.
            if row >= len(bound.values) or any(
                name not in tensors or tensors[name].data_ptr() != view.data_ptr()
                for name, view in bound._views(row)
            ):
                return None
            rows.append(row)
        return bound, copy_to(bound.values.device, torch.tensor(rows))

    @property
    def parts(self) -> tuple[tuple[Mapping[str, Place], Tensor], ...]:
        """``values`` and ``counts``, each with its columns by name."""
        return (self.layout.floats, self.values), (self.layout.counts, self.counts)

    def _views(self, row: int) -> Iterator[tuple[str, Tensor]]:
        for places, values in self.parts:
            for name, place in places.items():
                yield name, values[row, place.start : place.stop].view(place.shape)


_BOUND: WeakValueDictionary[int, FlatModels] = WeakValueDictionary()
"""Bound models by the address of their values."""


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters, then the buffers of the model's state."""
    yield from model.named_parameters()
    stored = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in stored)


def _places(tensors: Mapping[str, Tensor]) -> dict[str, Place]:
    places, start = {}, 0
    for name, tensor in tensors.items():
        places[name] = Place(start, start + tensor.numel(), tensor.shape)
        start += tensor.numel()
    return places
