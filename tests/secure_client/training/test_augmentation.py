"""Augmentation of training images: its pixels, and the statistics of its draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from secure_client.training.augmentation import Augmentation

MEAN, STD = torch.tensor([0.4, 0.5]), torch.tensor([0.25, 0.5])
BLACK = tuple((-MEAN / STD).tolist())
AUGMENTATION = Augmentation(padding=2, flips=True, black=BLACK)


def normalise(images: Tensor) -> Tensor:
    return (images - MEAN.view(-1, 1, 1)) / STD.view(-1, 1, 1)


def test_apply_equals_padding_cropping_and_mirroring_before_normalisation() -> None:
    images = torch.rand(40, 2, 5, 7, generator=torch.Generator().manual_seed(0))
    draws = AUGMENTATION.draw(len(images), torch.Generator().manual_seed(1))
    expected = []
    for image, (top, left, flip) in zip(images, draws.tolist(), strict=True):
        window = functional.pad(image, (2, 2, 2, 2))[:, top : top + 5, left : left + 7]
        expected.append(normalise(window.flip(2) if flip else window))
    augmented = AUGMENTATION.apply(normalise(images), draws)
    # Only black differs by rounding: it is -mean / std here, and (0 - mean) / std there, of values up to 1.6.
    torch.testing.assert_close(augmented, torch.stack(expected), rtol=0, atol=4 * torch.finfo().eps)


def test_apply_middle_window_without_flip_returns_the_images() -> None:
    images = torch.rand(3, 2, 5, 7)
    assert torch.equal(AUGMENTATION.apply(images, torch.tensor([[2, 2, 0]] * 3)), images)


def test_apply_in_any_batch_gives_the_same_bits() -> None:
    images, draws = torch.rand(21, 2, 5, 7), AUGMENTATION.draw(21, torch.Generator().manual_seed(2))
    together = AUGMENTATION.apply(images, draws)
    apart = [AUGMENTATION.apply(images[i : i + 1], draws[i : i + 1]) for i in range(21)]
    assert torch.equal(together, torch.cat(apart))


def test_draws_are_uniform_over_windows_and_flips() -> None:
    """Chi-squared statistic over 25 windows × 2 flips = 50 cells of 400 expected draws each.

    The threshold 103.2 is the 1 - 1e-5 quantile with 49 degrees of freedom. A flip of probability 0.55 adds
    20,000 · 4 · 0.05² = 200 to the statistic, and a window that never occurs adds 800 or more: both are found with a
    probability above 0.99.
    """
    draws = AUGMENTATION.draw(20_000, AUGMENTATION.generator(3))
    cells = torch.bincount((draws[:, 0] * 5 + draws[:, 1]) * 2 + draws[:, 2], minlength=50)
    assert len(cells) == 50
    assert float(((cells - 400.0) ** 2 / 400.0).sum()) < 103.2


def test_draw_without_padding_draws_flips_alone_and_without_flips_windows_alone() -> None:
    only_flips = Augmentation(0, flips=True, black=BLACK).draw(100, torch.Generator().manual_seed(4))
    assert only_flips[:, :2].eq(0).all()
    assert 0 < only_flips[:, 2].sum() < 100
    assert Augmentation(2, flips=False, black=BLACK).draw(100, torch.Generator())[:, 2].eq(0).all()


@pytest.mark.gpu
def test_apply_on_a_gpu_gives_the_bits_of_a_cpu() -> None:
    images, draws = torch.rand(21, 2, 5, 7), AUGMENTATION.draw(21, torch.Generator().manual_seed(2))
    assert torch.equal(AUGMENTATION.apply(images.cuda(), draws).cpu(), AUGMENTATION.apply(images, draws))
