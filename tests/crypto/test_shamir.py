"""Shamir's sharing: any threshold of shares gives the secret, and fewer say nothing about it."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import crypto.shamir
from crypto import errors
from crypto.errors import MalformedError
from crypto.shamir import PRIME, SHARE_BYTES, combine, split

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "shamir.json").read_text())
SECRETS = st.binary(min_size=32, max_size=32)


def _shares(case: dict[str, Any]) -> dict[int, bytes]:
    return {int(x): bytes.fromhex(share) for x, share in case["shares"].items()}


@pytest.mark.parametrize("case", VECTORS["combine"], ids=lambda case: case["name"])
def test_combine_equals_vectors(case: dict[str, Any]) -> None:
    assert combine(_shares(case), case["threshold"]).hex() == case["secret"]


@pytest.mark.parametrize("case", VECTORS["bad_combine"], ids=lambda case: case["name"])
def test_bad_share_vectors_refused(case: dict[str, Any]) -> None:
    with pytest.raises(getattr(errors, case["failure"]), match=case["match"]):
        combine(_shares(case), case["threshold"])


def test_modulus_is_probable_prime_above_2_256() -> None:
    """Fermat, for a few bases; and no smaller number of this form would do."""
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13))
    assert PRIME > 2**256


@given(SECRETS, st.data())
def test_combine_any_threshold_gives_secret(secret: bytes, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 9))
    threshold = data.draw(st.integers(2, count))
    shares = split(secret, threshold, range(1, count + 1))
    chosen = data.draw(st.permutations(sorted(shares)))[: data.draw(st.integers(threshold, count))]
    assert combine({x: shares[x] for x in chosen}, threshold) == secret
    assert all(len(share) == SHARE_BYTES for share in shares.values())


def test_combine_every_subset_gives_secret() -> None:
    secret = bytes(range(32))
    shares = split(secret, 4, range(1, 7))
    for chosen in combinations(shares, 4):
        assert combine({x: shares[x] for x in chosen}, 4) == secret


@given(SECRETS, SECRETS, st.integers(2, 7))
def test_fewer_shares_consistent_with_every_secret(secret: bytes, other: bytes, threshold: int) -> None:
    """Exactly one further share makes any given secret the shared one, so that no secret is ruled out."""
    shares = split(secret, threshold, range(1, threshold + 1))
    del shares[threshold]
    forged = _share_that_gives(other, shares, threshold)
    assert combine(shares | {threshold: forged}, threshold) == other


def _share_that_gives(secret: bytes, shares: Mapping[int, bytes], x: int) -> bytes:
    points = {0: secret, **shares}
    values = [int.from_bytes(each, "big") for each in points.values()]
    (value,) = crypto.shamir._interpolate(values, tuple(points), (x,))
    return value.to_bytes(SHARE_BYTES, "big")


# A field of 13 elements, where everything can be counted


def _count(monkeypatch: pytest.MonkeyPatch, secret: int, least: int) -> Counter[tuple[int, ...]]:
    """Count each pair of shares over all polynomials with 3 coefficients of which two are drawn from ``least`` on."""
    seen: Counter[tuple[int, ...]] = Counter()
    for first in range(least, 13):
        for second in range(least, 13):
            draws = iter([first, second])
            monkeypatch.setattr(secrets, "randbelow", lambda _bound, draws=draws: next(draws))
            shares = list(split(secret.to_bytes(32, "big"), 3, (1, 2, 3)).values())
            seen[tuple(int.from_bytes(share, "big") for share in shares[:2])] += 1
    return seen


def test_shares_below_threshold_same_distribution_for_every_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crypto.shamir, "PRIME", 13)
    counts = [_count(monkeypatch, secret, 0) for secret in range(13)]
    assert all(count == counts[0] for count in counts)
    assert set(counts[0].values()) == {1}
    assert len(counts[0]) == 13**2


def test_nonzero_coefficients_double_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A common mistake, and the count above sees it."""
    monkeypatch.setattr(crypto.shamir, "PRIME", 13)
    assert _count(monkeypatch, 0, 1) != _count(monkeypatch, 1, 1)


def test_split_uniform_over_field(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    honest = secrets.randbelow

    def randbelow(bound: int) -> int:
        asked.append(bound)
        return honest(bound)

    monkeypatch.setattr(secrets, "randbelow", randbelow)
    assert split(bytes(32), 3, (1, 2, 3)) != split(bytes(32), 3, (1, 2, 3))
    assert asked == [PRIME] * 4


# Wrong shares


@given(SECRETS, st.integers(1, 5), st.integers(1, PRIME - 1))
def test_combine_wrong_surplus_share_refused(secret: bytes, position: int, by: int) -> None:
    shares = split(secret, 3, range(1, 6))
    wrong = (int.from_bytes(shares[position], "big") + by) % PRIME
    with pytest.raises(MalformedError, match=r"contradict"):
        combine(shares | {position: wrong.to_bytes(SHARE_BYTES, "big")}, 3)


def test_combine_wrong_share_at_threshold_gives_other_secret() -> None:
    """The limit that the module states: what depends on the secret has to notice."""
    polynomial = {1: 2 + 7, 2: 4 + 7}
    shares = {x: value.to_bytes(SHARE_BYTES, "big") for x, value in polynomial.items()}
    assert combine(shares, 2) == (7).to_bytes(32, "big")
    assert combine(shares | {2: (10).to_bytes(SHARE_BYTES, "big")}, 2) == (8).to_bytes(32, "big")


@given(SECRETS, st.sets(st.integers(1, 400), min_size=2, max_size=9), st.data())
def test_split_among_places_gives_secret(secret: bytes, places: set[int], data: st.DataObject) -> None:
    threshold = data.draw(st.integers(2, len(places)))
    shares = split(secret, threshold, sorted(places))
    assert set(shares) == places
    chosen = data.draw(st.permutations(sorted(places)))[: data.draw(st.integers(threshold, len(places)))]
    assert combine({x: shares[x] for x in chosen}, threshold) == secret


@pytest.mark.parametrize(
    ("secret", "threshold", "places"),
    [
        (bytes(31), 2, [1, 2]),
        (bytes(33), 2, [1, 2]),
        (bytes(32), 0, []),
        (bytes(32), 1, [1, 2]),
        (bytes(32), 3, [1, 2]),
        (bytes(32), 2, [1, 1, 2]),
        (bytes(32), 2, [0, 1, 2]),
    ],
)
def test_split_bad_arguments_refused(secret: bytes, threshold: int, places: list[int]) -> None:
    with pytest.raises(ValueError, match="places"):
        split(secret, threshold, places)


# Many secrets at the same places


def test_combine_reuses_coefficients_of_places() -> None:
    """The order of the shares does not matter: otherwise a group of hundreds would take minutes."""
    crypto.shamir._coefficients.cache_clear()
    for owner in range(6):
        secret = bytes([owner]) * 32
        shares = split(secret, 4, range(1, 7))
        turned = {x: shares[x] for x in sorted(shares, key=lambda x: (x + owner) % 7)}
        assert combine(turned, 4) == secret
    assert crypto.shamir._coefficients.cache_info().misses == 1


def test_combine_other_places_other_coefficients() -> None:
    shares = split(bytes(range(32)), 3, range(1, 6))
    for chosen in combinations(shares, 4):
        assert combine({x: shares[x] for x in chosen}, 3) == bytes(range(32))
