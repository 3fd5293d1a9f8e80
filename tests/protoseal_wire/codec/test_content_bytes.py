"""Contents: known bytes and their bad twins, round trips, and any bytes at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crypto.pairwise.attempt import MaskKeys
from crypto.pairwise.shares import ReleasedShare, SealedShare, ShareKind
from crypto.protection import Axis, Payload, PayloadShape, UpTo, Words
from crypto.roster import Statement
from crypto.sealed_group_secret import SealedSecret
from protoseal_wire import codec
from protoseal_wire.codec import CodecError, Limits, Malformed
from protoseal_wire.messages import (
    Acknowledgement,
    ActiveList,
    AssignedRows,
    Assignment,
    GroupKeys,
    LedgerAnchor,
    MaskedValues,
    PresenceStatement,
    ReceivedShares,
    ReleasedShares,
    Roster,
    RosterAnswer,
    RoundStart,
    SharesMade,
    SignedSurvivors,
    SumMembers,
    SurvivorSet,
    SurvivorSignature,
)
from tests.protoseal_wire.values import FORMS, LIMITS, calls, contents, plain

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "codec_contents.json").read_text())


VECTOR_LIMITS = Limits(classes=3, dim=2, sites=4)


def encode(kind: str, value: object) -> bytes:
    content = getattr(codec, f"encode_{kind.partition(':')[0]}")(value)
    assert isinstance(content, bytes)
    return content


def decode(kind: str, content: bytes, limits: Limits = LIMITS, form: PayloadShape | None = None) -> object:
    """Decode with the kind's form in :data:`FORMS`, unless another form is given."""
    form = form or FORMS.get(kind)
    forms = () if form is None else (form,)
    value: object = getattr(codec, f"decode_{kind.partition(':')[0]}")(content, limits, *forms)
    return value


def form_of(case: Mapping[str, Any]) -> PayloadShape | None:
    if "form" not in case:
        return None
    arrays = tuple(tuple(map(axis, axes)) for axes in case["form"].get("arrays", ()))
    words = tuple((int(bits), axis(length)) for bits, length in case["form"].get("words", ()))
    return PayloadShape(arrays, words, case["form"].get("blobs", 0))


def axis(of: Any) -> Axis:
    return UpTo(of["most"]) if isinstance(of, dict) else int(of)


def assigned(of: Mapping[str, Any]) -> AssignedRows:
    classes, clusters = (np.array(of[each], dtype=np.int64) for each in ("classes", "clusters"))
    return AssignedRows(of["site"], classes, clusters)


def decode_case(case: Mapping[str, Any]) -> object:
    return decode(case["kind"], bytes.fromhex(case["content"]), VECTOR_LIMITS, form_of(case))


def statement(of: Mapping[str, Any]) -> Statement:
    return Statement(
        of["site"], *(bytes.fromhex(of[each]) for each in ("certificate", "channel_key", "signature"))
    )


def sealed_secret(of: Mapping[str, Any]) -> SealedSecret:
    parts = (bytes.fromhex(of[each]) for each in ("roster_hash", "public_hash", "sealed", "signature"))
    return SealedSecret(of["maker"], of["recipient"], *parts)


def roster_answer(of: Mapping[str, Any]) -> RosterAnswer:
    keys = of["keys"] and GroupKeys(
        bytes.fromhex(of["keys"]["evaluation_keys"]), tuple(map(sealed_secret, of["keys"]["sealed"]))
    )
    return RosterAnswer(bytes.fromhex(of["roster_hash"]), keys)


def round_start(of: Mapping[str, Any]) -> RoundStart:
    groups = tuple(map(tuple, of["groups"]))
    return RoundStart(groups, bytes.fromhex(of["base"]), of["catch_up"] and payload(of["catch_up"]))


def presence(of: Mapping[str, Any]) -> PresenceStatement:
    keys = of.get("keys") and MaskKeys(*(bytes.fromhex(of["keys"][each]) for each in ("mask", "share")))
    anchor = of.get("anchor") and LedgerAnchor(
        bytes.fromhex(of["anchor"]["key"]), of["anchor"]["seq"], bytes.fromhex(of["anchor"]["head"])
    )
    return PresenceStatement(
        of["site"],
        np.array(of["holds"], dtype=np.bool_),
        bytes.fromhex(of["signature"]),
        bytes.fromhex(of.get("base", "")),
        keys,
        anchor,
    )


