"""Labels of a torch data set of the site's own, numbered by the class names that the data set has.

Attributes such as ``classes`` and ``class_to_idx`` (all in ``LISTS``), ``features`` of Hugging Face and ``info`` of
MedMNIST name classes, by order or by label. They are looked for in the data set itself and, where it has none, in the
data sets inside: those of ``ConcatDataset``, ``Subset``, and any other wrapper. Under a ``target_transform`` labels
have no names, since it changes them.

A wrapper may return other labels than the data set inside. Its labels are compared with the labels that the data set
inside states in ``targets`` or returns. Where nothing says which sample is which, the wrapper is refused if the names
would change a number.

What a data set states beside the names must not contradict them: its attributes each other, the folders of its
``samples``, and the labels in ``targets`` the labels that it gives. Limit: names that a data set has under no such
attribute are not seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from secure_client.data.class_names import LISTS, Names, join_names
from secure_client.data.samples import Indices, Labels, checked_label
from secure_client.errors import DataError
from secure_client.user_code import describe_failure

LABELS = ("targets", "labels", "_labels")
FILES = ("samples", "imgs", "_samples")
INDICES = ("indices", "idxs", "idx", "_indices")
KEEPS_LABELS = (Subset, ConcatDataset)
"""Wrappers that return the labels of the data sets inside. Their subclasses may not."""


@dataclass(frozen=True)
class _Part:
    """Samples ``outer`` of a whole data set, which are the samples ``inner`` of ``source``; None if not known.

    ``wrapper`` names the type of the wrapper around ``source`` that may change labels; empty if there is none.
    """

    source: Any
    outer: Indices
    inner: Indices | None
    names: Names | None
    wrapper: str = ""

    @property
    def labels_are_readable(self) -> bool:
        """True if the data set inside a wrapper gives a label for the first sample."""
        return self.inner is not None and _label_inside(self.source, int(self.inner[0])) is not None


class NumberedDataset:
    """A data set of the site's own, whose labels :func:`number_alike` numbers; ``where`` names it in errors."""

    def __init__(self, unnumbered: Dataset[Any], where: str) -> None:
        self.unnumbered, self.where = unnumbered, where
        samples = np.arange(len(self))
        self.parts = _parts(unnumbered, samples, samples, where)
        self.tables: list[Mapping[int, int] | None] = [None] * len(self.parts)
        self._part_of = np.zeros(len(self), np.int64)
        self._inner = np.full(len(self), -1, np.int64)
        """Index of each sample in its part's data set; -1 where it is not known."""
        self._stated = np.full(len(self), -1, np.int64)
        """Label that the data set states beside its names; -1 where it states none."""
        self.doubt = ""
        """Cause for which the names may not be those of the labels, if there is one."""
        self.folders = frozenset[tuple[str, int]]()
        """Folders of files whose labels have no names, with the label of each."""
        for number, part in enumerate(self.parts):
            self._part_of[part.outer] = number
            if part.inner is not None:
                self._inner[part.outer] = part.inner
            if part.names is None:
                if not part.wrapper or self._first_is_as_inside(part):
                    self.folders |= _class_folders(part.source, where)
                continue
            labels = _stated_labels(part, where)
            if labels is not None and part.inner is not None:
                self._stated[part.outer] = labels[part.inner]
            elif part.wrapper and not part.labels_are_readable:
                self.doubt = (
                    f"{part.wrapper} may return the labels of the {type(part.source).__name__} inside, whose class"
                    " names would change them, or agreed numbers already; give it `classes` of the labels that it"
                    " returns"
                )

    def __len__(self) -> int:
        return len(cast("Sized", self.unnumbered))

    def number(self, index: int, label: int, where: str) -> int:
        """Return the number of a sample's ``label``; raise :class:`DataError`, opened by ``where``, if it has none."""
        part, inner = self.parts[self._part_of[index]], int(self._inner[index])
        if part.names and part.wrapper and not self.doubt and self._stated[index] < 0:
            inside = _label_inside(part.source, inner)
            self._stated[index] = -1 if inside is None else inside
            unlike = inside != label
        else:
            unlike = self._stated[index] not in (-1, label)
        if unlike and part.wrapper:
            raise DataError(
                f"{where}: has label {label}, which is not that of sample {inner} of the {type(part.source).__name__}"
                f" inside, whose class names would number it; give {part.wrapper} `classes` of the labels that it"
                " returns"
            )
        if unlike:
            raise DataError(
                f"{where}: has label {label}, but its data set states {self._stated[index]} (in targets, labels or"
                " samples): make both agree, or give the data set `classes` and `targets` of the labels that it returns"
            )
        return self._numbered(int(self._part_of[index]), label, where)

    def file_of(self, index: int) -> str:
        """Return a sample's file in brackets, if the data set lists files as torchvision's folders do; else nothing."""
        source, inner = self.parts[self._part_of[index]].source, int(self._inner[index])
        if inner < 0:
            return ""
        try:
            return f" ({os.fspath(source.samples[inner][0])})"
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

    def _first_is_as_inside(self, part: _Part) -> bool:
        """Return True if a wrapper gives the first sample the label that the data set inside gives it."""
        if part.inner is None:
            return False
        inside = _label_inside(part.source, int(part.inner[0]))
        return inside is not None and inside == _label_inside(self.unnumbered, int(part.outer[0]))

    def _numbered(self, part: int, label: int, where: str) -> int:
        table = self.tables[part]
        if table is None or (
            self.doubt and label not in table
        ):  # with a doubt, every label is an agreed number
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
    wrapper = next((type(each).__name__ for each in above if type(each) not in KEEPS_LABELS), "")
    if _attribute(source, "target_transform", where) is not None:
        return [_Part(source, outer, inner, None, wrapper)]
    names = _names(source, where)
    path = (*above, source)
    inside = _inside(source, path, where) if names is None or type(source) in KEEPS_LABELS else []
    if not inside:
        return [_Part(source, outer, inner, names, wrapper)]
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
    return [_Part(source, outer, inner, names, wrapper)]


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
    """Return the data sets inside a wrapper: ``dataset``, or those among its attributes, also in lists and dicts."""
    inside = _attribute(source, "dataset", where)
    if _may_be_dataset(inside) and not any(inside is each for each in path):
        return [inside]
    values = list(getattr(source, "__dict__", {}).values())
    several = [
        each
        for value in values
        if isinstance(value, list | tuple | dict)
        for each in islice(value.values() if isinstance(value, dict) else value, MOST_INSIDE)
    ]
    inner = [value for value in (*values, *several) if isinstance(value, Dataset) or _has_names(value, where)]
    return [value for value in inner if not any(value is each for each in path)]


