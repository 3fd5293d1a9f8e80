"""A malicious site that sends back what it received: it reads peers that answer again for the same rows alone."""

from __future__ import annotations

import pytest

from agreement import Agreement
from protoseal.attacks.cases import Measurement, Verdict
from protoseal.attacks.echoing_site import EchoingSite
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import RecordedRun
from tests.protoseal.attacks.recorded import FEW_RECORDS, record_anew, recorded

CASE = EchoingSite()


@pytest.fixture(scope="module")
def trained() -> RecordedRun:
    return record_anew("pfpl", "masked", split=FEW_RECORDS, sites=3, rounds=3, training={"local_epochs": 1})


@pytest.fixture(scope="module")
def frozen() -> RecordedRun:
    training = {"local_epochs": 1, "frozen_extractor": True}
    return record_anew(
        "pfpl", "masked", split=FEW_RECORDS, sites=3, rounds=3, training=training, norm_bound=1.0
    )


def measured(run: RecordedRun) -> tuple[Measurement, Verdict]:
    """Return the attack on a run, and the verdict beside peers that stand still."""
    (result,), reference = CASE.measure(run, Adversary.PEER), CASE.reference(run)
    assert reference is not None
    return result, CASE.judge(result, reference)


def test_echoing_site_peers_that_answer_each_round_are_read(
    frozen: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The double is an agreement whose rows are asked for in every round, although no feature changes."""
    monkeypatch.setattr(Agreement, "row_period", 1)
    result, verdict = measured(frozen)
    assert verdict is Verdict.NOT_DEFENDED
    assert result.details["answers for a class"] == 3


def test_echoing_site_frozen_peers_answer_once(frozen: RecordedRun) -> None:
    result, verdict = measured(frozen)
    assert verdict is Verdict.DEFENDED
    assert result.details["answers for a class"] == 1


@pytest.mark.full
def test_echoing_site_training_peers_are_not_read(trained: RecordedRun) -> None:
    result, verdict = measured(trained)
    assert verdict is Verdict.DEFENDED
    assert result.details["answers for a class"] == 3


@pytest.mark.parametrize("method", ["fedpc", "fedavg"])
def test_echoing_site_sums_have_no_input(method: str) -> None:
    run = recorded(method, "masked")
    assert not CASE.measure(run, Adversary.PEER)
    assert CASE.reference(run) is None
