"""A run without noise is a line of the ledger before any exact value leaves the site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agreement import Protection
from algorithms.pfpl import Weighting
from privacy.ledger.budget_account import read_account
from secure_client.privacy.budget import BudgetSection
from secure_client.privacy.releases import ExactReleases
from secure_client.session import Session
from tests.support.scripted_coordinator import Cast, ScriptedCoordinator, Site
from tests.support.small import small_agreement

A, OTHERS = "clinic-a", ("clinic-b", "clinic-c", "clinic-d")


@pytest.fixture
def play(tmp_path: Path, cast: Cast) -> Iterator[ScriptedCoordinator]:
    with ScriptedCoordinator(tmp_path, small_agreement(Protection.PLAIN, Weighting.COMPLEMENT), cast) as play:
        play.set_up(A, *OTHERS)
        yield play


def test_presence_without_noise_records_the_exposure_once(play: ScriptedCoordinator, tmp_path: Path) -> None:
    budget = BudgetSection(dataset="scans", ledger=tmp_path / "scans.ledger", epsilon=1.0)
    site = play.site(A)
    exact = ExactReleases(play.agreement, budget)
    play._sites[A] = Site(
        Session(play.agreement, play.parties[A], site.learner, site.journal, exact=exact),
        site.learner,
        site.journal,
    )
    assert read_account(budget.ledger).guaranteed
    for attempt in (1, 2):
        shown = play.presence(A, attempt=attempt).anchor
        account = read_account(budget.ledger)
        assert [exposure.run for exposure in account.exposures] == [play.agreement.run]
        assert shown is not None
        assert (shown.seq, shown.head.hex()) == account.anchor
        assert not exact.spent_budget().guaranteed
