"""Reader of tables: rows of a site's CSV file become features as the agreement's ``[table]`` says.

A value that is no number, a category that is not agreed, a missing value without an agreed rule, and a label without a
class are refused with file, line and column: nothing is guessed, cut or rounded. Features are not yet scaled
(:mod:`secure_client.data.table_scale`), because a scale may be that of a site's training rows.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agreement import TableColumn, TableSection
from agreement.toml_loading import nearest
from secure_client.data.samples import Labels, Samples, StoredData, Subjects
from secure_client.data.table_text import TableText, normalise_text, read_text_table
from secure_client.errors import DataError
from secure_client.table_format import TableFormat

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_CODE = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]+)?")
"""A number that may also be written with a point: codes with leading zeros are texts."""
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}([,.'\u2019 \u00a0\u202f][0-9]{3})+([.,][0-9]+)?")
_UNCLEAR = (
    "is an agreed name that other values are mapped to, and can be a code of the site: state it, too, in"
)
_LARGEST = float(np.finfo(np.float32).max)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Table:
    """Rows of a file. ``values`` (N, columns): numbers, or indices of categories; NaN where missing.

    ``lines`` has each row's line in the file, ``labels`` each row's class; None where the file was read without labels.
    """

    where: str
    agreed: TableSection
    lines: tuple[int, ...]
    values: Floats
    labels: tuple[str, ...] | None
    subjects: Subjects | None

    @property
    def has_required_values(self) -> Bools:
        """True for each row (N,) that is not left out for a missing value."""
        leaving = np.array([column.missing == "leave out" for column in self.agreed.columns])
        return np.asarray(~np.isnan(self.values[:, leaving]).any(axis=1))

    def features(self) -> Floats:
        """Return the features before scaling, (N, F), of the rows that are not left out."""
        values = self.values[self.has_required_values]
        parts = [_encode_features(column, values[:, i]) for i, column in enumerate(self.agreed.columns)]
        return np.concatenate(parts, axis=1)


def read_table(path: Path, agreed: TableSection, written: TableFormat, classes: Sequence[str]) -> StoredData:
    """Return the labelled rows of a file, and of the test file that ``written`` names.

    Inputs are features before scaling, float64 (N, F), in the order of the file. Raises :class:`DataError`.
    """
    parts = [parse_table(path, agreed, written, classes)]
    if written.test is not None:
        if written.test.resolve() == path.resolve():
            raise DataError(f"{path}: is also the test file in [table]: training rows would be tested on")
        parts.append(parse_table(written.test, agreed, written, classes))
        _check_no_common_subject(*parts)
        _check_not_training_rows(*parts)
    train, *test = [_make_samples(part, classes) for part in parts]
    return StoredData(str(path), train, test[0] if test else None, tuple(classes), (path.stem,))


def parse_table(
    path: Path,
    agreed: TableSection,
    written: TableFormat,
    classes: Sequence[str],
    *,
    labelled: bool = True,
) -> Table:
    """Read a file's rows; without ``labelled`` labels are optional, and no subjects are read.

    Raises :class:`DataError`.
    """
    _check_format(agreed, written, classes, str(path))
    names = [column.name for column in agreed.columns]
    if labelled:
        others = [name for name in (written.label, written.subject) if name is not None]
        text = read_text_table(path, written, [*names, *others])
    else:
        text = read_text_table(path, written, names, optional=[written.label])
    columns = [_read_column(column, text, written) for column in agreed.columns]
    place = text.positions.get(written.label)
    # Exports of new patients often have the label's column, and nothing in it.
    unlabelled = place is None or (
        not labelled and {values[place] for _, values in text.rows} <= {*written.missing, ""}
    )
    labels = None if unlabelled else tuple(_read_labels(text, written, classes))
    subjects = _read_subjects(text, written) if labelled and written.subject is not None else None
    lines = tuple(line for line, _ in text.rows)
    return Table(text.where, agreed, lines, np.stack(columns, axis=1), labels, subjects)


def hash_rows(path: Path, agreed: TableSection, written: TableFormat) -> Iterator[bytes]:
    """Yield the SHA-256 of each row as it is written, without its label; also of rows that are left out."""
    needed = [*(column.name for column in agreed.columns), written.label]
    text = read_text_table(path, written, needed)
    # Without the label, so that a record whose label was corrected counts as the same one.
    label = text.positions[written.label]
    for _, values in text.rows:
        yield hashlib.sha256("\x1f".join([*values[:label], *values[label + 1 :]]).encode()).digest()


def _check_format(agreed: TableSection, written: TableFormat, classes: Sequence[str], where: str) -> None:
    """Check that the site's format names agreed columns, categories and classes only: a typo would change nothing."""
    columns = {column.name: column.categories or () for column in agreed.columns}
    stated: list[tuple[str, str, Collection[str]]] = [
        *(("names", name, columns) for name in written.names.values()),
        *(("missing_in", name, columns) for name in written.missing_in),
        *(("far_from_scale", name, columns) for name in written.far_from_scale),
        *(("values", name, columns) for name in written.values),
        *(
            (f"values.{name}", meant, columns.get(name, ()))
            for name, meanings in written.values.items()
            for meant in meanings.values()
        ),
        *(("labels", meant, classes) for meant in written.labels.values()),
    ]
    for setting, name, possible in stated:
        if name not in possible:
            raise DataError(
                f"{where}: {setting} in [table] has {name!r}, which is not agreed{nearest(name, possible)}"
            )
    agreed_names = set(map(normalise_text, columns))
    names = {normalise_text(header): normalise_text(name) for header, name in written.names.items()}
    for other in (written.label, written.subject):
        if other is not None and names.get(normalise_text(other), normalise_text(other)) in agreed_names:
            raise DataError(
                f"{where}: column {other!r} is agreed as an input: it cannot be the label or the subject"
            )


