"""Survivors, released shares and the sum itself: what is refused, by whom."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crypto.errors import MalformedError, UnknownSchemeError, VerificationError
from crypto.pairwise import SCHEME
from crypto.pairwise.attempt import SharePair
from crypto.pairwise.masks import masked_payload, masked_words
from crypto.pairwise.member_signatures import sign_survivors, verify_signed_survivors, verify_survivor
from crypto.pairwise.shares import ReleasedShare, ShareKind, check_released, release
from crypto.pairwise.unmask import unmask
from crypto.protection import Payload
from crypto.shamir import SHARE_BYTES
from tests.crypto.masked_group import (
    BINDING,
    MEMBERS,
    Group,
    binding_of,
    credentials,
    member,
    names,
    random_vectors,
    roster,
    total,
)
from tests.support.weakened_builds import weaken

A, B, C, D, E = MEMBERS
PAIR = SharePair(bytes(33), bytes(33))


# Survivors

ODD_SURVIVORS: dict[str, tuple[tuple[str, ...], str]] = {
    "below the threshold": ((A, B, C), "the survivors are 3; the threshold is 4"),
    "none": ((), "the survivors are 0"),
    "a name twice": ((A, A, B, C), "not sorted and distinct"),
    "not sorted": ((B, A, C, D), "not sorted and distinct"),
    "a stranger": ((A, B, C, "clinic-z"), "clinic-z: among the survivors"),
}


@pytest.mark.parametrize("name", ODD_SURVIVORS)
def test_bad_survivors_refused_by_sign_verify_and_release(group: Group, name: str) -> None:
    survivors, message = ODD_SURVIVORS[name]
    signatures = dict.fromkeys(survivors, b"")
    calls: list[Callable[[], object]] = [
        lambda: sign_survivors(credentials(A), BINDING, survivors),
        lambda: verify_survivor(member(A), BINDING, survivors, b""),
        lambda: verify_signed_survivors(signatures, roster(MEMBERS), BINDING, survivors),
        lambda: release(BINDING, A, MEMBERS, survivors, group.sites[A].held),
        lambda: check_released((), BINDING, MEMBERS, survivors),
        lambda: unmask({}, {}, BINDING, MEMBERS, survivors, group.public),
    ]
    for call in calls:
        with pytest.raises(VerificationError, match=message):
            call()


def test_verify_signed_survivors_below_threshold_refused(group: Group) -> None:
    survivors = (A, B, C, D)
    signatures = {name: group.sites[name].sign(survivors) for name in survivors}
    members = roster(MEMBERS)
    verify_signed_survivors(signatures, members, BINDING, survivors)
    fewer = {name: signatures[name] for name in (A, B, C)}
    all_five = {name: group.sites[name].sign(MEMBERS) for name in MEMBERS}
    verify_signed_survivors({name: all_five[name] for name in (B, C, D, E)}, members, BINDING, MEMBERS)
    odd: dict[str, dict[str, bytes]] = {
        "3 signatures on the survivors; the threshold is 4": fewer,
        "clinic-e is not among the survivors": fewer | {E: all_five[E]},
        "mask-survivors": fewer | {D: all_five[D]},
        r"a signature \(mask-survivors\)": fewer | {D: signatures[A]},
        "does not hold": signatures | {A: b""},
        "clinic-z is not on the roster": signatures | {"clinic-z": signatures[A]},
    }
    for message, given_ in odd.items():
        with pytest.raises(VerificationError, match=message):
            verify_signed_survivors(given_, members, BINDING, survivors)
    with pytest.raises(VerificationError, match="clinic-a"):
        verify_signed_survivors(signatures, members | {A: member(B)}, BINDING, survivors)
    with pytest.raises(VerificationError, match="clinic-e"):
        group.sites[E].sign(survivors)


# Release


@given(st.integers(3, 9), st.data())
def test_release_one_kind_for_each_owner(count: int, data: st.DataObject) -> None:
    members = names(count)
    binding = binding_of(members)
    held = {
        name: SharePair(bytes(32) + bytes([i]), bytes(32) + bytes([100 + i]))
        for i, name in enumerate(members)
    }
    subsets = st.lists(st.sampled_from(members), unique=True).map(lambda chosen: tuple(sorted(chosen)))
    sharers, survivors, site = data.draw(subsets), data.draw(subsets), data.draw(st.sampled_from(members))
    allowed = len(survivors) >= binding.threshold and set(survivors) <= set(sharers) and site in survivors
    if not allowed:
        with pytest.raises(VerificationError):
            release(binding, site, sharers, survivors, held)
        return
    released = release(binding, site, sharers, survivors, held)
    check_released(released, binding, sharers, survivors)
    assert tuple(item.owner for item in released) == sharers
    for item in released:
        expected = ShareKind.SEED if item.owner in survivors else ShareKind.KEY
        pair = held[item.owner]
        assert (item.kind, item.share) == (expected, pair.seed if expected is ShareKind.SEED else pair.key)


def test_release_by_non_survivor_or_without_own_pair_refused(group: Group) -> None:
    survivors, held = (A, B, C, D), group.sites[E].held
    with pytest.raises(VerificationError, match="clinic-e"):
        release(BINDING, E, MEMBERS, survivors, held)
    with pytest.raises(VerificationError, match="clinic-a"):
        release(BINDING, A, MEMBERS, survivors, dict.fromkeys((C, D), PAIR))
    with pytest.raises(VerificationError, match=r"3.*4"):
        release(BINDING, A, (A, B, C), survivors, held)
    with pytest.raises(VerificationError, match="clinic-d"):
        release(BINDING, A, (A, B, C, E), survivors, held)


def test_release_unopened_share_left_out(group: Group) -> None:
    survivors, held = (A, B, C, D), group.sites[A].held
    released = release(BINDING, A, MEMBERS, survivors, {name: held[name] for name in (A, C, E)})
    check_released(released, BINDING, MEMBERS, survivors)
    assert [(item.owner, item.kind) for item in released] == [
        (A, ShareKind.SEED),
        (C, ShareKind.SEED),
        (E, ShareKind.KEY),
    ]


def test_check_released_other_kind_refused(group: Group) -> None:
    survivors = (A, B, C, D)
    good = release(BINDING, A, MEMBERS, survivors, group.sites[A].held)
    check_released(good, BINDING, MEMBERS, survivors)
    key = group.sites[A].held[A].key
    odd: list[tuple[ReleasedShare, ...]] = [
        (),
        (*good, good[0]),
        good[::-1],
        (good[0], *good[:-1]),
        (replace(good[0], kind=ShareKind.KEY), *good[1:]),
        (*good[:-1], replace(good[-1], kind=ShareKind.SEED)),
        (*good, ReleasedShare(A, ShareKind.KEY, key)),
        (replace(good[0], owner="clinic-z"), *good[1:]),
    ]
    for released in odd:
        with pytest.raises(MalformedError, match=r"kind"):
            check_released(released, BINDING, MEMBERS, survivors)
    for share in (b"", bytes(32), bytes(34), b"\xff" * SHARE_BYTES):
        with pytest.raises(MalformedError, match=r"33"):
            check_released((replace(good[0], share=share), *good[1:]), BINDING, MEMBERS, survivors)
    assert good[0].share.hex() not in repr(good)


# The sum


def _answers(group: Group, survivors: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    vectors = random_vectors(MEMBERS, 64, 4, seed=3)
    return group.mask(vectors, MEMBERS, survivors), group.release(MEMBERS, survivors, survivors)


def _flip(released: dict[str, Any], site: str, position: int) -> dict[str, Any]:
    """Flip one bit of one share that a site gave."""
    answer = list(released[site])
    share = answer[position].share
    answer[position] = replace(answer[position], share=share[:-1] + bytes([share[-1] ^ 1]))
    return released | {site: tuple(answer)}


def test_unmask_bad_vectors_and_answers_refused(group: Group) -> None:
    survivors = (A, B, C, D)
    masked, released = _answers(group, survivors)
    odd_masked: dict[str, dict[str, Any]] = {
        "must be exactly one of each survivor": {name: masked[name] for name in (A, B, C)},
        "exactly one of each survivor": masked | {E: masked[A]},
        "differ in length or ring": masked | {A: masked[A][:-1]},
        "differ in length": masked | {A: masked[A].astype(np.uint32)},
        "one vector of uint32 or uint64": masked | {A: masked[A].astype(np.float64)},
    }
    for message, vectors in odd_masked.items():
        with pytest.raises(MalformedError, match=message):
            unmask(vectors, released, BINDING, MEMBERS, survivors, group.public)
    fewer = {name: released[name] for name in (A, B, C)}
    odd_released: dict[str, dict[str, Any]] = {
        "3 answers with shares; 4 are needed": fewer,
        "all from survivors": fewer | {E: released[A]},
        "of the required kind": released | {A: released[A][::-1]},
        "a secret of clinic-a: 3 shares of a secret, 4 are needed": released | {A: released[A][1:]},
    }
    for message, answers in odd_released.items():
        with pytest.raises(MalformedError, match=message):
            unmask(masked, answers, BINDING, MEMBERS, survivors, group.public)


def test_unmask_one_missing_share_tolerated(group: Group) -> None:
    masked, released = _answers(group, MEMBERS)
    expected = total(random_vectors(MEMBERS, 64, 4, seed=3), MEMBERS)
    without = released | {A: released[A][:1] + released[A][2:]}
    assert unmask(masked, without, BINDING, MEMBERS, MEMBERS, group.public).tolist() == expected.tolist()


def test_unmask_bad_public_keys_refused(group: Group) -> None:
    """The refusal holds even where no key is needed, because no member dropped out."""
    masked, released = _answers(group, MEMBERS)
    odd = {
        "no mask keys of clinic-e": {name: group.public[name] for name in (A, B, C, D)},
        "is repeated": group.public | {E: group.public[A]},
    }
    for message, public in odd.items():
        with pytest.raises(VerificationError, match=message):
            unmask(masked, released, BINDING, MEMBERS, MEMBERS, public)


def test_unmask_wrong_surplus_share_refused(group: Group) -> None:
    masked, released = _answers(group, MEMBERS)
    with pytest.raises(MalformedError, match="clinic-b"):
        unmask(masked, _flip(released, A, 1), BINDING, MEMBERS, MEMBERS, group.public)


def test_unmask_wrong_key_share_at_threshold_refused(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key that its owner stated shows the wrong share. Without that check the sum would be garbage."""
    survivors = (A, B, C, D)
    masked, released = _answers(group, survivors)
    spoilt = _flip(released, A, 4)
    expected = total(random_vectors(MEMBERS, 64, 4, seed=3), survivors)
    with pytest.raises(MalformedError, match="clinic-e"):
        unmask(masked, spoilt, BINDING, MEMBERS, survivors, group.public)
    assert unmask(masked, released, BINDING, MEMBERS, survivors, group.public).tolist() == expected.tolist()
    weaken("crypto.pairwise.unmask.unmask: public_half(private) != public[owner].mask", monkeypatch)
    assert not (unmask(masked, spoilt, BINDING, MEMBERS, survivors, group.public) == expected).any()


