"""Labels of a torch data set of the site's own, numbered by the class names that the data set has.

Class names (:mod:`secure_client.data.dataset_attributes`) are looked for in the data set itself and, where it has none,
in the data sets inside: those of ``ConcatDataset``, ``Subset``, and any other wrapper. Under a ``target_transform``
labels have no names, since it changes them.

A wrapper may return other labels than the data set inside. Its labels are compared with the labels that the data set
inside states in ``targets`` or returns. Where nothing says which sample is which, the wrapper is refused if the names
would change a number. Labels in ``targets`` must be the labels that the data set returns.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset

from secure_client.data.class_names import Names, join_names
from secure_client.data.dataset_attributes import (
    read_attribute,
    read_class_folders,
    read_labels,
    read_names,
)
from secure_client.data.samples import Indices, check_label
from secure_client.errors import DataError

INDEX_LISTS = ("indices", "idxs", "idx", "_indices")
KEEPS_LABELS = (Subset, ConcatDataset)
"""Wrappers that return the labels of the data sets inside. Their subclasses may not."""
MOST_INSIDE = 1000
"""Most data sets that are looked for in one list of a wrapper."""
UNKNOWN = -1
"""Label or index that is not known."""


class NumberedDataset:
    """A data set of the site's own, whose labels :func:`number_classes` numbers; ``where`` names it in errors."""

    def __init__(self, dataset: Dataset[Any], where: str) -> None:
        self.dataset = dataset
        self.where = where
        self.doubt = ""
        """Cause for which the names may not be those of the labels, if there is one."""
        self.folders = frozenset[tuple[str, int]]()
        """Folders of files whose labels have no names, with the label of each."""
        samples = np.arange(len(self))
        self.parts = find_parts(dataset, samples, samples, where)
        self.numberings: list[Mapping[int, int] | None] = [None] * len(self.parts)
        """Number of each label of a part, for each part; None for a part without names, whose labels stay."""
        self._part_of = np.zeros(len(self), np.int64)
        self._inner = np.full(len(self), UNKNOWN, np.int64)
        """Index of each sample in its part's data set."""
        self._stated = np.full(len(self), UNKNOWN, np.int64)
        """Label that the part's data set states for each sample, beside returning it."""
        for number, part in enumerate(self.parts):
            self._part_of[part.outer] = number
            if part.inner is not None:
                self._inner[part.outer] = part.inner
            self._read_statements(part)

    def __len__(self) -> int:
        return len(cast("Sized", self.dataset))

    def _read_statements(self, part: Part) -> None:
        """Note what the part's data set states of its labels, and whether its names can be trusted."""
        if part.names is None:
            # The folders of a wrapped data set count only if the wrapper seems to keep its labels.
            first = part.first_label_inside() if part.wrapper else None
            is_kept = first is not None and first == _return_label(self.dataset, int(part.outer[0]))
            if not part.wrapper or is_kept:
                self.folders |= read_class_folders(part.source, self.where)
            return
        labels = read_labels(part.source, part.names, self.where)
        if labels is not None and part.inner is not None:
            self._stated[part.outer] = labels[part.inner]
        elif part.wrapper and part.first_label_inside() is None:
            self.doubt = (
                f"{part.wrapper} may return the labels of the {type(part.source).__name__} inside, whose class"
                " names would change them, or agreed numbers already; give it `classes` of the labels that it"
                " returns"
            )

    def number(self, index: int, label: int, where: str) -> int:
        """Return the number of a sample's ``label``; raise :class:`DataError`, opened by ``where``, if it has none."""
        part_number = int(self._part_of[index])
        part, inner, stated = self.parts[part_number], int(self._inner[index]), int(self._stated[index])
        if stated == UNKNOWN and part.names and part.wrapper and not self.doubt:
            # The data set inside states no labels, so that the label that it returns is compared, and noted for
            # later epochs. A label that it does not return cannot be the wrapper's either.
            inside = _return_label(part.source, inner)
            agrees = inside == label
            self._stated[index] = UNKNOWN if inside is None else inside
        else:
            agrees = stated in (UNKNOWN, label)
        if not agrees and part.wrapper:
            raise DataError(
                f"{where}: has label {label}, which is not that of sample {inner} of the {type(part.source).__name__}"
                f" inside, whose class names would number it; give {part.wrapper} `classes` of the labels that it"
                " returns"
            )
        if not agrees:
            raise DataError(
                f"{where}: has label {label}, but its data set states {stated} (in targets, labels or"
                " samples): make both agree, or give the data set `classes` and `targets` of the labels that it returns"
            )
        return self._look_up(part_number, label, where)

    def _look_up(self, part_number: int, label: int, where: str) -> int:
        numbering = self.numberings[part_number]
        if numbering is None:
            return label
        if label in numbering:
            return numbering[label]
        if self.doubt:  # then the names change no number, and every label is an agreed number
            return label
        raise DataError(f"{where}: label {label} has no class name; name every class that has samples")

    def describe_file(self, index: int) -> str:
        """Return a sample's file in brackets, if the data set lists files as torchvision's folders do; else nothing."""
        inner = int(self._inner[index])
        if inner == UNKNOWN:
            return ""
        try:
            return f" ({os.fspath(self.parts[self._part_of[index]].source.samples[inner][0])})"
        except Exception:  # errors name the sample in any case
            return ""

    @property
    def subjects(self) -> Any:
        """Subjects of the data set, if it names any."""
        return read_attribute(self.dataset, "subjects", self.where)

    @property
    def has_unnamed_labels(self) -> bool:
        """True if the labels of some samples have no names."""
        return any(part.names is None for part in self.parts)

    @property
    def is_renumbered(self) -> bool:
        """True if a label that a part gives has another number here."""
        return any(
            label != number for numbering in self.numberings for label, number in (numbering or {}).items()
        )

    def occurring_labels(self) -> set[int] | None:
        """Return the labels that occur, without reading samples; None if the data set does not state them all."""
        if (self._stated == UNKNOWN).any():  # also in parts without names, whose labels count as not stated
            return None
        cells = np.unique(np.stack([self._part_of, self._stated]), axis=1).T.tolist()
        return {self._look_up(part_number, label, self.where) for part_number, label in cells}