def _read_column(column: TableColumn, text: TableText, written: TableFormat) -> Floats:
    """Return a column's values: numbers, or indices of categories; NaN where missing and a rule is agreed."""
    codes = frozenset(map(normalise_text, (*written.missing, *written.missing_in.get(column.name, ()))))
    read = (
        _make_number_reader(column, codes, written)
        if column.categories is None
        else _make_category_reader(column, codes, written)
    )
    place = text.positions[column.name]
    # A column has few different texts, each of which is parsed once.
    read_before: dict[str, float | str] = {}
    values = np.empty(len(text.rows))
    for row, (line, texts) in enumerate(text.rows):
        value_text = texts[place]
        if value_text not in read_before:
            read_before[value_text] = read(value_text)
        value = read_before[value_text]
        if isinstance(value, str):
            raise DataError(f"{text.where}: line {line}, column {column.name!r}: {value}")
        if value != value and column.missing == "refuse":  # noqa: PLR0124 (NaN)
            raise DataError(
                f"{text.where}: line {line}, column {column.name!r}: is missing ({value_text!r}), and no rule for it is"
                ' agreed: agree on missing = "leave out" or {impute = VALUE}, or remove the row'
            )
        values[row] = value
    return values


Read = Callable[[str], "float | str"]
"""Function from a text to a value, NaN for a missing one, or to what is wrong with the text."""


def _make_number_reader(column: TableColumn, codes: Collection[str], written: TableFormat) -> Read:
    mean, deviation = column.scale if isinstance(column.scale, tuple) else (0.0, 1.0)
    # A code of missing values is also recognised as a number: -9 in the site's file is -9.0 in the table. The site's
    # file is written with a point, and perhaps its table with a comma.
    numbers = {number for code in codes for sign in ".," if (number := _parse_number(code, sign)) is not None}

    def read(text: str) -> float | str:
        if text in codes:
            return np.nan
        number = _parse_number(text, written.decimal)
        if number is None:
            return f"{text!r} is no number{_suggest_number(text, written.decimal)}"
        if number in numbers:
            return np.nan
        # Scaling comes later and could make a number infinite then, without file and line.
        fits = abs(number) <= _LARGEST and abs(number - mean) / deviation <= _LARGEST
        return number if fits else f"{text!r} is too large"

    return read


