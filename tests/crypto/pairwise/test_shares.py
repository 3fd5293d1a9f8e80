"""Secrets, keys and shares of a masked sum: what is refused, and that nothing secret shows."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest

from crypto.errors import DecryptionError, MalformedError, VerificationError
from crypto.keys import seal
from crypto.pairwise.attempt import AttemptSecrets, MaskKeys, SharePair
from crypto.pairwise.member_signatures import verify_survivor
from crypto.pairwise.shares import _info, make_shares, open_share, verify_share
from tests.crypto.masked_group import (
    BINDING,
    MEMBERS,
    Group,
    binding_of,
    credentials,
    member,
    names,
    pair_key,
)

A, B, C, D, E = MEMBERS


# Secrets


def test_attempt_secrets_round_trip_and_redacted_repr() -> None:
    secrets = AttemptSecrets.generate()
    assert len(secrets.to_bytes()) == 96
    assert AttemptSecrets.from_bytes(secrets.to_bytes()) == secrets
    for secret in (secrets.mask, secrets.share, secrets.seed):
        assert secret.hex()[:16] not in repr(secrets)
        assert repr(secret) not in repr(secrets)
    assert "redacted" in repr(secrets)


def test_attempt_secrets_fresh_and_distinct() -> None:
    made = [AttemptSecrets.generate() for _ in range(20)]
    assert len(set(chain.from_iterable((one.mask, one.share, one.seed) for one in made))) == 60


@pytest.mark.parametrize("size", [0, 95, 97, 192])
def test_attempt_secrets_other_size_refused(size: int) -> None:
    with pytest.raises(MalformedError, match="96"):
        AttemptSecrets.from_bytes(bytes(size))
    with pytest.raises(MalformedError, match="32"):
        AttemptSecrets(bytes(32), bytes(32), bytes(size))


def test_share_pair_round_trip_and_redacted_repr() -> None:
    pair = SharePair(bytes(32) + b"\x07", bytes(32) + b"\x09")
    assert SharePair.from_bytes(pair.to_bytes()) == pair
    assert repr(pair) == "SharePair(<redacted>)"
    for stored in (b"", bytes(65), bytes(67), b"\xff" * 66, bytes(33) + b"\xff" * 33):
        with pytest.raises(MalformedError, match=r"33"):
            SharePair.from_bytes(stored)


# Public keys

LOW_ORDER = (bytes(32), (1).to_bytes(32, "little"))
ODD_KEYS = (*LOW_ORDER, b"\xff" * 32, bytes(31), b"")


@pytest.mark.parametrize("key", ODD_KEYS, ids=["zero", "one", "not canonical", "short", "none"])
@pytest.mark.parametrize("which", ["mask", "share"])
def test_make_shares_bad_keys_refused(group: Group, key: bytes, which: str) -> None:
    site = group.sites[A]
    public = group.public | {C: replace(group.public[C], **{which: key})}
    with pytest.raises(VerificationError, match=r"channel key"):
        make_shares(credentials(A), site.secrets, BINDING, public)
    with pytest.raises(VerificationError, match=r"channel key"):
        site.mask(np.zeros(1, np.uint64), MEMBERS, public)


@pytest.mark.parametrize("key", LOW_ORDER)
def test_pair_keys_zero_secret_refused(key: bytes) -> None:
    """The second layer behind ``check_mask_keys``, which the caller may have forgotten."""
    with pytest.raises(VerificationError, match=r"zero"):
        pair_key(AttemptSecrets.generate().mask, MaskKeys(key, b""), BINDING, A, B)


def test_make_shares_missing_repeated_or_foreign_keys_refused(group: Group) -> None:
    keys = group.public[C]
    odd = {
        "no mask keys of clinic-c": {name: key for name, key in group.public.items() if name != C},
        "is repeated": group.public | {C: MaskKeys(group.public[B].mask, keys.share)},
        "a mask key is repeated": group.public | {C: MaskKeys(keys.mask, keys.mask)},
        "not its own": group.public | {A: AttemptSecrets.generate().public},
    }
    for message, public in odd.items():
        with pytest.raises(VerificationError, match=message):
            make_shares(credentials(A), group.sites[A].secrets, BINDING, public)
        with pytest.raises(VerificationError, match=message):
            group.sites[A].mask(np.zeros(1, np.uint64), MEMBERS, public)


def test_make_shares_without_own_keys_refused(group: Group) -> None:
    public = {name: key for name, key in group.public.items() if name != A}
    with pytest.raises(VerificationError, match="clinic-a"):
        make_shares(credentials(A), group.sites[A].secrets, BINDING, public)
    with pytest.raises(VerificationError, match="clinic-z"):
        make_shares(credentials("clinic-z"), group.sites[A].secrets, BINDING, group.public)


# Shares


def test_make_shares_one_for_each_other_member(group: Group) -> None:
    secrets = group.sites[A].secrets
    shares, own = make_shares(credentials(A), secrets, BINDING, group.public)
    assert [share.recipient for share in shares] == [B, C, D, E]
    assert {share.sender for share in shares} == {A}
    opened = [open_share(share, group.sites[share.recipient].secrets, BINDING) for share in shares]
    assert len({pair.to_bytes() for pair in [own, *opened]}) == 5
    everything = b"".join(share.sealed for share in shares) + repr(shares).encode()
    assert all(secret not in everything for secret in (secrets.seed, secrets.mask, secrets.share))


def test_verify_share_other_sender_or_recipient_refused(group: Group) -> None:
    shares = {share.recipient: share for share in group.sites[A].share(group.public)}
    good = shares[B]
    verify_share(good, member(A), BINDING, B)
    others = {share.recipient: share for share in group.sites[C].share(group.public)}
    own = replace(good, recipient=A)
    forged = credentials(C).sign("mask-share", *BINDING.fields(), A.encode(), B.encode(), good.sealed)
    odd: list[tuple[Any, str, str]] = [
        (replace(good, sender=C), A, "was due"),
        (replace(good, recipient=C), A, "was due"),
        (shares[C], A, "was due"),
        (others[B], A, "was due"),
        (replace(others[B], sender=A), A, "mask-share"),
        (replace(shares[C], recipient=B), A, "mask-share"),
        (replace(good, sealed=shares[C].sealed), A, "mask-share"),
        (replace(good, sealed=good.sealed[:-1] + bytes([good.sealed[-1] ^ 1])), A, "mask-share"),
        (replace(good, signature=shares[C].signature), A, "mask-share"),
        (replace(good, signature=forged), A, "mask-share"),
        (replace(good, signature=b""), A, "mask-share"),
        (good, "clinic-z", "not in the group"),
    ]
    for share, sender, message in odd:
        with pytest.raises(VerificationError, match=message):
            verify_share(share, member(sender), BINDING, B)
    with pytest.raises(VerificationError, match=r"due"):
        verify_share(own, member(A), BINDING, A)
    with pytest.raises(VerificationError, match="clinic-z"):
        verify_share(good, member(A), BINDING, "clinic-z")


@pytest.mark.parametrize(
    "change",
    [
        {"run": "run-2"},
        {"round": 4},
        {"attempt": 2},
        {"roster_hash": bytes(32)},
        {"agreement_hash": bytes(32)},
        {"broadcast": b""},
        {"group": names(4)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_open_share_of_other_attempt_refused(group: Group, change: dict[str, Any]) -> None:
    """A share is bound by its signature and, without that, by its sealing; signatures on survivors are bound too."""
    other = binding_of(**({"group": MEMBERS} | change))
    share = next(share for share in group.sites[A].share(group.public) if share.recipient == B)
    with pytest.raises(VerificationError, match="mask-share"):
        verify_share(share, member(A), other, B)
    with pytest.raises(DecryptionError):
        open_share(share, group.sites[B].secrets, other)
    signature = group.sites[A].sign(names(4))
    verify_survivor(member(A), BINDING, names(4), signature)
    with pytest.raises(VerificationError, match="mask-survivors"):
        verify_survivor(member(A), other, names(4), signature)


def test_open_share_bad_content_refused(group: Group) -> None:
    share = next(share for share in group.sites[A].share(group.public) if share.recipient == B)
    with pytest.raises(DecryptionError):
        open_share(share, group.sites[C].secrets, BINDING)
    for content in (b"", bytes(65), b"\xff" * 66):
        sealed = seal(group.public[B].share, content, _info(BINDING, A, B))
        with pytest.raises(MalformedError, match=r"33"):
            open_share(replace(share, sealed=sealed), group.sites[B].secrets, BINDING)