def payload(of: Mapping[str, Any]) -> Payload:
    arrays = tuple(np.array(array, dtype=np.float64) for array in of["arrays"])
    return Payload(of["scheme"], arrays, tuple(map(bytes.fromhex, of["blobs"])), words(of.get("words")))


def words(of: Mapping[str, Any] | None) -> tuple[Words, ...]:
    if of is None:
        return ()
    return tuple(
        np.array(vector, np.uint32) if of["bits"] == 32 else np.array(vector, np.uint64)
        for vector in of["vectors"]
    )


def sealed_shares(of: Mapping[str, Any]) -> tuple[SealedShare, ...]:
    return tuple(
        SealedShare(
            each["sender"],
            each["recipient"],
            bytes.fromhex(each["sealed"]),
            bytes.fromhex(each["signature"]),
        )
        for each in of["shares"]
    )


def survivor_signature(of: Mapping[str, Any]) -> SurvivorSignature:
    return SurvivorSignature(of["site"], bytes.fromhex(of["signature"]))


def signed_survivors(of: Mapping[str, Any]) -> SignedSurvivors:
    return SignedSurvivors(
        tuple(of["sites"]),
        *(tuple(map(survivor_signature, of.get(each, ()))) for each in ("signatures", "sharers")),
    )


def sum_members(of: Mapping[str, Any]) -> SumMembers:
    listed, base = tuple(of["listed"]), bytes.fromhex(of["base"])
    return SumMembers(of["round"], of["attempt"], listed, base, signed_survivors(of["signed"]))


def released_share(of: Mapping[str, Any]) -> ReleasedShare:
    return ReleasedShare(of["owner"], ShareKind(of["kind"]), bytes.fromhex(of["share"]))


VALUES: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "statement": statement,
    "roster": lambda of: Roster(tuple(map(statement, of["statements"]))),
    "roster_answer": roster_answer,
    "sealed_secret": sealed_secret,
    "round_start": round_start,
    "presence": presence,
    "active_list": lambda of: ActiveList(tuple(map(presence, of["statements"]))),
    "assignment": lambda of: Assignment(tuple(map(assigned, of["sites"]))),
    "payload": payload,
    "acknowledgement": lambda _: Acknowledgement(),
    "shares_made": lambda of: SharesMade(sealed_shares(of)),
    "received_shares": lambda of: ReceivedShares(sealed_shares(of), tuple(of.get("sharers", ()))),
    "masked_values": lambda of: MaskedValues(payload(of["payload"]), bytes.fromhex(of["signature"])),
    "survivor_set": lambda of: SurvivorSet(tuple(of["sites"])),
    "survivor_signature": survivor_signature,
    "signed_survivors": signed_survivors,
    "sum_members": sum_members,
    "released_shares": lambda of: ReleasedShares(tuple(map(released_share, of["shares"]))),
}


def name(case: Mapping[str, Any]) -> str:
    return f"{case['kind']}: {case['name']}"


def test_vectors_cover_every_kind_of_content() -> None:
    assert Limits(**VECTORS["limits"]) == VECTOR_LIMITS
    encoders = {each.removeprefix("encode_") for each in dir(codec) if each.startswith("encode_")}
    assert set(VALUES) == {kind.partition(":")[0] for kind in contents} == encoders - set(calls)
    for cases in (VECTORS["good"], VECTORS["bad"]):
        assert {case["kind"] for case in cases} == set(VALUES)


@pytest.mark.parametrize("case", VECTORS["good"], ids=name)
def test_content_vectors_encode_and_decode(case: Mapping[str, Any]) -> None:
    value = VALUES[case["kind"]](case["value"])
    assert encode(case["kind"], value).hex() == case["content"]
    assert plain(decode_case(case)) == plain(value)


@pytest.mark.parametrize("case", VECTORS["bad"], ids=name)
def test_content_bad_vectors_raise_named_error(case: Mapping[str, Any]) -> None:
    with pytest.raises(CodecError) as refused:
        decode_case(case)
    assert type(refused.value).__name__ == case["error"]


