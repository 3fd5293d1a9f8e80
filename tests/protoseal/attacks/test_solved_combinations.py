"""Half of the sites solve PFPL's results for the others: exact by the true weights, and nothing by other equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agreement import Agreement, Protection
from algorithms.gram_matrix import gram
from algorithms.pfpl import Weighting, peer_weights
from protoseal.attacks.protected_values import Values
from protoseal.attacks.readings import Adversary, readings
from protoseal.attacks.recorded_run import RecordedRun, Rows
from protoseal.attacks.solved_combinations import (
    ClassSolutions,
    movement,
    select_plausible,
    solve_class,
    solve_combinations,
)
from tests.protoseal.attacks.recorded import (
    FEW_RECORDS,
    record_anew,
    recorded,
    recorded_large,
    recorded_peer_sum,
)
from tests.support.small import small_agreement

ENCRYPTED = pytest.param("ckks", marks=pytest.mark.full)
HALF = ("site-1", "site-2")
HIDDEN = ("site-3", "site-4")
DIM = 32
EXACT = 1e-4
"""Relative error: sites keep 32-bit targets, and solving multiplies their rounding."""


def agreement(weighting: Weighting) -> Agreement:
    return small_agreement(Protection.PLAIN, weighting)


def drawn(sites: int, seed: int = 0) -> Rows:
    """Return one class's prototypes (n, d) about a common direction, with negative numbers."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=DIM) + 0.7 * rng.normal(size=(sites, DIM))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def combined(rows: Rows, weighting: Weighting) -> Rows:
    """Return what each site receives of the class, by the coordinator's arithmetic."""
    holds = np.ones((len(rows), 1), dtype=np.bool_)
    weights = peer_weights(gram(rows[:, None]), holds, weighting, tau=1e-12)
    return np.asarray(weights[0] @ rows)


def nearest(found: list[Rows], truth: Rows) -> float:
    return min((movement(rows, truth) for rows in found), default=float("inf"))


@pytest.mark.parametrize(("sites", "colluding"), [(4, 2), (5, 3), (6, 3), (9, 8)])
@pytest.mark.parametrize("weighting", [Weighting.COMPLEMENT, Weighting.DISTANCE, Weighting.INVERSE])
def test_solve_combinations_half_of_the_sites_find_the_others(
    weighting: Weighting, sites: int, colluding: int
) -> None:
    rows = drawn(sites)
    received = combined(rows, weighting)[:colluding]
    found = solve_combinations(agreement(weighting), rows[:colluding], received, sites - colluding)
    assert nearest(found, rows[colluding:]) < 1e-7
    assert colluding == sites / 2 or len(found) == 1


def test_solve_combinations_other_weights_find_nothing() -> None:
    rows = drawn(4)
    received = combined(rows, Weighting.COMPLEMENT)[:2]
    assert nearest(solve_combinations(agreement(Weighting.DISTANCE), rows[:2], received, 2), rows[2:]) > 0.1


def test_solve_combinations_too_few_sites_find_nothing() -> None:
    rows = drawn(5)
    received = combined(rows, Weighting.COMPLEMENT)[:2]
    assert not solve_combinations(agreement(Weighting.COMPLEMENT), rows[:2], received, 3)


@pytest.mark.parametrize(("protection", "kept"), [(Protection.MASKED, 1), (Protection.CKKS, 2)])
def test_select_plausible_drops_negative_and_too_long_rows_but_not_noise(
    protection: Protection, kept: int
) -> None:
    agreed = small_agreement(protection, Weighting.COMPLEMENT)
    short = np.full((2, DIM), agreed.norm_bound / DIM)
    noisy, mixed, too_long = short.copy(), short.copy(), DIM * short
    noisy[:, 3] *= -0.02
    mixed[:, 3] *= -0.2
    candidates = [short, noisy, mixed, too_long]
    plausible = select_plausible(agreed, short, candidates)
    assert [rows.min() for rows in plausible] == [rows.min() for rows in candidates[:kept]]
    assert len(select_plausible(agreed, -short, candidates)) == 3