def _parse_number(text: str, decimal: str) -> float | None:
    """Return the number that a text is: digits, one decimal sign, an exponent. No other sign groups digits."""
    if decimal == ",":
        if "." in text:
            return None
        text = text.replace(",", ".")
    return float(text) if _NUMBER.fullmatch(text) else None


def _suggest_number(text: str, decimal: str) -> str:
    if _GROUPED.fullmatch(text):
        return (
            ": write it without signs that group digits, or set decimal in [table] if it has the decimal sign"
        )
    other = "," if decimal == "." else "."
    if _parse_number(text, other) is not None:
        return f': set decimal = "{other}" in [table] if {other!r} is the decimal sign of this file'
    return ": correct it, or list it in missing or missing_in in [table] if it stands for a missing value"


def _make_category_reader(column: TableColumn, codes: Collection[str], written: TableFormat) -> Read:
    categories = column.categories or ()
    meanings, unclear = _map_names(categories, written.values.get(column.name, {}), written.decimal)

    def read(text: str) -> float | str:
        match = _find_code(text, meanings, written.decimal)
        if _find_code(text, codes, written.decimal) is not None:
            if match is None:
                return np.nan
            return f"{text!r} is a category and a code of missing values: state missing in [table] without it"
        if match is None:
            return (
                f"{text!r} is no agreed category{nearest(text, categories)}: mend the value, or set"
                f" values.{column.name} in [table]"
            )
        if match in unclear:
            return f"{text!r} {_UNCLEAR} values.{column.name} in [table]"
        return float(categories.index(meanings[match]))

    return read


def _map_names(
    agreed: Collection[str], stated: Mapping[str, str], decimal: str
) -> tuple[dict[str, str], frozenset[str]]:
    """Return the agreed name for each text, and the texts whose meaning is unclear beside what the site stated.

    Where a site's 1 and 2 stand for the agreed 0 and 1, its 0 is likely to be another thing than the agreed 0.
    """
    mapped = {normalise_text(text): meant for text, meant in stated.items()}
    names = {normalise_text(name): name for name in agreed if normalise_text(name) not in mapped}
    # Nothing says whether such a text is the agreed name or a code, so that it is refused where it occurs.
    unclear = frozenset(
        text
        for text, name in names.items()
        if name in mapped.values() or _find_code(text, mapped, decimal) is not None
    )
    return names | mapped, unclear


def _find_code(text: str, codes: Collection[str], decimal: str) -> str | None:
    """Return the text if it is a code, or the one code that is the same number: 1.0 is 1, and 01 is another code."""
    if text in codes:
        return text
    number = _parse_code(text, decimal)
    same = [code for code in codes if number is not None and _parse_code(code, decimal) == number]
    return same[0] if len(same) == 1 else None


def _parse_code(text: str, decimal: str) -> Decimal | None:
    """Return the number that a code is, with a point or with the file's decimal sign; None if it is a text."""
    text = text.replace(decimal, ".")
    return Decimal(text) if _CODE.fullmatch(text) else None


def _read_labels(text: TableText, written: TableFormat, classes: Sequence[str]) -> Iterator[str]:
    place = text.positions[written.label]
    meanings, unclear = _map_names(classes, written.labels, written.decimal)
    for line, values in text.rows:
        label = values[place]
        match = _find_code(label, meanings, written.decimal)
        at = f"{text.where}: line {line}, column {written.label!r}"
        if match in unclear:
            raise DataError(f"{at}: {label!r} {_UNCLEAR} labels in [table]")
        if match is None:
            if label in written.missing:
                raise DataError(f"{at}: the label is missing ({label!r}): remove the row")
            raise DataError(
                f"{at}: {label!r} is no agreed class{nearest(label, classes)}: set labels in [table]"
            )
        yield meanings[match]