def number_classes(datasets: Sequence[NumberedDataset], where: str) -> Names | None:
    """Give the data sets one numbering of their classes, and return the classes' names; None without any names.

    Labels of parts without names keep their numbers.
    """
    named = [part.names for dataset in datasets for part in dataset.parts if part.names]
    names, tables = join_names(named, where=where)
    remaining = iter(tables)
    for dataset in datasets:
        dataset.numberings = [next(remaining) if part.names else None for part in dataset.parts]
    return names or None


# Data sets inside wrappers


@dataclass(frozen=True)
class Part:
    """Samples of a whole data set whose labels one data set inside decides.

    The samples ``outer`` of the whole are the samples ``inner`` of ``source``, None if that is not known. ``wrapper``
    names the type of a wrapper around ``source`` that may change labels; it is empty if there is none.
    """

    source: Any
    outer: Indices
    inner: Indices | None
    names: Names | None
    wrapper: str = ""

    def first_label_inside(self) -> int | None:
        """Return the label that the data set inside gives the first sample; None if that cannot be read."""
        return None if self.inner is None else _return_label(self.source, int(self.inner[0]))


def find_parts(
    source: Any, outer: Indices, inner: Indices | None, where: str, wrappers: tuple[Any, ...] = ()
) -> list[Part]:
    """Return the data sets that decide the labels of the samples ``outer``, ``inner`` of ``source`` where known.

    ``wrappers`` are the data sets around ``source``, outermost first.
    """
    changing = next((type(outside).__name__ for outside in wrappers if type(outside) not in KEEPS_LABELS), "")
    # A target_transform may map labels to anything, as to agreed numbers already: names count for none of them.
    if read_attribute(source, "target_transform", where) is not None:
        return [Part(source, outer, inner, None, changing)]
    names = read_names(source, where)
    path = (*wrappers, source)
    # A Subset or ConcatDataset with names is searched too, because those inside must not contradict them.
    is_searched = names is None or type(source) in KEEPS_LABELS
    datasets = _find_inside(source, path, where) if is_searched else []
    if not datasets:
        return [Part(source, outer, inner, names, changing)]
    parts = _find_parts_inside(source, datasets, outer, inner, where, path)
    if names is None:
        return parts
    for label, aliases in (
        (label, aliases) for part in parts for label, aliases in (part.names or {}).items()
    ):
        if not set(aliases) & set(names.get(label, aliases)):
            raise DataError(
                f"{where}: class {label} is {names[label][0]!r} by the names of {type(source).__name__}, and"
                f" {aliases[0]!r} by those of the data set inside; remove the wrong names"
            )
    return [Part(source, outer, inner, names, changing)]


