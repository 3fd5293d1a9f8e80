"""What a privacy ledger's lines say: whose budget it is and how large, and each release that spent of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from privacy.accounting.accounting_rules import Accounting
from privacy.accounting.events import Event, event_from_json, event_to_json
from privacy.units import Unit

FORMAT = 1
GUARANTEE = "guarantee"
"""The fact that says of which unit a release's cost is true: of none, where something of it has no guarantee."""
NEIGHBOURS = "add or remove one"
"""By what two data sets differ that no release may tell apart: one unit."""
Fact = str | int | float


@dataclass(frozen=True)
class Limit:
    """All that may ever be spent of one data set: (epsilon, delta) for one unit added or removed, by an accountant.

    ``ValueError`` unless epsilon is positive and finite and delta is between 0 and 1.
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
        """Return the fields of a line; the default accountant has none."""
        by = {} if self.accountant is Accounting.PLD else {"accountant": str(self.accountant)}
        return {"epsilon": self.epsilon, "delta": self.delta, "unit": str(self.unit), **by}

    @classmethod
    def from_json(cls, content: Mapping[str, object]) -> Limit:
        """Return what :meth:`to_json` made; ``ValueError`` for anything else."""
        epsilon, delta = content.get("epsilon"), content.get("delta")
        if not (isinstance(epsilon, float) and isinstance(delta, float)):
            raise ValueError("it does not say what the limit is")
        by = Accounting(str(content.get("accountant", Accounting.PLD)))
        return cls(epsilon, delta, Unit(str(content.get("unit"))), by)


@dataclass(frozen=True)
class Release:
    """What a release is called: the same name with other noise is another entry of the same release."""

    run: str
    round: int
    what: str

    def __str__(self) -> str:
        return f"{self.what} of round {self.round} in run {self.run!r}"


@dataclass(frozen=True)
class Spending:
    """One release and what it costs. ``facts`` are what else is worth knowing of it, such as the clip.

    ``agreement_hash`` is of the agreement under which it was asked for. The release's own bytes are not known yet: its
    noise is drawn after this is recorded.
    """

    release: Release
    agreement_hash: bytes
    event: Event
    facts: Mapping[str, Fact] = field(default_factory=dict)


@dataclass(frozen=True)
class Budget:
    """What the first line says: of which data set, with what limit to begin with.

    ``salt``: 16 random bytes in hex, or none in a ledger that was begun without. It never leaves the site; so nobody
    who is shown a line's hash can try out which limit would give it.
    """

    dataset: str
    limit: Limit
    salt: str = ""


@dataclass(frozen=True)
class Entry:
    """What a later line says. ``time`` is the site's clock, in UTC and seconds, and proves nothing."""

    spending: Spending
    time: str


def is_guaranteed(entry: Entry) -> bool:
    """Whether what an entry cost is true of its ledger's unit; not of one that does not say so."""
    return entry.spending.facts.get(GUARANTEE) in list(Unit)


def budget_to_json(budget: Budget) -> dict[str, object]:
    """The first line's content."""
    return {
        "kind": "budget",
        "format": FORMAT,
        "dataset": budget.dataset,
        **budget.limit.to_json(),
        "neighbours": NEIGHBOURS,
        **({"salt": budget.salt} if budget.salt else {}),
    }


def budget_from_json(content: Mapping[str, object]) -> Budget:
    """What :func:`budget_to_json` made; ``ValueError`` for anything else."""
    dataset = content.get("dataset")
    if not isinstance(dataset, str):
        raise ValueError("it does not begin with a data set and its limit")
    salt = content.get("salt", "")
    if not (isinstance(salt, str) and re.fullmatch("|[0-9a-f]{32}", salt)):
        raise ValueError("it begins with a salt that is none")
    budget = Budget(dataset, Limit.from_json(content), salt)
    if budget_to_json(budget) != content:
        raise ValueError("it begins with a budget of another version, or with none")
    return budget


def now() -> str:
    """The time, in UTC, to the second."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def spending_to_json(spending: Spending, time: str) -> dict[str, object]:
    """A later line's content."""
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
    """What :func:`spending_to_json` made; ``ValueError`` for anything else."""
    if content.get("kind") != "spending" or len(content) != 8:
        raise ValueError(f"its kind is {content.get('kind')!r:.80}")
    run, what, agreement, time = (_text(content, name) for name in ("run", "what", "agreement", "time"))
    number, facts = content.get("round"), content.get("facts")
    if type(number) is not int or not isinstance(facts, dict):
        raise ValueError("its round is no number, or its facts are none")
    event = event_from_json(content.get("event"))
    return Entry(Spending(Release(run, number, what), bytes.fromhex(agreement), event, facts), time)


def _text(content: Mapping[str, object], name: str) -> str:
    value = content.get(name)
    if not isinstance(value, str):
        raise ValueError(f"it has no {name}")
    return value
