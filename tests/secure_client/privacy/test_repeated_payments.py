"""Payments that a coordinator can cause beside those that are planned: bounded by the site's own file, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from agreement import DpSgdSection, Extractor, PrivacySection
from privacy.errors import BudgetError
from privacy.ledger.budget_account import read_account
from secure_client.errors import Violation
from secure_client.privacy.budget import BudgetSection
from secure_client.privacy.releases import Releases
from tests.secure_client.conftest import OpenSites
from tests.support.small import small_agreement

LOCAL = PrivacySection(clip=2.0, noise_multiplier=4.0)
DP_SGD = DpSgdSection(noise_multiplier=2.0, clip=1.0, sampling_rate=0.3)
PRIVATE = LOCAL.model_copy(update={"extractor": Extractor.PRIVATE, "dp_sgd": DP_SGD})
SITE = "clinic-a"


@pytest.mark.parametrize("privacy", [LOCAL, PRIVATE], ids=["local noise", "DP-SGD"])
def test_presence_before_the_roster_is_refused_before_anything_is_paid(
    open_sites: OpenSites, privacy: PrivacySection
) -> None:
    """The refusal undoes the training; a coordinator could otherwise have it paid for again after every restart."""
    play = open_sites(small_agreement().model_copy(update={"privacy": privacy}))
    for _ in range(2):
        with pytest.raises(Violation, match="before the roster"):
            play.presence(SITE)
        play.restart(SITE)
    assert not read_account(play.budget(SITE).ledger).entries


def test_a_site_that_is_killed_in_training_again_and_again_pays_no_more_than_its_file_allows(
    tmp_path: Path,
) -> None:
    agreed = small_agreement().model_copy(update={"privacy": PRIVATE})
    own = BudgetSection(dataset="scans", ledger=tmp_path / "ledger.jsonl", epsilon=1e6)
    for _ in range(own.most_paid_attempts):
        Releases(agreed, PRIVATE, own).pay_for_training(1)
    with pytest.raises(BudgetError, match=r"training of round 1 .* most_paid_attempts"):
        Releases(agreed, PRIVATE, own).pay_for_training(1)
    Releases(agreed, PRIVATE, own).pay_for_training(2)
    assert len(read_account(own.ledger).entries) == own.most_paid_attempts + 1
