"""Reader of a table's text: the encoding, the separator, the header, and rows of as many values as the header has.

Every error names the file, and the line and the column where there is one. A file of another kind (a spreadsheet, an
archive) is refused by the name of its kind.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from crypto.text_decoding import near_name
from secure_client.errors import DataError
from secure_client.table_format import TableFormat

SEPARATORS = (";", ",", "\t", "|")

_NUMBER_LIKE = re.compile(r"[+-]?[0-9.,]*[0-9]")
_AS_CSV = "export the sheet or table as CSV (UTF-8)"
_OTHER_KINDS = {
    b"PK\x03\x04": "a zip archive, such as a spreadsheet (.xlsx, .ods)",
    b"\xd0\xcf\x11\xe0": "an Excel file (.xls)",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x1f\x8b": "compressed by gzip",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"SQLite format 3": "an SQLite database",
    b"\x89HDF": "an HDF5 file",
    b"$FL2": "an SPSS file",
    b"<stata_dta>": "a Stata file",
    b"%PDF": "a PDF",
    b"{\\rtf": "a text document (RTF)",
    b"<?xml": "an XML file",
    b"<!DOCTYPE": "an HTML page",
    b"<html": "an HTML page",
}


@dataclass(frozen=True)
class TableText:
    """Rows of a table, as texts: (line, values). ``positions`` has the columns that were asked for."""

    where: str
    positions: Mapping[str, int]
    rows: list[tuple[int, list[str]]]


def read_text_table(
    path: Path, written: TableFormat, needed: Sequence[str], optional: Sequence[str] = ()
) -> TableText:
    """Read a table that has the columns ``needed``: agreed names, and names as in the file's header.

    Columns ``optional`` have a position if the file has them.
    Values have no blanks at their ends. Rows without any value are skipped. Raises :class:`DataError`.
    """
    where = str(path)
    text = _decode(path, written)
    first, separator = _find_separator(text, written, needed, where)
    if written.header is not None and _normalise_all(first) == _normalise_all(written.header):
        raise DataError(f"{where}: line 1 has the names that header states: remove header from [table]")
    header = list(first) if written.header is None else _normalise_all(written.header)
    if len(header) != len(first):
        raise DataError(
            f"{where}: line 1 has {len(first)} values, but header in [table] has {len(header)} names"
        )
    there = [name for name in optional if normalise_text(name) in _rename_columns(header, written)]
    positions = _find_columns(header, written, [*needed, *there], where)
    rows = list(_parse_rows(text, separator, where))
    if written.header is None:
        rows = rows[1:]
    lengths = {len(values) for _, values in rows}
    # R's write.table names no column of row names, so that each value would stand under its neighbour's name.
    if len(rows) > 1 and lengths == {len(header) + 1}:
        raise DataError(
            f"{where}: has {len(header)} columns, but {len(header) + 1} values in all rows, separated by {separator!r}:"
            f" name the further column, such as that of row names, or separate values by another sign if {separator!r}"
            " is in numbers"
        )
    for line, values in rows:
        if len(values) != len(header):
            raise DataError(
                f"{where}: line {line} has {len(values)} values, but there are {len(header)} columns, separated by"
                f" {separator!r}: mend the line, or put values with {separator!r} in quotes"
            )
    if not rows:
        raise DataError(f"{where}: has no rows")
    return TableText(where, positions, rows)


def normalise_text(text: str) -> str:
    """Return the text without blanks at its ends, accents composed, so that equal texts are equal."""
    stripped = text.strip()
    return stripped if stripped.isascii() else unicodedata.normalize("NFC", stripped)


def _normalise_all(values: Sequence[str]) -> list[str]:
    return [normalise_text(value) for value in values]


def _decode(path: Path, written: TableFormat) -> str:
    """Return the file's text; a byte order mark of UTF-8 is dropped."""
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: the file does not exist{near_name(path)}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    for start, kind in _OTHER_KINDS.items():
        if content.startswith(start) and (start != b"PAR1" or content.endswith(start)):
            raise DataError(f"{path}: is {kind}, not a table of text: {_AS_CSV}")
    # UTF-16 without a byte order mark has a zero byte in every Latin letter.
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in content[:4096]
    if wide and written.encoding != "utf-16":
        raise DataError(
            f'{path}: is text in UTF-16, or no text: set encoding = "utf-16" in [table], or {_AS_CSV}'
        )
    encoding = "utf-8-sig" if written.encoding == "utf-8" else written.encoding
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: line {line} is not text in {written.encoding}: set encoding in [table] (utf-8, latin-1,"
            " windows-1252, utf-16)"
        ) from error


