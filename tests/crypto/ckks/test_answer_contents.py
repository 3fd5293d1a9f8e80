"""Contents of an answer beyond its receiver's results: noise for the classes that the receiver lacks, nothing else."""

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.ckks import noise_flooding
from crypto.ckks.circuit import IMAGINARY_UNIT
from crypto.ckks.noise_flooding import BOUND, SIGMA, flood_replicated, flood_rows
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import Ciphertext, answer_shapes, total_error
from crypto.ckks.peer_combination import PackedSums
from crypto.ckks.serialization import read_payload
from crypto.protection import Combination
from tests.crypto.ckks_reference import (
    Stack,
    cohort_of,
    expected,
    group,
    random_stack,
    received,
    server_half,
    uploads,
)
from tests.crypto.noise_checks import (
    WrongNoiseError,
    check_flooded,
    check_independent,
    check_shape,
    check_sigma,
)

ALL = list(Combination)
PACKING = Packing(classes=10, dim=300)
STACK = random_stack((4, 10, 300), 0.5, seed=11)
MISSING = [0, 3, 5, 6, 7]
HOLDS = np.ones((4, 10), dtype=np.bool_)
HOLDS[0, MISSING] = False
HOLDS[:, 9] = False
COHORT = cohort_of(HOLDS, 300)
OPEN = np.setdiff1d(np.arange(PACKING.stride), [*MISSING, 9])
"""The first site's classes, and padding."""
LEFT_OVER = {
    Combination.UNIFORM: total_error(len(COHORT.sites)),
    Combination.DISTANCE: total_error(len(COHORT.sites)),
    Combination.COMPLEMENT: min(1e-6, len(COHORT.sites) * total_error(len(COHORT.sites))),
}
"""den is off by :func:`total_error`; so is num, in which errors of distances meet rows no longer than 1; and with
``complement`` den's error meets the sum of n − 1 of them as well. What is prescribed is between 0 and 10."""


