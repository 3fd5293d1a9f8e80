"""Statements of recorded ledgers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from protoseal.reports.ledger_facts import StatementFacts
from tests.protoseal.reports.recorded_ledgers import Recorded, record_ledger


@pytest.fixture
def stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Recorded], StatementFacts]:
    """Return the facts that a statement has of a ledger with the recorded content."""
    return partial(record_ledger, tmp_path=tmp_path, monkeypatch=monkeypatch)
