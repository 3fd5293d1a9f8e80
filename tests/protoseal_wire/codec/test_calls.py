"""The messages of the calls: round trips, bounds, and messages with anything in their fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto.roster import Statement
from protoseal_wire import codec
from protoseal_wire.codec import CodecError, Malformed, OtherProtocol, TooLarge
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    AgreementField,
    CheckReply,
    CheckRequest,
    DownloadRequest,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Listing,
    Phase,
    PhaseKey,
    RunStage,
    Stopped,
    TaskRequest,
    UploadHeader,
    Work,
)
from protoseal_wire.v1 import protoseal_pb2 as pb
from tests.protoseal_wire.values import calls, plain

KEY = PhaseKey("trial", 3, 1, Phase.VALUES)
STATEMENT = Statement("clinic-a", b"certificate", bytes(32), bytes(70))
JOIN = JoinRequest(PROTOCOL_VERSION, "trial", bytes(32), STATEMENT)
HEADER = UploadHeader(KEY, 10, bytes(32))
WORK = Work(KEY, 10, bytes(32), 60.0)

TYPES: dict[str, type[Message]] = {
    "check": pb.CheckRequest,
    "check_reply": pb.CheckReply,
    "join": pb.JoinRequest,
    "join_reply": pb.JoinReply,
    "task_request": pb.TaskRequest,
    "task": pb.Task,
    "upload_header": pb.UploadFrame,
    "upload_chunk": pb.UploadFrame,
    "download": pb.DownloadRequest,
    "download_chunk": pb.DownloadFrame,
    "leave": pb.LeaveRequest,
}


def encode(kind: str, value: object) -> Any:
    return getattr(codec, f"encode_{kind}")(value)


def decode(kind: str, message: Message) -> object:
    value: object = getattr(codec, f"decode_{kind}")(message)
    return value


@pytest.mark.parametrize("kind", calls)
@settings(max_examples=40)
@given(data=st.data())
def test_every_value_survives_the_wire(kind: str, data: st.DataObject) -> None:
    value = data.draw(calls[kind])
    message = TYPES[kind].FromString(encode(kind, value).SerializeToString())
    assert plain(decode(kind, message)) == plain(value)


@pytest.mark.parametrize("kind", calls)
@settings(max_examples=40)
@given(data=st.data())
def test_any_parsed_message_decodes_or_raises_a_codec_error(kind: str, data: st.DataObject) -> None:
    content = bytearray(encode(kind, data.draw(calls[kind])).SerializeToString())
    position = data.draw(st.integers(0, len(content)))
    content[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        value = decode(kind, TYPES[kind].FromString(bytes(content)))
    except (DecodeError, CodecError):
        return
    assert plain(decode(kind, encode(kind, value))) == plain(value)


@pytest.mark.parametrize("kind", calls)
def test_a_message_that_says_nothing_is_refused(kind: str) -> None:
    if kind == "download_chunk":
        assert decode(kind, TYPES[kind]()) == b""  # Assembly refuses it
    else:
        with pytest.raises(CodecError):
            decode(kind, TYPES[kind]())


UNKNOWN_FIELD = bytes.fromhex("980601")


@pytest.mark.parametrize(
    "message",
    [
        pb.JoinRequest.FromString(encode("join", JOIN).SerializeToString() + UNKNOWN_FIELD),
        pb.TaskRequest.FromString(
            encode("task_request", TaskRequest(PROTOCOL_VERSION, "r")).SerializeToString() + UNKNOWN_FIELD
        ),
        pb.LeaveRequest.FromString(encode("leave", LeaveRequest(2)).SerializeToString() + UNKNOWN_FIELD),
    ],
    ids=lambda message: str(message.DESCRIPTOR.name),
)
def test_unknown_fields_are_refused(message: Message) -> None:
    kinds = {pb.JoinRequest: "join", pb.TaskRequest: "task_request", pb.LeaveRequest: "leave"}
    with pytest.raises(Malformed, match="does not know"):
        decode(kinds[type(message)], message)


def test_no_request_may_name_its_site() -> None:
    """The fields that named it in version 6: the certificate alone says who calls."""
    upload = codec.encode_upload_header(HEADER)
    named: list[tuple[str, Message, Message, int]] = [
        (kind, message, message, number)
        for kind, message, number in (
            ("check", codec.encode_check(CheckRequest(PROTOCOL_VERSION)), 2),
            ("join", codec.encode_join(JOIN), 3),
            ("task_request", codec.encode_task_request(TaskRequest(PROTOCOL_VERSION, "trial")), 3),
            ("download", codec.encode_download(DownloadRequest(KEY)), 2),
            ("leave", codec.encode_leave(LeaveRequest(2)), 1),
        )
    ]
    named.append(("upload_header", upload, upload.header, 2))
    for kind, message, part, number in named:
        decode(kind, message)
        part.MergeFromString(bytes([number << 3 | 2, 8]) + b"clinic-b")
        with pytest.raises(Malformed, match="does not know"):
            decode(kind, message)


def test_an_unknown_field_deep_inside_is_refused() -> None:
    message = codec.encode_join(JOIN)
    message.statement.MergeFromString(UNKNOWN_FIELD)
    with pytest.raises(Malformed, match="does not know"):
        codec.decode_join(message)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5, 6, 7, 2**32 - 1])
def test_another_protocol_is_named_even_when_the_rest_is_not_understood(protocol: int) -> None:
    with pytest.raises(OtherProtocol, match=f"speaks protocol {protocol}.*install matching releases"):
        codec.decode_join(
            pb.JoinRequest.FromString(pb.JoinRequest(protocol=protocol).SerializeToString() + UNKNOWN_FIELD)
        )
    with pytest.raises(OtherProtocol):
        codec.decode_task_request(pb.TaskRequest(protocol=protocol))
    with pytest.raises(OtherProtocol):
        codec.decode_check(pb.CheckRequest(protocol=protocol))
    with pytest.raises(OtherProtocol):
        codec.decode_check_reply(pb.CheckReply(protocol=protocol))
    with pytest.raises(OtherProtocol):
        codec.decode_join_reply(pb.JoinReply(protocol=protocol, poll_seconds=1))


BAD_JOINS = {
    "no run": replace(JOIN, run=""),
    "a path for a run": replace(JOIN, run="../trial"),
    "a name of 64 letters": replace(JOIN, run="a" * 64),
    "a hash of 31 bytes": replace(JOIN, agreement_hash=bytes(31)),
    "a channel key of 33 bytes": replace(JOIN, statement=replace(STATEMENT, channel_key=bytes(33))),
    "left by its values": replace(JOIN, left=KEY),
    "left in attempt 0": replace(JOIN, left=replace(KEY, attempt=0, phase=Phase.PRESENCE)),
}


@pytest.mark.parametrize("value", BAD_JOINS.values(), ids=BAD_JOINS)
def test_bad_joins_are_malformed(value: JoinRequest) -> None:
    with pytest.raises(Malformed):
        codec.decode_join(codec.encode_join(value))


@pytest.mark.parametrize("seconds", [-1.0, 601.0, float("nan"), float("inf")])
def test_bad_times_are_malformed(seconds: float) -> None:
    with pytest.raises(Malformed, match="poll_seconds"):
        codec.decode_join_reply(codec.encode_join_reply(JoinReply(PROTOCOL_VERSION, seconds, 1)))
    if seconds != 601.0:
        with pytest.raises(Malformed, match="seconds_left"):
            codec.decode_task(codec.encode_task(replace(WORK, seconds_left=seconds)))


def test_sessions_count_from_one() -> None:
    with pytest.raises(Malformed, match="session must be at least 1"):
        codec.decode_join_reply(codec.encode_join_reply(JoinReply(PROTOCOL_VERSION, 1.0, 0)))
    with pytest.raises(Malformed, match="session must be at least 1"):
        codec.decode_leave(codec.encode_leave(LeaveRequest(0)))


BAD_KEYS = {
    "the set-up in round 1": replace(KEY, round=1, phase=Phase.ROSTER),
    "a secret in round 1": replace(KEY, round=1, phase=Phase.SECRET),
    "a result in round 0": replace(KEY, round=0, phase=Phase.RESULT),
    "shares in round 0": replace(KEY, round=0, phase=Phase.SHARES),
    "survivors in round 0": replace(KEY, round=0, phase=Phase.SURVIVORS),
    "unmasking in round 0": replace(KEY, round=0, phase=Phase.UNMASK),
    "attempt 0": replace(KEY, attempt=0),
    "no run": replace(KEY, run=""),
}


@pytest.mark.parametrize("key", BAD_KEYS.values(), ids=BAD_KEYS)
def test_bad_keys_are_malformed_wherever_they_are(key: PhaseKey) -> None:
    with pytest.raises(Malformed):
        codec.decode_task(codec.encode_task(replace(WORK, key=key)))
    with pytest.raises(Malformed):
        codec.decode_upload_header(codec.encode_upload_header(replace(HEADER, key=key)))
    with pytest.raises(Malformed):
        codec.decode_download(codec.encode_download(DownloadRequest(key)))


@pytest.mark.parametrize("phase", Phase)
def test_only_the_set_up_and_the_clustering_come_before_training(phase: Phase) -> None:
    before = phase in (Phase.ROSTER, Phase.SECRET, Phase.PRESENCE, Phase.VALUES)
    within = phase not in (Phase.ROSTER, Phase.SECRET)
    for number, allowed in ((0, before), (1, within), (7, within)):
        message = codec.encode_download(DownloadRequest(replace(KEY, round=number, phase=phase)))
        if allowed:
            assert codec.decode_download(message).key == replace(KEY, round=number, phase=phase)
        else:
            with pytest.raises(Malformed, match="does not belong"):
                codec.decode_download(message)


def test_phases_have_the_numbers_of_the_schema() -> None:
    schema = {name.removeprefix("PHASE_"): number for name, number in pb.Phase.items() if number}
    assert {phase.name: int(phase) for phase in Phase} == schema


@pytest.mark.parametrize("phase", [0, 11, 99])
def test_unknown_phases_are_malformed(phase: int) -> None:
    message = codec.encode_download(DownloadRequest(KEY))
    message.key.phase = pb.Phase.ValueType(phase)
    with pytest.raises(Malformed, match=f"phase {phase} does not exist"):
        codec.decode_download(message)


def test_sizes_are_bounded_by_the_header_alone() -> None:
    for size, error in ((0, Malformed), (2**30 + 1, TooLarge), (2**63, TooLarge)):
        with pytest.raises(error):
            codec.decode_upload_header(codec.encode_upload_header(replace(HEADER, size=size)))
        with pytest.raises(error):
            codec.decode_task(codec.encode_task(replace(WORK, size=size)))


def test_header_and_chunk_are_told_apart() -> None:
    with pytest.raises(Malformed, match="lacks its header"):
        codec.decode_upload_header(codec.encode_upload_chunk(b"x"))
    with pytest.raises(Malformed, match="lacks its chunk"):
        codec.decode_upload_chunk(codec.encode_upload_header(HEADER))


FIELD = AgreementField("training.lr", bytes(32), "0.1")
LISTING = Listing(bytes(32), (FIELD,), RunStage.JOINING, 0, may_join=True)
BAD_LISTINGS = {
    "a text that writes to a terminal": replace(LISTING, fields=(replace(FIELD, text="\x1b[2J"),)),
    "a text of two lines": replace(LISTING, fields=(replace(FIELD, text="1\n2"),)),
    "a text with letters that look like others": replace(LISTING, fields=(replace(FIELD, text="\u202e"),)),
    "no text": replace(LISTING, fields=(replace(FIELD, text=""),)),
    "a path that writes to a terminal": replace(LISTING, fields=(replace(FIELD, path="\x1b[2J"),)),
    "a path of 201 letters": replace(LISTING, fields=(replace(FIELD, path=201 * "a"),)),
    "a hash of 31 bytes": replace(LISTING, fields=(replace(FIELD, sha256=bytes(31)),)),
    "a field twice": replace(LISTING, fields=(FIELD, FIELD)),
    "no fields": replace(LISTING, fields=()),
    "513 fields": replace(LISTING, fields=tuple(replace(FIELD, path=f"a.{n}") for n in range(513))),
    "no hash": replace(LISTING, agreement_hash=b""),
}


@pytest.mark.parametrize("value", BAD_LISTINGS.values(), ids=BAD_LISTINGS)
def test_bad_replies_to_check_are_malformed(value: Listing) -> None:
    with pytest.raises(Malformed):
        codec.decode_check_reply(codec.encode_check_reply(CheckReply(PROTOCOL_VERSION, "trial", value)))


def test_a_reply_to_check_has_nothing_for_a_site_that_is_not_listed() -> None:
    message = codec.encode_check_reply(CheckReply(PROTOCOL_VERSION, "trial", LISTING))
    message.listed = False
    with pytest.raises(Malformed):
        codec.decode_check_reply(message)


def test_the_text_of_a_field_is_cut_and_its_hash_is_not() -> None:
    long = replace(FIELD, text=1000 * "x", sha256=bytes(range(32)))
    message = codec.encode_check_reply(
        CheckReply(PROTOCOL_VERSION, "trial", replace(LISTING, fields=(long,)))
    )
    listing = codec.decode_check_reply(message).listing
    assert listing is not None
    assert listing.fields == (replace(long, text=160 * "x"),)


def test_a_reason_cannot_write_to_a_terminal() -> None:
    with pytest.raises(Malformed, match="printable"):
        codec.decode_task(pb.Task(stopped=pb.Stopped(reason="\x1b[2J")))
    sent = codec.encode_task(Stopped("too few sites:\n" + 600 * "x"))
    assert codec.decode_task(sent) == Stopped("too few sites: " + 485 * "x")