def test_unmask_wrong_seed_share_at_threshold_gives_garbage(group: Group) -> None:
    """The limit that the module states: it takes the fixed point to notice."""
    survivors = (A, B, C, D)
    masked, released = _answers(group, survivors)
    expected = total(random_vectors(MEMBERS, 64, 4, seed=3), survivors)
    spoilt = unmask(masked, _flip(released, A, 1), BINDING, MEMBERS, survivors, group.public)
    assert not (spoilt == expected).any()


def test_unmask_leaves_inputs_unchanged(group: Group) -> None:
    masked, released = _answers(group, MEMBERS)
    before = {name: words.copy() for name, words in masked.items()}
    unmask(masked, released, BINDING, MEMBERS, MEMBERS, group.public)
    assert all((masked[name] == before[name]).all() for name in MEMBERS)


def test_unmask_every_quorum_same_sum(group: Group) -> None:
    masked, released = _answers(group, MEMBERS)
    expected = total(random_vectors(MEMBERS, 64, 4, seed=3), MEMBERS).tolist()
    for size in (4, 5):
        for chosen in combinations(MEMBERS, size):
            answers = {name: released[name] for name in chosen}
            assert unmask(masked, answers, BINDING, MEMBERS, MEMBERS, group.public).tolist() == expected


# The payload


def test_payload_of_words_round_trip() -> None:
    words = np.arange(4, dtype=np.uint32)
    assert SCHEME == "pairwise/1"
    assert masked_words(masked_payload(words), 32, 4) is words


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (Payload("plain/1", words=(np.zeros(4, np.uint32),)), UnknownSchemeError),
        (Payload(SCHEME), MalformedError),
        (Payload(SCHEME, words=(np.zeros(4, np.uint32),) * 2), MalformedError),
        (Payload(SCHEME, arrays=(np.zeros(4),), words=(np.zeros(4, np.uint32),)), MalformedError),
        (Payload(SCHEME, blobs=(b"",), words=(np.zeros(4, np.uint32),)), MalformedError),
        (Payload(SCHEME, words=(np.zeros(3, np.uint32),)), MalformedError),
        (Payload(SCHEME, words=(np.zeros(4, np.uint64),)), MalformedError),
    ],
)
def test_words_of_other_payloads_refused(payload: Payload, error: type[Exception]) -> None:
    with pytest.raises(error):
        masked_words(payload, 32, 4)
