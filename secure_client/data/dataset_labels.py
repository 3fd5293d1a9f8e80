"""Labels of a torch data set of the site's own, numbered by the class names that the data set has.

``classes``, ``class_names``, ``idx_to_class`` and ``class_to_idx`` name classes, by order or by label. They are looked
for in the data set itself and, where it has none, in the data sets inside: those of ``ConcatDataset``, ``Subset``, and
any other wrapper. Under a ``target_transform`` labels have no names, since it changes them.

What a data set states beside the names must not contradict them: its attributes each other, the folders of its
``samples``, and the labels in ``targets`` the labels that it gives. Limit: a wrapper of another length than the data
set inside is not compared with ``targets``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from secure_client.data.arrays import Indices, Labels
from secure_client.data.class_names import Names, join_names
from secure_client.errors import DataError
from secure_client.user_code import describe_failure

NAMES = ("classes", "class_names", "idx_to_class", "class_to_idx")
LABELS = ("targets", "labels", "_labels")
FILES = ("samples", "imgs", "_samples")


@dataclass(frozen=True)
class _Part:
    """Samples ``outer`` of a whole data set, which are the samples ``inner`` of ``source``; None if not known."""

    source: Any
    outer: Indices
    inner: Indices | None
    names: Names | None


class NumberedDataset:
    """A data set of the site's own, whose labels :func:`number_alike` numbers; ``where`` names it in errors."""

    def __init__(self, unnumbered: Dataset[Any], where: str) -> None:
        self.unnumbered, self.where = unnumbered, where
        samples = np.arange(len(self))
        self.parts = _parts(unnumbered, samples, samples, where)
        self.tables: list[Mapping[int, int] | None] = [None] * len(self.parts)
        self._part_of = np.zeros(len(self), np.int64)
        self._stated = np.full(len(self), -1, np.int64)
        """Label that the data set states beside its names; -1 where it states none."""
        for number, part in enumerate(self.parts):
            self._part_of[part.outer] = number
            labels = None if part.names is None else _stated_labels(part, where)
            if labels is not None and part.inner is not None:
                self._stated[part.outer] = labels[part.inner]

    def __len__(self) -> int:
        return len(cast("Sized", self.unnumbered))

    def number(self, index: int, label: int, where: str) -> int:
        """Return the number of a sample's ``label``; raise :class:`DataError`, opened by ``where``, if it has none."""
        stated = self._stated[index]
        if stated not in (-1, label):
            raise DataError(
                f"{where}: has label {label}, but its data set states {stated} (in targets, labels or samples): the"
                " class names may be of other labels. Give the data set, or its wrapper, `classes` and `targets` of"
                " the labels that it returns"
            )
        return self._numbered(int(self._part_of[index]), label, where)

    def file_of(self, index: int) -> str:
        """Return a sample's file in brackets, if the data set lists files as torchvision's folders do; else nothing."""
        part = self.parts[self._part_of[index]]
        if part.inner is None:
            return ""
        try:
            return f" ({os.fspath(part.source.samples[part.inner[part.outer == index][0]][0])})"
        except Exception:  # errors name the sample in any case
            return ""

    @property
    def subjects(self) -> Any:
        """Subjects of the data set, if it names any."""
        return _attribute(self.unnumbered, "subjects", self.where)

    @property
    def partly_unnamed(self) -> bool:
        """True if the labels of some samples have no names."""
        return any(part.names is None for part in self.parts)

    @property
    def is_renumbered(self) -> bool:
        """True if a label that a part gives has another number here."""
        return any(label != number for table in self.tables for label, number in (table or {}).items())

    def occurring(self) -> set[int] | None:
        """Return the labels that occur, without reading samples; None if the data set does not state them all."""
        if (self._stated < 0).any():  # also in parts without names, whose labels count as not stated
            return None
        cells = np.unique(np.stack([self._part_of, self._stated]), axis=1).T.tolist()
        return {self._numbered(part, label, self.where) for part, label in cells}

    def _numbered(self, part: int, label: int, where: str) -> int:
        table = self.tables[part]
        if table is None:
            return label
        if label not in table:
            raise DataError(f"{where}: label {label} has no class name; name every class that has samples")
        return table[label]


