"""Fixed point: exact, or an error before anything is sent; and no sum beyond what its terms give is believed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import crypto.fixed_point
from crypto import errors
from crypto.errors import BoundError, MalformedError, PrecisionError
from crypto.fixed_point import FixedPoint, Segment, narrowest_ring
from crypto.protection import Words
from tests.support.weakened_builds import weaken

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "fixed_point.json").read_text())
WORDS = {32: np.uint32, 64: np.uint64}


def _cases(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", VECTORS[name], ids=lambda case: case.get("name", ""))


def _real(text: str) -> float:
    return float.fromhex(text)


def _segments(case: dict[str, Any]) -> list[Segment]:
    return [Segment(length, _real(bound)) for length, bound in case["segments"]]


def _fixed_point(case: dict[str, Any], terms: int) -> FixedPoint:
    return FixedPoint(_segments(case), terms=terms, ring_bits=case["ring_bits"])


def _values(case: dict[str, Any]) -> NDArray[np.float64]:
    return np.array([_real(value) for value in case["values"]])


def _words(case: dict[str, Any]) -> Words:
    return np.array([int(word) for word in case["words"]], dtype=WORDS[case["ring_bits"]])


def _refused(case: dict[str, Any], call: Callable[[], object]) -> None:
    with pytest.raises(getattr(errors, case["failure"]), match=case["match"]) as caught:
        call()
    assert type(caught.value) is getattr(errors, case["failure"])


# Frozen answers


@_cases("room")
def test_fraction_bits_equal_vectors(case: dict[str, Any]) -> None:
    fixed = FixedPoint([Segment(1, _real(case["bound"]))], terms=case["terms"], ring_bits=case["ring_bits"])
    assert fixed.fraction_bits == (case["fraction_bits"],)


@_cases("bad_room")
def test_fixed_point_too_few_bits_refused(case: dict[str, Any]) -> None:
    segments = [Segment(1, _real(case["bound"]))]
    _refused(case, lambda: FixedPoint(segments, terms=case["terms"], ring_bits=case["ring_bits"]))


@_cases("narrowest_ring")
def test_narrowest_ring_equals_vectors(case: dict[str, Any]) -> None:
    assert narrowest_ring(_segments(case), terms=case["terms"]) == case["ring_bits"]
    _fixed_point(case, case["terms"])


@_cases("bad_narrowest_ring")
def test_fixed_point_ring_too_narrow_refused(case: dict[str, Any]) -> None:
    assert narrowest_ring(_segments(case), terms=case["terms"]) != case["ring_bits"]
    _refused(case, lambda: _fixed_point(case, case["terms"]))


@_cases("encode")
def test_encode_equals_vectors(case: dict[str, Any]) -> None:
    fixed = _fixed_point(case, case["terms"])
    words = fixed.encode(_values(case))
    assert words.dtype == WORDS[case["ring_bits"]]
    assert fixed.fraction_bits == tuple(case["fraction_bits"])
    assert words.tolist() == _words(case).tolist()


@_cases("bad_encode")
def test_encode_values_out_of_bounds_refused(case: dict[str, Any]) -> None:
    _refused(case, lambda: _fixed_point(case, case["terms"]).encode(_values(case)))


@_cases("decode_sum")
def test_decode_sum_equals_vectors(case: dict[str, Any]) -> None:
    decoded = _fixed_point(case, case["room"]).decode_sum(_words(case), case["terms"])
    assert decoded.tolist() == _values(case).tolist()


@_cases("bad_decode_sum")
def test_decode_sum_impossible_words_refused(case: dict[str, Any]) -> None:
    _refused(case, lambda: _fixed_point(case, case["room"]).decode_sum(_words(case), case["terms"]))


# Room


BOUNDS = st.floats(min_value=1e-6, max_value=1e9)
TERMS = st.integers(1, 100)


@given(BOUNDS, TERMS, st.sampled_from([32, 64]))
def test_fraction_bits_are_the_most_that_fit(bound: float, terms: int, ring: int) -> None:
    """The proof of the docstring in exact arithmetic, and that no fractional bit is given away."""

    def largest(bits: int) -> Fraction:
        return terms * (Fraction(bound) * Fraction(2**bits) + Fraction(1, 2))

    try:
        (bits,) = FixedPoint([Segment(1, bound)], terms=terms, ring_bits=ring).fraction_bits
    except PrecisionError:
        assert largest(16) >= 2 ** (ring - 2)
        return
    assert 16 <= bits <= 40
    assert largest(bits) < 2 ** (ring - 2)
    assert bits == 40 or largest(bits + 1) >= 2 ** (ring - 2)


@given(BOUNDS, TERMS, st.sampled_from([32, 64]))
def test_sum_of_extreme_values_exact(bound: float, terms: int, ring: int) -> None:
    try:
        fixed = FixedPoint([Segment(2, bound)], terms=terms, ring_bits=ring)
    except PrecisionError:
        return
    words = fixed.encode(np.array([bound, -bound]))
    total = np.zeros(2, dtype=words.dtype)
    for _ in range(terms):
        total += words
    step = 2 ** fixed.fraction_bits[0]
    rounded = round(Fraction(bound) * step)
    expected = float(Fraction(terms * rounded, step))
    assert fixed.decode_sum(total, terms).tolist() == [expected, -expected]
    assert abs(rounded - Fraction(bound) * step) <= Fraction(1, 2)


@given(st.data(), BOUNDS, st.integers(1, 20), st.sampled_from([32, 64]))
def test_sum_equals_sum_of_rounded_values(data: st.DataObject, bound: float, terms: int, ring: int) -> None:
    try:
        fixed = FixedPoint([Segment(3, bound)], terms=terms, ring_bits=ring)
    except PrecisionError:
        return
    value = st.floats(-bound, bound)
    vectors = data.draw(st.lists(st.tuples(value, value, value), min_size=terms, max_size=terms))
    total = np.zeros(3, dtype=WORDS[ring])
    for vector in vectors:
        total += fixed.encode(np.array(vector))
    step = 2 ** fixed.fraction_bits[0]
    # Python rounds a fraction half to even, too.
    expected = [
        float(Fraction(sum(round(Fraction(x) * step) for x in column), step))
        for column in zip(*vectors, strict=True)
    ]
    assert fixed.decode_sum(total, terms).tolist() == expected


@given(BOUNDS, st.integers(1, 20), st.sampled_from([32, 64]), st.data())
def test_encode_any_value_exact_or_refused(bound: float, terms: int, ring: int, data: st.DataObject) -> None:
    """The values lie at the bound, one float off it on either side, are infinite, NaN, denormal, or anything else."""
    try:
        fixed = FixedPoint([Segment(1, bound)], terms=terms, ring_bits=ring)
    except PrecisionError:
        return
    edges = [
        bound,
        math.nextafter(bound, math.inf),
        math.nextafter(bound, 0.0),
        math.inf,
        math.nan,
        5e-324,
        0.0,
    ]
    edges += [-edge for edge in edges]
    value = data.draw(st.one_of(st.sampled_from(edges), st.floats()))
    if abs(value) <= bound:
        (decoded,) = fixed.decode_sum(fixed.encode(np.array([value])), 1).tolist()
        assert abs(Fraction(decoded) - Fraction(value)) <= Fraction(fixed.resolution[0]) / 2
    else:
        with pytest.raises(BoundError, match=r"bound"):
            fixed.encode(np.array([value]))


def test_encode_without_bound_check_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check keeps a sum from changing its sign."""
    fixed = FixedPoint([Segment(1, 4095.0)], terms=4, ring_bits=32)
    beyond = np.array([20000.0])
    with pytest.raises(BoundError):
        fixed.encode(beyond)
    weaken("crypto.fixed_point.check_bound", monkeypatch)
    weaken(
        "crypto.fixed_point.FixedPoint.decode_sum: ((part > largest) | (part < -largest)).any()", monkeypatch
    )
    word = fixed.encode(beyond)
    assert fixed.decode_sum(word + word, 2)[0] < 0


