"""Processes that train by DP-SGD with subjects as the unit: what was planned is what every file says was spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agreement import Agreement, DpSgdSection, Extractor, Method, Norm, PrivacySection
from privacy.accounting.events import DpSgd, Unit
from privacy.ledger.budget_account import read_account
from protoseal.reports.run_results import run_result
from protoseal.splits import SiteArrays
from secure_client.config import load_site
from secure_client.output.site_files import read_prototypes
from secure_client.output.site_log import read_site_log
from secure_client.privacy.cost import planned_epsilon, release_event
from secure_client.site_check import check_site
from secure_server.app import read_rounds
from tests.e2e.federations import small_agreement, small_sites
from tests.support.composed import epsilon
from tests.support.processes import Federation

pytestmark = pytest.mark.full

ROUNDS, STEPS, DELTA = 2, 4, 1e-5
"""Two epochs at a sampling rate of a half are four steps a round; the one release serves both rounds."""
DP_SGD = DpSgdSection(noise_multiplier=2.0, clip=1.0, sampling_rate=0.5)
PRIVACY = PrivacySection(
    clip=0.5,
    noise_multiplier=3.0,
    min_count=1.0,
    release_every=ROUNDS,
    unit=Unit.SUBJECT,
    extractor=Extractor.PRIVATE,
    dp_sgd=DP_SGD,
)


def agreement() -> Agreement:
    agreed = small_agreement(rounds=ROUNDS)
    training = agreed.training.model_copy(update={"norm": Norm.GROUP})
    return Agreement.model_validate(
        {**dict(agreed), "method": Method.PFPL, "privacy": PRIVACY, "training": training}
    )


def of_subjects(site: SiteArrays) -> SiteArrays:
    """Three records each, whatever their classes."""
    whose = np.array([f"patient {number // 3}" for number in range(len(site.train))])
    return replace(site, train=replace(site.train, subjects=whose))


def allow(federation: Federation, site: str, limit: float) -> None:
    with (federation.folder(site) / "site.toml").open("a", encoding="utf-8") as file:
        file.write(
            f'[privacy]\ndataset = "scans"\nledger = "ledger.jsonl"\nepsilon = {limit!r}\ndelta = {DELTA}\n'
            'unit = "subject"\n'
        )


def check_says_what_the_run_takes(folder: Path, planned: float) -> None:
    """`client check`: releases, steps, their ε together, whose it is, and that a ledger is begun."""
    finding = next(
        each for each in check_site(load_site(folder / "site.toml"), lambda: b"") if each.what == "privacy"
    )
    assert finding.ok
    assert finding.detail.startswith(
        f"1 release with noise multiplier 3 and {ROUNDS * STEPS} steps of DP-SGD with 2 at sampling rate 0.5 take"
        f" epsilon {planned:.4g} by themselves; 0 of {planned:g} at delta 1e-05 for one subject is spent on 'scans'"
    )
    assert finding.detail.endswith("has been created with that limit")
    assert not read_account(folder / "ledger.jsonl").entries


def test_dp_sgd_run_spends_and_reports_the_planned_epsilon(tmp_path: Path) -> None:
    agreed, sites = agreement(), tuple(of_subjects(each) for each in small_sites(3))
    planned = planned_epsilon(agreed, PRIVACY, DELTA)
    release, steps = release_event(agreed, PRIVACY), DpSgd(2.0, 0.5, STEPS)
    assert planned == epsilon([release, steps, steps], DELTA)
    assert planned > 1.05 * max(epsilon([release], DELTA), epsilon([steps, steps], DELTA))
    with Federation(tmp_path / "run", agreed, sites, gated=False) as federation:
        for name in federation.names:
            allow(federation, name, planned)
        check_says_what_the_run_takes(federation.folder("site-1"), planned)
        coordinator, running = federation.start_coordinator(), federation.start_sites()
        assert [each.exit_code() for each in (*running.values(), coordinator)] == [0, 0, 0, 0]
        for name in federation.names:
            folder = federation.folder(name)
            account = read_account(folder / "ledger.jsonl")
            assert account.budget.limit.unit is Unit.SUBJECT
            spent = [each.spending for each in account.entries]
            assert [(each.release.round, each.release.what) for each in spent] == [
                (1, "training"),
                (1, "prototypes"),
                (2, "training"),
            ]
            assert [each.event for each in spent] == [steps, release, steps]
            assert {each.facts["guarantee"] for each in spent} == {"subject"}
            assert epsilon([each.event for each in spent], DELTA) == pytest.approx(planned, rel=1e-9)
            told = read_site_log(folder).rounds
            assert told[0].epsilon == pytest.approx(epsilon([steps, release], DELTA), rel=1e-9)
            assert told[-1].epsilon == pytest.approx(planned, rel=1e-9)
            assert all(each.guaranteed for each in told)
            exact = [
                (each.loss, each.loss_classification, each.loss_constant, each.shortened) for each in told
            ]
            assert exact == [(None,) * 4] * ROUNDS
            assert np.isfinite(read_prototypes(folder).local).all()
        logs = {name: read_site_log(federation.folder(name)) for name in federation.names}
        rounds = read_rounds(tmp_path / "run" / "coordinator" / "state" / "rounds.jsonl")
        result = run_result(agreed, logs, rounds, {}, dataset="digits", seed=0)
        assert [each.epsilon for each in result.sites] == [pytest.approx(planned, rel=1e-9)] * 3
        assert all(each.guaranteed for each in result.sites)
