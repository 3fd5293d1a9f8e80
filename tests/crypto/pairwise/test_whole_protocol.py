"""The whole protocol: the exact sum whatever drops out where, or a named error, and never another sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.errors import CryptoError, MalformedError, VerificationError
from crypto.fixed_point import FixedPoint, Segment
from crypto.pairwise.attempt import Binding, threshold
from crypto.pairwise.masks import add_streams
from crypto.pairwise.unmask import unmask
from crypto.protection import Words
from tests.crypto.masked_group import Group, binding_of, names, random_vectors, sha256, total

NEVER, SHARED, MASKED, ANSWERED = range(4)
"""Stages that a member reaches: nothing, its shares, its masked vector, its released shares."""

_GROUPS: dict[int, Group] = {}


def _group(count: int) -> Group:
    """Members that have all made shares, once for all patterns: who dropped out before made them for nobody."""
    if count not in _GROUPS:
        _GROUPS[count] = Group.of(binding_of(names(count)))
        _GROUPS[count].share()
    return _GROUPS[count]


def _at_least(reached: Sequence[int], stage: int) -> tuple[str, ...]:
    return tuple(name for name, got in zip(names(len(reached)), reached, strict=True) if got >= stage)


def _check(reached: Sequence[int], bits: int) -> None:
    """The sum of those who sent a vector when each stage kept its quorum, else the error that says which did not."""
    group, t = _group(len(reached)), threshold(len(reached))
    sharers, survivors, answering = (_at_least(reached, stage) for stage in (SHARED, MASKED, ANSWERED))
    vectors = random_vectors(names(len(reached)), bits, 5, seed=len(reached))
    if len(answering) >= t:
        summed = group.finish(vectors, sharers, survivors, answering)
        assert summed.tolist() == total(vectors, survivors).tolist()
        return
    with pytest.raises(CryptoError) as caught:
        group.finish(vectors, sharers, survivors, answering)
    if len(survivors) < t:
        assert isinstance(caught.value, VerificationError)
        assert f"the threshold is {t}" in str(caught.value)
    else:
        assert isinstance(caught.value, MalformedError)
        assert f"{len(answering)} answers with shares; {t} are needed" in str(caught.value)


@pytest.mark.parametrize("count", [3, 4, 5])
def test_masked_sum_every_pattern_of_drop_outs_exact(count: int) -> None:
    for number, reached in enumerate(product(range(4), repeat=count)):
        _check(reached, bits=(32, 64)[number % 2])


@pytest.mark.parametrize("count", [6, 7, 8, 9])
def test_masked_sum_every_number_of_drop_outs_exact_or_refused(count: int) -> None:
    """The members that drop out at a stage change from one case to the next."""
    generator = np.random.default_rng(count)
    for number, reached in enumerate(product(range(4), repeat=count)):
        if list(reached) == sorted(reached):
            _check(generator.permutation(reached).tolist(), bits=(32, 64)[number % 2])


def test_masked_sum_three_members_tolerate_no_drop_out() -> None:
    _check((ANSWERED, ANSWERED, ANSWERED), bits=64)
    with pytest.raises(VerificationError, match=r"2.*3"):
        _group(3).release(names(3), names(2), names(2))
    _check((ANSWERED, ANSWERED, SHARED, ANSWERED), bits=64)


def test_masked_sum_two_members_need_both() -> None:
    _check((ANSWERED, ANSWERED), bits=32)
    _check((ANSWERED, MASKED), bits=32)


# From values to values


def test_masked_sum_of_real_vectors() -> None:
    members = names(5)
    fixed = FixedPoint([Segment(20, 1.0), Segment(30, 64.0), Segment(10, 1e6)], terms=5)
    generator = np.random.default_rng(2)
    bounds = np.repeat([1.0, 64.0, 1e6], [20, 30, 10])
    values = {name: generator.uniform(-1.0, 1.0, 60) * bounds for name in members}
    words = {name: fixed.encode(value) for name, value in values.items()}
    survivors = members[:-1]
    decoded = fixed.decode_sum(_group(5).finish(words, members, survivors), len(survivors))
    expected = np.sum([values[name] for name in survivors], axis=0)
    assert (np.abs(decoded - expected) <= len(survivors) * fixed.resolution / 2 + 1e-9).all()


def _decoded(group: Group, fixed: FixedPoint, at: Group | None = None) -> Words:
    """Masked by the members, unmasked with shares that ``at`` (a consistent group) gave."""
    members = group.binding.group
    words = {name: fixed.encode(np.zeros(fixed.length)) for name in members}
    return unmask(
        group.mask(words, members, members),
        (at or group).release(members, members, members),
        group.binding,
        members,
        members,
        group.public,
    )


OTHERS: dict[str, dict[str, Any]] = {
    "run": {"run": "run-2"},
    "round": {"round": 4},
    "attempt": {"attempt": 2},
    "roster": {"roster_hash": sha256("another roster")},
    "agreement": {"agreement_hash": sha256("another agreement")},
    "broadcast": {"broadcast": sha256("another model")},
    "no broadcast": {"broadcast": b""},
    "group": {"group": names(5)},
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("bits", [32, 64])
def test_masked_sum_other_binding_garbage(what: str, bits: int) -> None:
    """Even if the coordinator had every seed as it should: the masks themselves do not cancel."""
    members = names(4)
    binding = binding_of(members)
    fixed = FixedPoint([Segment(400, 64.0)], terms=4, ring_bits=bits)
    group = Group.of(binding)
    group.share()
    assert not fixed.decode_sum(_decoded(group, fixed), 4).any()
    released = group.release(members, members, members)
    words = {name: fixed.encode(np.zeros(400)) for name in members}
    other = binding_of(**({"group": members} | OTHERS[what]))
    public = group.public | {"clinic-e": Group.of(other).public.get("clinic-e", group.public["clinic-a"])}
    group.sites["clinic-c"].binding = other
    masked = {name: group.sites[name].mask(words[name], members, public) for name in members}
    spoilt = unmask(masked, released, binding, members, members, group.public)
    with pytest.raises(MalformedError, match=r"segment 0"):
        fixed.decode_sum(spoilt, 4)


@pytest.mark.parametrize("what", OTHERS)
def test_open_share_under_other_binding_refused(what: str) -> None:
    """The first line of defence: shares of another attempt are not even opened."""
    members = names(4)
    binding = binding_of(members)
    other = binding_of(**({"group": members} | OTHERS[what]))
    group = Group.of(binding)
    shares = group.sites["clinic-a"].share(group.public)
    to_c = next(share for share in shares if share.recipient == "clinic-c")
    group.sites["clinic-c"].receive([to_c])
    group.sites["clinic-c"].binding = other
    with pytest.raises(VerificationError, match="mask-share"):
        group.sites["clinic-c"].receive([to_c])


def test_verify_survivor_under_other_binding_refused() -> None:
    members = names(4)
    group = Group.of(binding_of(members), **{"clinic-c": binding_of(members, broadcast=b"")})
    signatures = {name: group.sites[name].sign(members) for name in members}
    with pytest.raises(VerificationError, match="mask-survivors"):
        group.sites["clinic-a"].release(members, members, signatures)


# Masks by themselves

KEYS = st.binary(min_size=32, max_size=32)


@given(st.lists(KEYS, max_size=4), st.lists(KEYS, max_size=4), st.integers(0, 40), st.sampled_from([32, 64]))
def test_add_streams_plus_and_minus_cancel(
    plus: list[bytes], minus: list[bytes], length: int, bits: int
) -> None:
    words = random_vectors(("x",), bits, length, seed=length)["x"]
    before = words.copy()
    masked = add_streams(words, plus, minus)
    assert (words == before).all()
    assert add_streams(masked, minus, plus).tolist() == words.tolist()


@given(st.integers(1, 3), st.integers(-2, 2), st.sampled_from([32, 64]))
def test_add_streams_continue_over_chunks(chunks: int, more: int, bits: int) -> None:
    """A stream of another length begins with the same words: no chunk starts anew, skips or repeats."""
    length = chunks * (1 << 18) * 8 // bits + more
    kind = {32: np.uint32, 64: np.uint64}[bits]
    stream = add_streams(np.zeros(length, kind), [bytes(32)], [])
    other = add_streams(np.zeros(length + 70_000, kind), [bytes(32)], [])
    assert (stream == other[:length]).all()
    assert len(np.unique(stream)) > length * 0.999


def test_mask_uniform_for_zero_vector() -> None:
    """Each of the 64 bits of 400 000 words, by Hoeffding's inequality; one mask alone would do. Once in 10^10 it fails.

    Two of so many words are the same once in 10^8, and two pairs of them once in 10^16.
    """
    group = _group(3)
    members, count = names(3), 400_000
    zeros = {name: np.zeros(count, np.uint64) for name in members}
    masked = group.mask(zeros, members, members)["clinic-b"]
    most = math.sqrt(count * math.log(2 * 64 / 1e-10) / 2)
    assert most < 0.006 * count
    for bit in range(64):
        ones = int(((masked >> np.uint64(bit)) & np.uint64(1)).sum())
        assert abs(ones - count // 2) < most
    assert len(np.unique(masked)) >= count - 1


def test_binding_equality_and_hash() -> None:
    assert binding_of(names(3)) == binding_of(names(3))
    assert binding_of(names(3)).threshold == threshold(3) == 3
    assert isinstance(binding_of(names(3)), Binding)