def _has_names(value: Any, where: str) -> bool:
    """Return True for samples of another library or of the site's own that name their classes."""
    return _is_foreign(value) and _names(value, where) is not None


def _may_be_dataset(value: Any) -> bool:
    """Return True for a data set, also one that is no torch ``Dataset``, and False for arrays, lists and names."""
    return isinstance(value, Dataset) or (_is_foreign(value) and hasattr(value, "__len__"))


def _is_foreign(value: Any) -> bool:
    package = type(value).__module__.partition(".")[0]
    return hasattr(value, "__getitem__") and package not in {"builtins", "numpy", "pandas", "torch"}


def _inner_indices(source: Any, inside: Any, inner: Indices | None, where: str) -> Indices | None:
    """Return the samples of the data set inside that ``inner`` of a wrapper are, None if that is not known."""
    if inner is None or not hasattr(inside, "__len__"):
        return None
    lists = (_attribute(source, name, where) for name in INDICES)
    indices = next((each for each in lists if hasattr(each, "__len__") and len(each) == len(source)), None)
    if indices is None:
        return inner if len(inside) == len(source) else None
    try:
        known = np.asarray(indices).astype(np.int64)[inner]
    except (TypeError, ValueError):  # no numbers: reading a sample will show what is wrong
        return None
    known = np.where(known < 0, known + len(inside), known)
    return known if ((known >= 0) & (known < len(inside))).all() else None


