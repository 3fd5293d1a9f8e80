"""``ckks`` gives what the loops give, within the written bound, whatever the shapes and whoever holds what."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto.ckks.parameters import MAX_SITES, check_tau, peer_error, total_error
from crypto.ckks.site import CkksSite
from crypto.errors import PrecisionError
from crypto.protection import Combination
from tests.crypto.ckks_reference import (
    TAU,
    Bool,
    Stack,
    cohort_of,
    exchange,
    expected,
    group,
    random_stack,
    site_half,
    totals,
)

ALL = list(Combination)
SHAPES = [(2, 3, 5), (3, 3, 64), (3, 10, 5), (5, 17, 64), (8, 10, 512)]


def presence(sites: int, classes: int) -> Bool:
    """Different and missing classes at each site; the last class is withheld, the first has one holder."""
    rng = np.random.default_rng(sites * classes)
    holds = rng.random((sites, classes)) < 0.7
    holds[:, 0] = np.arange(sites) == 0
    holds[:, 1] = True
    holds[:, -1] = False
    return holds


def bounds(stack: Stack, holds: Bool, combination: Combination) -> Stack:
    """Return the written bound for each site and class, (n, K)."""
    counts = holds.sum(axis=0)
    compared = (
        counts
        > {Combination.DISTANCE: 1, Combination.COMPLEMENT: 2, Combination.UNIFORM: np.inf}[combination]
    )
    spread = np.where(compared & (totals(stack, holds) > TAU), totals(stack, holds), 1.0)
    return np.stack([peer_error(total, counts, len(holds)) for total in spread])


def excess(got: Stack, stack: Stack, holds: Bool, combination: Combination) -> float:
    """Return the largest error in units of its bound."""
    wrong = np.abs(got - expected(stack, holds, combination)).max(axis=-1)
    return float((wrong / bounds(stack, holds, combination)).max())


def check(stack: Stack, holds: Bool, combination: Combination) -> None:
    got = exchange(stack, cohort_of(holds, stack.shape[2]), combination)
    assert excess(got, stack, holds, combination) <= 1.0


@pytest.mark.parametrize("combination", ALL)
@pytest.mark.parametrize("shape", SHAPES)
def test_answers_equal_loops(shape: tuple[int, int, int], combination: Combination) -> None:
    check(random_stack(shape, 0.5, seed=1), presence(*shape[:2]), combination)


@settings(max_examples=20)
@given(
    sites=st.integers(2, 6),
    classes=st.integers(1, 40),
    dim=st.integers(1, 700),
    spread=st.floats(0.003, 2.0),
    combination=st.sampled_from(ALL),
    seed=st.integers(0, 2**32 - 1),
)
def test_answers_within_bound_for_all_sizes_and_holders(
    sites: int, classes: int, dim: int, spread: float, combination: Combination, seed: int
) -> None:
    """One feature or more than a ciphertext holds; classes that nobody has, or one site, or all."""
    holds = np.random.default_rng(seed).random((sites, classes)) < 0.6
    check(random_stack((sites, classes, dim), spread, seed=seed), holds, combination)


def test_bound_distinguishes_combinations() -> None:
    stack, holds = random_stack((5, 10, 64), 0.5, seed=1), presence(5, 10)
    got = exchange(stack, cohort_of(holds, 64), Combination.COMPLEMENT)
    assert excess(got, stack, holds, Combination.DISTANCE) > 100.0
    assert excess(got, stack, holds, Combination.UNIFORM) > 100.0


@pytest.mark.parametrize("combination", ALL)
@pytest.mark.parametrize("spread", [0.1, 0.01])
def test_answers_of_nearly_equal_prototypes_within_bound(spread: float, combination: Combination) -> None:
    check(random_stack((4, 10, 64), spread, seed=2), presence(4, 10), combination)


@pytest.mark.parametrize("combination", ALL)
@pytest.mark.parametrize("holders", [1, 2])
def test_answers_of_two_sites(holders: int, combination: Combination) -> None:
    holds = np.array([[True, True], [holders == 2, True]])
    stack = random_stack((2, 2, 5), 0.5, seed=3)
    check(stack, holds, combination)
    got = exchange(stack, cohort_of(holds, 5), combination)
    # The one peer's row.
    assert np.abs(got[0, 1] - stack[1, 1]).max() <= min(1e-4, bounds(stack, holds, combination)[0, 1])


@pytest.mark.parametrize("combination", [Combination.DISTANCE, Combination.COMPLEMENT])
def test_unprotect_agreeing_peers_keep_row(combination: Combination) -> None:
    stack = np.repeat(random_stack((1, 3, 8), 0.0, seed=4), 4, axis=0)
    got = exchange(stack, cohort_of(np.ones((4, 3), dtype=np.bool_), 8), combination)
    assert (got == stack).all()


def test_answers_with_zero_row() -> None:
    """A class whose features are all zero (dead units) is held all the same."""
    stack = random_stack((3, 2, 8), 0.5, seed=5)
    stack[1, 0] = 0.0
    check(stack, np.ones((3, 2), dtype=np.bool_), Combination.COMPLEMENT)


def test_bound_grows_as_distances_shrink() -> None:
    counts = np.array([5, 5, 5])
    bound = peer_error(np.array([1.0, 1e-2, 1e-4]), counts, 5)
    assert (np.diff(bound) > 0).all()
    assert bound[0] < 2e-6
    assert (peer_error(np.ones(3), counts - 1, 5) > peer_error(np.ones(3), counts, 5)).all()


def test_check_tau_below_error_refused() -> None:
    cohort, tau = cohort_of(np.ones((60, 2), dtype=np.bool_), 4), 7e-6
    assert total_error(60) > tau
    with pytest.raises(PrecisionError, match=r"agreement_threshold.* 7\.11e-06"):
        CkksSite(group().secret, Combination.DISTANCE, tau).protect(np.zeros((2, 4)), cohort.sites[0], cohort)


def test_check_tau_default_accepted_for_all_cohorts() -> None:
    check_tau(TAU, MAX_SITES)


@pytest.mark.parametrize("sites", range(2, MAX_SITES + 1))
def test_answers_of_distant_prototypes_within_1e_5(sites: int) -> None:
    """Peers at a distance of 1 on the mean, of 2 at most."""
    counts = np.array([sites])
    assert (peer_error(np.array([sites - 1.0]), counts, sites) <= 4e-6).all()
    # The bound is not idle: with distances that were worth a hundredth it would be beyond the target.
    assert sites < 20 or (100 * peer_error(np.array([sites - 1.0]), counts, sites) > 1e-5).all()


@pytest.mark.parametrize("sites", [1, 257])
def test_check_cohort_size_limits(sites: int) -> None:
    cohort = cohort_of(np.ones((sites, 2), dtype=np.bool_), 4)
    with pytest.raises(PrecisionError, match="256"):
        site_half(Combination.DISTANCE).protect(np.zeros((2, 4)), cohort.sites[0], cohort)
