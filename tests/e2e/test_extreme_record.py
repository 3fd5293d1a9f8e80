"""Processes of which one has a record at the end of float32's range: nobody but that site's own log can tell."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from agreement import Agreement, Extractor, Method, PrivacySection, Protection
from privacy.ledger.budget_account import read_account
from protoseal.splits import SiteArrays
from secure_client.data.samples import Samples, make_samples
from secure_server.app import read_rounds
from tests.adversary.watched_runs import HUGE, ROUNDS, leaving_agreement
from tests.support.forked_processes import Nursery
from tests.support.processes import Federation

PIXELS, CLASSES, EACH = 64, 3, 10
FROZEN = PrivacySection(clip=1.0, noise_multiplier=6.0, extractor=Extractor.FROZEN, release_every=1)
AGREEMENTS = {
    "frozen features": leaving_agreement(
        Method.PFPL, Protection.PLAIN, "deep", {**dict(FROZEN)}, preprocessing=None
    ),
    "a model that raises": leaving_agreement(Method.FEDPC, Protection.MASKED, "brittle", preprocessing=None),
}


def site(number: int) -> SiteArrays:
    """Features around each class's mean; the first site's last record is as large as can be."""
    drawn = np.random.default_rng(number)
    labels = np.repeat(np.arange(CLASSES), EACH)
    inputs = (drawn.normal(size=(len(labels), PIXELS)) + labels[:, None]).astype(np.float32)
    if number == 1:
        inputs[-1] = HUGE
    samples: Samples = make_samples(inputs, labels, where="test")
    return SiteArrays(f"site-{number}", samples, samples, ("a",))


@pytest.mark.full
@pytest.mark.parametrize("name", AGREEMENTS)
def test_run_with_an_extreme_record_completes_with_every_site(
    name: str, tmp_path: Path, nursery: Nursery
) -> None:
    agreed: Agreement = AGREEMENTS[name]
    sites = [site(number) for number in range(1, 5)]
    with Federation(tmp_path / "run", agreed, sites, gated=False, nursery=nursery) as federation:
        for each in federation.names if agreed.privacy else ():
            with (federation.folder(each) / "site.toml").open("a", encoding="utf-8") as file:
                file.write(
                    '[privacy]\ndataset = "scans"\nledger = "ledger.jsonl"\nepsilon = 50.0\ndelta = 1e-5\n'
                )
        coordinator, running = federation.start_coordinator(), federation.start_sites()
        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0] * 5
        rounds = read_rounds(tmp_path / "run" / "coordinator" / "state" / "rounds.jsonl")
        told = [each for each in rounds if each.round]
        assert [set(each.sites) for each in told] == [set(federation.names)] * ROUNDS
        assert not any(each.abandoned for each in told)
        trained = {
            each: [
                one["trained"]
                for one in json.loads((federation.folder(each) / "site.json").read_text())["rounds"]
            ]
            for each in federation.names
        }
        assert trained["site-1"] == [False] * ROUNDS
        assert all(trained["site-2"])
        for each in federation.names if agreed.privacy else ():
            assert len(read_account(federation.folder(each) / "ledger.jsonl").entries) == agreed.releases