def _label_inside(source: Any, index: int) -> int | None:
    """Return the label that a data set inside a wrapper gives, or None if it gives no pair with a label."""
    try:
        _, label = source[index]
        return checked_label(label, "")
    except Exception:  # the wrapper's error, or the comparison, says what is wrong
        return None


def _attribute(source: Any, name: str, where: str) -> Any:
    try:
        return getattr(source, name, None)
    except BaseException as error:  # a property of the site's own code
        raise describe_failure(DataError, f"{where}: {name} of its data set", error) from error


def _names(source: Any, where: str) -> Names | None:
    """Return the names of the classes, by label; None if the data set names none."""
    stated = {name: _listed(_attribute(source, name, where), name, where) for name in LISTS}
    for column in ("label", "labels"):  # Hugging Face's features, MedMNIST's info
        for attribute in ("features", "info"):
            columns = _attribute(source, attribute, where)
            given = columns.get(column) if isinstance(columns, Mapping) else None
            listed = _attribute(given, "names", where) if attribute == "features" else given
            stated[f"{attribute}[{column!r}]"] = _listed(listed, attribute, where)
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
        if attribute in {"info", "id2label"}:  # as JSON has them, with numbers as text
            value = {int(key) if str(key).isdecimal() else key: name for key, name in value.items()}
        by_name = attribute in {"class_to_idx", "label2id"} or not any(map(_is_number, value))
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
                f"{where}: {attribute} of its data set is no list of class names; name one for each label, or"
                " give the attribute another name"
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
    listed = _files(part.source, where)
    if listed is not None:
        files, stated = listed
        _check_folders(part, files, stated, where)
    for attribute in LABELS:
        labels = _whole(part.source, _attribute(part.source, attribute, where))
        if labels is not None:
            return labels
    return stated


def _files(source: Any, where: str) -> tuple[list[str], Labels] | None:
    """Return the folder and the label of each sample, where a data set lists them as torchvision's do."""
    for attribute in FILES:
        files = _attribute(source, attribute, where)
        if (
            isinstance(files, list)
            and files
            and all(isinstance(each, tuple) and len(each) == 2 for each in files)
        ):
            labels = _whole(source, [label for _, label in files])
            if labels is not None:
                return [os.path.dirname(str(file)) for file, _ in files], labels
    return None


def _class_folders(source: Any, where: str) -> frozenset[tuple[str, int]]:
    """Return the folders of files, below the one that they share, with the label of each; none if one has several."""
    listed = _files(source, where)
    if listed is None or _attribute(source, "target_transform", where) is not None:
        return frozenset()
    pairs = set(zip(listed[0], listed[1].tolist(), strict=True))
    folders = {folder for folder, _ in pairs}
    if len(folders) < len(pairs):
        return frozenset()
    shared = os.path.commonpath(folders) if len(folders) > 1 else os.path.dirname(folders.copy().pop())
    return frozenset((os.path.relpath(folder, shared or "."), label) for folder, label in pairs)


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


def _check_folders(part: _Part, folders: list[str], labels: Labels, where: str) -> None:
    """Raise :class:`DataError` for a file in the folder of another class than its label's."""
    names = cast("Names", part.names)
    every = {alias for aliases in names.values() for alias in aliases}
    root = str(_attribute(part.source, "root", where) or "")
    for folder, label in sorted(set(zip(folders, labels.tolist(), strict=True))):
        named = every.intersection(PurePath(folder.removeprefix(root)).parts)
        if named and named.isdisjoint(names.get(label, ())):
            raise DataError(
                f"{where}: files in {folder} have label {label} ({' or '.join(names.get(label, ('no name',)))}), but"
                f" the folder is that of class {min(named)!r}; make classes, class_to_idx and samples agree"
            )
