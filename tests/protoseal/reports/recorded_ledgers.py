"""Ledgers with a recorded content, and what a site's statement says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from privacy.accounting.accounting_rules import accountant_for
from privacy.accounting.events import DpSgd, Event, GaussianRelease
from privacy.ledger import ledger as ledger_module
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Fact, Limit, ReleaseName, Spending
from protoseal.commands.budget_statement import read_ledger_facts
from protoseal.reports.ledger_facts import StatementFacts
from protoseal.reports.statement_files import statement_text, statement_to_json

FACTS: dict[str, Fact] = {
    "clip": 5.0,
    "count_weight": 2.0,
    "classes": 10,
    "dim": 64,
    "extractor": "frozen",
    "weights": "ab" * 32,
    "guarantee": "record",
}
RELEASE, TRAINING = GaussianRelease(2.0, 650), DpSgd(4.0, 0.1, 20)
HASH, LIMIT = bytes(32), Limit(9.0, 1e-5)


@dataclass(frozen=True)
class Recorded:
    """The content of a ledger. ``events`` are (what, event) pairs, one a round; ``then`` does more with the ledger."""

    dataset: str = "scans"
    limit: Limit = LIMIT
    runs: tuple[tuple[str, bytes], ...] = (("run-1", HASH),)
    events: tuple[tuple[str, Event], ...] = (("prototypes", RELEASE),) * 2
    facts: dict[str, Fact] = field(default_factory=lambda: dict(FACTS))
    days: tuple[str, ...] = ("2026-03-02",)
    then: Callable[[Ledger, Path], object] = lambda ledger, path: None

    def but(self, **facts: Fact) -> Recorded:
        """Return these with other facts in each entry."""
        return replace(self, facts=self.facts | facts)


def record_ledger(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StatementFacts:
    """Write a ledger with this content, and return the facts that a statement has of it."""
    path = tmp_path / "scans.jsonl"
    path.unlink(missing_ok=True)
    days = iter([recorded.days[0], *recorded.days])
    last = [recorded.days[0]]

    def now() -> str:
        last[0] = next(days, last[0])
        return f"{last[0]}T10:00:00Z"

    monkeypatch.setattr(ledger_module, "now", now)
    limit = recorded.limit
    ledger = Ledger(path, recorded.dataset, limit, epsilon=accountant_for(limit.accountant))
    for run, agreement in recorded.runs:
        for number, (what, event) in enumerate(recorded.events, 1):
            ledger.spend(Spending(ReleaseName(run, number, what), agreement, event, recorded.facts))
    recorded.then(ledger, path)
    return read_ledger_facts(path)


def sentences(facts: StatementFacts) -> str:
    """Return all text of a statement, and of its fields, without line breaks."""
    return " ".join(statement_text(facts).split()) + json.dumps(statement_to_json(facts), ensure_ascii=False)


BASE = Recorded()
TWO = (("run-1", HASH), ("run-2", b"1" * 32))
TRAINED = (("training", TRAINING), ("prototypes", RELEASE))
SHARED = BASE.but(noise="distributed", colluding=1)
