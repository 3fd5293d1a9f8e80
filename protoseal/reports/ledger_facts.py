"""Facts of a privacy ledger that its statement and ``budget show`` put into words: runs, dates, spending, guarantee.

Limit: a ledger does not contain what left of the same records without it, and its dates are the site's own clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agreement import Agreement
from privacy.accounting.accounting_rules import Accountant, Accounting
from privacy.accounting.events import DpSgd, Event, Unit
from privacy.ledger.budget_account import Account
from privacy.ledger.hash_chain import Anchor
from privacy.ledger.lines import ABOUT_RECORDS, GUARANTEE, OVERLAPS, Allowance, Entry, Exposure, Fact, Limit
from privacy.ledger.remaining_budget import describe_remaining, spent_epsilon
from protoseal.reports.privacy_statement import Members, describe_unit


@dataclass(frozen=True)
class PaidItem:
    """Equal entries of one run: ``what`` was paid for in ``rounds``, by one mechanism with the same ``facts``."""

    what: str
    event: Event
    facts: Mapping[str, Fact]
    rounds: tuple[int, ...]

    @property
    def in_words(self) -> str:
        """Description of what was paid for, how often, and with which noise."""
        steps = self.event.steps if isinstance(self.event, DpSgd) else 1
        return f"{self.what}, {describe_remaining(self.event, len(self.rounds) * steps)}"


@dataclass(frozen=True)
class RunFacts:
    """Lines of one run. ``epsilon`` is the cost of its entries alone; ``exact`` is true if exact values left in it."""

    name: str
    agreement_hash: bytes
    first: str
    last: str
    released: tuple[PaidItem, ...]
    epsilon: float
    exact: bool

    @property
    def dates(self) -> str:
        """Day of the first line, and of the last if it is another."""
        return self.first if self.first == self.last else f"{self.first} to {self.last}"


def list_runs(account: Account, epsilon: Accountant) -> tuple[RunFacts, ...]:
    """Return the runs of a ledger, in the order of their first lines; equal names under two agreements are two runs."""
    lines: dict[tuple[str, bytes], list[Entry | Exposure]] = {}
    for line in account.lines:
        # By agreement too: two runs of one name have settings of their own.
        if isinstance(line, Entry):
            lines.setdefault((line.spending.release.run, line.spending.agreement_hash), []).append(line)
        elif isinstance(line, Exposure):
            lines.setdefault((line.run, line.agreement_hash), []).append(line)
    return tuple(
        _summarise_run(name, agreed, of_run, account, epsilon) for (name, agreed), of_run in lines.items()
    )


def _summarise_run(
    name: str, agreement: bytes, lines: Sequence[Entry | Exposure], account: Account, epsilon: Accountant
) -> RunFacts:
    entries = [line for line in lines if isinstance(line, Entry)]
    days = sorted(day(line.time) for line in lines)
    return RunFacts(
        name=name,
        agreement_hash=agreement,
        first=days[0],
        last=days[-1],
        released=_group_entries(entries),
        epsilon=spent_epsilon([entry.spending.event for entry in entries], account.limit, epsilon),
        exact=len(entries) < len(lines),
    )


def _group_entries(entries: Sequence[Entry]) -> tuple[PaidItem, ...]:
    rounds: dict[tuple[str, Event, tuple[tuple[str, Fact], ...]], list[int]] = {}
    for entry in entries:
        spending = entry.spending
        facts = {name: fact for name, fact in spending.facts.items() if name not in ABOUT_RECORDS}
        kind = (spending.release.what, spending.event, tuple(sorted(facts.items())))
        rounds.setdefault(kind, []).append(spending.release.round)
    return tuple(
        PaidItem(what, event, dict(facts), tuple(of_kind)) for (what, event, facts), of_kind in rounds.items()
    )


def day(time: str) -> str:
    """Return the day of a line's time, as YYYY-MM-DD."""
    return time[:10]


def find_other_unit(account: Account) -> Unit | None:
    """Return a unit of privacy that an entry states and the ledger's limit does not, or None."""
    stated = (entry.spending.facts.get(GUARANTEE) for entry in account.entries)
    return next((Unit(unit) for unit in stated if unit in list(Unit) and unit != account.limit.unit), None)


def fewest_colluding(account: Account) -> int | None:
    """Return the fewest colluding sites that shared noise of an entry holds off; None if no entry has shared noise."""
    shared = [
        int(entry.spending.facts.get("colluding", 0))
        for entry in account.entries
        if entry.spending.facts.get("noise") == "distributed"
    ]
    return min(shared, default=None)


def charged_elsewhere(account: Account) -> str | None:
    """Return other ledgers that charge some of the records, as any line notes them, once; None for none."""
    noted = [
        ledger for facts in account.facts if OVERLAPS in facts for ledger in str(facts[OVERLAPS]).split("; ")
    ]
    return "; ".join(dict.fromkeys(noted)) or None