def number_alike(datasets: Sequence[NumberedDataset], where: str) -> Names | None:
    """Give the data sets one numbering of their classes, and return the classes' names; None without any names.

    Labels of parts without names keep their numbers.
    """
    parts = [part for each in datasets for part in each.parts]
    names, tables = join_names([part.names for part in parts if part.names], where=where)
    remaining = iter(tables)
    for each in datasets:
        each.tables = [next(remaining) if part.names else None for part in each.parts]
    return names or None


MOST_INSIDE = 1000
"""Most data sets in one list of a wrapper."""


def _parts(
    source: Any, outer: Indices, inner: Indices | None, where: str, above: tuple[Any, ...] = ()
) -> list[_Part]:
    """Return the data sets that decide the labels of the samples ``outer``, ``inner`` of ``source`` where known."""
    if _attribute(source, "target_transform", where) is not None:
        return [_Part(source, outer, inner, None)]
    names = _names(source, where)
    keeps_labels = type(source) in (Subset, ConcatDataset)
    path = (*above, source)
    inside = _inside(source, path, where) if names is None or keeps_labels else []
    if not inside:
        return [_Part(source, outer, inner, names)]
    parts = _parts_inside(source, inside, outer, inner, where, path)
    if names is None:
        return parts
    for part in parts:
        for label, aliases in (part.names or {}).items():
            if not set(aliases) & set(names.get(label, aliases)):
                raise DataError(
                    f"{where}: class {label} is {names[label][0]!r} by the names of {type(source).__name__}, and"
                    f" {aliases[0]!r} by those of the data set inside; remove the wrong names"
                )
    return [_Part(source, outer, inner, names)]


def _parts_inside(
    source: Any, inside: list[Any], outer: Indices, inner: Indices | None, where: str, path: tuple[Any, ...]
) -> list[_Part]:
    if isinstance(source, ConcatDataset) and inner is not None:
        part_of = np.searchsorted(source.cumulative_sizes, inner, side="right")
        starts = [0, *source.cumulative_sizes]
        return [
            each
            for number in np.unique(part_of).tolist()
            for of in [part_of == number]
            for each in _parts(source.datasets[number], outer[of], inner[of] - starts[number], where, path)
        ]
    if len(inside) == 1:
        known = _inner_indices(source, inside[0], inner, where)
        if known is not None:
            return _parts(inside[0], outer, known, where, path)
    parts = [part for each in inside for part in _parts(each, outer, None, where, path)]
    if any(part.names != parts[0].names for part in parts):
        raise DataError(
            f"{where}: {type(source).__name__} has several data sets inside, which name classes differently; give it"
            " `classes` of the labels that it returns"
        )
    return parts[:1]


def _inside(source: Any, path: tuple[Any, ...], where: str) -> list[Any]:
    """Return the data sets inside a wrapper: ``dataset``, or those among its attributes, also in lists."""
    inside = _attribute(source, "dataset", where)
    if _may_be_dataset(inside) and not any(inside is each for each in path):
        return [inside]
    values = list(getattr(source, "__dict__", {}).values())
    several = [each for value in values if isinstance(value, list | tuple) for each in value[:MOST_INSIDE]]
    inner = [value for value in (*values, *several) if isinstance(value, Dataset)]
    return [value for value in inner if not any(value is each for each in path)]


def _may_be_dataset(value: Any) -> bool:
    """Return True for a data set, also one that is no torch ``Dataset``, and False for arrays, lists and names."""
    package = type(value).__module__.partition(".")[0]
    sized = hasattr(value, "__getitem__") and hasattr(value, "__len__")
    return isinstance(value, Dataset) or (sized and package not in {"builtins", "numpy", "pandas", "torch"})


def _inner_indices(source: Any, inside: Any, inner: Indices | None, where: str) -> Indices | None:
    """Return the samples of the data set inside that ``inner`` of a wrapper are, None if that is not known."""
    if inner is None or not hasattr(inside, "__len__"):
        return None
    indices = _attribute(source, "indices", where)
    if not hasattr(indices, "__len__") or len(indices) != len(source):
        return inner if len(inside) == len(source) else None
    try:
        known = np.asarray(indices).astype(np.int64)[inner]
    except (TypeError, ValueError):  # no numbers: reading a sample will show what is wrong
        return None
    known = np.where(known < 0, known + len(inside), known)
    return known if ((known >= 0) & (known < len(inside))).all() else None