# Whole numbers


@given(st.integers(1, 300), st.integers(1, 2**53), st.sampled_from([32, 64]))
def test_whole_numbers_exact_or_refused(terms: int, bound: int, ring: int) -> None:
    """Up to 2^53 in sum, where floats are whole numbers still, and a quarter of the ring."""
    try:
        fixed = FixedPoint([Segment(2, float(bound), whole=True)], terms=terms, ring_bits=ring)
    except PrecisionError:
        assert terms * (bound + Fraction(1, 2)) > min(2**53, 2 ** (ring - 2))
        return
    assert fixed.fraction_bits == (0,)
    assert fixed.resolution.tolist() == [1.0, 1.0]
    words = fixed.encode(np.array([float(bound), -float(bound)]))
    total = np.zeros(2, dtype=words.dtype)
    for _ in range(terms):
        total += words
    assert [int(each) for each in fixed.decode_sum(total, terms)] == [terms * bound, -terms * bound]


def test_whole_and_real_segments_in_one_vector() -> None:
    fixed = FixedPoint([Segment(1, 2.0), Segment(2, 2.0**40, whole=True)], terms=5)
    values = np.array([1 / 3, -(2.0**40), 12345.0])
    decoded = fixed.decode_sum(fixed.encode(values), 1)
    assert decoded[1:].tolist() == values[1:].tolist()
    assert abs(decoded[0] - values[0]) <= fixed.resolution[0] / 2


