"""What an attack of the coordinator is, and how a check is taken out of the code under test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from algorithms.pfpl import Weighting
from protoseal.config import Protection
from protoseal_wire.messages import Phase
from tests.adversary.hostile import Hostile

ORDER = "secure_client.order.Order."
PARTICIPANTS = "secure_client.exchanges.participants.Participants."
JOURNAL_LOOKUP, JOURNAL_ONCE = "secure_client.journal.Journal.answer", "secure_client.journal._RECORD_ONCE"
PRESENCE_FIELDS = "protoseal_wire.presence._fields"
COHORT_INDEX = "crypto.protection.Cohort.index"
SEALED_INFO = "crypto.sealed._info"

_DOUBLES: dict[str, Any] = {
    JOURNAL_LOOKUP: lambda _journal, _key, _request: None,
    JOURNAL_ONCE: "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)",
    PRESENCE_FIELDS: lambda site, _key, _roster_hash, holds, *_: (site.encode(), holds.tobytes()),
    COHORT_INDEX: lambda cohort, site: cohort.sites.index(site) if site in cohort.sites else 0,
    SEALED_INFO: lambda _context: b"nothing is bound",
}


@dataclass(frozen=True)
class Attack:
    """``play`` asks ``victim`` for ``phase`` at its decisive step, and asserts at its end what was gained.

    ``layers`` are the places, one line each, any of which holds the attack off by itself. ``refusal`` is what the
    code as it is says.
    """

    layers: tuple[str, ...]
    victim: str
    phase: Phase
    refusal: str
    play: Callable[[Hostile], None]
    protection: Protection = Protection.PLAIN
    weighting: Weighting = Weighting.UNIFORM


def weaken(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take one layer away: a check that lets everything through, or the double above. Only a test can."""
    monkeypatch.setattr(layer, _DOUBLES.get(layer, lambda *_args, **_named: None))
