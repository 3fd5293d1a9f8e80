"""Entries of a privacy ledger: the budget of the first line, and the spending of each release.

Each type has a JSON form with fixed fields. Guarantee: decoding refuses unknown or missing fields. Limit: the time of
an entry is the site's clock, and proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from privacy.accounting.accounting_rules import Accounting
from privacy.accounting.events import Event, event_from_json, event_to_json
from privacy.units import Unit

FORMAT = 1
GUARANTEE = "guarantee"
"""Name of the fact that holds the unit for which a release's cost is true, or no unit if part has no guarantee."""
RECORDS, OVERLAPS = "records", "records_elsewhere"
"""Names of the facts with the encrypted sketch of the data set's records, and with ledgers that charge some of them."""
ABOUT_RECORDS = frozenset({RECORDS, OVERLAPS})
"""Facts that describe the records of a run, and not the mechanism of the release."""
NEIGHBOURS = "add or remove one"
"""Neighbouring relation: neighbouring data sets differ by one unit, added or removed."""
Fact = str | int | float


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
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))
        object.__setattr__(self, "unit", Unit(self.unit))
        object.__setattr__(self, "accountant", Accounting(self.accountant))

    def __str__(self) -> str:
        by = "" if self.accountant is Accounting.PLD else f", counted by {self.accountant}"
        return f"epsilon {self.epsilon:g} at delta {self.delta:g} for one {self.unit}{by}"

    def to_json(self) -> dict[str, object]:
        """Return the limit's fields of a line; the default accountant is left out."""
        by = {} if self.accountant is Accounting.PLD else {"accountant": str(self.accountant)}
        return {"epsilon": self.epsilon, "delta": self.delta, "unit": str(self.unit), **by}

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> Limit:
        """Return the limit that :meth:`to_json` encoded. Raises ``ValueError`` for anything else."""
        epsilon, delta = content.get("epsilon"), content.get("delta")
        if not (isinstance(epsilon, float) and isinstance(delta, float)):
            raise ValueError("epsilon and delta of the limit must be numbers with a decimal point")
        by = Accounting(str(content.get("accountant", Accounting.PLD)))
        return cls(epsilon, delta, Unit(str(content.get("unit"))), by)


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
    agreement_hash: bytes
    event: Event
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """Content of the first line: the data set and its initial limit.

    ``time`` is when the ledger began, by the site's clock; None in ledgers of earlier versions.
    """

    dataset: str
    limit: Limit
    time: str | None = None


@dataclass(frozen=True)
class Entry:
    """Content of a spending line. ``time`` is the site's clock, in UTC to the second, and proves nothing."""

    spending: Spending
    time: str


def is_guaranteed(entry: Entry) -> bool:
    """Return True if the entry states a unit for which its cost holds; False for an entry without that fact."""
    return entry.spending.facts.get(GUARANTEE) in list(Unit)


def budget_to_json(budget: Budget) -> dict[str, object]:
    """Return the content of the first line."""
    return {
        "kind": "budget",
        "format": FORMAT,
        "dataset": budget.dataset,
        **budget.limit.to_json(),
        "neighbours": NEIGHBOURS,
        **({} if budget.time is None else {"time": budget.time}),
    }


def budget_from_json(content: Mapping[str, object]) -> Budget:
    """Return the budget that :func:`budget_to_json` encoded. Raises ``ValueError`` for anything else."""
    dataset, time = content.get("dataset"), content.get("time")
    if not isinstance(dataset, str):
        raise ValueError("the first line must name a data set")
    budget = Budget(dataset, Limit.from_json(content), time if isinstance(time, str) else None)
    if budget_to_json(budget) != content:
        raise ValueError("the first line is not a budget of this version")
    return budget


def now() -> str:
    """Return the current time in UTC, to the second."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def spending_to_json(spending: Spending, time: str) -> dict[str, object]:
    """Return the content of a spending line."""
    release = spending.release
    return {
        "kind": "spending",
        "time": time,
        "run": release.run,
        "agreement": spending.agreement_hash.hex(),
        "round": release.round,
        "what": release.what,
        "event": event_to_json(spending.event),
        "facts": dict(spending.facts),
    }


def entry_from_json(content: Mapping[str, object]) -> Entry:
    """Return the entry that :func:`spending_to_json` encoded. Raises ``ValueError`` for anything else."""
    if content.get("kind") != "spending" or len(content) != 8:
        raise ValueError(f"unknown kind {content.get('kind')!r:.80}, or a wrong number of fields")
    run, what, agreement, time = (_text(content, name) for name in ("run", "what", "agreement", "time"))
    number, facts = content.get("round"), content.get("facts")
    if type(number) is not int or not isinstance(facts, dict):
        raise ValueError("round must be a whole number and facts an object")
    event = event_from_json(content.get("event"))
    return Entry(Spending(ReleaseName(run, number, what), bytes.fromhex(agreement), event, facts), time)


def _text(content: Mapping[str, object], name: str) -> str:
    value = content.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name} is missing or not text")
    return value
