"""Frozen vectors computed again by a second implementation, from which a stranger could interoperate."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from tests.crypto import protocol_reference

FOLDER = Path(__file__).parents[1] / "vectors"


def _vectors(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


PAIRWISE, SHAMIR, ENCODING = _vectors("pairwise"), _vectors("shamir"), _vectors("encoding")
CHANNEL, ROSTER = _vectors("channel_keys"), _vectors("roster")
SECRETS = {
    name: tuple(bytes.fromhex(value)[start : start + 32] for start in (0, 32, 64))
    for name, value in PAIRWISE["secrets"].items()
}
"""Mask key, share key, seed."""


def _cases(vectors: dict[str, Any], name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", vectors[name], ids=lambda case: case.get("name", ""))


def _fields(case: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(each) for each in case["fields"]]


@_cases(ENCODING, "encode")
def test_reference_layout_gives_the_frozen_bytes(case: dict[str, Any]) -> None:
    assert protocol_reference.layout(case["label"], *_fields(case)).hex() == case["encoded"]


@_cases(ENCODING, "derive")
def test_reference_derives_the_frozen_keys(case: dict[str, Any]) -> None:
    secret = bytes.fromhex(case["secret"])
    assert protocol_reference.derived(secret, case["label"], *_fields(case)).hex() == case["derived"]


def _pair(case: dict[str, Any]) -> tuple[bytes, tuple[bytes, ...]]:
    site, peer = case["site"], case["peer"]
    shared = protocol_reference.agreed(SECRETS[site][0], bytes.fromhex(PAIRWISE["public"][peer]["mask"]))
    first, second = sorted((site, peer))
    return shared, (*protocol_reference.binding_fields(case["binding"]), first.encode(), second.encode())


def _self_key(site: str, binding: dict[str, Any]) -> bytes:
    return protocol_reference.derived(
        SECRETS[site][2], "mask-self", *protocol_reference.binding_fields(binding), site.encode()
    )


@_cases(PAIRWISE, "key_schedule")
def test_reference_derives_the_frozen_mask_keys(case: dict[str, Any]) -> None:
    shared, pair = _pair(case)
    assert protocol_reference.derived(shared, "mask-pair", *pair).hex() == case["pair_key"]
    assert _self_key(case["site"], case["binding"]).hex() == case["self_key"]


@_cases(PAIRWISE, "bad_key_schedule")
def test_reference_derives_other_mask_keys_under_other_contexts(case: dict[str, Any]) -> None:
    shared, pair = _pair(case)
    assert protocol_reference.derived(shared, "mask-pair", *pair).hex() != case["pair_key"]
    assert _self_key(case["site"], case["binding"]).hex() != case["self_key"]


@_cases(PAIRWISE, "coins")
def test_reference_gives_the_frozen_coins(case: dict[str, Any]) -> None:
    shared, pair = _pair(case)
    assert (
        int.from_bytes(protocol_reference.derived(shared, "mask-coin", *pair), "big") % 1024 == case["coin"]
    )


@_cases(PAIRWISE, "streams")
def test_reference_gives_the_frozen_streams(case: dict[str, Any]) -> None:
    words = protocol_reference.keystream(bytes.fromhex(case["key"]), case["bits"], len(case["first"]))
    assert [str(word) for word in words] == case["first"]


@_cases(PAIRWISE, "masks")
def test_reference_gives_the_frozen_masks(case: dict[str, Any]) -> None:
    site, bits, masked = case["site"], case["bits"], [int(word) for word in case["words"]]
    _add(masked, _self_key(site, PAIRWISE["binding"]), bits, 1)
    for peer in case["sharers"]:
        if peer != site:
            shared, pair = _pair({"site": site, "peer": peer, "binding": PAIRWISE["binding"]})
            _add(
                masked, protocol_reference.derived(shared, "mask-pair", *pair), bits, 1 if site < peer else -1
            )
    assert [str(word) for word in masked] == case["masked"]


def _add(words: list[int], key: bytes, bits: int, sign: int) -> None:
    for i, word in enumerate(protocol_reference.keystream(key, bits, len(words))):
        words[i] = (words[i] + sign * word) % 2**bits


@_cases(SHAMIR, "combine")
def test_reference_opens_the_frozen_shares(case: dict[str, Any]) -> None:
    shares = {int(x): bytes.fromhex(share) for x, share in case["shares"].items()}
    assert protocol_reference.secrets_of(shares, case["threshold"]) == {int(case["secret"], 16)}


def test_bad_shares_do_not_agree() -> None:
    contradicting = [case for case in SHAMIR["bad_combine"] if "contradict" in case["match"]]
    for case in contradicting:
        shares = {int(x): bytes.fromhex(share) for x, share in case["shares"].items()}
        assert len(protocol_reference.secrets_of(shares, case["threshold"])) > 1
    assert contradicting


def test_reference_gives_frozen_roster_hash() -> None:
    roster = ROSTER["roster"]
    fields = [roster["run"].encode(), bytes.fromhex(roster["agreement_hash"])]
    for each in sorted(roster["statements"], key=lambda statement: str(statement["site"])):
        fields += [
            each["site"].encode(),
            b64decode(each["certificate"]),
            bytes.fromhex(each["channel_key"]),
        ]
    assert hashlib.sha256(protocol_reference.layout("roster", *fields)).hexdigest() == roster["hash"]


def test_reference_opens_the_sealed_vectors() -> None:
    good = {name: bytes.fromhex(value) for name, value in CHANNEL["sealed"].items()}
    assert (
        protocol_reference.hpke_open(good["private_key"], good["message"], good["info"]) == good["plaintext"]
    )
    again = protocol_reference.hpke_seal(good["public_key"], bytes(31) + b"\x01", b"x", b"info")
    assert protocol_reference.hpke_open(good["private_key"], again, b"info") == b"x"


@_cases(CHANNEL, "bad_sealed")
def test_reference_refuses_the_bad_sealed_vectors(case: dict[str, str]) -> None:
    private = bytes.fromhex(CHANNEL["sealed"]["private_key"])
    with pytest.raises(InvalidTag):
        protocol_reference.hpke_open(private, bytes.fromhex(case["message"]), bytes.fromhex(case["info"]))


def test_reference_opens_the_stored_vectors() -> None:
    case = {name: bytes.fromhex(value) for name, value in CHANNEL["stored"].items()}
    marker, content = b"protoseal-stored-1:", case["content"]
    assert content.startswith(marker)
    nonce, body = content[len(marker) : len(marker) + 12], content[len(marker) + 12 :]
    context = protocol_reference.layout("stored-secret", case["associated"])
    assert ChaCha20Poly1305(case["key"]).decrypt(nonce, body, context) == case["plaintext"]


ROTATION: dict[str, Any] = json.loads((FOLDER / "rotation.json").read_text(encoding="utf-8"))
FIXED: dict[str, Any] = json.loads((FOLDER / "fixed_point.json").read_text(encoding="utf-8"))
_ROUNDING = 1e-12


def _key(case: dict[str, Any]) -> bytes:
    return bytes.fromhex(case["key"])


@_cases(ROTATION, "stream")
def test_reference_gives_frozen_normals(case: dict[str, Any]) -> None:
    found = protocol_reference.normals(_key(case), case["dim"], case["size"])
    assert found == pytest.approx(case["normals"], abs=_ROUNDING)


@_cases(ROTATION, "rotations")
def test_reference_gives_frozen_rotations(case: dict[str, Any]) -> None:
    for vector, rotated in zip(case["vectors"], case["rotated"], strict=True):
        assert protocol_reference.rotated(_key(case), vector) == pytest.approx(rotated, abs=_ROUNDING)
        assert protocol_reference.rotated(_key(case), rotated, back=True) == pytest.approx(
            vector, abs=_ROUNDING
        )


@_cases(ROTATION, "bad_rotations")
def test_reference_differs_from_bad_vectors(case: dict[str, Any]) -> None:
    found = [protocol_reference.rotated(_key(case), vector) for vector in case["vectors"]]
    assert found != [pytest.approx(rotated, abs=1e-3) for rotated in case["rotated"]]


@_cases(ROTATION, "class_keys")
def test_reference_gives_frozen_class_keys(case: dict[str, Any]) -> None:
    fields = bytes.fromhex(case["context"]), case["number"].to_bytes(4, "big")
    assert protocol_reference.derived(bytes.fromhex(case["seed"]), "rotation", *fields).hex() == case["key"]


@_cases(FIXED, "room")
def test_reference_gives_frozen_fraction_bits(case: dict[str, Any]) -> None:
    bound = float.fromhex(case["bound"])
    assert protocol_reference.fraction_bits(bound, case["terms"], case["ring_bits"]) == case["fraction_bits"]


@_cases(FIXED, "bad_room")
def test_reference_refuses_too_few_bits(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no room"):
        protocol_reference.fraction_bits(float.fromhex(case["bound"]), case["terms"], case["ring_bits"])


def _segments(case: dict[str, Any]) -> list[tuple[int, float]]:
    return [(length, float.fromhex(bound)) for length, bound in case["segments"]]


@_cases(FIXED, "narrowest_ring")
def test_reference_gives_frozen_narrowest_ring(case: dict[str, Any]) -> None:
    assert protocol_reference.narrowest_ring(_segments(case), case["terms"]) == case["ring_bits"]


@_cases(FIXED, "bad_narrowest_ring")
def test_reference_refuses_ring_too_narrow(case: dict[str, Any]) -> None:
    largest = max(bound for length, bound in _segments(case) if length)
    assert protocol_reference.narrowest_ring(_segments(case), case["terms"]) != case["ring_bits"]
    with pytest.raises(ValueError, match="no room"):
        protocol_reference.fraction_bits(largest, case["terms"], case["ring_bits"])


def _words(case: dict[str, Any]) -> list[str]:
    bounds = [float.fromhex(bound) for length, bound in case["segments"] for _ in range(length)]
    values = [float.fromhex(value) for value in case["values"]]
    ring, sites = case["ring_bits"], case["terms"]
    pairs = zip(values, bounds, strict=True)
    return [str(protocol_reference.word(value, bound, sites, ring)) for value, bound in pairs]


@_cases(FIXED, "encode")
def test_reference_gives_frozen_words(case: dict[str, Any]) -> None:
    assert _words(case) == case["words"]


@_cases(FIXED, "bad_encode")
def test_reference_refuses_values_without_a_word(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"beyond|shorter|longer"):
        _words(case)
