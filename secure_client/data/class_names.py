"""Class names of a data set, which decide the agreed number of every label.

A data set numbers classes by itself: torchvision's ``ImageFolder`` in the order of the folders that one site has, for
example. Where a data set names its classes, the names are compared with the agreed classes, letter by letter, and
labels are renumbered. ``class_names`` in a site's or a simulation's file maps names of the data set to agreed classes.

Limit: labels without names are taken as agreed numbers. Only the counts of ``client check``, and folders of files that
a data set lists, show an error.
"""

from __future__ import annotations

import json
import logging
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agreement.toml_loading import nearest
from secure_client.data.samples import Labels
from secure_client.errors import DataError

_log = logging.getLogger("protoseal.site")
Names = Mapping[int, tuple[str, ...]]
"""Names of the classes, by number in the data set; a class may have several names, as those of ImageNet have."""
UNNAMED = "labels are numbers without class names, taken as the agreed numbers"
MIXED = (
    "its class names renumber labels, but some samples have labels without names, for which the old or the new numbers"
    " can be meant; give every part (training, test, the parts of a ConcatDataset) `classes`, or none of them"
)
MOST_SHOWN = 3
"""Most names in one error."""
NAME_LISTS = (
    "classes",
    "class_names",
    "idx_to_class",
    "class_to_idx",
    "label_names",
    "target_names",
    "categories",
    "id2label",
    "label2id",
)
"""Names under which data sets and files list their classes."""


@dataclass(frozen=True)
class AgreedLabels:
    """Agreed number of every label of a data set. Make it with :func:`agree_on_labels`.

    ``names`` is empty for labels without names, which are the agreed numbers already; ``numbers`` then holds them all.
    """

    classes: tuple[str, ...]
    names: Names
    numbers: Mapping[int, int]

    def number(self, label: int, where: str) -> int:
        """Return the agreed number of ``label``; raise :class:`DataError`, opened by ``where``, if it has none."""
        number = self.numbers.get(label)
        if number is not None:
            return number
        if label in self.names:
            raise DataError(f"{where}: {_describe_unmatched(self.names[label], self.classes)}; {_REMEDY}")
        if self.names:
            raise DataError(f"{where}: label {label} has no class name; name every class that has samples")
        raise DataError(
            f"{where}: has label {label}, but the {len(self.classes)} agreed classes are numbered 0 to"
            f" {len(self.classes) - 1}; number the labels so, or map the numbers to agreed classes by class_names"
        )

    def number_all(self, labels: Labels, where: str) -> Labels:
        """Return the agreed number of each label; raise :class:`DataError` as :meth:`number` does."""
        occurring, places = np.unique(labels, return_inverse=True)
        numbers = [self.number(int(label), where) for label in occurring]
        return np.array(numbers, dtype=np.int64)[places]

    @property
    def in_words(self) -> str:
        """Description of the labels for the site."""
        if not self.names:
            return UNNAMED
        moved = [
            f"{label} ({self.names[label][0]!r}) becomes {number} ({self.classes[number]!r})"
            for label, number in self.numbers.items()
            if label != number
        ]
        if not moved:
            return "labels are numbered as agreed, by their class names"
        return f"labels are renumbered by their class names: {', '.join(moved)}"


_REMEDY = "rename the class, or map it to an agreed class by class_names in the site's or simulation's file"


def agree_on_labels(
    names: Names | None,
    occurring: Iterable[int] | None,
    classes: tuple[str, ...],
    class_names: Mapping[str, str],
    *,
    where: str,
    doubt: str = "",
    folders: Collection[tuple[str, int]] = (),
) -> AgreedLabels:
    """Match the names of a data set's classes with the agreed classes.

    ``names`` is None for labels without names: the keys of ``class_names`` that are numbers then map their numbers.
    ``occurring`` are the labels that have samples, or None if that is not known before the samples are read. Classes
    that do not occur need not be agreed. ``doubt`` says why the names may not be those of all labels; labels then have
    to be numbered as agreed. ``folders`` are those of files whose labels have no names, with the label of each. Raises
    :class:`DataError` if a class that occurs has no agreed name, if its names belong to several agreed classes, if two
    classes have one agreed name that ``class_names`` does not give them both, or if the folder of a file is that of
    another class.
    """
    if names is None:
        names = {int(key): (key,) for key in class_names if key.isdecimal()}
        if not names:
            unnamed = AgreedLabels(classes, {}, {number: number for number in range(len(classes))})
            _check_folders(folders, unnamed, where)
            return unnamed
    present = names.keys() if occurring is None else set(occurring)
    numbers = _match_names(names, present, classes, class_names, where)
    agreed = AgreedLabels(classes, names, numbers)
    _check_distinct(agreed, present, class_names, where)
    if not numbers and names and doubt in ("", MIXED):
        # Names that are all unlike the agreed ones may be another spelling of the same classes. The user confirms it.
        raise DataError(f"{where}: {_propose_pairs(names, classes)}")
    if doubt:
        # Names that move no label are right whether or not they are those of all labels.
        if not numbers or any(label != number for label, number in numbers.items()):
            raise DataError(f"{where}: {doubt}")
        numbers |= {number: number for number in range(len(classes)) if number not in names}
    _check_folders(folders, agreed, where)
    if occurring is not None:
        for label in sorted(present):
            agreed.number(label, where)
    return agreed


