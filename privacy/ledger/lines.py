"""Lines of a privacy ledger: the budget, the spending of each release, and decisions that spend nothing.

A decision changes what other lines mean: an exposure voids the guarantee, a loss marks an earlier ledger as lost, and
an allowance changes the limit. Pydantic writes and reads every line from the dataclass of its kind.

Guarantee: a line is read only if writing it again gives the same text, so no unknown field, other number or other
spelling passes. Limits: the time of a line is the site's clock, and the reason of a decision is the site's own
statement; neither proves anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter, ValidationError

from privacy.accounting.accounting_rules import Accounting
from privacy.accounting.events import Event, Unit
from privacy.ledger.hash_chain import canonical

GUARANTEE = "guarantee"
"""Name of the fact that holds the unit for which a release's cost is true, or no unit if part has no guarantee."""
RECORDS, OVERLAPS = "records", "records_elsewhere"
"""Names of the facts with the encrypted sketch of the data set's records, and with ledgers that charge some of them."""
ABOUT_RECORDS = frozenset({RECORDS, OVERLAPS})
"""Facts that describe the records of a run, and not the mechanism of the release."""
NEIGHBOURS: Literal["add or remove one"] = "add or remove one"
"""Neighbouring relation: neighbouring data sets differ by one unit, added or removed."""
LONGEST_REASON = 500

Fact = str | int | float
_Hash = Annotated[
    bytes,
    Field(alias="agreement"),
    BeforeValidator(lambda given: bytes.fromhex(given) if isinstance(given, str) else given),
    PlainSerializer(bytes.hex, when_used="json"),
]


@dataclass(frozen=True)
class Limit:
    """Largest spending of one data set over all runs: (epsilon, delta) for one unit added or removed, by an accountant.

    Raises ``ValueError`` unless epsilon is positive and finite and delta is between 0 and 1.
    """

    epsilon: float
    delta: float
    unit: Unit = Unit.RECORD
    accountant: Accounting = Accounting.PLD

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < math.inf):
            raise ValueError(f"epsilon is {self.epsilon}, not positive and finite")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta is {self.delta}, not between 0 and 1")
        # Members and not texts: a text that is compared by identity would count for one record and by the default.
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))
        object.__setattr__(self, "unit", Unit(self.unit))
        object.__setattr__(self, "accountant", Accounting(self.accountant))

    def __str__(self) -> str:
        by = "" if self.accountant is Accounting.PLD else f", counted by {self.accountant}"
        return f"epsilon {self.epsilon:g} at delta {self.delta:g} for one {self.unit}{by}"


@dataclass(frozen=True)
class ReleaseName:
    """Name of a release. An equal name with fresh noise is another entry of that release."""

    run: str
    round: int
    what: str

    def __str__(self) -> str:
        return f"{self.what} of round {self.round} in run {self.run!r}"


@dataclass(frozen=True)
class Spending:
    """Release and the event that gives its cost. ``facts`` hold further parameters, such as the clip.

    ``agreement_hash`` is the hash of the agreement that asks for the release. The bytes of the release are not known
    yet: the noise is drawn after the spending is recorded.
    """

    release: ReleaseName
    agreement_hash: _Hash
    event: Annotated[Event, Field(discriminator="mechanism")]
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """Content of the first line: the data set and its initial limit.

    ``time`` is when the ledger began, by the site's clock; None in ledgers of earlier versions.
    """

    dataset: str
    limit: Limit
    time: str | None = None
    format: Literal[1] = 1
    neighbours: Literal["add or remove one"] = NEIGHBOURS


@dataclass(frozen=True)
class Entry:
    """Content of a spending line. ``time`` is the site's clock, in UTC to the second, and proves nothing."""

    spending: Spending
    time: str


@dataclass(frozen=True)
class Exposure:
    """Exposure of exact values in a run: no record of the data set has a guarantee from then on.

    ``facts`` hold what the site notes of the records, as those of a spending do.
    """

    run: str
    agreement_hash: _Hash
    time: str
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class Loss:
    """Loss of an earlier ledger, which had reached entry ``seq``: the spending of the data set is unknown."""

    seq: Annotated[int, Field(alias="entry")]
    time: str


@dataclass(frozen=True)
class Allowance:
    """Change of the limit from this line on, with the ``reason`` that the deciding person gave.

    Raises ``ValueError`` unless ``reason`` is 1 to 500 printable characters.
    """

    limit: Limit
    reason: str
    time: str

    def __post_init__(self) -> None:
        if not (self.reason.strip() and len(self.reason) <= LONGEST_REASON and self.reason.isprintable()):
            raise ValueError(f"a reason must have 1 to {LONGEST_REASON} printable characters")


Line = Budget | Entry | Exposure | Loss | Allowance
_KINDS: Mapping[str, type[Line]] = {
    "budget": Budget,
    "spending": Entry,
    "no guarantee": Exposure,
    "ledger lost": Loss,
    "limit": Allowance,
}
_NAMES = {line: name for name, line in _KINDS.items()}
_SCHEMAS: Mapping[type[Line], TypeAdapter[Any]] = {line: TypeAdapter(line) for line in _NAMES}
_PARTS = ("spending", "release", "limit")
"""Fields whose own fields stand in the line's object itself, the outer before the inner."""


def line_to_json(line: Line) -> dict[str, object]:
    """Return the content of a line; defaults that earlier versions did not have are left out."""
    content = _SCHEMAS[type(line)].dump_python(line, mode="json", by_alias=True, exclude_none=True)
    for part in _PARTS:
        content |= content.pop(part, {})
    # Lines that earlier versions wrote have no such fields, and their hashes must hold when they are written again.
    if content.get("accountant") == Accounting.PLD:
        del content["accountant"]
    if isinstance(line, Exposure) and not line.facts:
        del content["facts"]
    return {"kind": _NAMES[type(line)], **content}


def line_from_json(content: Mapping[str, object]) -> Line:
    """Return the line that :func:`line_to_json` encoded. Raises ``ValueError``, with the field, for anything else."""
    kind = content.get("kind")
    schema = _SCHEMAS[_KINDS[kind]] if isinstance(kind, str) and kind in _KINDS else None
    if schema is None:
        raise ValueError(f"unknown kind {kind!r:.80}")
    # Every part gets all fields of the line, and takes its own; a field too many shows in the comparison below.
    nested = dict(content)
    for part in reversed(_PARTS):
        nested[part] = dict(nested)
    try:
        line: Line = schema.validate_python(nested)
    except ValidationError as error:
        raise ValueError(_in_one_line(error)) from error
    # Strict both ways: a field that this version ignored could change what the line means to another version.
    if canonical(line_to_json(line)) != canonical(content):
        raise ValueError(f"unexpected fields or values in a line of kind {kind!r}")
    return line


def _in_one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    names = [str(name) for name in first["loc"] if name not in _PARTS]
    return f"{'.'.join(names) or 'line'}: {first['msg']}"


def is_guaranteed(entry: Entry) -> bool:
    """Return True if the entry states a unit for which its cost holds; False for an entry without that fact."""
    return entry.spending.facts.get(GUARANTEE) in list(Unit)


def now() -> str:
    """Return the current time in UTC, to the second."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
