"""``ckks`` with hidden presence: the public answers, from messages of one form, to sites that count for themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crypto.ckks import drowning
from crypto.ckks.drowning import SIGMA
from crypto.ckks.hidden import hidden_answer_forms
from crypto.ckks.precision import hidden_peer_error
from crypto.ckks.serialization import read_payload
from crypto.ckks.server import CkksServer
from crypto.protection import Combination
from secure_server.workers import Workers
from tests.crypto.ckks_reference import (
    TAU,
    Bool,
    Stack,
    cohort_of,
    expected,
    group,
    random_stack,
    totals,
)
from tests.crypto.hidden_reference import (
    LEAST,
    Slots,
    hidden_answers,
    hidden_exchange,
    hidden_server,
    hidden_site,
    hidden_uploads,
    packing_of,
    seen_by,
)
from tests.crypto.noise_checks import (
    WrongNoiseError,
    check_drowned,
    check_independent,
    check_shape,
    check_sigma,
)

ALL = list(Combination)
SHAPES = [(3, 5, 5), (4, 10, 64), (5, 10, 300), (8, 17, 512)]
each = pytest.mark.parametrize("combination", ALL)


def patterns(sites: int, classes: int) -> Bool:
    """Classes that 0, 1, 2 and 3 sites hold, then any; the last site holds nothing."""
    holds = np.random.default_rng(sites * classes).random((sites, classes)) < 0.7
    for number in range(4):
        holds[:, number] = np.arange(sites) < number
    holds[-1] = False
    if sites == LEAST:
        holds[-1, 3] = True  # three sites, of which none is left out
    return holds


def active(holds: Bool, least: int = LEAST) -> Bool:
    """What would be in a cohort with public presence."""
    return np.asarray(holds & (holds.sum(axis=0) >= least))


def excess(got: Stack, stack: Stack, holds: Bool, combination: Combination) -> float:
    """The largest error in units of its bound."""
    counts, spread = holds.sum(axis=0), totals(stack, holds)
    spread = np.where((spread > TAU) & (combination is not Combination.UNIFORM), spread, 1.0)
    bounds = np.stack([hidden_peer_error(total, counts, len(holds)) for total in spread])
    return float((np.abs(got - expected(stack, holds, combination)).max(axis=-1) / bounds).max())


def check(stack: Stack, holds: Bool, combination: Combination, least: int = LEAST) -> None:
    got, given_ = hidden_exchange(stack, cohort_of(holds, stack.shape[2]), combination, least)
    np.testing.assert_array_equal(given_, active(holds, least))
    assert excess(got, stack, active(holds, least), combination) <= 1.0


@each
@pytest.mark.parametrize("shape", SHAPES)
def test_answers_are_those_of_public_presence(shape: tuple[int, int, int], combination: Combination) -> None:
    check(random_stack(shape, 0.5, seed=1), patterns(*shape[:2]), combination)


@settings(max_examples=12)
@given(
    st.tuples(st.integers(3, 6), st.integers(1, 9), st.integers(1, 40)),
    st.sampled_from(ALL),
    st.integers(3, 5),
    st.integers(0, 2**32),
)
def test_whatever_the_shape_and_whoever_holds_what(
    shape: tuple[int, int, int], combination: Combination, least: int, seed: int
) -> None:
    holds = np.random.default_rng(seed).random(shape[:2]) < 0.6
    check(random_stack(shape, 0.5, seed=seed), holds, combination, least)


@pytest.mark.parametrize("combination", [Combination.DISTANCE, Combination.UNIFORM])
@pytest.mark.parametrize("least", [1, 2])
def test_fewer_holders_where_that_was_agreed(combination: Combination, least: int) -> None:
    check(random_stack((4, 6, 8), 0.5, seed=2), patterns(4, 6), combination, least)


def test_complement_cannot_serve_two_holders() -> None:
    with pytest.raises(ValueError, match="3 holders or more"):
        hidden_site(Combination.COMPLEMENT, least=2)


@each
def test_nearly_equal_prototypes_stay_within_the_bound(combination: Combination) -> None:
    check(random_stack((5, 10, 64), 0.01, seed=3), patterns(5, 10), combination)


@pytest.mark.parametrize("combination", [Combination.DISTANCE, Combination.COMPLEMENT])
def test_peers_that_agree_leave_the_own_row(combination: Combination) -> None:
    stack = np.repeat(random_stack((1, 4, 8), 0.0, seed=4), 4, axis=0)
    holds = np.ones((4, 4), dtype=np.bool_)
    holds[0, 0] = False
    got, _ = hidden_exchange(stack, cohort_of(holds, 8), combination)
    assert (got == stack).all()


def test_the_bound_tells_who_holds_what() -> None:
    """Peers whose absence was not taken off would be far beyond it."""
    stack, holds = random_stack((5, 10, 64), 0.5, seed=1), patterns(5, 10)
    got, _ = hidden_exchange(stack, cohort_of(holds, 64), Combination.COMPLEMENT)
    assert excess(got, stack, holds & (holds.sum(axis=0) >= LEAST + 1), Combination.COMPLEMENT) > 100.0


@each
def test_processes_give_what_inline_work_gives(combination: Combination) -> None:
    holds, stack = patterns(5, 6), random_stack((5, 6, 8), 0.5, seed=5)
    cohort, half = cohort_of(holds, 8), hidden_site(combination)
    payloads = hidden_uploads(stack, cohort, combination)
    with Workers(2) as executor:
        server = CkksServer(combination, group().keys_path, executor, hidden=True)
        answers = server.combine(payloads, seen_by(None, cohort))
    got = np.stack(
        [half.unprotect(answers[s], stack[i], s, seen_by(i, cohort)) for i, s in enumerate(cohort.sites)]
    )
    assert excess(got, stack, active(holds), combination) <= 1.0


# What an answer holds

STACK = random_stack((5, 10, 300), 0.5, seed=11)
HOLDS = patterns(5, 10)
HOLDS[0, 5:8] = False
COHORT = cohort_of(HOLDS, 300)
PACKING = packing_of(COHORT)
FIRST = 0


def decrypted(combination: Combination, site: int = FIRST) -> list[Slots]:
    """All slots of all ciphertexts of a site's answer."""
    answer = hidden_answers(STACK, COHORT, combination)[COHORT.sites[site]]
    forms = hidden_answer_forms(combination, PACKING.parts)
    return [group().secret.decrypt(ciphertext) for ciphertext in read_payload(answer, forms)]


