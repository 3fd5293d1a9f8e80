"""Every method with features that train by DP-SGD: each site pays for training and releases, and rounds are theirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from protoseal.config import DpSgdSection, Extractor, Method, Protection
from secure_client.privacy.chain import Anchor
from secure_client.privacy.entries import Spending
from secure_client.privacy.events import DpSgd, GaussianRelease
from secure_client.privacy.ledger import Ledger
from secure_client.privacy.planned import planned_history
from tests.conformance import clustered_runs, literal
from tests.conformance.clustered_runs import ClusterBook, run_clustered
from tests.conformance.grouped_runs import run_grouped, two_kinds
from tests.conformance.private_runs import PRIVACY, private_agreement
from tests.conformance.runs import data_for

ROUNDS, DIM = 2, 12
HOLDS = two_kinds()
PRIVATELY = PRIVACY.model_copy(
    update={
        "extractor": Extractor.PRIVATE,
        "dp_sgd": DpSgdSection(noise_multiplier=0.7, clip=0.5, sampling_rate=0.4),
    }
)


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> dict[Path, list[Spending]]:
    """What went into each site's ledger."""
    found: dict[Path, list[Spending]] = {}
    spend = Ledger.spend

    def spending(ledger: Ledger, each: Spending) -> Anchor:
        found.setdefault(ledger.path, []).append(each)
        return spend(ledger, each)

    monkeypatch.setattr(Ledger, "spend", spending)
    return found


@pytest.mark.parametrize("method", [Method.FEDPC, Method.FEDDBP, Method.FEDPLCC])
def test_each_site_pays_for_each_training_and_release_of_a_method(
    method: Method, tmp_path: Path, spent: dict[Path, list[Spending]]
) -> None:
    agreed = private_agreement(
        Protection.MASKED, method, classes=HOLDS.shape[1], dim=DIM, rounds=ROUNDS, privacy=PRIVATELY
    )
    run = run_clustered if method is Method.FEDPLCC else run_grouped
    book = run(agreed, data_for(agreed, HOLDS), tmp_path)
    excess = clustered_runs.excess if isinstance(book, ClusterBook) else literal.excess
    for number in range(1, ROUNDS + 1):
        assert len(literal.contributors(book, number)) == len(HOLDS)
        assert excess(book, number) <= 1.0  # type: ignore[arg-type]  # each of its own kind
    planned = planned_history(agreed, PRIVATELY)
    assert len(spent) == len(HOLDS)
    for all_of_a_site in spent.values():
        events = [each.event for each in all_of_a_site]
        assert [each for each in events if isinstance(each, DpSgd)] == planned[:ROUNDS]
        assert sum(isinstance(each, GaussianRelease) for each in events) == agreed.releases
        assert {each.facts["guarantee"] for each in all_of_a_site} == {"record"}