def test_class_solutions_second_round_chooses_what_hardly_moved() -> None:
    weighting = Weighting.COMPLEMENT
    rounds = [drawn(4), drawn(4) + 0.02 * drawn(4, seed=1)]
    before, now = (
        solve_combinations(agreement(weighting), rows[:2], combined(rows, weighting)[:2], 2)
        for rows in rounds
    )
    assert len(now) > 1
    chosen = ClassSolutions(now, now, now[0]).near(ClassSolutions(before, before, before[0]))
    assert len(chosen.plausible) == 1
    assert nearest(list(chosen.plausible), rounds[1][2:]) < 1e-7


# Recorded runs


@pytest.fixture(scope="module")
def by_distance() -> RecordedRun:
    return record_anew("pfpl", "masked", split=FEW_RECORDS, rounds=2, pfpl={"weighting": "distance"})


def worst(run: RecordedRun, victim: str, rows_of: Any) -> float:
    """Return the largest relative distance of a true row of the victim from the nearest of the rows of its class."""
    site = run.sites[victim]
    return max(
        float(np.linalg.norm(rows_of(int(k)) - row, axis=1).min() / np.linalg.norm(row))
        for row, k in zip(site.rows, site.labels, strict=True)
    )


@pytest.mark.parametrize("protection", ["masked", ENCRYPTED])
def test_readings_half_of_the_sites_solve_under_any_protection(protection: str) -> None:
    # CKKS's noise is multiplied to 1 % where prototypes average few samples, and to 1e-5 with all samples.
    run = recorded_large("pfpl", protection) if protection == "ckks" else recorded("pfpl", protection)
    for victim in HIDDEN:
        learned, *_ = readings(run, Adversary.HALF, victim)
        assert worst(run, victim, learned.of_class) < EXACT
        assert (
            learned.details["solutions of a class"] >= learned.details["plausible solutions of a class"] >= 1
        )


def test_solve_class_printed_weights_are_solved_in_both_rounds(by_distance: RecordedRun) -> None:
    run = by_distance
    for victim in HIDDEN:
        assert worst(run, victim, lambda k: solve_class(run, HALF, k).rows) < EXACT
        earlier = run.earlier[victim][-1].received.local
        errors = [
            np.linalg.norm(solve_class(run, HALF, k, earlier=True).rows - row, axis=1).min()
            / np.linalg.norm(row)
            for k, row in enumerate(earlier)
        ]
        assert max(errors) < EXACT


def test_values_half_of_the_sites_succeed_and_count_solutions(by_distance: RecordedRun) -> None:
    measured, *_ = Values().measure(by_distance, Adversary.HALF)
    assert measured.low > 0.9
    assert measured.details["plausible solutions of a class"] >= 1


@pytest.fixture(scope="module")
def by_uniform() -> RecordedRun:
    return recorded_peer_sum()


def test_readings_uniform_weights_give_half_the_mean_alone(by_uniform: RecordedRun) -> None:
    run = by_uniform
    (learned,) = readings(run, Adversary.HALF, HIDDEN[0])
    truth = np.array([run.sites[name].rows for name in HIDDEN])
    np.testing.assert_allclose(learned.rows, truth.mean(axis=0), rtol=0, atol=1e-3)
    assert min(worst(run, victim, learned.of_class) for victim in HIDDEN) > 0.1
    (measured,) = Values().measure(run, Adversary.HALF)
    assert measured.high < 0.5


@pytest.mark.parametrize(
    ("adversary", "read"),
    [(Adversary.COORDINATOR, (*HALF, *HIDDEN)), (Adversary.COLLUSION, HALF[1:] + HIDDEN)],
)
def test_readings_uniform_weights_give_a_sum_less_the_helpers_part(
    by_uniform: RecordedRun, adversary: Adversary, read: tuple[str, ...]
) -> None:
    """The helper has no secret of the others, where rotations gave it all."""
    *_, learned = readings(by_uniform, adversary, HIDDEN[0])
    truth = np.array([by_uniform.sites[name].rows for name in read])
    np.testing.assert_allclose(learned.rows, truth.mean(axis=0), rtol=0, atol=1e-3)