def _match_names(
    names: Names,
    present: Collection[int],
    classes: tuple[str, ...],
    class_names: Mapping[str, str],
    where: str,
) -> dict[int, int]:
    """Return the agreed number of each label whose class has an agreed name; what the user maps goes first."""
    numbers: dict[int, int] = {}
    for label, aliases in names.items():
        mapped = {class_names[alias] for alias in aliases if alias in class_names}
        matching = mapped or {alias for alias in aliases if alias in classes}
        if not mapped:
            for key in class_names:  # a key that differs in capitals or spaces alone would be ignored
                if _fold(key) in map(_fold, aliases):
                    raise DataError(
                        f"{where}: class_names has the key {key!a}, but the class is {aliases[0]!a}"
                    )
        # A class with several names, as ImageNet's, is ambiguous only if samples of it have to be numbered.
        if len(matching) > 1 and label in present:
            raise DataError(
                f"{where}: class {label} has the names of several agreed classes: {_quote(matching)}"
            )
        if len(matching) == 1:
            numbers[label] = classes.index(matching.pop())
    return numbers


def check_keys(class_names: Mapping[str, str], names: Collection[Names | None], where: str) -> None:
    """Raise :class:`DataError` for a key of ``class_names`` that is likely to be a mistyped class of the data.

    ``names`` are those of the data sets; None stands for labels without names, whose keys are numbers. A key of a class
    that the site lacks is logged: sites may share one map. It is refused where it is near a class of the data that has
    no key, or where the data have no names.
    """
    of_data = {alias for named in names if named for aliases in named.values() for alias in aliases}
    without_key = of_data - set(class_names)
    for key in class_names:
        if key in of_data or (None in names and key.isdecimal()):
            continue
        # Sites share one map, so that a key may belong to another site's classes; a near miss rarely does.
        mistyped = get_close_matches(_fold(key), map(_fold, without_key), n=1)
        if mistyped or not of_data or class_names[key] in of_data:
            lack = (
                _hint_nearest(key, of_data)
                if of_data
                else ", since labels have no names: write their numbers as keys"
            )
            raise DataError(f"{where}: class_names has the key {key!a}, which is no class of the data{lack}")
        _log.info("%s: class_names has the key %a, of which there is no sample", where, key)


def _check_folders(folders: Collection[tuple[str, int]], agreed: AgreedLabels, where: str) -> None:
    """Raise :class:`DataError` where every folder names an agreed class, and one has labels of another class."""
    # Labels without names are taken as agreed numbers: folders that are called by classes can contradict them.
    named = {folder: set(agreed.classes).intersection(PurePath(folder).parts) for folder, _ in folders}
    if not all(named.values()):  # these folders are not the classes
        return
    for folder, label in sorted(folders):
        number = agreed.numbers.get(label)
        if number is None or agreed.classes[number] not in named[folder]:
            raise DataError(
                f"{where}: files in the folder {folder} have label {label}, which is not the agreed number of"
                f" {_quote(sorted(named[folder]))}; give the data set `classes` of the labels that it returns"
            )


def log_labels(labels: Iterable[tuple[str, AgreedLabels]]) -> tuple[str, ...]:
    """Return how the labels of data sets, by name, were numbered, without repetition, and log new numbers."""
    notes: dict[str, None] = {}
    for where, agreed in labels:
        if agreed.names and any(label != number for label, number in agreed.numbers.items()):
            _log.info("%s: %s", where, agreed.in_words)
        notes[agreed.in_words] = None
    return tuple(notes)


def warn_of_own_numbers(notes: Collection[str], counts: NDArray[Any]) -> list[str]:
    """Return a warning if labels without names may be numbered otherwise than agreed, by samples for each class.

    A site that numbers only its own classes, or that counts from 1, has classes without samples at one end alone.
    """
    present = np.flatnonzero(counts)
    first, last = int(present[0]), int(present[-1])
    has_gaps = last - first + 1 > len(present)
    has_all_classes = len(present) == len(counts)
    if UNNAMED not in notes or has_all_classes or has_gaps or first > 1:
        return []
    cause = "counts labels from 1" if first else "numbers only the classes that it has"
    return [f"WARNING: the labels are {first} to {last} without gaps, as those of a site that {cause}"]


