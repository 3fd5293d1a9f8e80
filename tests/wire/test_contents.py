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

from crypto.protection import Payload
from crypto.roster import Statement
from crypto.sealed import SealedSecret
from protoseal_wire import codec
from protoseal_wire.codec import CodecError, Limits
from protoseal_wire.messages import (
    Acknowledgement,
    ActiveList,
    GroupKeys,
    Phase,
    PresenceStatement,
    Roster,
    RosterAnswer,
    RoundStart,
)
from tests.wire.values import LIMITS, contents, plain

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "codec_contents.json").read_text())


def encode(kind: str, value: object) -> bytes:
    content = getattr(codec, f"encode_{kind}")(value)
    assert isinstance(content, bytes)
    return content


def decode(kind: str, content: bytes, limits: Limits = LIMITS) -> object:
    value: object = getattr(codec, f"decode_{kind}")(content, limits)
    return value


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


def presence(of: Mapping[str, Any]) -> PresenceStatement:
    return PresenceStatement(
        of["site"], np.array(of["holds"], dtype=np.bool_), bytes.fromhex(of["signature"])
    )


def payload(of: Mapping[str, Any]) -> Payload:
    arrays = tuple(np.array(array, dtype=np.float64) for array in of["arrays"])
    return Payload(of["scheme"], arrays, tuple(map(bytes.fromhex, of["blobs"])))


VALUES: Mapping[str, Callable[[Mapping[str, Any]], object]] = {
    "statement": statement,
    "roster": lambda of: Roster(tuple(map(statement, of["statements"]))),
    "roster_answer": roster_answer,
    "sealed_secret": sealed_secret,
    "round_start": lambda _: RoundStart(),
    "presence": presence,
    "active_list": lambda of: ActiveList(tuple(map(presence, of["statements"]))),
    "payload": payload,
    "acknowledgement": lambda _: Acknowledgement(),
}


def name(case: Mapping[str, Any]) -> str:
    return f"{case['kind']}: {case['name']}"


def test_vectors_were_made_for_these_limits_and_cover_every_kind() -> None:
    assert Limits(**VECTORS["limits"]) == LIMITS
    assert (
        {case["kind"] for case in VECTORS["good"]} == {case["kind"] for case in VECTORS["bad"]} == set(VALUES)
    )


@pytest.mark.parametrize("case", VECTORS["good"], ids=name)
def test_known_bytes_come_out_and_go_in(case: Mapping[str, Any]) -> None:
    value = VALUES[case["kind"]](case["value"])
    assert encode(case["kind"], value).hex() == case["content"]
    assert plain(decode(case["kind"], bytes.fromhex(case["content"]))) == plain(value)


@pytest.mark.parametrize("case", VECTORS["bad"], ids=name)
def test_bad_twins_raise_the_named_error(case: Mapping[str, Any]) -> None:
    with pytest.raises(CodecError) as refused:
        decode(case["kind"], bytes.fromhex(case["content"]))
    assert type(refused.value).__name__ == case["error"]


@pytest.mark.parametrize("kind", contents)
@settings(max_examples=40)
@given(data=st.data())
def test_every_value_survives_the_wire(kind: str, data: st.DataObject) -> None:
    value = data.draw(contents[kind])
    content = encode(kind, value)
    assert plain(decode(kind, content)) == plain(value)


@pytest.mark.parametrize("kind", contents)
@settings(max_examples=40)
@given(content=st.binary(max_size=200))
@example(content=b"\x08\x01")
def test_any_bytes_decode_or_raise_a_codec_error(kind: str, content: bytes) -> None:
    decodes_or_refuses(kind, content)


@pytest.mark.parametrize("kind", contents)
@settings(max_examples=40)
@given(data=st.data())
def test_altered_contents_decode_or_raise_a_codec_error(kind: str, data: st.DataObject) -> None:
    content = bytearray(encode(kind, data.draw(contents[kind])))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    decodes_or_refuses(kind, bytes(content))


def decodes_or_refuses(kind: str, content: bytes) -> None:
    """What decodes has one byte string only, so whatever decodes encodes to the same again."""
    try:
        value = decode(kind, content)
    except CodecError:
        return
    assert encode(kind, value) == content