def hardly_any(packing: Packing, flooded: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return almost no noise; ciphertexts multiplied by exactly zero are refused."""
    return packing.replicate(np.where(flooded, 1e-9, 0.0))


def hardly_any_rows(packing: Packing, flooded: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
    """Return almost no noise for rows."""
    return [hardly_any(packing, flooded)] * packing.parts


def slots(combination: Combination) -> list[NDArray[np.complex128]]:
    """Return the first site's answer, decrypted: every slot of every ciphertext."""
    answer = server_half(combination).combine(uploads(STACK, COHORT, combination), COHORT)[COHORT.sites[0]]
    ciphertexts = read_payload(answer, answer_shapes(combination, PACKING.parts))
    return [group().secret.decrypt(ciphertext) for ciphertext in ciphertexts]


def by_class(vector: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Return the values by class (Kpad, F), the padding's classes too."""
    return vector.reshape(PACKING.copies, PACKING.stride).T


def prescribed(combination: Combination) -> list[NDArray[np.complex128]]:
    """Return every slot of every ciphertext of the first site's answer where nothing is flooded."""
    sent = np.where(HOLDS[:, :, None], STACK, 0.0)
    distances = np.square(sent - sent[0]).sum(axis=-1)
    total, peers = distances.sum(axis=0), sent[1:].sum(axis=0)
    numerators = (distances[:, :, None] * sent).sum(axis=0)
    if combination is Combination.UNIFORM:
        return PACKING.pack(peers)
    if combination is Combination.COMPLEMENT:
        counts = HOLDS.sum(axis=0)
        absent = (len(sent) - counts) * np.square(sent[0]).sum(axis=-1) + (counts == 2)
        numerators = (total - absent)[:, None] * peers - numerators
    return [*PACKING.pack(numerators), PACKING.replicate(total).astype(np.complex128)]


def leftovers(answer: list[NDArray[np.complex128]], combination: Combination) -> float:
    """Return the largest deviation from the prescribed value in any slot that is not flooded, padding and imaginary
    too.
    """
    pairs = zip(answer, prescribed(combination), strict=True)
    return max(float(np.abs(by_class(got - exact)[OPEN]).max()) for got, exact in pairs)


@pytest.fixture(scope="module", params=ALL)
def answer(request: pytest.FixtureRequest) -> list[NDArray[np.complex128]]:
    return slots(request.param)


def test_answer_absent_classes_noise_of_stated_size(answer: list[NDArray[np.complex128]]) -> None:
    flooded = np.concatenate([by_class(part)[MISSING].ravel() for part in answer[: PACKING.parts]])
    noise = np.concatenate([flooded.real, flooded.imag])
    check_sigma(noise, SIGMA)
    check_shape(noise, SIGMA)
    check_independent(noise[:-1], noise[1:])
    for factor in (2 / 3, 3 / 2):
        with pytest.raises(WrongNoiseError):
            check_sigma(noise, factor * SIGMA)


@pytest.mark.parametrize("combination", ALL)
def test_answer_other_slots_as_prescribed(combination: Combination) -> None:
    assert leftovers(slots(combination), combination) < LEFT_OVER[combination]


def test_answer_denominator_real(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of squares are packed as real and imaginary part. Not taken apart they show distances of other pairs."""
    combination = Combination.DISTANCE
    assert np.abs(by_class(slots(combination)[-1])[OPEN].imag).max() < LEFT_OVER[combination]
    halves = PackedSums._halves

    def together(sums: PackedSums, packed: Ciphertext, levels: int) -> tuple[Ciphertext, Ciphertext]:
        if levels:
            return halves(sums, packed, levels)
        both = sums._circuit.add(packed, packed)
        return both, sums._circuit.multiply_by_monomial(both, -IMAGINARY_UNIT)

    monkeypatch.setattr(PackedSums, "_halves", together)
    weakened = slots(combination)
    assert leftovers(weakened, combination) > 0.1
    # Pairs (0, 1) and (0, 2), (0, 3) and (1, 2) are packed together.
    seen = by_class(weakened[-1])[2].mean().imag
    apart = np.square(STACK[:, None, 2] - STACK[None, :, 2]).sum(axis=-1)
    assert seen == pytest.approx(apart[0, 2] - apart[0, 1] + apart[1, 2], abs=1e-6)


def test_answer_withheld_class_flooded_for_all() -> None:
    denominators = []
    for _ in range(2):
        numerators, denominator = (by_class(vector)[9] for vector in slots(Combination.DISTANCE))
        check_sigma(np.concatenate([numerators.real, numerators.imag]), SIGMA)
        denominators.append(denominator[0].real)
    check_flooded(np.array(denominators), 0.0, LEFT_OVER[Combination.DISTANCE], SIGMA)
    assert np.abs(denominators).max() > 1.0  # one draw is not once in 160 000


def peer_seen(combination: Combination) -> Stack:
    """Return the rows that the first site computes if it reads the classes it lacks as if it held them."""
    answer = slots(combination)
    rows = PACKING.unpack(answer[: PACKING.parts])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def cosines(seen: Stack) -> NDArray[np.float64]:
    """Return cosines with the peers' combination of each class that the first site lacks, up to length and sign."""
    others = np.where((np.arange(4) > 0)[:, None, None], STACK, 0.0)
    weights = np.square(others).sum(axis=-1, keepdims=True)
    truth = (weights * others).sum(axis=0)
    truth /= np.linalg.norm(truth, axis=1, keepdims=True)
    return np.asarray(np.abs((seen * truth).sum(axis=1))[MISSING])


@pytest.mark.parametrize("combination", ALL)
def test_answer_without_flooding_reveals_absent_classes(
    combination: Combination, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A random direction has a cosine of sigma 1/√300 with any other: 0.4 is seven of them.
    assert (cosines(peer_seen(combination)) < 0.4).all()
    monkeypatch.setattr(noise_flooding, "flood_rows", hardly_any_rows)
    assert (cosines(peer_seen(combination)) > 0.99).all()


@pytest.mark.parametrize("combination", [Combination.DISTANCE, Combination.COMPLEMENT])
def test_answer_denominator_flooded(combination: Combination, monkeypatch: pytest.MonkeyPatch) -> None:
    """A visible denominator would tell the peers' norms: a site without the class sends zeros, and d_im = ‖C_m‖²."""
    flooded = by_class(slots(combination)[-1])[MISSING].real
    check_flooded(flooded[:, 0], 3.0, LEFT_OVER[combination], SIGMA)
    assert (np.abs(flooded[:, 0] - 3.0) > 1.0).sum() >= len(MISSING) - 1  # two are not once in 10^9
    # All slots of a class share one draw: independent ones could be averaged.
    # What differs is the error of the site's own norm, times a draw.
    assert np.ptp(flooded, axis=1).max() < 1.0
    monkeypatch.setattr(noise_flooding, "flood_replicated", hardly_any)
    open_ = by_class(slots(combination)[-1])[MISSING].real
    np.testing.assert_allclose(open_, 3.0, rtol=0.0, atol=LEFT_OVER[combination])
    with pytest.raises(WrongNoiseError, match="is there"):
        check_flooded(open_[:, 0], 3.0, LEFT_OVER[combination], SIGMA)


def test_flooding_keeps_precision_of_held_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    payloads = uploads(STACK, COHORT, Combination.COMPLEMENT)
    server, truth = server_half(Combination.COMPLEMENT), expected(STACK, HOLDS, Combination.COMPLEMENT)
    flooded = received(server.combine(payloads, COHORT), STACK, COHORT, Combination.COMPLEMENT)
    monkeypatch.setattr(noise_flooding, "flood_rows", hardly_any_rows)
    clear = received(server.combine(payloads, COHORT), STACK, COHORT, Combination.COMPLEMENT)
    # Noise comes before rescaling, so that each has roundings of its own, within 3e-8 where D is 1 or more.
    assert np.abs(flooded - clear).max() < 6e-8
    assert np.abs(clear - truth).max() < 1e-4


def test_flood_replicated_independent_between_classes() -> None:
    """Each slot of 4096 classes is a draw of its own, and so are both of its parts."""
    packing = Packing(classes=4096, dim=1)
    flooded = np.ones(4096, dtype=np.bool_)
    first, second = flood_replicated(packing, flooded), flood_replicated(packing, flooded)
    check_sigma(first, SIGMA)
    check_shape(first, SIGMA)
    check_independent(first, second)
    (rows,) = flood_rows(Packing(classes=4096, dim=2), flooded)
    check_independent(rows.real, rows.imag)


def test_flood_rows_within_classes_and_bounds() -> None:
    flooded = np.array([False, True, False])
    packing = Packing(classes=3, dim=2000)
    for vector in (*flood_rows(packing, flooded), flood_replicated(packing, flooded)):
        slots = vector.reshape(packing.copies, packing.stride)
        assert slots[:, 1].all()
        assert not slots[:, [0, 2, 3]].any()
        assert max(np.abs(slots.real).max(), np.abs(slots.imag).max()) <= BOUND