@pytest.mark.parametrize("value", [0.5, 2.0**-40, 10.0 + 2.0**-30])
def test_encode_fraction_in_whole_segment_refused(value: float) -> None:
    fixed = FixedPoint([Segment(1, 100.0, whole=True)], terms=2)
    with pytest.raises(BoundError, match=r"whole"):
        fixed.encode(np.array([value]))
    with pytest.raises(BoundError, match="100"):
        fixed.encode(np.array([101.0]))


def test_narrowest_ring_of_whole_numbers() -> None:
    assert narrowest_ring([Segment(3, 1000.0, whole=True)], terms=10) == 32
    assert narrowest_ring([Segment(3, 2.0**31, whole=True)], terms=1) == 64


# The narrowest ring


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_narrowest_ring_32_while_16_fraction_bits_remain(sign: float) -> None:
    """257 terms of 63.75 are as many as fit: their sum is exact, and one more needs 64 bits."""
    segments, most = [Segment(1, 1.0), Segment(2, 63.75)], 257
    ring = narrowest_ring(segments, terms=most)
    fixed = FixedPoint(segments, terms=most, ring_bits=ring)
    assert (ring, min(fixed.fraction_bits)) == (32, 16)
    at_the_bound = sign * np.array([1.0, 63.75, 63.75])
    words = np.zeros(3, dtype=np.uint32)
    for _ in range(most):
        words += fixed.encode(at_the_bound)
    np.testing.assert_array_equal(fixed.decode_sum(words, most), most * at_the_bound)
    assert narrowest_ring(segments, terms=most + 1) == 64
    with pytest.raises(PrecisionError, match="16"):
        FixedPoint(segments, terms=most + 1, ring_bits=32)


def test_narrowest_ring_limit_exact() -> None:
    """terms · (bound + 2^-17) < 2^14, to the last bit of a float."""
    edge = 64.0 - 2.0**-17
    assert narrowest_ring([Segment(1, math.nextafter(edge, 0.0))], terms=256) == 32
    assert narrowest_ring([Segment(1, edge)], terms=256) == 64
    assert narrowest_ring([Segment(9, 1.0), Segment(0, edge)], terms=256) == 32


@given(st.lists(BOUNDS, min_size=1, max_size=3), TERMS)
def test_narrowest_ring_32_exactly_where_fixed_point_accepts(bounds: list[float], terms: int) -> None:
    segments = [Segment(1, bound) for bound in bounds]
    try:
        FixedPoint(segments, terms=terms, ring_bits=32)
    except PrecisionError:
        assert narrowest_ring(segments, terms=terms) == 64
    else:
        assert narrowest_ring(segments, terms=terms) == 32


