"""Rules of a run of the small federation."""

from __future__ import annotations

from agreement import Agreement
from protoseal_wire.messages import Phase
from secure_server.rounds.rules import Rules
from tests.support.small import HOLDINGS

SECONDS = 60.0
"""Seconds for joining, and for each phase."""


def rules_of(agreement: Agreement, *, max_attempts: int) -> Rules:
    """Return rules with no secret to be made."""
    return Rules(
        run=agreement.run,
        roster=tuple(HOLDINGS),
        min_sites=agreement.min_sites,
        rounds=agreement.rounds,
        max_attempts=max_attempts,
        needs_secret=False,
        join_seconds=SECONDS,
        phase_seconds=dict.fromkeys(Phase, SECONDS),
    )