def _attribute(source: Any, name: str, where: str) -> Any:
    try:
        return getattr(source, name, None)
    except BaseException as error:  # a property of the site's own code
        raise describe_failure(DataError, f"{where}: {name} of its data set", error) from error


def _names(source: Any, where: str) -> Names | None:
    """Return the names of the classes, by label; None if the data set names none."""
    stated = {name: _listed(_attribute(source, name, where), name, where) for name in NAMES}
    joined: dict[int, dict[str, None]] = {}
    numbers: dict[str, tuple[str, set[int]]] = {}
    for attribute, names in stated.items():
        own: dict[str, set[int]] = {}
        for label, aliases in names.items():
            joined.setdefault(label, {}).update(dict.fromkeys(aliases))
            for alias in aliases:
                own.setdefault(alias, set()).add(label)
        for alias, labels in own.items():
            first, others = numbers.setdefault(alias, (attribute, labels))
            if labels.isdisjoint(others):
                raise DataError(
                    f"{where}: class {alias!r} has number {min(others)} by {first} and {min(labels)} by {attribute};"
                    " make both agree"
                )
    return {label: tuple(aliases) for label, aliases in joined.items()} or None


def _listed(value: Any, attribute: str, where: str) -> dict[int, tuple[str, ...]]:
    """Return the names in one attribute, by label; none for a count or a method."""
    if (
        value is None
        or isinstance(value, int | np.integer)
        or (callable(value) and not isinstance(value, type))
    ):
        return {}
    if isinstance(value, Mapping):
        by_name = attribute == "class_to_idx" or not any(map(_is_number, value))
        pairs = [(label, name) for name, label in value.items()] if by_name else list(value.items())
    elif isinstance(value, Iterable) and not isinstance(value, str | type | set | frozenset):
        pairs = list(enumerate(value))
    else:
        pairs = [(None, None)]
    names: dict[int, tuple[str, ...]] = {}
    for label, given in pairs:
        aliases = tuple(map(_name, given)) if isinstance(given, tuple | list) else (_name(given),)
        if not _is_number(label) or not aliases or None in aliases:
            raise DataError(
                f"{where}: {attribute} of its data set is no list of class names; name one for each label"
            )
        names[int(label)] = (*names.get(int(label), ()), *cast("tuple[str, ...]", aliases))
    return names


def _name(value: Any) -> str | None:
    return str(value) if isinstance(value, str) or _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _stated_labels(part: _Part, where: str) -> Labels | None:
    """Return the labels that a data set states for all its samples; None if it states none."""
    stated = None
    for attribute in FILES:
        files = _attribute(part.source, attribute, where)
        if (
            isinstance(files, list)
            and files
            and all(isinstance(each, tuple) and len(each) == 2 for each in files)
        ):
            stated = _whole(part.source, [label for _, label in files])
            if stated is not None:
                _check_folders(part, [file for file, _ in files], stated, where)
                break
    for attribute in LABELS:
        labels = _whole(part.source, _attribute(part.source, attribute, where))
        if labels is not None:
            return labels
    return stated


def _whole(source: Any, values: Any) -> Labels | None:
    """Return one label for each sample of ``source``, or None for other values."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if not isinstance(values, list | tuple | np.ndarray):
        return None
    try:
        if len(values) != len(source):
            return None
        array: NDArray[Any] = np.asarray(values)
    except (TypeError, ValueError):  # lists of different length, or a source without a length
        return None
    return array.astype(np.int64) if array.ndim == 1 and array.dtype.kind in "iu" else None


def _check_folders(part: _Part, files: list[Any], labels: Labels, where: str) -> None:
    """Raise :class:`DataError` for a file in the folder of another class than its label's."""
    names = cast("Names", part.names)
    every = {alias for aliases in names.values() for alias in aliases}
    root = str(_attribute(part.source, "root", where) or "")
    pairs = {(os.path.dirname(str(file)), label) for file, label in zip(files, labels.tolist(), strict=True)}
    for folder, label in sorted(pairs):
        named = every.intersection(PurePath(folder.removeprefix(root)).parts)
        if named and named.isdisjoint(names.get(label, ())):
            raise DataError(
                f"{where}: files in {folder} have label {label} ({' or '.join(names.get(label, ('no name',)))}), but"
                f" the folder is that of class {min(named)!r}; make classes, class_to_idx and samples agree"
            )
