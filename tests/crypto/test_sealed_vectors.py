"""Group secrets and shares as they travel: frozen ones open, by both implementations, and their bad twins do not."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec

import crypto.keys
import crypto.pairwise.shares
import crypto.sealed_group_secret
from crypto import errors
from crypto.keys import ChannelKey
from crypto.pairwise.attempt import AttemptSecrets, Binding
from crypto.pairwise.shares import SealedShare, open_share, verify_share
from crypto.roster import Member, Roster
from crypto.sealed_group_secret import SealedSecret, open_group_secret
from tests.crypto import protocol_reference

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "sealed.json").read_text())
SENDER, RECIPIENT = "clinic-a", "clinic-b"
OWN = {name: bytes.fromhex(value) for name, value in VECTORS["members"][RECIPIENT].items()}
SECRET, SHARE, BINDING = VECTORS["group_secret"], VECTORS["share"], VECTORS["binding"]
ROSTER_HASH, PUBLIC_HASH = bytes.fromhex(VECTORS["roster_hash"]), bytes.fromhex(SECRET["public_hash"])


def _member(name: str, signers: str) -> Member:
    point = bytes.fromhex(VECTORS[signers][name]["public_key"])
    public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    return Member(name, bytes.fromhex(VECTORS["members"][name]["channel_key"]), public, "")


def _roster(signers: str) -> Roster:
    return Roster(
        MappingProxyType({name: _member(name, signers) for name in VECTORS["members"]}), ROSTER_HASH
    )


ROSTER, MAKERS = _roster("members"), _roster("makers")


def _open_secret(case: dict[str, str]) -> tuple[bytes, bytes]:
    """Open the group secret as clinic-b does."""
    hexed = {n: bytes.fromhex(case[n]) for n in ("roster_hash", "public_hash", "sealed", "signature")}
    return open_group_secret(
        SealedSecret(maker=case["maker"], recipient=case["recipient"], **hexed),
        roster=MAKERS,
        run=VECTORS["run"],
        attempt=VECTORS["attempt"],
        recipient=RECIPIENT,
        channel_key=ChannelKey.from_private_bytes(OWN["channel_private_key"]),
    )


def _open_share(case: dict[str, str]) -> bytes:
    """Open, as clinic-b does, the share that clinic-a made."""
    hashes = {name: bytes.fromhex(BINDING[name]) for name in ("roster_hash", "agreement_hash", "broadcast")}
    binding = Binding(**(BINDING | hashes | {"group": tuple(BINDING["group"])}))
    sealed, signature = bytes.fromhex(case["sealed"]), bytes.fromhex(case["signature"])
    share = SealedShare(case["sender"], case["recipient"], sealed, signature)
    verify_share(share, ROSTER.members[SENDER], binding, RECIPIENT)
    return open_share(
        share, AttemptSecrets(bytes(32), OWN["share_private_key"], bytes(32)), binding
    ).to_bytes()


def _cases(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", VECTORS[name], ids=lambda case: case["name"])


def test_the_frozen_secret_opens() -> None:
    assert _open_secret(SECRET) == (bytes.fromhex(SECRET["secret"]), PUBLIC_HASH)


@_cases("bad_group_secrets")
def test_bad_secrets_are_refused(case: dict[str, str]) -> None:
    with pytest.raises(getattr(errors, case["failure"]), match=case["match"]) as raised:
        _open_secret(case)
    assert type(raised.value).__name__ == case["failure"]


def test_the_frozen_share_opens() -> None:
    assert _open_share(SHARE).hex() == SHARE["pair"]


@_cases("bad_shares")
def test_bad_share_vectors_refused(case: dict[str, str]) -> None:
    with pytest.raises(getattr(errors, case["failure"]), match=case["match"]) as raised:
        _open_share(case)
    assert type(raised.value).__name__ == case["failure"]


def test_bad_twins_open_without_the_signature_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these twins is about the signature check, and opens without it."""
    monkeypatch.setattr(crypto.sealed_group_secret, "verify", lambda *_: None)
    monkeypatch.setattr(crypto.pairwise.shares, "verify", lambda *_: None)
    through = [case for case in (*VECTORS["bad_group_secrets"], *VECTORS["bad_shares"]) if _opens(case)]
    assert {f"signed for another {what}" for what in ("run", "maker", "attempt", "broadcast")} <= {
        case["name"] for case in through
    }
    assert all("signature" in case["match"] for case in through)


def _opens(case: dict[str, str]) -> bool:
    try:
        (_open_secret if "maker" in case else _open_share)(case)
    except errors.CryptoError:
        return False
    return True


# By a second implementation


def _secret_context(case: dict[str, str]) -> tuple[bytes, ...]:
    return (
        b"clinic-a",
        b"clinic-b",
        VECTORS["run"].encode(),
        VECTORS["attempt"].to_bytes(8, "big"),
        ROSTER_HASH,
        bytes.fromhex(case["public_hash"]),
    )


SHARE_CONTEXT = (*protocol_reference.binding_fields(BINDING), b"clinic-a", b"clinic-b")


@pytest.mark.parametrize("what", ["group secret", "share"])
def test_reference_implementation_gives_the_frozen_bytes(what: str) -> None:
    """Sealed anew with the ephemeral key that stands there, and opened; the signature is over what is laid out here."""
    secret = what == "group secret"
    case, context = (SECRET, _secret_context(SECRET)) if secret else (SHARE, SHARE_CONTEXT)
    label = "group-secret" if secret else "mask-share"
    private = OWN["channel_private_key" if secret else "share_private_key"]
    plaintext = bytes.fromhex(case["secret" if secret else "pair"])
    sealed, info = bytes.fromhex(case["sealed"]), protocol_reference.layout(f"{label}-info", *context)
    ephemeral = bytes.fromhex(VECTORS["ephemeral"])
    assert (
        protocol_reference.hpke_seal(protocol_reference.public_of(private), ephemeral, plaintext, info)
        == sealed
    )
    assert protocol_reference.hpke_open(private, sealed, info) == plaintext
    maker = bytes.fromhex(VECTORS["makers" if secret else "members"][SENDER]["public_key"])
    protocol_reference.check_signature(maker, bytes.fromhex(case["signature"]), label, *context, sealed)


@pytest.mark.parametrize(
    "case",
    [case for case in VECTORS["bad_group_secrets"] if case["failure"] == "DecryptionError"],
    ids=lambda case: case["name"],
)
def test_bad_secrets_do_not_open_in_the_reference_implementation(case: dict[str, str]) -> None:
    info = protocol_reference.layout("group-secret-info", *_secret_context(case))
    with pytest.raises(InvalidTag):
        protocol_reference.hpke_open(OWN["channel_private_key"], bytes.fromhex(case["sealed"]), info)


def test_sealed_content_opens_in_the_reference_implementation() -> None:
    """The other way round: with the ephemeral key that the library draws."""
    sealed = crypto.keys.seal(OWN["channel_key"], b"plaintext", b"info")
    assert protocol_reference.hpke_open(OWN["channel_private_key"], sealed, b"info") == b"plaintext"
    again = protocol_reference.hpke_seal(OWN["channel_key"], bytes(31) + b"\x01", b"plaintext", b"info")
    assert ChannelKey.from_private_bytes(OWN["channel_private_key"]).open(again, b"info") == b"plaintext"