def by_class(vector: Slots) -> Slots:
    """(Kpad, F): the padding's classes too."""
    return vector.reshape(PACKING.copies, PACKING.stride).T


@pytest.fixture(scope="module", params=ALL)
def answer(request: pytest.FixtureRequest) -> list[Slots]:
    return decrypted(request.param)


def test_classes_that_a_site_has_not_are_noise_of_the_right_size(answer: list[Slots]) -> None:
    missing = np.flatnonzero(~HOLDS[FIRST])
    assert missing.size > 1
    drowned = np.concatenate([by_class(part)[missing].ravel() for part in answer[: PACKING.parts]])
    noise = np.concatenate([drowned.real, drowned.imag])
    check_sigma(noise, SIGMA)
    check_shape(noise, SIGMA)
    check_independent(noise[:-1], noise[1:])


def bare(combination: Combination, site: int) -> list[NDArray[np.float64]]:
    """What would stand undrowned in a site's denominator, if there is one, and in its count: (K,) each."""
    sent = np.where(HOLDS[:, :, None], STACK, 0.0)
    denominator = np.square(sent - sent[site]).sum(axis=(0, -1))
    absent = (~HOLDS).sum(axis=0).astype(np.float64)
    return [absent] if combination is Combination.UNIFORM else [denominator, absent]


def check_replicated(combination: Combination, vectors: list[Slots], site: int) -> None:
    """:class:`WrongNoiseError` unless one draw drowns all slots of each class that a site has not."""
    missing = ~HOLDS[site]
    for vector, alone in zip(vectors[PACKING.parts :], bare(combination, site), strict=True):
        noise = by_class(vector)[: len(missing)][missing].real
        check_drowned(noise[:, 0], alone[missing], 1e-6, SIGMA)
        # One is not beyond 20 once in 8000, three of at most ten once in 10^9.
        assert (np.abs(noise[:, 0]) > 20.0).sum() >= missing.sum() - 2
        # All slots of a class share one draw: independent ones could be averaged.
        assert np.ptp(noise, axis=1).max() < 1e-6