def _find_parts_inside(
    source: Any,
    datasets: list[Any],
    outer: Indices,
    inner: Indices | None,
    where: str,
    path: tuple[Any, ...],
) -> list[Part]:
    """Return the parts of a wrapper of ``datasets``: sample by sample where known, else of their common names."""
    if isinstance(source, ConcatDataset) and inner is not None:
        number_of = np.searchsorted(source.cumulative_sizes, inner, side="right")
        starts = [0, *source.cumulative_sizes]
        parts: list[Part] = []
        for number in np.unique(number_of).tolist():
            chosen = number_of == number
            inside = inner[chosen] - starts[number]
            parts += find_parts(source.datasets[number], outer[chosen], inside, where, path)
        return parts
    if len(datasets) == 1:
        inside_one = _indices_inside(source, datasets[0], inner, where)
        if inside_one is not None:
            return find_parts(datasets[0], outer, inside_one, where, path)
    # Which sample is which is not known. One part stands for all, if all data sets name the classes alike.
    parts = [part for dataset in datasets for part in find_parts(dataset, outer, None, where, path)]
    if any(part.names != parts[0].names for part in parts):
        raise DataError(
            f"{where}: {type(source).__name__} has several data sets inside, which name classes differently; give it"
            " `classes` of the labels that it returns"
        )
    return parts[:1]


def _find_inside(source: Any, path: tuple[Any, ...], where: str) -> list[Any]:
    """Return the data sets inside a wrapper: ``dataset``, or those among its attributes, also in lists and dicts.

    Data sets on the ``path`` to it are left out, since a data set inside may refer to its wrapper.
    """

    def is_new(value: Any) -> bool:
        return not any(value is outside for outside in path)

    dataset = read_attribute(source, "dataset", where)
    # A data set need not be torch's: another library's has a length and items.
    if is_new(dataset) and (
        isinstance(dataset, Dataset) or (_is_foreign(dataset) and hasattr(dataset, "__len__"))
    ):
        return [dataset]
    values = list(getattr(source, "__dict__", {}).values())
    for value in list(values):
        if isinstance(value, list | tuple | dict):
            values += islice(value.values() if isinstance(value, dict) else value, MOST_INSIDE)
    return [
        value
        for value in values
        if isinstance(value, Dataset) or (_is_foreign(value) and read_names(value, where) is not None)
        if is_new(value)
    ]


def _is_foreign(value: Any) -> bool:
    """Return True for an object with items that is no array, list or text: of another library, or the site's own."""
    package = type(value).__module__.partition(".")[0]
    return hasattr(value, "__getitem__") and package not in {"builtins", "numpy", "pandas", "torch"}


def _indices_inside(source: Any, inside: Any, inner: Indices | None, where: str) -> Indices | None:
    """Return the samples of the data set inside that ``inner`` of a wrapper are, None if that is not known."""
    if inner is None or not hasattr(inside, "__len__"):
        return None
    lists = (read_attribute(source, name, where) for name in INDEX_LISTS)
    indices = next(
        (values for values in lists if hasattr(values, "__len__") and len(values) == len(source)), None
    )
    if indices is None:
        return inner if len(inside) == len(source) else None
    try:
        places = np.asarray(indices).astype(np.int64)[inner]
    except (TypeError, ValueError):  # no numbers: reading a sample will show what is wrong
        return None
    places = np.where(places < 0, places + len(inside), places)
    return places if ((places >= 0) & (places < len(inside))).all() else None


def _return_label(dataset: Any, index: int) -> int | None:
    """Return the label that a data set gives a sample, or None if it gives no pair with a label."""
    try:
        _, label = dataset[index]
        return check_label(label, "")
    except Exception:  # the wrapper's error, or the comparison, says what is wrong
        return None
