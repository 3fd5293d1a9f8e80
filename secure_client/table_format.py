"""Format of a site's tables, its own matter, and the scale of their features.

:class:`TableFormat` is the section ``[table]`` of a site's file. A simulation takes it from NAME.toml beside NAME.csv.
Nothing here can change what a value means: columns, categories and scales are agreed (:mod:`agreement.sections.table`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from agreement.sections.table import Finite, Text
from agreement.toml_loading import LocalPath, Positive, Section, read_toml

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "NULL", "null")
"""Texts that stand for a missing value unless a site states its own."""


def _as_text(given: object) -> object:
    """Return a number as its text: a code of a file is one, with or without quotes in TOML."""
    return str(given) if type(given) in (int, float) else given


Code = Annotated[str, BeforeValidator(_as_text)]
"""Text in a file."""
Meaning = Annotated[Text, BeforeValidator(_as_text)]
"""Agreed class or category."""


class TableFormat(Section):
    """Format of a site's tables: CSV, with quotes as in RFC 4180. Blanks around a value do not count."""

    separator: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """Character between values; unless given, the one of `;`, `,`, tab and `|` that makes the agreed columns."""
    header: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """Names of the columns of a file that has no header."""
    names: dict[str, Text] = Field(default_factory=dict)
    """Agreed column for a name in the file's header."""
    label: Text = "label"
    """Name of the label's column in the file's header."""
    labels: dict[str, Meaning] = Field(default_factory=dict)
    """Agreed class for a label in the file; other labels are names of classes."""
    values: dict[str, dict[str, Meaning]] = Field(default_factory=dict)
    """Agreed category for a value in the file, for each agreed column."""
    missing: tuple[Code, ...] = MISSING
    """Texts that stand for a missing value, in all columns."""
    missing_in: dict[str, tuple[Code, ...]] = Field(default_factory=dict)
    """Further texts that stand for a missing value, such as `["0"]`, for each agreed column."""
    far_from_scale: tuple[Text, ...] = ()
    """Agreed columns whose mean may be far from the agreed one, which is refused otherwise."""
    decimal: Literal[".", ","] = "."
    """Decimal sign."""
    encoding: Literal["utf-8", "latin-1", "windows-1252", "utf-16"] = "utf-8"
    """Encoding of the file."""
    subject: Text | None = None
    """Name of the column in the file's header that names each row's subject."""
    test: LocalPath | None = None
    """Table of test rows, in the same format; without it there is no test part."""

    @model_validator(mode="after")
    def _check_separator(self) -> Self:
        if self.separator is not None and self.separator in '"\r\n\x00':
            raise ValueError(f"separator cannot be {self.separator!r}")
        if self.separator == self.decimal:
            raise ValueError(
                f"separator and decimal are both {self.decimal!r}: one of them is another character"
            )
        if self.label == self.subject:
            raise ValueError(f"label and subject are both {self.label!r}: they are two columns")
        return self


class TableScale(Section):
    """Scale of each feature of a table: (value - mean) / deviation, in double precision."""

    mean: tuple[Finite, ...]
    deviation: tuple[Positive, ...]


class _Beside(Section):
    table: TableFormat


def format_beside(path: Path) -> TableFormat:
    """Return the format of a table from NAME.toml beside it, in the form of a site's ``[table]``; without it defaults.

    Raises :class:`agreement.ConfigError`.
    """
    beside = path.with_suffix(".toml")
    return read_toml(beside, _Beside).table if beside.exists() else TableFormat()