# Garbage


@given(st.integers(0, 2**32 - 1), BOUNDS, TERMS, st.sampled_from([32, 64]))
def test_decode_sum_random_words_refused(seed: int, bound: float, terms: int, ring: int) -> None:
    """Random words are refused with a probability of at least 1 - 2^-200: admitted sums are less than half of the
    ring.
    """
    try:
        fixed = FixedPoint([Segment(200, bound)], terms=terms, ring_bits=ring)
    except PrecisionError:
        return
    words = np.random.default_rng(seed).integers(0, 2**ring, 200, dtype=WORDS[ring])
    with pytest.raises(MalformedError, match=r"segment 0"):
        fixed.decode_sum(words, terms)


def test_decode_sum_without_spare_bit_accepts_random_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three terms of 85.33 fill a ring of 32 bits to 1 part in 10^5 if only overflow is thought of."""
    generator = np.random.default_rng(1)
    words = generator.integers(0, 2**32, 50, dtype=np.uint32)
    segments = [Segment(50, 85.333)]
    with pytest.raises(MalformedError):
        FixedPoint(segments, terms=3, ring_bits=32).decode_sum(words, 3)
    honest = crypto.fixed_point._fraction_bits
    monkeypatch.setattr(crypto.fixed_point, "_fraction_bits", lambda *args: honest(*args) + 1)
    assert np.isfinite(FixedPoint(segments, terms=3, ring_bits=32).decode_sum(words, 3)).all()


# Forms


def test_resolution_follows_each_segments_bound() -> None:
    fixed = FixedPoint([Segment(2, 64.0), Segment(0, 1e300), Segment(1, 1e6)], terms=20)
    assert fixed.length == 3
    assert fixed.ring_bits == 64
    assert fixed.fraction_bits == (40, 37)
    assert fixed.resolution.tolist() == [2.0**-40, 2.0**-40, 2.0**-37]


@pytest.mark.parametrize(("length", "bound"), [(-1, 1.0), (1, 0.0), (1, -1.0), (1, math.inf), (1, math.nan)])
def test_segment_bad_fields_refused(length: int, bound: float) -> None:
    with pytest.raises(ValueError, match="segment"):
        Segment(length, bound)


@pytest.mark.parametrize(
    ("lengths", "terms", "ring"), [([0], 1, 64), ([], 1, 64), ([1], 0, 64), ([1], 1, 16), ([1], 1, 128)]
)
def test_fixed_point_bad_fields_refused(lengths: list[int], terms: int, ring: int) -> None:
    with pytest.raises(ValueError, match=r"value|ring_bits"):
        FixedPoint([Segment(length, 1.0) for length in lengths], terms=terms, ring_bits=ring)


def test_encode_and_decode_other_dtype_or_shape_refused() -> None:
    fixed = FixedPoint([Segment(2, 1.0)], terms=3, ring_bits=32)
    arrays: list[Any] = [np.zeros(3), np.zeros((1, 2)), np.zeros(2, dtype=np.float32)]
    for values in arrays:
        with pytest.raises(MalformedError, match="float64"):
            fixed.encode(values)
    rings: list[Any] = [np.zeros(3, np.uint32), np.zeros(2, np.uint64), np.zeros((2, 1), np.uint32)]
    for odd in rings:
        with pytest.raises(MalformedError, match="uint32"):
            fixed.decode_sum(odd, 1)
    for terms in (0, 4, -1):
        with pytest.raises(ValueError, match="3"):
            fixed.decode_sum(fixed.encode(np.zeros(2)), terms)


def test_encode_values_not_contiguous() -> None:
    fixed = FixedPoint([Segment(3, 1.0)], terms=3)
    values = np.linspace(-1.0, 1.0, 6)[::2]
    words: Any = np.repeat(fixed.encode(values), 2)[::2]
    assert np.allclose(fixed.decode_sum(words, 1), values, rtol=0.0, atol=2.0**-41)
