"""Scattering coefficients are those of the literature, of each image and channel by itself, and nothing learns them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from secure_client.models import scattering
from secure_client.models.scattering import FACTOR, ORIENTATIONS, PATHS, SCALES, Scattering

KYMATIO = (
    43492,
    3639,
    5161,
    9459,
    3775,
    9175,
    5881,
    3512,
    3053,
    1259,
    3586,
    3862,
    2733,
    3641,
    2933,
    1056,
    1355,
    481,
    463,
    610,
    505,
    435,
    473,
    392,
    603,
    667,
    694,
    538,
    434,
    365,
    409,
    334,
    660,
    524,
    481,
    248,
    570,
    484,
    311,
    405,
    514,
    384,
    519,
    769,
    283,
    885,
    494,
    374,
    377,
    452,
    351,
    567,
    472,
    242,
    487,
    619,
    652,
    304,
    441,
    408,
    509,
    536,
    779,
    774,
    600,
    349,
    521,
    421,
    535,
    592,
    398,
    483,
    572,
    200,
    456,
    458,
    492,
    423,
    403,
    225,
    221,
)
"""1e5 times what ``kymatio.torch.Scattering2D(J=2, shape=(16, 16))`` of Kymatio 0.3.0 gives at place (1, 2).

Of ``patterned(16)``. Kymatio takes 3.1415 for π in the height of its filters; here they are as with π.
"""
NEAR = 8e-6


def patterned(side: int) -> Tensor:
    """Return an image with waves of all kinds, (side, side)."""
    down, right = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return ((7 * down + 13 * right**2) % 17) / 17


def off_by(side: int = 16) -> float:
    """Return the largest difference to Kymatio's coefficients."""
    found = Scattering(side)(patterned(side)[None, None])[0, :, 1, 2]
    return float((found - torch.tensor(KYMATIO) / 1e5 * 3.1415 / math.pi).abs().max())


def test_scattering_coefficients_are_those_of_kymatio() -> None:
    assert len(KYMATIO) == PATHS
    assert off_by() < NEAR


@pytest.mark.parametrize(
    ("name", "other"), [("_WIDTH", 0.81), ("_FREQUENCY", 0.74 * math.pi), ("_SLANT", 0.48), ("_SLANT", 2.0)]
)
def test_scattering_comparison_detects_other_wavelets(
    name: str, other: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scattering, name, other)
    assert off_by() > 2 * NEAR


def test_scattering_wavelets_do_not_see_a_constant() -> None:
    constant = Scattering(12)(torch.full((1, 1, 12, 12), 0.7))[0]
    torch.testing.assert_close(constant[0], torch.full((3, 3), 0.7), rtol=0, atol=1e-5)
    assert float(constant[1:].abs().max()) < 1e-5


@pytest.mark.parametrize("side", [8, 13, 28, 30])
def test_scattering_coefficients_depend_on_no_other_image_or_channel(side: int) -> None:
    images = torch.rand(3, 2, side, side, generator=torch.Generator().manual_seed(1))
    layer = Scattering(side)
    found = layer(images)
    assert found.shape == (3, 2 * PATHS, side // FACTOR, side // FACTOR)
    for image, coefficients in zip(images, found, strict=True):
        alone = torch.cat([layer(channel[None, None])[0] for channel in image])
        torch.testing.assert_close(coefficients, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("side", [24, 30])
@pytest.mark.parametrize("path", [0, 1, SCALES * ORIENTATIONS, PATHS - 1])
def test_scattering_coefficients_are_of_their_place(side: int, path: int) -> None:
    """Each coefficient, of the average, of fine and coarse wavelets and of pairs, shows the place of a dot."""
    image = torch.zeros(1, 1, side, side)
    image[..., 3 * FACTOR, 2 * FACTOR] = 1.0
    seen = Scattering(side)(image)[0, path]
    assert divmod(int(seen.argmax()), side // FACTOR) == (3, 2)


def test_scattering_has_no_parameters_and_no_state() -> None:
    layer = Scattering(16)
    assert list(layer.parameters()) == []
    assert layer.state_dict() == {}
