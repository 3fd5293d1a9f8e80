"""Digits data set: scikit-learn's scans of handwritten digits, as five domains that differ in appearance.

1797 real scans of 8×8 pixels (Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits", UCI). They are
distributed over the domains first and altered afterwards, so no scan is in two domains.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from secure_client.data.arrays import Labels, Samples, TrainTest

Images = NDArray[np.float64]
CLASSES = tuple(str(digit) for digit in range(10))
FULL_INK = 16.0
"""The darkest value of a scan."""


def _as_scanned(images: Images, _: np.random.Generator) -> Images:
    return images


def _inverted(images: Images, _: np.random.Generator) -> Images:
    return 1.0 - images


def _blurred(images: Images, _: np.random.Generator) -> Images:
    """Filter with [1, 2, 1]/4 along both axes, edges repeated."""
    for axis in (1, 2):
        padding = [(1, 1) if other == axis else (0, 0) for other in range(3)]
        padded = np.pad(images, padding, mode="edge")
        before, middle, after = (np.take(padded, range(s, s + images.shape[axis]), axis) for s in range(3))
        images = (before + 2.0 * middle + after) / 4.0
    return images


def _noisy_at_low_contrast(images: Images, rng: np.random.Generator) -> Images:
    return 0.3 + 0.4 * images + rng.normal(scale=0.08, size=images.shape)


def _with_gradient(images: Images, _: np.random.Generator) -> Images:
    """Brighter towards the right, as under light from one side."""
    return 0.5 * images + 0.5 * np.linspace(0.0, 1.0, images.shape[2])


APPEARANCES: dict[str, Callable[[Images, np.random.Generator], Images]] = {
    "as scanned": _as_scanned,
    "inverted": _inverted,
    "blurred": _blurred,
    "noisy at low contrast": _noisy_at_low_contrast,
    "with a gradient": _with_gradient,
}


def digits_in_five_appearances(seed: int) -> TrainTest:
    """Return all 1797 scans, float32 (N, 8, 8, 1) in [0, 1], each in one of :data:`APPEARANCES`; no test part.

    ``seed`` determines the appearance of each scan, and the noise. Every domain has 34 to 37 scans of each class.
    """
    from sklearn.datasets import load_digits  # noqa: PLC0415 (slow to import, and most sites never need it)

    scans = load_digits()
    labels = scans.target.astype(np.int64)
    rng = np.random.default_rng(seed)
    domains = _deal(labels, len(APPEARANCES), rng)
    images = scans.images / FULL_INK
    for domain, alter in enumerate(APPEARANCES.values()):
        chosen = domains == domain
        images[chosen] = alter(images[chosen], rng)
    pixels = images.clip(0.0, 1.0).astype(np.float32)[..., np.newaxis]
    return TrainTest(Samples(pixels, labels, domains), None, CLASSES, tuple(APPEARANCES))


def _deal(labels: Labels, piles: int, rng: np.random.Generator) -> Labels:
    """Return the pile of each sample, (N,): each class is shuffled and distributed evenly."""
    dealt = np.empty_like(labels)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        dealt[members] = np.arange(len(members)) % piles
    return dealt
