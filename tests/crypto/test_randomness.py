"""Gaussian noise: the right sigma and shape pass, wrong ones do not, and no seed can repeat it."""

import numpy as np
import pytest

from crypto.randomness import Float, gaussian, truncated_gaussian
from tests.crypto.noise_checks import WrongNoiseError, check_independent, check_shape, check_sigma

COUNT = 40_000
SIGMA = 2.0**17


@pytest.fixture(scope="module")
def draws() -> Float:
    return gaussian(COUNT, SIGMA)


def test_gaussian_has_sigma_and_shape(draws: Float) -> None:
    check_sigma(draws, SIGMA)
    check_shape(draws, SIGMA)


@pytest.mark.parametrize("factor", [2 / 3, 3 / 2])
def test_check_other_sigma_fails(draws: Float, factor: float) -> None:
    with pytest.raises(WrongNoiseError):
        check_sigma(draws, factor * SIGMA)


def test_check_other_shape_fails(draws: Float) -> None:
    uniform = np.sqrt(3.0) * SIGMA * np.linspace(-1.0, 1.0, COUNT)
    check_sigma(uniform, SIGMA)
    with pytest.raises(WrongNoiseError, match="normal distribution"):
        check_shape(uniform, SIGMA)


def test_gaussian_draws_independent(draws: Float) -> None:
    half = COUNT // 2
    check_independent(draws[:half], draws[half:])  # cosine and sine of the same radius and angle
    check_independent(draws[:-1], draws[1:])
    with pytest.raises(WrongNoiseError):
        check_independent(draws[:half], np.abs(draws[:half]))


def test_gaussian_ignores_numpy_seed() -> None:
    np.random.seed(1)
    first = gaussian(4, 1.0)
    np.random.seed(1)
    assert not np.isin(gaussian(4, 1.0), first).any()


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_gaussian_count_exact(count: int) -> None:
    assert gaussian(count, 1.0).shape == (count,)
    assert truncated_gaussian(count, 1.0, 2.0).shape == (count,)


def test_truncated_gaussian_within_bound() -> None:
    draws = truncated_gaussian(COUNT, 1.0, 1.0)
    assert np.abs(draws).max() <= 1.0
    # The variance of N(0, 1) given |x| ≤ 1 is 0.2911.
    assert np.square(draws).mean() == pytest.approx(0.2911, abs=0.01)


def test_truncated_gaussian_far_bound_same_distribution() -> None:
    draws = truncated_gaussian(COUNT, SIGMA, 4 * SIGMA)
    check_sigma(draws, SIGMA)
    check_shape(draws, SIGMA)
    assert np.abs(draws).max() <= 4 * SIGMA


@pytest.mark.parametrize(("count", "sigma"), [(-1, 1.0), (1, 0.0), (1, -1.0), (1, np.inf), (1, np.nan)])
def test_gaussian_bad_arguments_refused(count: int, sigma: float) -> None:
    with pytest.raises(ValueError, match="sigma"):
        gaussian(count, sigma)


def test_truncated_gaussian_bound_below_sigma_refused() -> None:
    with pytest.raises(ValueError, match="sigma"):
        truncated_gaussian(1, 1.0, 0.5)
