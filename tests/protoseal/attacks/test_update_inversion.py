"""Inversion of model updates: of one step, of an ordinary round, and of a sum whose other terms stood still."""

from __future__ import annotations

import pytest

from protoseal.attacks import update_inversion
from protoseal.attacks.cases import Measurement, Verdict, judge
from protoseal.attacks.readings import Adversary
from protoseal.attacks.update_inversion import StandStill, UpdateInversion
from tests.protoseal.attacks.recorded import recorded
from tests.protoseal.attacks.test_verdicts import leave_out_masks


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_inversion, "REPEATS", 2)
    monkeypatch.setattr(update_inversion, "_STEPS", 60)


def one_step(method: str = "fedavg", protection: str = "plain", samples: int = 1) -> Measurement:
    return UpdateInversion(samples).measure(recorded(method, protection), Adversary.COORDINATOR)[0]


def verdict(found: Measurement, undefended: Measurement) -> Verdict:
    return judge(found, undefended, chance=UpdateInversion.chance, margin=UpdateInversion.margin)


@pytest.mark.full
def test_one_step_gives_its_image_away_unless_masks_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, masked = one_step(), one_step(protection="masked")
    (still,) = StandStill().measure(recorded("fedavg", "masked"), Adversary.COORDINATOR)
    leave_out_masks(monkeypatch)
    unmasked = one_step(protection="masked")
    assert plain.details["PSNR with the image"] > plain.details["PSNR with another of its class"] + 5
    assert masked.value < plain.low
    assert verdict(masked, plain) is not Verdict.NOT_DEFENDED
    for found in (plain, unmasked, still):
        assert verdict(found, plain) is Verdict.NOT_DEFENDED


def test_an_extractors_step_gives_its_image_away() -> None:
    """FedPC keeps the classifier at the site, so that the label has to be found with the image."""
    found = one_step("fedpc")
    assert verdict(found, found) is Verdict.NOT_DEFENDED
    assert set(found.pictures[0].images) == {"original", "reconstruction", "class mean"}


@pytest.mark.full
def test_an_ordinary_round_gives_no_image_away() -> None:
    case = UpdateInversion(None)
    for found in case.measure(recorded("fedavg"), Adversary.COORDINATOR):
        assert found.value < case.chance + case.margin


def test_a_method_without_models_gives_no_input() -> None:
    assert not UpdateInversion(1).measure(recorded("pfpl"), Adversary.COORDINATOR)
