import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from secure_client.data.digits import APPEARANCES, digits_in_five_appearances


def scans_of(seed: int, domain: int) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Return the scans of one domain, as scanned and as altered."""
    data = digits_in_five_appearances(seed).train
    chosen = data.domains == domain
    return load_digits().images[chosen] / 16.0, data.inputs[chosen, ..., 0]


def test_every_scan_is_in_one_domain_and_every_domain_has_every_class() -> None:
    data = digits_in_five_appearances(3)
    assert data.test is None
    assert data.train.inputs.shape == (1797, 8, 8, 1)
    assert (data.train.labels == load_digits().target).all()
    assert data.train.inputs.min() >= 0.0
    assert data.train.inputs.max() <= 1.0
    counts = np.zeros((5, 10), dtype=int)
    np.add.at(counts, (data.train.domains, data.train.labels), 1)
    assert counts.min() >= 34
    assert counts.max() <= 37
    assert data.domains == tuple(APPEARANCES)


def test_a_seed_fixes_it_and_another_deals_otherwise() -> None:
    first, again, other = (digits_in_five_appearances(seed) for seed in (1, 1, 2))
    assert (first.train.inputs == again.train.inputs).all()
    assert (first.train.domains != other.train.domains).mean() > 0.5


def test_appearances_are_what_they_are_called() -> None:
    scanned, as_scanned = scans_of(0, 0)
    np.testing.assert_allclose(as_scanned, scanned, atol=1e-7)
    scanned, inverted = scans_of(0, 1)
    np.testing.assert_allclose(inverted, 1.0 - scanned, atol=1e-7)
    scanned, gradient = scans_of(0, 4)
    np.testing.assert_allclose(gradient[..., 0], 0.5 * scanned[..., 0], atol=1e-7)
    np.testing.assert_allclose(gradient[..., 7], 0.5 * scanned[..., 7] + 0.5, atol=1e-7)


def test_blurring_is_the_binomial_filter() -> None:
    scanned, blurred = scans_of(0, 2)
    kernel = np.outer([1, 2, 1], [1, 2, 1]) / 16
    for row, column in np.ndindex(8, 8):
        expected = 0.0
        for dy, dx in np.ndindex(3, 3):
            y, x = min(max(row + dy - 1, 0), 7), min(max(column + dx - 1, 0), 7)
            expected += kernel[dy, dx] * scanned[5, y, x]
        assert blurred[5, row, column] == pytest.approx(expected, abs=1e-6)


def test_the_noisy_domain_is_low_in_contrast_and_noisy() -> None:
    scanned, noisy = scans_of(0, 3)
    residue = noisy - (0.3 + 0.4 * scanned)
    assert residue.std() == pytest.approx(0.08, rel=0.05)  # of 23000 values: 0.5 % standard error
    assert noisy.std() < 0.55 * scanned.std()
