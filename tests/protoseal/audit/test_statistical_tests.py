"""Statistics of noise on arrays: drawn noise passes at the claimed rate, and each fault of an array is found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from privacy.mechanisms.discrete_gaussian import discrete_gaussian
from privacy.mechanisms.grid import SIGMA, SIGMA_LOG2, Ints
from protoseal.audit.release_checks import (
    COUNTS,
    DEPENDENT,
    REPEATED,
    SHAPE,
    check_counts,
    check_dependence,
    check_repeats,
    check_shape,
)
from protoseal.audit.run_checks import POWER, CheckOutcome
from protoseal.audit.statistical_tests import (
    Float,
    copies_p,
    dependence_p,
    fourth_p,
    products_p,
    ratio_p,
    shapes_missed,
    shifts_p,
)
from tests.support.weakenings import combine_classes, copy_half

LEVEL = 1e-6
CLASSES, DIM = 8, 64


def drawn(classes: int = CLASSES, dim: int = DIM) -> Float:
    noise = discrete_gaussian(classes * (dim + 1), SIGMA_LOG2).reshape(classes, dim + 1)
    return np.asarray(noise / SIGMA)


def outcomes(*draws: Float) -> dict[str, CheckOutcome]:
    """Return the outcomes of the checks of these draws of one site."""
    checks = [check(draws, LEVEL) for check in (check_counts, check_shape, check_dependence)]
    checks.append(check_repeats(REPEATED, [draws], LEVEL))
    return {check.weakness: check.outcome for check in checks}


def changed(change: Callable[[Ints], None]) -> list[Float]:
    noise = np.rint(drawn() * SIGMA).astype(np.int64)
    change(noise)
    return [noise / SIGMA]


def in_half_of_the_dimensions() -> list[Float]:
    basis = np.linalg.qr(np.random.default_rng().normal(size=(DIM, DIM // 2)))[0]
    basis /= np.linalg.norm(basis, axis=1, keepdims=True)
    return [np.column_stack([drawn(5 * CLASSES, DIM // 2)[:, :-1] @ basis.T, drawn(5 * CLASSES)[:, -1]])]


def with_half_on_counts() -> list[Float]:
    noise = drawn(100)
    noise[:, -1] /= 2
    return [noise]


def reversed_again() -> list[Float]:
    noise = drawn()
    return [noise, noise[:, ::-1].copy()]


def smoothed() -> list[Float]:
    """Return noise that is a sum with noise at a distance, so that no value occurs again."""
    noise = drawn(100)
    return [(noise + np.roll(noise, DIM // 2, axis=1)) / np.sqrt(2)]


FAULTS: dict[str, tuple[Callable[[], list[Float]], str]] = {
    "a half with the noise of the other": (lambda: changed(copy_half), REPEATED),
    "a release in reverse": (reversed_again, REPEATED),
    "noise in common at a distance": (smoothed, REPEATED),
    "a class with a combination of noise": (lambda: changed(combine_classes), DEPENDENT),
    "half of the dimensions": (in_half_of_the_dimensions, DEPENDENT),
    "half of the noise on counts": (with_half_on_counts, COUNTS),
    "uniform noise": (
        lambda: [np.random.default_rng().uniform(-np.sqrt(3), np.sqrt(3), (16, DIM + 1))],
        SHAPE,
    ),
    "Laplace noise": (lambda: [np.random.default_rng().laplace(0, np.sqrt(0.5), (16, DIM + 1))], SHAPE),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_release_checks_faulty_noise_is_found(fault: str) -> None:
    make, weakness = FAULTS[fault]
    assert outcomes(*make())[weakness] is CheckOutcome.FOUND


def test_release_checks_drawn_noise_stands() -> None:
    assert set(outcomes(*(drawn(50) for _ in range(2))).values()) == {CheckOutcome.STANDS}


def test_release_checks_few_values_are_not_covered() -> None:
    few = outcomes(drawn(3, DIM))
    assert [few[name] for name in (COUNTS, SHAPE, DEPENDENT)] == [CheckOutcome.NOT_COVERED] * 3


def fourths_p(values: Float) -> float:
    return fourth_p(float((values**4).mean()), values.size)


def neighbours_p(values: Float) -> float:
    return products_p(float((values[1:] * values[:-1]).sum()), len(values))


@pytest.mark.parametrize(
    ("p_value", "shape"),
    [
        (copies_p, (520,)),
        (neighbours_p, (30,)),
        (fourths_p, (30,)),
        (shifts_p, (520,)),
        (ratio_p, (520,)),
        (dependence_p, (8, 64)),
        (dependence_p, (64, 8)),
    ],
)
def test_p_values_drawn_noise_keeps_level(p_value: Callable[[Float], float], shape: tuple[int, ...]) -> None:
    runs, rate = 1000, 0.05
    generator = np.random.default_rng()
    small = sum(p_value(generator.normal(size=shape)) < rate for _ in range(runs))
    # Five deviations of the binomial law: a false alarm in about 3 million tests.
    assert small <= runs * rate + 5 * np.sqrt(runs * rate * (1 - rate))


def test_shapes_missed_names_shapes_that_pass() -> None:
    assert shapes_missed(100, LEVEL, POWER) == ["uniform", "Laplace"]
    assert shapes_missed(1000, LEVEL, POWER) == []
