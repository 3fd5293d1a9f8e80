"""Sums of ciphertexts: within the stated error of the exact sum, or an error before anything is sent."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from crypto.ckks.parameters import SLOTS
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.sums import SumLayout, SummingServer, SummingSite
from crypto.errors import BoundError, ImplausibleError, MalformedError, PrecisionError, UnknownSchemeError
from crypto.fixed_point import Segment
from crypto.protection import Payload

Array = NDArray[np.float64]

FORM = SumLayout([Segment(5, 0.5), Segment(2, 1e6)], terms=4)


@pytest.fixture(scope="module")
def secret() -> CkksSecret:
    """One group's secret."""
    return CkksSecret.generate()[0]


def _added(secret: CkksSecret, form: SumLayout, stack: Array) -> Array:
    site, server = SummingSite(secret, form), SummingServer(form)
    payloads = [site.protect(values) for values in stack]
    for payload in payloads:
        server.validate(payload)
    return site.unprotect(server.add(iter(payloads)), len(stack))


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 9000), min_size=1, max_size=3).filter(any),
    bound=st.floats(1e-3, 1e9),
    terms=st.integers(1, 6),
    at_bound=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@example(lengths=[0, 8274, 9000], bound=753355828.4839678, terms=6, at_bound=False, seed=233)
def test_sum_within_stated_error(
    secret: CkksSecret, lengths: list[int], bound: float, terms: int, at_bound: bool, seed: int
) -> None:
    form = SumLayout([Segment(length, bound * 10**i) for i, length in enumerate(lengths)], terms=256)
    bounds = np.repeat([bound * 10**i for i in range(len(lengths))], lengths)
    rng = np.random.default_rng(seed)
    stack = rng.uniform(-1.0, 1.0, size=(terms, form.length)) * bounds
    if at_bound:
        stack = np.sign(stack) * bounds
    # An exact sum, rounded once, because NumPy's own sum rounds after each addition.
    wanted = np.array([math.fsum(column) for column in stack.T])
    # Four roundings of 2^-53 each: of a high part, of the sum of high parts, of high plus low, and of the wanted sum.
    rounding = 4 * 2.0**-53 * np.abs(stack).sum(axis=0)
    assert (np.abs(_added(secret, form, stack) - wanted) <= form.error(terms) + rounding).all()


def test_sum_large_bound_keeps_precision_of_others(secret: CkksSecret) -> None:
    """Such as a running variance near 1, times thousands of samples, where a million would have been allowed."""
    form = SumLayout([Segment(100, 1e11)], terms=256)
    values = np.random.default_rng(4).uniform(0.0, 1e4, size=(5, 100))
    assert np.abs(_added(secret, form, values) - values.sum(axis=0)).max() < 1e-5
    assert form.error(5).max() < 1e-5


def test_sum_large_bound_error_of_half_step() -> None:
    """A multiple of 2^-20 times the bound is sent first, so the remainder is at most 2^-21 times the bound."""
    form = SumLayout([Segment(1, 2.0**30)], terms=4)
    assert form.error(1)[0] == 2.0**9 * form.relative_error(1)


def test_sum_stated_error_tight(secret: CkksSecret) -> None:
    """A tenth of it would not do: 8 standard deviations are stated, and 4 occur among so many values."""
    form = SumLayout([Segment(8 * SLOTS, 1.0)], terms=256)
    values = np.random.default_rng(3).uniform(-1.0, 1.0, size=(1, form.length))
    wrong = np.abs(_added(secret, form, values) - values[0])
    assert wrong.max() > form.error(1)[0] / 10


def test_sum_upload_8_bytes_answer_16_bytes_per_value(secret: CkksSecret) -> None:
    form = SumLayout([Segment(16 * SLOTS, 1.0)], terms=256)
    site, server = SummingSite(secret, form), SummingServer(form)
    payload = site.protect(np.ones(form.length))
    assert sum(map(len, payload.blobs)) <= 8.1 * form.length
    assert sum(map(len, server.add([payload, payload]).blobs)) <= 16.1 * form.length


@pytest.mark.parametrize("value", [0.5000001, float("nan"), float("inf"), -0.6])
def test_protect_value_beyond_bound_refused(secret: CkksSecret, value: float) -> None:
    values = np.zeros(FORM.length)
    values[4] = value
    with pytest.raises(BoundError, match="segment 0"):
        SummingSite(secret, FORM).protect(values)


def test_protect_other_length_refused(secret: CkksSecret) -> None:
    with pytest.raises(MalformedError, match=r"\(7,\)"):
        SummingSite(secret, FORM).protect(np.zeros(8))


def test_unprotect_sum_of_too_many_terms_implausible(secret: CkksSecret) -> None:
    site, server = SummingSite(secret, FORM), SummingServer(FORM)
    payload = site.protect(np.array([0.5] * 5 + [1e6] * 2))
    total = server.add([payload] * 3)
    assert np.allclose(site.unprotect(total, 3), [1.5] * 5 + [3e6] * 2)
    with pytest.raises(ImplausibleError, match=r"terms"):
        site.unprotect(total, 2)


def test_unprotect_sum_under_other_key_implausible(secret: CkksSecret) -> None:
    other, _ = CkksSecret.generate()
    total = SummingServer(FORM).add([SummingSite(other, FORM).protect(np.zeros(7))])
    with pytest.raises(ImplausibleError):
        SummingSite(secret, FORM).unprotect(total, 4)


def test_validate_sum_upload_other_form_refused(secret: CkksSecret) -> None:
    site, server = SummingSite(secret, FORM), SummingServer(FORM)
    good = site.protect(np.zeros(7))
    other = SummingSite(secret, SumLayout(FORM.segments.segments, terms=256)).protect(np.zeros(7))
    for bad in (other, Payload(good.scheme, blobs=good.blobs * 2), server.add([good])):
        with pytest.raises(MalformedError):
            server.validate(bad)
        with pytest.raises(MalformedError):
            server.add([good, bad])
    with pytest.raises(UnknownSchemeError):
        server.validate(Payload("plain/1", blobs=good.blobs))


def test_unprotect_sum_other_form_refused_before_decryption(secret: CkksSecret) -> None:
    site = SummingSite(secret, FORM)
    with pytest.raises(MalformedError):
        site.unprotect(Payload("ckks/1", blobs=()), 1)
    other = SumLayout(FORM.segments.segments, terms=256)
    total = SummingServer(other).add([SummingSite(secret, other).protect(np.zeros(7))])
    with pytest.raises(MalformedError, match="scale"):
        site.unprotect(total, 1)


def test_sum_form_too_many_terms_refused() -> None:
    """√2·terms·scale stays below 2^58 of 2^60, whatever the number of terms."""
    for terms in (1, 2, 20, 256, 10**6):
        assert np.sqrt(2.0) * terms * SumLayout([Segment(1, 1.0)], terms=terms).scale <= 2.0**58
    with pytest.raises(PrecisionError, match=r"60 bits"):
        SumLayout([Segment(1, 1.0)], terms=2**30)


def test_sum_form_without_values_or_terms_refused(secret: CkksSecret) -> None:
    with pytest.raises(ValueError, match="term"):
        SumLayout([Segment(1, 1.0)], terms=0)
    with pytest.raises(ValueError, match="value"):
        SumLayout([Segment(0, 1.0)], terms=1)
    with pytest.raises(ValueError, match="4"):
        SummingSite(secret, FORM).unprotect(Payload("ckks/1"), 5)
