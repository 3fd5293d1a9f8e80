"""Outcomes of the checks of a recorded run, by site, and the verdict that follows from them.

:mod:`protoseal.audit.run_audit` makes the checks, by the modules that are named for what they check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from protoseal.audit.canary_audit import AuditVerdict

POWER = 0.95
"""Least probability with which a check that stands would have found the weakness that it names."""
NOISE, PAID, SENT = (
    "noise that is too small",
    "releases that the ledger does not charge",
    "values beside the draw",
)
ESSENTIAL = frozenset({NOISE, PAID, SENT})
"""Weaknesses without whose checks no claim stands."""
NO_LEDGER = "no ledger was kept: a simulation keeps the sites' ledgers with --keep-releases"
ALL_SITES = "all sites"
"""Name under which checks over several sites are reported."""


class CheckOutcome(StrEnum):
    """Outcome of a check of a run: a weakness was found, the claim stands, or the check says nothing."""

    FOUND = "found"
    STANDS = "stands"
    NOT_COVERED = "not covered"


@dataclass(frozen=True)
class Check:
    """Outcome of the check for one ``weakness``, with its reason in words and its p-value, if the check has one."""

    weakness: str
    outcome: CheckOutcome
    reason: str
    p_value: float | None = None


def refute(weakness: str, reason: str, p_value: float | None = None) -> Check:
    """Return the check of a weakness that was found, which refutes the claim."""
    return Check(weakness, CheckOutcome.FOUND, reason, p_value)


def uphold(weakness: str, reason: str, p_value: float | None = None) -> Check:
    """Return the check of a weakness that would have been found."""
    return Check(weakness, CheckOutcome.STANDS, reason, p_value)


def leave_open(weakness: str, reason: str, p_value: float | None = None) -> Check:
    """Return the check of a weakness of which the record does not say enough."""
    return Check(weakness, CheckOutcome.NOT_COVERED, reason, p_value)


def judge(
    weakness: str,
    p_value: float,
    level: float,
    observed: str,
    *,
    fault: str | None = None,
    unclear: str | None = None,
) -> Check:
    """Return the check of a statistical test: a p-value below ``level`` refutes the claim, for the reason ``fault``.

    ``unclear`` says why the test would have missed the weakness, and None that it would have found it. ``observed`` is
    the reason otherwise.
    """
    if p_value < level:
        return refute(weakness, observed if fault is None else fault, p_value)
    if unclear is not None:
        return leave_open(weakness, unclear, p_value)
    return uphold(weakness, observed, p_value)


@dataclass(frozen=True)
class RunAudit:
    """All checks of a run by site, :data:`ALL_SITES` among them.

    No claim stands unless the checks of the ``essential`` weaknesses stand at each site, and none is not covered.
    """

    run: str
    checks: Mapping[str, Sequence[Check]]
    essential: frozenset[str] = ESSENTIAL

    def checks_with(self, outcome: CheckOutcome) -> list[tuple[str, Check]]:
        """Return the checks with an outcome, each with its site."""
        return [
            (site, check)
            for site, checks in self.checks.items()
            for check in checks
            if check.outcome is outcome
        ]

    @property
    def verdict(self) -> AuditVerdict:
        """Verdict: refuted by any weakness; too weak to tell if the record does not cover an essential one."""
        # One fault is enough, since each check's false alarms are bounded by the level of all.
        if self.checks_with(CheckOutcome.FOUND):
            return AuditVerdict.REFUTED
        sites = [checks for site, checks in self.checks.items() if site != ALL_SITES]
        for checks in sites:
            stands, not_covered = (
                {check.weakness for check in checks if check.outcome is outcome}
                for outcome in (CheckOutcome.STANDS, CheckOutcome.NOT_COVERED)
            )
            # A weakness may stand by one check and be left open by another: then half of the record is missing.
            if not self.essential <= stands - not_covered:
                return AuditVerdict.TOO_WEAK
        return AuditVerdict.STANDS if sites else AuditVerdict.TOO_WEAK
