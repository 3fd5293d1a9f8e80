"""Tables: the columns that are read, and how their values become a record's features.

Everything that decides a feature's value is agreed, and part of the agreement's hash: columns, their order, categories,
the treatment of missing values, and scales. How a site's file is written (separator, names in the header, codes of
missing values) is the site's own matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from math import inf, isfinite
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from agreement.toml_loading import Positive, Section

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")]
"""Name or category, without blanks at its ends."""
Finite = Annotated[float, Field(allow_inf_nan=False)]

SITE_SCALE = "site"
"""Scale by the mean and deviation of the site's own training rows."""


class Imputation(Section):
    """Agreed value in place of a missing one. A further feature is 1 where the value was missing, else 0."""

    impute: Finite | Text
    """Number, or one of the column's categories."""


def _scale_form(given: object) -> object:
    """Return a value that has the form of a scale: a union of types would say in several lines what another lacks."""
    match given:
        case None | "site":
            return given
        case [int() | float() as mean, int() | float() as deviation]:
            numbers = bool not in (type(mean), type(deviation)) and isfinite(mean)
            if numbers and 0 < deviation < inf:
                return float(mean), float(deviation)
    raise ValueError(f'scale is [mean, deviation], with a deviation above 0, or "site", not {given!r}')


def _missing_form(given: object) -> object:
    match given:
        case "refuse" | "leave out" | Imputation():
            return given
        case {"impute": int() | float() | str() as value, **others} if not others:
            if isinstance(value, str) or isfinite(value):
                return given
    raise ValueError(f'missing is "refuse", "leave out" or {{impute = VALUE}}, not {given!r}')


class TableColumn(Section):
    """One column: of numbers, or of categories, which become a feature (0 or 1) for each category.

    ``scale`` is an agreed mean and deviation, or ``"site"``: those of the site's own training rows. Without a scale
    numbers stay as they are. Of ``drop_first`` categories the first has no feature.
    """

    name: Text
    """Name of the column, of which a site's `names` may be a translation."""
    categories: tuple[Text, ...] | None = None
    """Categories, in order; without them the column has numbers."""
    drop_first: bool = False
    """Make no feature for the first category."""
    scale: Annotated[tuple[Finite, Positive] | Literal["site"] | None, BeforeValidator(_scale_form)] = None
    """Mean and deviation, or `"site"` for those of the site's training rows; `[privacy]` refuses `"site"`."""
    missing: Annotated[Imputation | Literal["refuse", "leave out"], BeforeValidator(_missing_form)] = "refuse"
    """Missing value: by default `"refuse"`; or `"leave out"` the row, or `{impute = VALUE}` and a mark."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.categories is None:
            if self.drop_first:
                raise ValueError(f"column {self.name!r} has drop_first but no categories: remove drop_first")
            if isinstance(self.missing, Imputation) and isinstance(self.missing.impute, str):
                raise ValueError(f"column {self.name!r} has numbers: impute a number, not a text")
            return self
        repeated = _repeated(self.categories)
        if repeated is not None or len(self.categories) < 2:
            raise ValueError(f"column {self.name!r} needs two or more categories, each named once")
        if isinstance(self.scale, tuple):
            raise ValueError(
                f"column {self.name!r} has categories, which take no agreed mean and deviation: remove scale, or"
                ' set scale = "site"'
            )
        if isinstance(self.missing, Imputation) and self.missing.impute not in self.categories:
            raise ValueError(
                f"column {self.name!r} imputes {self.missing.impute!r}, which is none of its categories"
            )
        return self

    @property
    def imputed(self) -> float | str | None:
        """Value in place of a missing one; None where missing values are not imputed."""
        return self.missing.impute if isinstance(self.missing, Imputation) else None

    @property
    def dummies(self) -> tuple[str, ...]:
        """Categories that have a feature."""
        return (self.categories or ())[int(self.drop_first) :]

    @property
    def values(self) -> int:
        """Number of features without the one that marks missing values."""
        return 1 if self.categories is None else len(self.dummies)

    def features(self) -> Iterator[str]:
        """Yield the names of the column's features, in order."""
        if self.categories is None:
            yield self.name
        yield from (f"{self.name} = {category}" for category in self.dummies)
        if isinstance(self.missing, Imputation):
            yield f"{self.name} is missing"


class TableSection(Section):
    """Columns of a table, in the order of their features. A site's file may have more columns, which are not read."""

    columns: tuple[TableColumn, ...]
    """Columns that are read, in order."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        if not self.columns:
            raise ValueError("columns is empty: list the columns that are read")
        repeated = _repeated(column.name for column in self.columns)
        if repeated is not None:
            raise ValueError(f"column {repeated!r} is listed more than once")
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """Names of a record's features, in order."""
        return tuple(name for column in self.columns for name in column.features())

    @property
    def scaled_by_site(self) -> tuple[str, ...]:
        """Names of the columns that each site scales by its own training rows."""
        return tuple(column.name for column in self.columns if column.scale == SITE_SCALE)


def _repeated(names: Iterable[str]) -> str | None:
    """Return a name that occurs more than once; None if there is none."""
    name, count = max(Counter(names).items(), key=lambda each: each[1], default=("", 0))
    return name if count > 1 else None
