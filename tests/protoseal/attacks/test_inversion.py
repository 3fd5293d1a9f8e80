"""Inversion of prototypes and of model updates: one step, an ordinary round, and a sum whose peers stand still."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from protoseal.attacks import prototype_inversion, update_inversion
from protoseal.attacks.cases import Measurement, Verdict
from protoseal.attacks.image_gallery import GALLERY
from protoseal.attacks.prototype_inversion import PrototypeInversion
from protoseal.attacks.readings import Adversary
from protoseal.attacks.update_inversion import StandStill, UpdateInversion
from tests.protoseal.attacks.recorded import leave_out_masks, recorded_large

# Prototypes


@pytest.fixture(scope="module")
def inverted() -> dict[str, Measurement]:
    """Return inversions of prototypes of one sample and of twenty, and of one sample under a rotation."""
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(prototype_inversion, "_STEPS", 100)
    plain, masked = (recorded_large("pfpl", protection, (1, 20)) for protection in ("plain", "masked"))
    one, many = (PrototypeInversion(samples, decoder=True) for samples in (1, 20))
    by_matching = PrototypeInversion(1, decoder=False)
    runs = {
        "one": (one, plain),
        "many": (many, plain),
        "matched": (by_matching, plain),
        "rotated": (one, masked),
    }
    results = {name: case.measure(run, Adversary.COORDINATOR)[0] for name, (case, run) in runs.items()}
    monkeypatch.undo()
    return results


def test_prototype_inversion_finds_one_image_and_not_one_of_twenty(
    inverted: dict[str, Measurement],
) -> None:
    chance = 1 / GALLERY
    assert inverted["one"].low > chance + 0.2
    assert inverted["matched"].low > chance
    assert inverted["many"].high < inverted["one"].low


def test_prototype_inversion_rotated_row_gives_no_image(inverted: dict[str, Measurement]) -> None:
    assert inverted["rotated"].low <= 0.2
    assert inverted["rotated"].high < inverted["one"].low


def test_prototype_inversion_picture_has_original_and_reconstruction(
    inverted: dict[str, Measurement],
) -> None:
    shown = inverted["one"].pictures[0].images
    assert set(shown) == {"original", "reconstruction", "class mean"}
    assert all(Image.open(io.BytesIO(base64.b64decode(png))).size == (8, 8) for png in shown.values())
    assert len(set(shown.values())) == 3


# Updates


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_inversion, "REPEATS", 2)
    monkeypatch.setattr(update_inversion, "_STEPS", 60)


def one_step(method: str = "fedavg", protection: str = "plain", samples: int = 1) -> Measurement:
    return UpdateInversion(samples).measure(recorded_large(method, protection), Adversary.COORDINATOR)[0]


@pytest.mark.full
def test_update_inversion_one_step_gives_its_image_unless_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, masked = one_step(), one_step(protection="masked")
    (still,) = StandStill().measure(recorded_large("fedavg", "masked"), Adversary.COORDINATOR)
    leave_out_masks(monkeypatch)
    unmasked = one_step(protection="masked")
    assert plain.details["PSNR with the image"] > plain.details["PSNR with another of its class"] + 5
    assert masked.value < plain.low
    assert UpdateInversion(1).judge(masked, plain) is not Verdict.NOT_DEFENDED
    for found in (plain, unmasked, still):
        assert UpdateInversion(1).judge(found, plain) is Verdict.NOT_DEFENDED


def test_update_inversion_extractor_step_gives_its_image() -> None:
    """FedPC keeps the classifier at the site, so that the label has to be found with the image."""
    found = one_step("fedpc")
    assert UpdateInversion(1).judge(found, found) is Verdict.NOT_DEFENDED
    assert set(found.pictures[0].images) == {"original", "reconstruction", "class mean"}


@pytest.mark.full
def test_update_inversion_ordinary_round_gives_no_image() -> None:
    case = UpdateInversion(None)
    for found in case.measure(recorded_large("fedavg"), Adversary.COORDINATOR):
        assert found.value < case.chance + case.margin


def test_a_method_without_models_gives_no_input() -> None:
    assert not UpdateInversion(1).measure(recorded_large("pfpl"), Adversary.COORDINATOR)
