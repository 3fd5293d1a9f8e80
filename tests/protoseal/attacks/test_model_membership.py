"""Models that adversaries read, and membership inference from them."""

from __future__ import annotations

import numpy as np
import pytest

from protoseal.attacks import model_membership
from protoseal.attacks.cases import Verdict
from protoseal.attacks.exchanged_models import read_models
from protoseal.attacks.model_membership import ModelMembership, common_public
from protoseal.attacks.readings import Adversary
from tests.protoseal.attacks.recorded import leave_out_masks, record_anew, recorded

FEW, LONG = (8,), {"training": {"local_epochs": 15}}


@pytest.mark.parametrize(
    ("method", "protection", "adversary"),
    [
        ("fedpc", "plain", Adversary.COORDINATOR),
        ("fedplcc", "plain", Adversary.COORDINATOR),
        ("fedavg", "masked", Adversary.PEERS),
        ("fedavg", "ckks", Adversary.COLLUSION),
    ],
)
def test_read_models_victims_model_is_exact(method: str, protection: str, adversary: Adversary) -> None:
    run = recorded(method, protection)
    victim = min(run.sites)
    (read, *_) = read_models(run, adversary, victim)
    assert read.sites == 1
    assert read.vector == pytest.approx(run.sites[victim].averaged, abs=1e-6)


def test_read_models_mean_is_no_sites_model() -> None:
    run = recorded("fedavg", "masked")
    victim = min(run.sites)
    words, mean = read_models(run, Adversary.COORDINATOR, victim)
    own = run.sites[victim].averaged
    assert np.abs(words.vector - own).max() > 1.0
    assert np.abs(mean.vector - own).max() > 1e-3
    assert mean.sites == len(run.sites)


def test_common_public_has_no_training_record() -> None:
    run = recorded("fedavg")
    public = {each.numpy().tobytes() for each in common_public(run).inputs}
    assert public
    for site in run.sites.values():
        assert not public & {each.numpy().tobytes() for each in site.train.inputs}


def test_a_method_without_models_gives_no_input() -> None:
    assert not ModelMembership().measure(recorded("pfpl"), Adversary.COORDINATOR)


@pytest.mark.full
def test_model_membership_long_training_shows_members_unless_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_membership, "SHADOWS", 4)
    case = ModelMembership()
    plain, masked = (record_anew("fedavg", protection, FEW, **LONG) for protection in ("plain", "masked"))
    leave_out_masks(monkeypatch)
    unmasked = record_anew("fedavg", "masked", FEW, **LONG)
    undefended, hidden, shown = (
        case.measure(run, Adversary.COORDINATOR)[0] for run in (plain, masked, unmasked)
    )
    verdicts = [case.judge(each, undefended) for each in (undefended, hidden, shown)]
    assert verdicts[0] is verdicts[2] is Verdict.NOT_DEFENDED
    assert verdicts[1] is not Verdict.NOT_DEFENDED
    assert hidden.value < undefended.low