@pytest.mark.parametrize("kind", contents)
@settings(max_examples=40)
@given(data=st.data())
def test_content_random_value_round_trip(kind: str, data: st.DataObject) -> None:
    value = data.draw(contents[kind])
    content = encode(kind, value)
    assert plain(decode(kind, content)) == plain(value)


@pytest.mark.parametrize("kind", contents)
@settings(max_examples=40)
@given(content=st.binary(max_size=200))
@example(content=b"\x08\x01")
def test_content_random_bytes_decode_or_raise_codec_error(kind: str, content: bytes) -> None:
    decodes_or_refuses(kind, content)


@pytest.mark.parametrize("kind", contents)
@settings(max_examples=40)
@given(data=st.data())
def test_content_altered_bytes_decode_or_raise_codec_error(kind: str, data: st.DataObject) -> None:
    content = bytearray(encode(kind, data.draw(contents[kind])))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    decodes_or_refuses(kind, bytes(content))


def decodes_or_refuses(kind: str, content: bytes) -> None:
    """Check that bytes are refused, or decode to a value that encodes to the same bytes."""
    try:
        value = decode(kind, content)
    except CodecError:
        return
    assert encode(kind, value) == content


def test_payload_arrays_any_layout_decoded_as_native_float64() -> None:
    value, form = np.arange(6, dtype=">f8").reshape(2, 3).T, PayloadShape(arrays=((3, 2),))
    (array,) = codec.decode_payload(codec.encode_payload(Payload("plain/1", (value,))), LIMITS, form).arrays
    assert array.dtype == np.float64
    assert array.dtype.isnative
    np.testing.assert_array_equal(array, value)


@pytest.mark.parametrize("bits", [32, 64])
def test_payload_words_any_layout_decoded_as_native_words(bits: int) -> None:
    value = np.arange(10, dtype=f">u{bits // 8}")[::2]
    content = codec.encode_payload(Payload("pairwise/1", words=(value,)))
    (words,) = codec.decode_payload(content, LIMITS, PayloadShape(words=((bits, 5),))).words
    assert words.dtype == np.dtype(f"u{bits // 8}")
    assert words.dtype.isnative
    np.testing.assert_array_equal(words, value)
    words += words.dtype.type(1)  # what is masked or summed in place must be writable


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.uint16, np.bool_])
def test_payload_words_of_other_dtype_raise_value_error(dtype: type[np.generic]) -> None:
    value: Any = np.ones(5, dtype)
    with pytest.raises(ValueError, match="uint32"):
        codec.encode_payload(Payload("pairwise/1", words=(value,)))


def longest(of: Axis) -> int:
    return of.most if isinstance(of, UpTo) else of


def test_payload_other_form_refused() -> None:
    """Every payload here passes under its own form, and under no other one."""
    made = {
        form: codec.encode_payload(
            Payload(
                "plain/1",
                tuple(np.ones(tuple(map(longest, axes))) for axes in form.arrays),
                (b"x",) * form.blobs,
                tuple(np.ones(longest(length), f"u{bits // 8}") for bits, length in form.words),
            )
        )
        for form in (
            PayloadShape(arrays=((3, 2),)),
            PayloadShape(arrays=((2, 3),)),
            PayloadShape(arrays=((6,),)),
            PayloadShape(arrays=((6,), (3,))),
            PayloadShape(arrays=((3,), (6,))),
            PayloadShape(arrays=((UpTo(2), 5), (UpTo(2),))),
            PayloadShape(arrays=((UpTo(3), 5), (4,))),
            PayloadShape(blobs=1),
            PayloadShape(words=((64, 6),)),
            PayloadShape(words=((32, 6),)),
            PayloadShape(words=((32, 12),)),
            PayloadShape(words=((64, 6), (64, 6))),
        )
    }
    for own, content in made.items():
        for form in made:
            if form == own:
                codec.decode_payload(content, LIMITS, form)
            else:
                with pytest.raises(Malformed):
                    codec.decode_payload(content, LIMITS, form)


@pytest.mark.parametrize("case", [case for case in VECTORS["bad"] if case["error"] != "TooLarge"], ids=name)
def test_content_refusals_do_not_repeat_content(case: Mapping[str, Any]) -> None:
    with pytest.raises(CodecError) as refused:
        decode_case(case)
    assert "clinic" not in str(refused.value).lower()
    assert "\n" not in str(refused.value)
