"""``ckks`` with hidden presence: uploads are alike whoever holds what, and a count that no sites come to is noticed."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from crypto.ckks.hidden import COUNT, hidden_answer_forms
from crypto.ckks.hidden_site import HiddenSite
from crypto.ckks.parameters import Form, Level
from crypto.ckks.server import CkksServer
from crypto.errors import ImplausibleError, MalformedError
from crypto.protection import Cohort, Combination, Payload
from tests.crypto.ckks_reference import Bool, Stack, cohort_of, group, random_stack, uploads
from tests.crypto.hidden_reference import (
    Slots,
    hidden_answers,
    hidden_server,
    hidden_site,
    hidden_uploads,
    seen_by,
)

each = pytest.mark.parametrize("combination", list(Combination))


def sizes(stack: Stack, holds: Bool, combination: Combination) -> NDArray[np.float64]:
    """Of the first site's upload: bytes of each ciphertext, and SEAL's own facts of each are checked."""
    cohort = cohort_of(holds, stack.shape[2])
    payload = hidden_site(combination).protect(stack[0], cohort.sites[0], seen_by(0, cohort))
    hidden_server(combination).validate(payload, cohort.sites[0], seen_by(None, cohort))
    return np.array([len(blob) for blob in payload.blobs], dtype=np.float64)


SAMPLES, ERRORS = 50, 7.75
"""So many standard errors two means of normal samples of this size are apart once in 10^11 (Student, 98 degrees)."""


def told_apart(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    """By the mean lengths of some ciphertext in two samples (R, blobs)."""
    error = np.sqrt(first.var(axis=0, ddof=1) / len(first) + second.var(axis=0, ddof=1) / len(second))
    return bool((np.abs(first.mean(axis=0) - second.mean(axis=0)) > ERRORS * error).any())


@each
def test_an_upload_is_as_large_whatever_a_site_holds(combination: Combination) -> None:
    """As many ciphertexts of the same forms; how well their random bits compress differs alike."""
    stack, everything = random_stack((3, 4, 300), 0.5, seed=6), np.ones((3, 4), dtype=np.bool_)
    first, second = (
        np.stack([sizes(stack, holds, combination) for _ in range(SAMPLES)])
        for holds in (everything, ~everything)
    )
    assert not told_apart(first, second)
    assert told_apart(first, second + 100.0)  # of more than a hundred thousand bytes


def test_an_upload_that_leaves_out_what_is_zero_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double that sends absences only if there are any: it would tell who holds everything."""
    stack, holds = random_stack((3, 4, 8), 0.5, seed=6), np.ones((3, 4), dtype=np.bool_)
    protect = HiddenSite.protect

    def frugal(half: HiddenSite, rows: Stack, site: str, cohort: Cohort) -> Payload:
        payload = protect(half, rows, site, cohort)
        return payload if not cohort.holds[0].all() else replace(payload, blobs=payload.blobs[:-1])

    monkeypatch.setattr(HiddenSite, "protect", frugal)
    sizes(stack, ~holds, Combination.DISTANCE)
    with pytest.raises(MalformedError, match="ciphertexts belong"):
        sizes(stack, holds, Combination.DISTANCE)


@each
def test_no_upload_of_public_presence_is_taken_for_a_hidden_one(combination: Combination) -> None:
    cohort = cohort_of(np.ones((3, 2), dtype=np.bool_), 8)
    stack = random_stack((3, 2, 8), 0.5, seed=7)
    known = uploads(stack, cohort, combination)[cohort.sites[0]]
    if combination is not Combination.COMPLEMENT:
        with pytest.raises(MalformedError, match="ciphertexts belong"):
            hidden_server(combination).validate(known, cohort.sites[0], cohort)
    hidden = hidden_uploads(stack, cohort, combination)[cohort.sites[0]]
    with pytest.raises(MalformedError):
        CkksServer(combination, group().keys_path, None).validate(hidden, cohort.sites[0], cohort)


# Counts that cannot be

BROKEN: dict[str, Callable[[Slots], Slots]] = {
    "no whole number": lambda slots: slots + 0.4,
    "more than there are": lambda slots: slots + 5.0,
    "below none": lambda slots: slots - 6.0,
    "imaginary": lambda slots: slots + 1j,
    "not the same in all slots": lambda slots: slots + 3.0 * (np.arange(len(slots)) > 2048),
}


def with_count(cohort: Cohort, change: Callable[[Slots], Slots], monkeypatch: pytest.MonkeyPatch) -> Payload:
    """The first site's answer, whose count decrypts to another."""
    answer = hidden_answers(random_stack((4, 3, 8), 0.5, seed=8), cohort, Combination.UNIFORM)
    decrypt = type(group().secret).decrypt

    def changed(secret: object, ciphertext: object) -> Slots:
        slots = decrypt(secret, ciphertext)  # type: ignore[arg-type]  # of the double's place
        return change(slots) if ciphertext.scale == COUNT.scale else slots  # type: ignore[attr-defined]

    monkeypatch.setattr(type(group().secret), "decrypt", changed)
    return answer[cohort.sites[0]]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_count_that_no_sites_come_to_is_implausible(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = cohort_of(np.ones((4, 3), dtype=np.bool_), 8)
    answer = with_count(cohort, BROKEN[broken], monkeypatch)
    rows = random_stack((4, 3, 8), 0.5, seed=8)[0]
    with pytest.raises(ImplausibleError, match="count"):
        hidden_site(Combination.UNIFORM).read(answer, rows, cohort.sites[0], seen_by(0, cohort))


def test_an_untouched_count_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = cohort_of(np.ones((4, 3), dtype=np.bool_), 8)
    answer = with_count(cohort, lambda slots: slots, monkeypatch)
    rows = random_stack((4, 3, 8), 0.5, seed=8)[0]
    _, given_ = hidden_site(Combination.UNIFORM).read(answer, rows, cohort.sites[0], seen_by(0, cohort))
    assert given_.all()


def test_an_answer_without_a_count_is_of_another_form() -> None:
    cohort = cohort_of(np.ones((4, 3), dtype=np.bool_), 8)
    stack = random_stack((4, 3, 8), 0.5, seed=8)
    whole = hidden_answers(stack, cohort, Combination.DISTANCE)[cohort.sites[0]]
    short = Payload(whole.scheme, blobs=whole.blobs[:-1])
    with pytest.raises(MalformedError, match="ciphertexts belong"):
        hidden_site(Combination.DISTANCE).read(short, stack[0], cohort.sites[0], seen_by(0, cohort))


def test_a_count_has_a_form_of_its_own() -> None:
    forms: list[Form] = list(hidden_answer_forms(Combination.COMPLEMENT, 1))
    assert len({form.scale for form in forms}) == 3
    assert {form.level for form in forms} == {Level.ANSWER}
