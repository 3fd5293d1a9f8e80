"""Tables: the columns that are read, and how their values become a record's features.

Everything that decides a feature's value is agreed, and part of the agreement's hash: columns, their order, categories,
the treatment of missing values, and scales. How a site's file is written (separator, names in the header, codes of
missing values) is the site's own matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from agreement.field_types import Positive
from agreement.toml_loading import Section

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")]
"""Name or category, without blanks at its ends."""
Finite = Annotated[float, Field(allow_inf_nan=False)]

SITE_SCALE = "site"
"""Scale by the mean and deviation of the site's own training rows."""


class Imputation(Section):
    """Agreed value in place of a missing one. A further feature is 1 where the value was missing, else 0."""

    impute: Finite | Text
    """Number, or one of the column's categories."""


class TableColumn(Section):
    """One column: of numbers, or of categories, which become a feature (0 or 1) for each category.

    ``scale`` is an agreed mean and deviation, or ``"site"``: those of the site's own training rows. Without a scale
    numbers stay as they are. Of ``drop_first`` categories the first has no feature.
    """

    name: Text
    """Name of the column, of which a site's `names` may be a translation."""
    categories: Annotated[tuple[Text, ...], Field(min_length=2)] | None = None
    """Categories, in order; without them the column has numbers."""
    drop_first: bool = False
    """Make no feature for the first category."""
    scale: tuple[Finite, Positive] | Literal["site"] | None = None
    """Mean and deviation, or `"site"` for those of the site's training rows; `[privacy]` refuses `"site"`."""
    missing: Imputation | Literal["refuse", "leave out"] = "refuse"
    """Missing values: `"refuse"`, `"leave out"` the row, or `{impute = VALUE}` with a feature that marks them."""

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if self.categories is None:
            if self.drop_first:
                raise ValueError(f"column {self.name!r} has drop_first but no categories: remove drop_first")
            if isinstance(self.missing, Imputation) and isinstance(self.missing.impute, str):
                raise ValueError(f"column {self.name!r} has numbers: impute a number, not a text")
            return self
        repeated = sorted({name for name in self.categories if self.categories.count(name) > 1})
        if repeated:
            raise ValueError(f"column {self.name!r} has category {repeated[0]!r} more than once")
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

    columns: Annotated[tuple[TableColumn, ...], Field(min_length=1, max_length=1 << 16)]
    """Columns that are read, in order."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [column.name for column in self.columns]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"column {repeated[0]!r} is listed more than once")
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """Names of a record's features, in order."""
        return tuple(name for column in self.columns for name in column.features())

    @property
    def scaled_by_site(self) -> tuple[str, ...]:
        """Names of the columns that each site scales by its own training rows."""
        return tuple(column.name for column in self.columns if column.scale == SITE_SCALE)