def join_names(names: Sequence[Names], *, where: str) -> tuple[Names, list[dict[int, int]]]:
    """Return one numbering, from 0, of the classes of several data sets, and for each its labels in that numbering.

    Classes of two data sets with a common name are the same class. Raises :class:`DataError` for a class whose names
    another data set gives to several classes.
    """
    joined: list[dict[str, None]] = []  # names of each class so far; dicts keep the order of names
    tables: list[dict[int, int]] = []
    for names_of_part in names:
        classes_before = len(joined)
        table: dict[int, int] = {}
        for label, aliases in sorted(names_of_part.items()):
            same = [
                number for number in range(classes_before) if not joined[number].keys().isdisjoint(aliases)
            ]
            if len(same) > 1:
                raise DataError(
                    f"{where}: class {_quote(aliases)} of one part is several classes of another part"
                )
            if same and same[0] not in table.values():
                number = same[0]
            else:  # a new class; so is a name's second class in one data set, which is refused where it occurs
                number = len(joined)
                joined.append({})
            joined[number] |= dict.fromkeys(aliases)
            table[label] = number
        tables.append(table)
    return {number: tuple(aliases) for number, aliases in enumerate(joined)}, tables


def _check_distinct(
    agreed: AgreedLabels, present: Iterable[int], class_names: Mapping[str, str], where: str
) -> None:
    """Raise :class:`DataError` for two classes that have one agreed name, unless ``class_names`` gives it to both."""
    first: dict[int, int] = {}
    for label in sorted(present):
        # Two classes of the data may be one agreed class, but only where the user says so.
        if label not in agreed.numbers or any(alias in class_names for alias in agreed.names[label]):
            continue
        number = agreed.numbers[label]
        if number in first:
            raise DataError(
                f"{where}: classes {first[number]} and {label} are both named {agreed.classes[number]!r}; give the"
                " classes different names"
            )
        first[number] = label


def _propose_pairs(names: Names, classes: tuple[str, ...]) -> str:
    """Return the error for names of which none is agreed, with the likely pairs for the user to confirm.

    Pairs are by common words, or else by spelling and then by number, and are proposed only if they are one to one.
    """
    by_spelling = {_fold(agreed): agreed for agreed in classes}
    ordered = [aliases[0] for _, aliases in sorted(names.items())]
    by_words = {name: [agreed for agreed in classes if _share_words(name, agreed)] for name in ordered}
    if all(len(agreed) == 1 for agreed in by_words.values()):
        pairs = {name: agreed for name, (agreed,) in by_words.items()}
    elif ordered == sorted(ordered):
        pairs = {}  # names in alphabetical order were numbered by the alphabet, and number tells nothing
    else:
        numbered = zip(ordered, classes, strict=False)
        pairs = {name: by_spelling.get(_fold(name), agreed) for name, agreed in numbered}
    if len(names) != len(classes) or len(set(pairs.values())) != len(classes):
        named = (_describe_unmatched(aliases, classes) for aliases in list(names.values())[:MOST_SHOWN])
        return f"{len(names)} classes, none of them agreed: {'; '.join(named)}; {_REMEDY}"
    listed = ", ".join(f"{_quote_toml(name)} = {_quote_toml(agreed)}" for name, agreed in pairs.items())
    return (
        "none of its class names is agreed. By spelling, or else by number, the pairs are as follows; if every pair is"
        " right, write this line at the top of the site's or simulation's file:"
        f" class_names = {{ {listed} }}"
    )


def _share_words(name: str, other: str) -> bool:
    """Return True if all words of one name are words of the other one, as in "0 - zero" and "0"."""
    words, others = (
        set(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())) for text in (name, other)
    )
    return bool(words and others) and (words <= others or others <= words)


def _quote_toml(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _describe_unmatched(aliases: tuple[str, ...], classes: tuple[str, ...]) -> str:
    return f"class {_quote(aliases)} is not an agreed class{_hint_nearest(aliases[0], classes)}"


def _quote(names: Iterable[str]) -> str:
    return " or ".join(repr(name) for name in names)


def _hint_nearest(name: str, others: Iterable[str]) -> str:
    others = list(others)
    for other in others:
        if _fold(other) == _fold(name):
            return f"; {name!a} and {other!a} differ only in capitals, spaces, hyphens or the form of Unicode"
    return nearest(name, others)


def _fold(name: str) -> str:
    """Return the name without capitals, blanks, hyphens and forms of Unicode, by which mistyped names are compared."""
    return re.sub(r"[\s_-]", "", unicodedata.normalize("NFKC", name).casefold())
