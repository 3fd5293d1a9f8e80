"""Signed encoding, derived keys, channel keys and stored secrets: frozen bytes, and altered content that is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

import crypto.keys
from crypto.errors import DecryptionError, MalformedError, UnknownSchemeError, VerificationError
from crypto.keys import ChannelKey, StorageKey, check_channel_public, check_distinct, derive, encode, seal

ENCODING_VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "vectors" / "encoding.json").read_text()
)
LABELS = st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True)
LABEL_BYTES = b"abcdefghijklmnopqrstuvwxyz0123456789-"
FIELDS = st.lists(st.binary(max_size=20), max_size=4)


def _fields(case: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(field) for field in case["fields"]]


@pytest.mark.parametrize("case", ENCODING_VECTORS["encode"], ids=lambda case: case["name"])
def test_encode_equals_vectors(case: dict[str, Any]) -> None:
    assert encode(case["label"], *_fields(case)).hex() == case["encoded"]


@pytest.mark.parametrize("case", ENCODING_VECTORS["bad_encode"], ids=lambda case: case["name"])
def test_encode_differs_from_bad_vectors(case: dict[str, Any]) -> None:
    assert encode(case["label"], *_fields(case)).hex() != case["encoded"]


@pytest.mark.parametrize("case", ENCODING_VECTORS["derive"], ids=lambda case: case["name"])
def test_derive_equals_vectors(case: dict[str, Any]) -> None:
    assert derive(bytes.fromhex(case["secret"]), case["label"], *_fields(case)).hex() == case["derived"]


@pytest.mark.parametrize("case", ENCODING_VECTORS["bad_derive"], ids=lambda case: case["name"])
def test_derive_differs_from_bad_vectors(case: dict[str, Any]) -> None:
    assert derive(bytes.fromhex(case["secret"]), case["label"], *_fields(case)).hex() != case["derived"]


@given(LABELS, FIELDS, LABELS, FIELDS)
def test_encode_injective(
    label: str, fields: list[bytes], other_label: str, other_fields: list[bytes]
) -> None:
    same = (label, fields) == (other_label, other_fields)
    assert (encode(label, *fields) == encode(other_label, *other_fields)) is same


@given(LABELS, FIELDS)
def test_encode_can_be_parsed(label: str, fields: list[bytes]) -> None:
    """Bytes that parse in only one way cannot have two meanings."""
    rest = encode(label, *fields).removeprefix(b"protoseal/v1/").lstrip(LABEL_BYTES)
    parsed = []
    while rest:
        size, rest = int.from_bytes(rest[:8], "big"), rest[8:]
        parsed.append(rest[:size])
        rest = rest[size:]
    assert parsed == fields


@pytest.mark.parametrize("label", ["", "A", "a b", "a\x00", "a/b", "é", "a\n"])
def test_encode_bad_label_refused(label: str) -> None:
    with pytest.raises(ValueError, match="label"):
        encode(label)


VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "channel_keys.json").read_text())


# Channel keys


def test_seal_opens_with_key_and_info() -> None:
    key = ChannelKey.generate()
    sealed = seal(key.public_bytes, b"secret", b"context")
    assert key.open(sealed, b"context") == b"secret"
    assert len(sealed) == len(b"secret") + 48
    assert seal(key.public_bytes, b"secret", b"context") != sealed


@given(st.binary(max_size=200), st.binary(max_size=50), st.integers(min_value=0), st.integers(0, 7))
def test_open_altered_content_or_info_refused(secret: bytes, info: bytes, position: int, bit: int) -> None:
    key = ChannelKey.generate()
    sealed = seal(key.public_bytes, secret, info)
    altered = bytearray(sealed)
    altered[position % len(sealed)] ^= 1 << bit
    for content, context in ((bytes(altered), info), (sealed, info + b"x"), (sealed[:-1], info), (b"", info)):
        # X25519 ignores the top bit of the encapsulated key, but HPKE binds its bytes.
        with pytest.raises(DecryptionError, match=r"sealed"):
            key.open(content, context)
    with pytest.raises(DecryptionError):
        ChannelKey.generate().open(sealed, info)


def test_open_frozen_message() -> None:
    """Sealing is random; opening a message sealed once must go on working."""
    case = VECTORS["sealed"]
    key = ChannelKey.from_private_bytes(bytes.fromhex(case["private_key"]))
    assert key.public_bytes.hex() == case["public_key"]
    opened = key.open(bytes.fromhex(case["message"]), bytes.fromhex(case["info"]))
    assert opened.hex() == case["plaintext"]
    for twin in VECTORS["bad_sealed"]:
        with pytest.raises(DecryptionError):
            key.open(bytes.fromhex(twin["message"]), bytes.fromhex(twin["info"]))


def test_channel_key_round_trip_and_redacted_repr() -> None:
    key = ChannelKey.generate()
    private = key.private_bytes()
    assert ChannelKey.from_private_bytes(private).public_bytes == key.public_bytes
    # Eight digits of a fresh key may stand in its public half by chance.
    known = bytes(range(1, 33))
    assert not any(
        known.hex()[start : start + 4] in repr(ChannelKey.from_private_bytes(known)) for start in range(61)
    )
    assert "<redacted>" in repr(key)
    for bad in (b"", private[:-1], private + b"\x00"):
        with pytest.raises(MalformedError, match="32"):
            ChannelKey.from_private_bytes(bad)


@pytest.mark.parametrize("case", VECTORS["bad_public_keys"], ids=lambda case: case["name"])
def test_check_channel_public_bad_keys_refused(case: dict[str, str]) -> None:
    public = bytes.fromhex(case["public_key"])
    with pytest.raises(VerificationError, match=case["failure"]):
        check_channel_public(public)
    with pytest.raises(VerificationError, match=case["failure"]):
        seal(public, b"secret", b"")


def test_low_order_points_are_those_that_x25519_refuses() -> None:
    """RFC 7748's own test is to try; the list is those canonical points for which it fails, whoever's the other key."""
    mine = X25519PrivateKey.generate()
    for point in crypto.keys._LOW_ORDER:
        with pytest.raises(ValueError, match="shared"):
            mine.exchange(X25519PublicKey.from_public_bytes(point.to_bytes(32, "little")))
    assert len(crypto.keys._LOW_ORDER) == 5
    assert {case["public_key"] for case in VECTORS["bad_public_keys"] if case["failure"] == "low order"} == {
        point.to_bytes(32, "little").hex() for point in crypto.keys._LOW_ORDER
    }


@pytest.mark.parametrize("case", VECTORS["public_keys"], ids=lambda case: case["name"])
def test_check_channel_public_good_keys_accepted(case: dict[str, str]) -> None:
    check_channel_public(bytes.fromhex(case["public_key"]))


def test_non_canonical_key_agrees_to_same_secret() -> None:
    """Other bytes, the same point: without the check, one party could stand on a roster twice."""
    key, mine = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    public = key.public_key().public_bytes_raw()
    twin = public[:-1] + bytes([public[-1] | 0x80])
    assert mine.exchange(X25519PublicKey.from_public_bytes(twin)) == mine.exchange(key.public_key())
    check_channel_public(public)
    with pytest.raises(VerificationError, match="canonical"):
        check_channel_public(twin)


# Derived keys


def test_derive_depends_on_secret_label_and_context() -> None:
    keys = {
        derive(b"s" * 32, "a"),
        derive(b"t" * 32, "a"),
        derive(b"s" * 32, "b"),
        derive(b"s" * 32, "a", b""),
        derive(b"s" * 32, "a", b"x", b"y"),
        derive(b"s" * 32, "a", b"xy"),
    }
    assert len(keys) == 6
    assert {len(key) for key in keys} == {32}


@pytest.mark.parametrize("length", [0, 15])
def test_derive_short_secret_refused(length: int) -> None:
    with pytest.raises(ValueError, match=f"{length}"):
        derive(bytes(length), "a")


# Storage


def test_storage_key_decrypts_under_same_name() -> None:
    key = StorageKey(b"k" * 32)
    stored = key.encrypt(b"secret", b"name")
    assert key.decrypt(stored, b"name") == b"secret"
    assert key.encrypt(b"secret", b"name") != stored
    assert b"secret" not in stored
    assert repr(key) == "StorageKey(<redacted>)"


@given(st.binary(max_size=100), st.integers(min_value=0), st.integers(0, 7))
def test_storage_key_altered_content_refused(secret: bytes, position: int, bit: int) -> None:
    key = StorageKey(b"k" * 32)
    stored = key.encrypt(secret, b"name")
    altered = bytearray(stored)
    altered[position % len(stored)] ^= 1 << bit
    with pytest.raises((DecryptionError, UnknownSchemeError)):
        key.decrypt(bytes(altered), b"name")
    for size in range(0, len(stored), 7):
        with pytest.raises((DecryptionError, UnknownSchemeError)):
            key.decrypt(stored[:size], b"name")
    with pytest.raises(DecryptionError):
        key.decrypt(stored, b"another name")
    with pytest.raises(DecryptionError):
        StorageKey(b"l" * 32).decrypt(stored, b"name")


def test_storage_key_other_version_unknown_scheme() -> None:
    key = StorageKey(b"k" * 32)
    stored = key.encrypt(b"secret", b"name").replace(b"stored-1:", b"stored-2:")
    with pytest.raises(UnknownSchemeError, match=r"marker"):
        key.decrypt(stored, b"name")


def test_storage_key_decrypts_frozen_content() -> None:
    case = VECTORS["stored"]
    key = StorageKey(bytes.fromhex(case["key"]))
    opened = key.decrypt(bytes.fromhex(case["content"]), bytes.fromhex(case["associated"]))
    assert opened.hex() == case["plaintext"]


FIELD, CURVE = 2**255 - 19, 486662


def plus_small_order(public: bytes) -> list[bytes]:
    """Return the key plus the point (0, 0) of order two, and plus both points of order four with u = 1.

    Affine addition in Montgomery form: u(P + Q) = (v_Q·u_P − v_P·u_Q)²/(u_P·u_Q·(u_P − u_Q)²), with v² = u³ + Au² + u.
    """
    u = int.from_bytes(public, "little")
    root = pow(CURVE + 2, (FIELD + 3) // 8, FIELD)
    if root * root % FIELD != CURVE + 2:
        root = root * pow(2, (FIELD - 1) // 4, FIELD) % FIELD
    assert root * root % FIELD == CURVE + 2  # so (1, √(A + 2)) is on the curve
    square = (u * u * u + CURVE * u * u + u) % FIELD
    v = pow(square, (FIELD + 3) // 8, FIELD)
    if v * v % FIELD != square:
        v = v * pow(2, (FIELD - 1) // 4, FIELD) % FIELD
    assert v * v % FIELD == square
    found = [pow(u, -1, FIELD)]
    for sign in (1, -1):
        slope = (v - sign * root) * pow(u - 1, -1, FIELD) % FIELD
        found.append((slope * slope - CURVE - u - 1) % FIELD)
    return [each.to_bytes(32, "little") for each in found]


def test_check_distinct_equivalent_keys_refused() -> None:
    own, other = ChannelKey.generate(), ChannelKey.generate()
    check_distinct([own.public_bytes, other.public_bytes], "twice")
    twins = plus_small_order(own.public_bytes)
    assert len({own.public_bytes, *twins}) == 4
    for twin in twins:
        check_channel_public(twin)  # each is canonical and of full order
        peer = X25519PrivateKey.generate()
        secrets = {peer.exchange(X25519PublicKey.from_public_bytes(key)) for key in (twin, own.public_bytes)}
        assert len(secrets) == 1
        with pytest.raises(VerificationError):
            check_distinct([own.public_bytes, other.public_bytes, twin], "twice")