@each
def test_so_are_their_denominators_and_counts(
    combination: Combination, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_replicated(combination, decrypted(combination), FIRST)
    monkeypatch.setattr(drowning, "drown_replicated", lambda *_: np.full(4096, 1e-9))
    with pytest.raises(WrongNoiseError, match="is there"):
        check_replicated(combination, decrypted(combination), FIRST)


def test_a_site_that_holds_nothing_gets_noise_alone() -> None:
    combination, nothing = Combination.COMPLEMENT, 4
    assert not HOLDS[nothing].any()
    vectors = decrypted(combination, site=nothing)
    for vector in vectors[: PACKING.parts]:
        noise = by_class(vector)[: PACKING.classes].ravel().view(np.float64)
        check_sigma(noise, SIGMA)
        check_shape(noise, SIGMA)
    check_replicated(combination, vectors, nothing)


def test_counts_are_of_the_classes_that_it_holds_and_nothing_else(answer: list[Slots]) -> None:
    counts = by_class(answer[-1])
    absent = (~HOLDS).sum(axis=0)
    held = np.flatnonzero(HOLDS[FIRST])
    np.testing.assert_allclose(
        counts[held], np.broadcast_to(absent[held, None], counts[held].shape), atol=1e-6
    )
    assert np.abs(counts[10:]).max() < 1e-6


def prescribed(combination: Combination) -> list[Slots]:
    """What the first site's answer holds of the classes that it has."""
    sent = np.where(HOLDS[:, :, None], STACK, 0.0)
    distances = np.square(sent - sent[FIRST]).sum(axis=-1)
    total, peers = distances.sum(axis=0), sent.sum(axis=0) - sent[FIRST]
    numerators = (distances[:, :, None] * sent).sum(axis=0)
    if combination is Combination.UNIFORM:
        return PACKING.pack(peers)
    if combination is Combination.COMPLEMENT:
        absent = (~HOLDS).sum(axis=0) * np.square(sent[FIRST]).sum(axis=-1)
        numerators = (total - absent)[:, None] * peers - numerators
    return [*PACKING.pack(numerators), PACKING.replicate(total).astype(np.complex128)]


@each
def test_every_other_slot_holds_what_is_prescribed_and_nothing_else(combination: Combination) -> None:
    """Padding and imaginary parts too. Classes with too few holders are not drowned: the stated limit."""
    open_ = np.setdiff1d(np.arange(PACKING.stride), np.flatnonzero(~HOLDS[FIRST]))
    pairs = list(zip(decrypted(combination)[:-1], prescribed(combination), strict=True))
    assert max(float(np.abs(by_class(got - exact)[open_]).max()) for got, exact in pairs) < 1e-6


def cosines(combination: Combination) -> NDArray[np.float64]:
    """What the first site makes of classes that it has not, with the combination of their holders."""
    rows = PACKING.unpack(decrypted(combination)[: PACKING.parts])
    others = np.where((HOLDS & (np.arange(5) > 0)[:, None])[:, :, None], STACK, 0.0)
    missing = np.flatnonzero(~HOLDS[FIRST] & (HOLDS.sum(axis=0) == 1))
    truth = others.sum(axis=0)[missing]
    got = rows[missing]
    norms = np.linalg.norm(got, axis=1) * np.linalg.norm(truth, axis=1)
    return np.asarray(np.abs((got * truth).sum(axis=1)) / norms)


# `complement` sees to it by itself where there is one holder.
@pytest.mark.parametrize("combination", [Combination.DISTANCE, Combination.UNIFORM])
def test_only_without_drowning_a_site_reads_classes_that_it_has_not(
    combination: Combination, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "HOLDS", lonely := HOLDS.copy())
    lonely[:, 4] = np.arange(5) == 2
    monkeypatch.setitem(globals(), "COHORT", cohort_of(lonely, 300))
    assert (cosines(combination) < 0.4).all()
    quiet = 1e-9
    monkeypatch.setattr(drowning, "drown_rows", lambda packing, _: [np.full(4096, quiet)] * packing.parts)
    assert (cosines(combination) > 0.99).all()


@each
def test_drowning_costs_classes_that_a_site_has_no_precision(
    combination: Combination, monkeypatch: pytest.MonkeyPatch
) -> None:
    half, site = hidden_site(combination), COHORT.sites[FIRST]
    payloads = hidden_uploads(STACK, COHORT, combination)
    server, own = hidden_server(combination), seen_by(FIRST, COHORT)
    drowned = half.unprotect(server.combine(payloads, seen_by(None, COHORT))[site], STACK[FIRST], site, own)
    monkeypatch.setattr(drowning, "drown_rows", lambda packing, _: [np.full(4096, 1e-9)] * packing.parts)
    monkeypatch.setattr(drowning, "drown_replicated", lambda *_: np.full(4096, 1e-9))
    clear = half.unprotect(server.combine(payloads, seen_by(None, COHORT))[site], STACK[FIRST], site, own)
    assert np.abs(drowned - clear).max() < 1e-7


# The stated limit


def curious(combination: Combination) -> float:
    """How far what the first of two holders reads in its answer is from the other's row."""
    rows = PACKING.unpack(decrypted(combination)[: PACKING.parts])[2]
    if combination is Combination.DISTANCE:
        rows /= np.square(STACK[0, 2] - STACK[1, 2]).sum()
    return float(np.abs(rows - STACK[1, 2]).max())


@pytest.mark.parametrize("combination", [Combination.DISTANCE, Combination.UNIFORM])
def test_the_limit_one_of_two_holders_can_read_the_other(combination: Combination) -> None:
    assert HOLDS[:, 2].sum() == 2
    assert curious(combination) < 1e-5


def test_with_complement_what_comes_of_two_holders_is_0() -> None:
    rows = PACKING.unpack(decrypted(Combination.COMPLEMENT)[: PACKING.parts])[2]
    assert np.abs(rows).max() < 1e-6