@dataclass(frozen=True)
class LimitChange:
    """Change of a ledger's limit from the one before it."""

    before: Limit
    allowance: Allowance

    @property
    def raised(self) -> bool:
        """True if ε or δ went up."""
        limit = self.allowance.limit
        return limit.epsilon > self.before.epsilon or limit.delta > self.before.delta

    @property
    def verb(self) -> str:
        """Word for the change."""
        return "raised" if self.raised else "changed"

    @property
    def to_filter(self) -> bool:
        """True if the change was to the Rényi filter."""
        return Accounting.RENYI is self.allowance.limit.accountant is not self.before.accountant


def limit_changes(account: Account) -> Iterator[LimitChange]:
    """Yield the changes of the limit, oldest first."""
    before = account.budget.limit
    for allowance in account.allowances:
        yield LimitChange(before, allowance)
        before = allowance.limit


def renyi_filter_pair(account: Account, spent: float) -> tuple[float, float]:
    """Return the (ε, δ) that holds under the Rényi filter if agreements with DP-SGD follow from earlier results.

    The filter guarantees the limit, and not what happens to be spent. A limit that was lowered may have been lowered
    after a look, so the largest counts, and the ``spent`` ε where a change to the filter left it above every limit.
    After such a change δ counts twice (docs/adr/0021-accounting-across-runs.md).
    """
    # Every limit that ever held counts: somebody may have looked at results under the largest.
    limits = [account.budget.limit, *(allowance.limit for allowance in account.allowances)]
    twice = 2 if any(change.to_filter for change in limit_changes(account)) else 1
    return max(spent, *(limit.epsilon for limit in limits)), twice * max(limit.delta for limit in limits)


def why_none(account: Account, lacking: Anchor | None) -> str | None:
    """Return the first reason why nothing is guaranteed, in the order of what it ends; None where there is none.

    ``lacking`` is the entry that the site has shown and the ledger lacks
    (:func:`secure_client.privacy.ledger_anchors.missing_anchor`).
    """
    # Exact values come first: they end every guarantee, whatever else the ledger lacks.
    if account.exposures:
        first = account.exposures[0]
        return f"exact values left in run {first.run!r} on {day(first.time)}"
    if account.losses:
        return f"an earlier ledger, which had come to entry {account.losses[0].seq}, is lost"
    if not account.guaranteed:
        return "something was released of features that no guarantee covers"
    unit = find_other_unit(account)
    if unit is not None:
        return f"an entry counts for one {unit}, and the limit for one {account.limit.unit}"
    if lacking is not None:
        return f"the ledger lacks entry {lacking.seq}, which the site has shown (the file .peers beside it)"
    return None


@dataclass(frozen=True)
class RecognisedShares:
    """Largest shares of members that any attack picks out: ``shares`` by the share of wrong picks (false alarms).

    ``of_ten`` is the share of people with ten units each (records) at 1 % of false alarms; None with DP-SGD, whose cost
    for a group has no closed form. ``filtered`` is the (ε, δ) from which the shares follow alone, where a Rényi filter
    covers agreements that depend on earlier results; None where they follow from the noise.
    """

    shares: Mapping[float, float]
    of_ten: float | None
    filtered: tuple[float, float] | None

    @property
    def usual(self) -> float:
        """The share at 1 % of false alarms."""
        return self.shares[0.01]


@dataclass(frozen=True)
class StatementFacts:
    """All that a statement is made of. ``recognised`` is None where nothing is guaranteed (``why_none``) or was spent.

    ``account`` is None for a site without a ledger. ``site`` and ``agreement`` are those of the site's file, and None
    for a statement from a ledger alone. ``made`` is the day of the statement.
    """

    made: str
    site: str | None
    agreement: Agreement | None
    account: Account | None
    runs: tuple[RunFacts, ...]
    epsilon: float
    recognised: RecognisedShares | None
    why_none: str | None

    @property
    def data(self) -> str:
        """The data set in words."""
        return "this site's data" if self.account is None else f"data set {self.account.budget.dataset!r}"

    @property
    def unit(self) -> Unit:
        """The protected unit: the ledger's, or a record if there is none."""
        return Unit.RECORD if self.account is None else self.account.limit.unit

    @property
    def members(self) -> Members:
        """Words for the unit."""
        return describe_unit(self.unit, self.data)

    @property
    def colluding(self) -> int | None:
        """Colluding sites that shared noise holds off; None where all noise is the site's own."""
        return None if self.account is None else fewest_colluding(self.account)

    @property
    def released(self) -> list[PaidItem]:
        """All that was paid for, in any run."""
        return [released for run in self.runs for released in run.released]

    @property
    def trains(self) -> bool:
        """True if a run trained by DP-SGD."""
        return any(isinstance(released.event, DpSgd) for released in self.released)
