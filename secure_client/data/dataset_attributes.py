"""Class names and labels that a torch data set of the site's own states in its attributes.

Class names are in ``classes``, ``class_to_idx`` and the other attributes of :data:`NAME_LISTS`, in Hugging Face's
``features`` and in MedMNIST's ``info``, by order or by label. Labels of all samples are in ``targets``, and in
torchvision's lists of files. An attribute may be a property of the site's own code, which can raise anything.

Statements must not contradict each other: two attributes that number one class, and a file in the folder of a class
that is not its label's. Limit: names that a data set has under no such attribute are not seen.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from secure_client.data.class_names import NAME_LISTS, Names
from secure_client.data.samples import Labels
from secure_client.errors import DataError
from secure_client.user_code import describe_failure

LABEL_LISTS = ("targets", "labels", "_labels")
FILE_LISTS = ("samples", "imgs", "_samples")


def read_attribute(source: Any, name: str, where: str) -> Any:
    """Return an attribute of a data set, or None; raise :class:`DataError` if reading it raises."""
    try:
        return getattr(source, name, None)
    except BaseException as error:
        raise describe_failure(DataError, f"{where}: {name} of its data set", error) from error


def read_names(source: Any, where: str) -> Names | None:
    """Return the names of a data set's classes, by label; None if it names none.

    Names of one label from several attributes are joined. Raises :class:`DataError` for an attribute that lists no
    names, and for two attributes that give a class different labels.
    """
    lists = {name: _parse_names(read_attribute(source, name, where), name, where) for name in NAME_LISTS}
    for column in ("label", "labels"):
        feature = _read_column(source, "features", column, where)  # of Hugging Face
        names = read_attribute(feature, "names", where)
        lists[f"features[{column!r}]"] = _parse_names(names, "features", where)
        names = _read_column(source, "info", column, where)  # of MedMNIST
        lists[f"info[{column!r}]"] = _parse_names(names, "info", where)
    _check_same_labels(lists, where)
    joined: dict[int, dict[str, None]] = {}  # dicts of names keep their order
    for listed in lists.values():
        for label, aliases in listed.items():
            joined.setdefault(label, {}).update(dict.fromkeys(aliases))
    return {label: tuple(aliases) for label, aliases in joined.items()} or None


def _read_column(source: Any, attribute: str, column: str, where: str) -> Any:
    columns = read_attribute(source, attribute, where)
    return columns.get(column) if isinstance(columns, Mapping) else None


def _parse_names(value: Any, attribute: str, where: str) -> dict[int, tuple[str, ...]]:
    """Return the names in one attribute, by label; none for a count of classes or a method."""
    is_count = isinstance(value, int | np.integer)
    is_method = callable(value) and not isinstance(value, type)
    if value is None or is_count or is_method:
        return {}
    names: dict[int, tuple[str, ...]] = {}
    for label, listed in _pair_with_labels(value, attribute):
        aliases = listed if isinstance(listed, tuple | list) else (listed,)
        are_names = bool(aliases) and all(isinstance(alias, str) or _is_number(alias) for alias in aliases)
        if not _is_number(label) or not are_names:
            raise DataError(
                f"{where}: {attribute} of its data set is no list of class names; name one for each label, or"
                " give the attribute another name"
            )
        names[int(label)] = (*names.get(int(label), ()), *map(str, aliases))
    return names


def _pair_with_labels(value: Any, attribute: str) -> list[tuple[Any, Any]]:
    """Return pairs (label, name) that are not checked yet; for a value that lists nothing a pair of None."""
    if isinstance(value, Mapping):
        if attribute in {"info", "id2label"}:  # JSON writes labels as text
            value = {int(key) if str(key).isdecimal() else key: name for key, name in value.items()}
        if attribute in {"class_to_idx", "label2id"} or not any(map(_is_number, value)):
            return [(label, name) for name, label in value.items()]
        return list(value.items())
    if isinstance(value, Iterable) and not isinstance(value, str | type | set | frozenset):
        return list(enumerate(value))
    return [(None, None)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _check_same_labels(lists: Mapping[str, Mapping[int, tuple[str, ...]]], where: str) -> None:
    """Raise :class:`DataError` for a class to which two attributes give no common label."""
    # Neither attribute can be preferred: a wrong one would renumber every label without an error.
    first: dict[str, tuple[str, set[int]]] = {}
    for attribute, names in lists.items():
        labels_by_name: dict[str, set[int]] = {}
        for label, aliases in names.items():
            for alias in aliases:
                labels_by_name.setdefault(alias, set()).add(label)
        for alias, labels in labels_by_name.items():
            first_attribute, first_labels = first.setdefault(alias, (attribute, labels))
            if labels.isdisjoint(first_labels):
                raise DataError(
                    f"{where}: class {alias!r} has number {min(first_labels)} by {first_attribute} and {min(labels)} by"
                    f" {attribute}; make both agree"
                )


def read_labels(source: Any, names: Names, where: str) -> Labels | None:
    """Return the labels that a data set states for all its samples; None if it states none.

    Raises :class:`DataError` for a listed file in the folder of another class than its label's by ``names``.
    """
    files = _read_files(source, where)
    if files is not None:
        _check_folders(files, str(read_attribute(source, "root", where) or ""), names, where)
    for attribute in LABEL_LISTS:
        labels = _one_for_each_sample(source, read_attribute(source, attribute, where))
        if labels is not None:
            return labels
    return None if files is None else np.array([label for _, label in files], np.int64)


def read_class_folders(source: Any, where: str) -> frozenset[tuple[str, int]]:
    """Return the folders of files, below the one that they share, with the label of each; none if one has several."""
    files = _read_files(source, where)
    # A target_transform changes labels, so that those in the list of files are not those that training reads.
    if files is None or read_attribute(source, "target_transform", where) is not None:
        return frozenset()
    pairs = set(files)
    folders = {folder for folder, _ in pairs}
    if len(folders) < len(pairs):
        return frozenset()
    shared = os.path.commonpath(folders) if len(folders) > 1 else os.path.dirname(next(iter(folders)))
    return frozenset((os.path.relpath(folder, shared or "."), label) for folder, label in pairs)


def _read_files(source: Any, where: str) -> list[tuple[str, int]] | None:
    """Return the folder and label of each sample's file, for a data set that lists files as torchvision's do."""
    for attribute in FILE_LISTS:
        files = read_attribute(source, attribute, where)
        if not isinstance(files, list) or not files:
            continue
        if all(isinstance(file, tuple) and len(file) == 2 for file in files):
            labels = _one_for_each_sample(source, [label for _, label in files])
            if labels is not None:
                folders = [os.path.dirname(str(path)) for path, _ in files]
                return list(zip(folders, labels.tolist(), strict=True))
    return None


def _one_for_each_sample(source: Any, values: Any) -> Labels | None:
    """Return the values as labels if they are a whole number for each sample of ``source``; else None."""
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


def _check_folders(files: list[tuple[str, int]], root: str, names: Names, where: str) -> None:
    all_names = {alias for aliases in names.values() for alias in aliases}
    for folder, label in sorted(set(files)):
        named = all_names.intersection(PurePath(folder.removeprefix(root)).parts)
        if named and named.isdisjoint(names.get(label, ())):
            raise DataError(
                f"{where}: files in {folder} have label {label} ({' or '.join(names.get(label, ('no name',)))}), but"
                f" the folder is that of class {min(named)!r}; make classes, class_to_idx and samples agree"
            )
