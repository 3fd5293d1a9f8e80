"""Concurrent runs over one ledger: the budget holds and no payment is lost, whatever the order and whoever dies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from unittest.mock import patch

from protoseal_files import append_only_file
from tests.states.ledgers import SharedLedger
from tests.states.stepwise import no_lock

_PLANS = 60


def test_runs_that_share_a_ledger_keep_its_budget(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(_PLANS):
        outcome = SharedLedger(tmp_path / f"{seed}.jsonl", seed).run()
        assert not outcome.problems, (seed, outcome)
        seen.update(paid=outcome.paid, refused=outcome.refused, killed=outcome.killed)
    assert min(seen.values()) > _PLANS // 2, seen


def test_an_unlocked_ledger_is_found(tmp_path: Path) -> None:
    with patch.object(append_only_file, "_lock", no_lock):
        outcomes = [SharedLedger(tmp_path / f"{seed}.jsonl", seed).run() for seed in range(5)]
    assert any(outcome.problems for outcome in outcomes)