def _read_subjects(text: TableText, written: TableFormat) -> Subjects:
    place = text.positions[str(written.subject)]
    given_names = {values[place] for _, values in text.rows}
    for line, values in text.rows:
        if values[place] in written.missing:
            raise DataError(f"{text.where}: line {line}, column {written.subject!r}: the subject is missing")
    # Programs that take identifiers for numbers write 7 as 7.0 or 7,0: all are one subject.
    names = {
        subject: subject if _parse_code(subject, written.decimal) is None else re.sub(r"[.,]0+$", "", subject)
        for subject in given_names
    }
    return np.array([names[values[place]] for _, values in text.rows], dtype=np.str_)


def _encode_features(column: TableColumn, values: Floats) -> Floats:
    """Return a column's features, (N, …): its number, or its dummies; then the mark of missing values."""
    missing = np.isnan(values)
    if column.imputed is not None:
        # The agreed value stands in, and the mark tells the model that it does.
        stands = column.imputed
        number = (column.categories or ()).index(str(stands)) if isinstance(stands, str) else stands
        values = np.where(missing, number, values)
    if column.categories is None:
        features = values[:, np.newaxis]
    else:  # with drop_first the first category is the row of zeros
        features = (
            values[:, np.newaxis] == np.arange(int(column.drop_first), len(column.categories))
        ).astype(float)
    return features if column.imputed is None else np.column_stack([features, missing])


def _make_samples(table: Table, classes: Sequence[str]) -> Samples:
    is_read = table.has_required_values
    if not is_read.any():
        raise DataError(f"{table.where}: every row has a missing value for which it is left out")
    numbers = {name: number for number, name in enumerate(classes)}
    labels: Labels = np.array([numbers[name] for name in table.labels or ()], dtype=np.int64)[is_read]
    subjects = None if table.subjects is None else table.subjects[is_read]
    return Samples(table.features(), labels, np.zeros_like(labels), subjects)


def _check_no_common_subject(train: Table, test: Table) -> None:
    if train.subjects is None or test.subjects is None:
        return
    common = np.flatnonzero(np.isin(test.subjects, train.subjects))
    if len(common):
        raise DataError(
            f"{test.where}: line {test.lines[common[0]]}: the subject has rows in {train.where} too, as"
            f" have {len(common)} rows of the test file: keep all rows of a subject in one of the two files"
        )


def _check_not_training_rows(train: Table, test: Table) -> None:
    """Raise :class:`DataError` for a test file that is a copy of training rows.

    Limit: where most rows are equal to others, as in a table of few categories, only a copy of the whole file is told
    from a test file.
    """
    # Rows that occur once in training are evidence; in a table of few categories equal rows occur by chance.
    training, tests = Counter(_row_contents(train)), list(_row_contents(test))
    once = sum(training[row] == 1 for row in tests)
    if all(row in training for row in tests) and (2 * once > len(tests) or Counter(tests) == training):
        raise DataError(
            f"{test.where}: each of its {len(tests)} rows is a row of {train.where}, too: training rows would be"
            " tested on; name a file of other rows, or remove test from [table]"
        )


def _row_contents(table: Table) -> Iterator[tuple[bytes, str]]:
    return zip((row.tobytes() for row in table.values), table.labels or (), strict=True)


def _describe_column(column: TableColumn, values: Floats) -> Iterator[str]:
    present = values[~np.isnan(values)]
    if column.categories is not None:
        for number, category in enumerate(column.categories):
            yield f"{category!r} {int((present == number).sum())}"
    elif len(present):
        least, largest = present.min(), present.max()
        yield (
            f"always {least:g}"
            if least == largest
            else f"{least:g} to {largest:g}, mean {present.mean():.4g}"
        )
    if len(present) < len(values):
        yield f"{len(values) - len(present)} missing"


def describe_table(table: Table) -> str:
    """Return the rows, and each column's range, mean or categories, and missing values."""
    left_out = len(table.lines) - int(table.has_required_values.sum())
    rows = f"{len(table.lines)} rows" + (f", {left_out} of them left out" if left_out else "")
    rows += f", {len(table.agreed.features)} features"
    columns = zip(table.agreed.columns, table.values.T, strict=True)
    return "; ".join(
        [
            rows,
            *(f"{column.name}: {', '.join(_describe_column(column, values))}" for column, values in columns),
        ]
    )