def _parse_rows(text: str, separator: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's first line and its values; rows without any value are skipped."""
    # A value in a column that is not read, such as a report, may be longer than the usual limit.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    lines: list[str] = []

    def read_lines() -> Iterator[str]:
        for physical in io.StringIO(text, newline=""):
            lines.append(physical)
            yield physical

    reader = csv.reader(read_lines(), delimiter=separator, strict=True, skipinitialspace=True)
    line = 1
    try:
        for record in reader:
            values = _normalise_all(record)
            _check_one_row(lines, len(record), separator, f"{where}: line {line}")
            lines.clear()
            # Excel announces the separator in a first line of its own.
            if any(values) and not (line == 1 and text.lower().startswith("sep=") and len(record) <= 2):
                yield line, values
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{where}: line {line} is not CSV ({error}): mend its quotes") from error


def _check_one_row(lines: Sequence[str], columns: int, separator: str, where: str) -> None:
    """Raise :class:`DataError` for a value in quotes over several lines that could be rows: a quote was left open."""
    if len(lines) == 1 or columns == 1:
        return
    bare = [re.sub(r'"[^"]*"', "", physical) for physical in lines if physical.strip()]
    if all(physical.count(separator) == columns - 1 for physical in bare):
        raise DataError(
            f"{where}: a value in quotes goes on over {len(lines)} lines, each with as many {separator!r} as a row:"
            " close the quotes, or remove the line ends from the value"
        )


def _find_separator(
    text: str, written: TableFormat, needed: Sequence[str], where: str
) -> tuple[list[str], str]:
    """Return the first row's values, and the separator that gives the columns."""
    candidates = SEPARATORS if written.separator is None else (written.separator,)
    firsts: dict[str, list[str]] = {}
    refused = DataError(f"{where}: is empty")
    for separator in candidates:
        try:
            first = next(_parse_rows(text, separator, where), None)
        except DataError as error:  # a separator of another file makes a misplaced quote
            refused = error
            continue
        if first is not None:
            firsts[separator] = first[1]
    if not firsts:
        raise refused
    if written.header is None:
        wanted = set(_normalise_all(needed))
        fitting = [s for s, first in firsts.items() if wanted <= set(_rename_columns(first, written))]
    else:
        fitting = [s for s, first in firsts.items() if len(first) == len(written.header)]
    # With a decimal comma both `;` and `,` can make columns: a guess would cut numbers in two.
    if len(fitting) > 1 and len({tuple(firsts[separator]) for separator in fitting}) > 1:
        raise DataError(
            f"{where}: its values could be separated by {' or '.join(map(repr, fitting))}: set separator in [table]"
        )
    separator = fitting[0] if fitting else max(firsts, key=lambda candidate: len(firsts[candidate]))
    return firsts[separator], separator


def _rename_columns(first: Sequence[str], written: TableFormat) -> list[str]:
    """Return the agreed names of the columns; a column that is called like one, beside one mapped to it, has none."""
    names = {normalise_text(header): normalise_text(agreed) for header, agreed in written.names.items()}
    replaced = set(names.values())
    return [names.get(name, "" if name in replaced else name) for name in first]


def _find_columns(
    header: Sequence[str], written: TableFormat, needed: Sequence[str], where: str
) -> dict[str, int]:
    absent = [name for name in written.names if normalise_text(name) not in header]
    if absent:
        raise DataError(
            f"{where}: names in [table] has {absent[0]!r}, which is no"
            f" column{_suggest_columns(header, written, 'names')}"
        )
    names = _rename_columns(header, written)
    counts = Counter(names)
    positions = {name: position for position, name in enumerate(names)}
    for name in needed:
        count = counts[normalise_text(name)]
        if count == 0:
            setting = {written.label: "label", written.subject: "subject"}.get(name, "names")
            raise DataError(f"{where}: has no column {name!r}{_suggest_columns(names, written, setting)}")
        if count > 1:
            raise DataError(f"{where}: has {count} columns {name!r}: rename or remove the others")
    return {name: positions[normalise_text(name)] for name in needed}


def _suggest_columns(names: Sequence[str], written: TableFormat, setting: str) -> str:
    shown = ", ".join(map(repr, names[:20]))  # by repr, which shows blanks and line ends in names
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    if written.header is not None:
        return f"; header in [table] has {shown}{more}: correct it, or set {setting}"
    if 2 * sum(_NUMBER_LIKE.fullmatch(text) is not None for text in names) > len(names):
        return f"; its first line has values, not names ({shown}{more}): list the columns' names in header in [table]"
    return (
        f"; the header, its first line, has {shown}{more}: rename a column, remove lines above the header, or set"
        f" {setting} in [table]"
    )