def test_arrays_come_out_as_native_float64_whatever_layout_went_in() -> None:
    value = np.arange(6, dtype=">f8").reshape(2, 3).T
    (array,) = codec.decode_payload(codec.encode_payload(Payload("plain/1", (value,))), LIMITS).arrays
    assert array.dtype == np.float64
    assert array.dtype.isnative
    np.testing.assert_array_equal(array, value)


@pytest.mark.parametrize("case", [case for case in VECTORS["bad"] if case["error"] != "TooLarge"], ids=name)
def test_refusals_do_not_repeat_what_was_sent(case: Mapping[str, Any]) -> None:
    with pytest.raises(CodecError) as refused:
        decode(case["kind"], bytes.fromhex(case["content"]))
    assert "clinic" not in str(refused.value).lower()
    assert "\n" not in str(refused.value)


class TestLimits:
    """The largest of every kind fits its bound, and one that is larger is refused before it is parsed."""

    LARGE = Limits(classes=100, dim=128, sites=5)
    STATEMENT = Statement("a" * 63, bytes(4096), bytes(32), bytes(72))
    SEALED = SealedSecret("a" * 63, "b" * 63, bytes(32), bytes(32), bytes(2**19), bytes(72))
    PRESENCE = PresenceStatement("a" * 63, np.ones(100, dtype=np.bool_), bytes(72))
    LARGEST: Mapping[str, object] = {
        "statement": STATEMENT,
        "roster": Roster((STATEMENT,) * 5),
        "roster_answer": RosterAnswer(bytes(32), GroupKeys(bytes(2**24), (SEALED,) * 5)),
        "sealed_secret": SEALED,
        "round_start": RoundStart(),
        "presence": PRESENCE,
        "active_list": ActiveList((PRESENCE,) * 5),
        "payload": Payload("c" * 31 + "/999", (), (bytes(2**19),) * LARGE.blobs),
        "acknowledgement": Acknowledgement(),
    }

    @pytest.mark.parametrize("kind", LARGEST)
    def test_the_largest_fits(self, kind: str) -> None:
        content = encode(kind, self.LARGEST[kind])
        assert plain(decode(kind, content, self.LARGE)) == plain(self.LARGEST[kind])

    @pytest.mark.parametrize("kind", LARGEST)
    def test_more_is_refused_by_its_size_alone(self, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
        most = getattr(self.LARGE, "empty" if kind in ("round_start", "acknowledgement") else kind)
        monkeypatch.setattr("protoseal_wire.codec.contents.pb.Content", None)
        with pytest.raises(codec.TooLarge):
            decode(kind, bytes(most + 1), self.LARGE)

    def test_a_plain_payload_of_few_classes_fits(self) -> None:
        limits = Limits(classes=1, dim=10**6)
        value = Payload("plain/1", (np.ones((1, 10**6)),))
        assert plain(codec.decode_payload(codec.encode_payload(value), limits)) == plain(value)

    @pytest.mark.parametrize(
        ("classes", "dim", "blobs"), [(10, 512, 6), (10, 256, 4), (16, 257, 6), (1, 1, 4)]
    )
    def test_ciphertexts_are_counted_by_how_many_features_fill_one(
        self, classes: int, dim: int, blobs: int
    ) -> None:
        assert Limits(classes, dim).blobs == blobs

    def test_each_phase_has_its_own_bound(self) -> None:
        bounds = {phase: self.LARGE.answer_bytes(phase) for phase in Phase}
        assert bounds[Phase.ROSTER] == self.LARGE.roster_answer
        assert bounds[Phase.VALUES] == self.LARGE.payload
        assert bounds[Phase.PRESENCE] == self.LARGE.presence
        assert bounds[Phase.SECRET] == bounds[Phase.RESULT] == self.LARGE.empty

    @pytest.mark.parametrize("fields", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (1, 1, 257)])
    def test_impossible_runs_are_refused(self, fields: tuple[int, int, int]) -> None:
        with pytest.raises(ValueError, match="classes, dimensions and 1 to 256 sites"):
            Limits(*fields)
