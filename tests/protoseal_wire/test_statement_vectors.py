"""Frozen vectors of signed statements and released values, with bad twins, and checked by hand as well."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec

from agreement.storage.anchor_record import anchor_key
from crypto import errors
from crypto.pairwise.attempt import Binding, MaskKeys, SharePair
from crypto.pairwise.member_signatures import verify_signed_survivors
from crypto.pairwise.shares import ReleasedShare, ShareKind, check_released, release
from crypto.roster import Member, Roster
from protoseal_wire.class_presence import verify_active_list, verify_presence
from protoseal_wire.messages import ActiveList, LedgerAnchor, Phase, PhaseKey, PresenceStatement
from tests.crypto import protocol_reference

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "statements.json").read_text())
HASHES = {
    name: bytes.fromhex(VECTORS["binding"][name]) for name in ("roster_hash", "agreement_hash", "broadcast")
}
BINDING = Binding(**(VECTORS["binding"] | HASHES | {"group": tuple(VECTORS["binding"]["group"])}))
KEY = PhaseKey(BINDING.run, BINDING.round, BINDING.attempt, Phase.PRESENCE)
POINTS = {name: bytes.fromhex(member["public_key"]) for name, member in VECTORS["members"].items()}


def _member(name: str) -> Member:
    return Member(name, b"", ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), POINTS[name]), "")


ROSTER = Roster(MappingProxyType({name: _member(name) for name in POINTS}), BINDING.roster_hash)


def _cases(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", VECTORS[name], ids=lambda case: case.get("name", ""))


def _presence(case: dict[str, Any]) -> PresenceStatement:
    keys = None if case["keys"] is None else MaskKeys(*(bytes.fromhex(key) for key in case["keys"]))
    holds, signature = np.array(case["holds"], dtype=np.bool_), bytes.fromhex(case["signature"])
    return PresenceStatement(case["site"], holds, signature, bytes.fromhex(case["base"]), keys, _anchor(case))


def _anchor(case: dict[str, Any]) -> LedgerAnchor | None:
    if case.get("anchor") is None:
        return None
    key, seq, head = case["anchor"]
    return LedgerAnchor(bytes.fromhex(key), seq, bytes.fromhex(head))


def _verify_presence(case: dict[str, Any]) -> None:
    verify_presence(ROSTER.members["clinic-b"], _presence(case), KEY, BINDING.roster_hash)


def _released(case: dict[str, Any]) -> tuple[ReleasedShare, ...]:
    return tuple(
        ReleasedShare(share["owner"], ShareKind[share["kind"].upper()], bytes.fromhex(share["share"]))
        for share in case["released"]
    )


def _signatures(case: dict[str, Any]) -> dict[str, bytes]:
    return {name: bytes.fromhex(signature) for name, signature in case["signatures"].items()}


@_cases("presence")
def test_presence_vectors_verify(case: dict[str, Any]) -> None:
    _verify_presence(case)


@_cases("bad_presence")
def test_presence_bad_vectors_raise_named_error(case: dict[str, Any]) -> None:
    _check_refused(case, lambda: _verify_presence(case))


@_cases("anchor_keys")
def test_anchor_key_vectors_equal_reference(case: dict[str, Any]) -> None:
    names = [case[part] for part in ("federation", "site", "dataset")]
    encoded = protocol_reference.layout("ledger-anchor", *(name.encode() for name in names))
    assert anchor_key(*names).hex() == hashlib.sha256(encoded).hexdigest() == case["key"]


def test_anchor_key_vectors_are_distinct() -> None:
    keys = {case["key"] for case in VECTORS["anchor_keys"]}
    assert len(keys) == len(VECTORS["anchor_keys"]) > 1


def test_active_list_vector_verifies() -> None:
    statements = tuple(map(_presence, VECTORS["list"]))
    verify_active_list(ActiveList(statements), ROSTER, KEY)


@_cases("bad_lists")
def test_active_list_bad_vectors_raise_named_error(case: dict[str, Any]) -> None:
    statements = tuple(map(_presence, case["statements"]))
    _check_refused(case, lambda: verify_active_list(ActiveList(statements), ROSTER, KEY))


def test_survivors_vector_verifies() -> None:
    good = VECTORS["survivors"]
    verify_signed_survivors(_signatures(good), ROSTER.members, BINDING, good["survivors"])


@_cases("bad_survivors")
def test_survivors_bad_vectors_raise_named_error(case: dict[str, Any]) -> None:
    signatures = _signatures(case)
    _check_refused(
        case, lambda: verify_signed_survivors(signatures, ROSTER.members, BINDING, case["survivors"])
    )


def test_released_shares_vector_equal_release() -> None:
    good = VECTORS["released"]
    held = {name: SharePair.from_bytes(bytes.fromhex(pair)) for name, pair in good["held"].items()}
    assert release(BINDING, good["site"], good["sharers"], good["survivors"], held) == _released(good)
    check_released(_released(good), BINDING, good["sharers"], good["survivors"])


@_cases("bad_released")
def test_released_shares_bad_vectors_raise_named_error(case: dict[str, Any]) -> None:
    released = _released(case)
    _check_refused(case, lambda: check_released(released, BINDING, case["sharers"], case["survivors"]))


def _check_refused(case: dict[str, Any], attempt: Any) -> None:
    with pytest.raises(getattr(errors, case["failure"]), match=case["match"]) as raised:
        attempt()
    assert type(raised.value).__name__ == case["failure"]


# By a second implementation


def _check_presence_by_hand(case: dict[str, Any]) -> None:
    fields = (
        b"clinic-b",
        BINDING.run.encode(),
        struct.pack(">Q", BINDING.round),
        struct.pack(">Q", BINDING.attempt),
        BINDING.roster_hash,
        bytes(case["holds"]),
        bytes.fromhex(case["base"]),
        *(bytes.fromhex(key) for key in case["keys"] or ()),
        *_anchor_by_hand(case),
    )
    protocol_reference.check_signature(
        POINTS["clinic-b"], bytes.fromhex(case["signature"]), "presence", *fields
    )


def _anchor_by_hand(case: dict[str, Any]) -> tuple[bytes, ...]:
    if case.get("anchor") is None:
        return ()
    key, seq, head = case["anchor"]
    return bytes.fromhex(key), struct.pack(">Q", seq), bytes.fromhex(head)


def _check_survivors_by_hand(survivors: list[str], signatures: dict[str, bytes]) -> None:
    fields = (
        *protocol_reference.binding_fields(VECTORS["binding"]),
        protocol_reference.names_field(survivors),
    )
    for name, signature in signatures.items():
        protocol_reference.check_signature(POINTS[name], signature, "mask-survivors", *fields)


@_cases("presence")
def test_presence_vectors_verify_in_reference(case: dict[str, Any]) -> None:
    _check_presence_by_hand(case)


def test_survivors_vector_verifies_in_reference() -> None:
    good = VECTORS["survivors"]
    _check_survivors_by_hand(good["survivors"], _signatures(good))


def test_bad_signature_vectors_refused_in_reference() -> None:
    presence = [case for case in VECTORS["bad_presence"] if "signature" in case["match"]]
    survivors = [case for case in VECTORS["bad_survivors"] if "signature \\(" in case["match"]]
    assert len(presence) >= 10
    assert len(survivors) >= 10
    for case in presence:
        with pytest.raises(InvalidSignature):
            _check_presence_by_hand(case)
    for case in survivors:
        with pytest.raises(InvalidSignature):
            _check_survivors_by_hand(case["survivors"], _signatures(case))
