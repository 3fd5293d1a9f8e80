"""Suspects when a sum fails to open: seven members, a threshold of five, shares of real secrets."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from crypto.pairwise.attempt import AttemptSecrets, Binding
from crypto.pairwise.shares import ReleasedShare, ShareKind
from crypto.shamir import split
from secure_server.exchanges.fault_attribution import suspicions

MEMBERS = tuple("abcdefg")
GONE = "g"
BINDING = Binding("r1", 1, 1, b"r" * 32, b"a" * 32, MEMBERS, b"")
SECRETS = {name: AttemptSecrets.generate() for name in MEMBERS}
PUBLIC = {name: own.public for name, own in SECRETS.items()}

Answers = Mapping[str, tuple[ReleasedShare, ...]]


@pytest.fixture(scope="module")
def honest() -> Answers:
    """Return the shares of all six survivors: the six seeds, and the mask key of the member that is gone."""
    made = {owner: split(_secret(owner), BINDING.threshold, range(1, len(MEMBERS) + 1)) for owner in MEMBERS}
    return {
        site: tuple(
            ReleasedShare(owner, _kind(owner), made[owner][BINDING.position(site)]) for owner in MEMBERS
        )
        for site in MEMBERS
        if site != GONE
    }


def _kind(owner: str) -> ShareKind:
    return ShareKind.KEY if owner == GONE else ShareKind.SEED


def _secret(owner: str) -> bytes:
    content = SECRETS[owner].to_bytes()  # mask key, share key, self seed: 32 bytes each
    return content[:32] if owner == GONE else content[64:]


def changed(answers: Answers, site: str, change: Callable[[ReleasedShare], ReleasedShare]) -> Answers:
    return {**answers, site: tuple(change(share) for share in answers[site])}


def wrong(share: ReleasedShare) -> ReleasedShare:
    return replace(share, share=b"\0" + secrets.token_bytes(32))


def told(answers: Answers) -> tuple[str, ...]:
    return suspicions(answers, BINDING, MEMBERS, PUBLIC)


def test_there_is_nothing_to_suspect_in_honest_answers(honest: Answers) -> None:
    assert BINDING.threshold == 5
    assert told(honest) == ()
    fewest = {site: honest[site] for site in MEMBERS[:5]}
    assert told(fewest) == ()


def test_an_owner_whose_share_nobody_else_released_made_bad_ones(honest: Answers) -> None:
    answers = {
        site: tuple(share for share in released if share.owner != "b" or site == "b")
        for site, released in honest.items()
    }
    (only,) = told(answers)
    assert only.startswith("b: no other site that answered")


def test_an_owner_of_whom_one_had_a_share_is_not_named_for_it(honest: Answers) -> None:
    answers = {
        site: tuple(share for share in released if share.owner != "b" or site in "ab")
        for site, released in honest.items()
    }
    assert told(answers) == ()


def test_a_wrong_share_of_a_key_shows_with_one_answer_more_than_it_takes(honest: Answers) -> None:
    """The key that the others give is the one that was stated."""
    answers = changed(honest, "c", lambda share: wrong(share) if share.owner == GONE else share)
    assert told(answers) == (
        "c: its share of a secret of g contradicts the other shares, unless g made the share wrongly",
    )


def test_a_wrong_share_of_a_seed_needs_two_more_to_show(honest: Answers) -> None:
    """Six answers: any five seeds' shares give some seed, and nothing tells which is right."""
    answers = changed(honest, "c", lambda share: wrong(share) if share.owner == "a" else share)
    assert told(answers) == ()
    shares = split(_secret("a"), BINDING.threshold, range(1, len(MEMBERS) + 1))
    seven = {
        site: (ReleasedShare("a", ShareKind.SEED, share),)
        for site, share in zip(MEMBERS, shares.values(), strict=True)
    }
    assert suspicions(changed(seven, "c", wrong), BINDING, ("a",), PUBLIC) == (
        "c: its share of a secret of a contradicts the other shares, unless a made the share wrongly",
    )


def test_two_wrong_shares_are_not_pinned_on_anyone(honest: Answers) -> None:
    answers = changed(changed(honest, "c", wrong), "d", wrong)
    assert told(answers) == ()


def test_a_key_that_was_not_stated_is_nobodys_fault_that_shows(honest: Answers) -> None:
    """Its owner shared another: no answer left out makes it right."""
    shared = split(secrets.token_bytes(32), BINDING.threshold, range(1, len(MEMBERS) + 1))
    answers = {
        site: tuple(
            replace(share, share=shared[BINDING.position(site)]) if share.owner == GONE else share
            for share in released
        )
        for site, released in honest.items()
    }
    assert told(answers) == ()
