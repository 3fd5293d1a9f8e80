"""Messages of the calls: round trips, refusals as rows of (message, mutation, error, field), and random bytes.

At the end, the assembly of a content from chunks, and contents that differ from what was announced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from crypto.roster import Statement
from protoseal_wire import codec
from protoseal_wire.codec import (
    CHUNK_BYTES,
    Assembly,
    CodecError,
    Corrupted,
    Malformed,
    OtherProtocol,
    TooLarge,
    chunks,
)
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
JOIN = JoinRequest(PROTOCOL_VERSION, "trial", bytes(32), STATEMENT, left=replace(KEY, phase=Phase.PRESENCE))
HEADER = UploadHeader(KEY, 10, bytes(32))
WORK = Work(KEY, 10, bytes(32), 60.0)
FIELD = AgreementField("training.lr", bytes(32), "0.1")
LISTING = Listing(bytes(32), (FIELD,), RunStage.JOINING, 0, may_join=True)
CHECK_REPLY = CheckReply(PROTOCOL_VERSION, "trial", LISTING)

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
def test_call_random_value_round_trip(kind: str, data: st.DataObject) -> None:
    value = data.draw(calls[kind])
    message = TYPES[kind].FromString(encode(kind, value).SerializeToString())
    assert plain(decode(kind, message)) == plain(value)


@pytest.mark.parametrize("kind", calls)
@settings(max_examples=40)
@given(data=st.data())
def test_call_altered_message_decodes_or_raises_codec_error(kind: str, data: st.DataObject) -> None:
    content = bytearray(encode(kind, data.draw(calls[kind])).SerializeToString())
    position = data.draw(st.integers(0, len(content)))
    content[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        value = decode(kind, TYPES[kind].FromString(bytes(content)))
    except (DecodeError, CodecError):
        return
    assert plain(decode(kind, encode(kind, value))) == plain(value)


GOOD: dict[str, object] = {
    "check": CheckRequest(PROTOCOL_VERSION),
    "check_reply": CHECK_REPLY,
    "join": JOIN,
    "join_reply": JoinReply(PROTOCOL_VERSION, 1.0, 1),
    "task_request": TaskRequest(PROTOCOL_VERSION, "trial"),
    "task": WORK,
    "upload_header": HEADER,
    "upload_chunk": b"x",
    "download": DownloadRequest(KEY),
    "leave": LeaveRequest(2),
}
UNKNOWN_FIELD = bytes.fromhex("980601")
SITE = b"clinic-b"


def put(path: str, value: Any) -> Callable[[Any], None]:
    """Return the mutation that sets the field at ``path``, or the item ``path[0]`` of a repeated one."""

    def mutate(message: Any) -> None:
        *parents, last = path.split(".")
        for name in parents:
            message = message[int(name)] if name.isdigit() else getattr(message, name)
        setattr(message, last, value)

    return mutate


def merge(path: str, content: bytes) -> Callable[[Any], None]:
    """Return the mutation that appends bytes to the message at ``path``."""

    def mutate(message: Any) -> None:
        for name in filter(None, path.split(".")):
            message = getattr(message, name)
        message.MergeFromString(content)

    return mutate


def site_field(number: int) -> bytes:
    """Return the field in which version 6 of the protocol named the calling site."""
    return bytes([number << 3 | 2, len(SITE)]) + SITE


def repeat_field(message: Any) -> None:
    message.fields.add().CopyFrom(message.fields[0])


def add_fields(message: Any) -> None:
    for number in range(512):
        message.fields.add(path=f"a.{number}", sha256=bytes(32), text="1")


REFUSALS: list[tuple[str, Callable[[Any], None], type[CodecError], str]] = [
    # The certificate alone says who calls, so no request has a field for its site.
    ("check", merge("", site_field(2)), Malformed, "CheckRequest"),
    ("join", merge("", site_field(3)), Malformed, "JoinRequest"),
    ("task_request", merge("", site_field(3)), Malformed, "TaskRequest"),
    ("download", merge("", site_field(2)), Malformed, "DownloadRequest"),
    ("leave", merge("", site_field(1)), Malformed, "LeaveRequest"),
    ("upload_header", merge("header", site_field(2)), Malformed, "UploadFrame"),
    ("join", merge("", UNKNOWN_FIELD), Malformed, "JoinRequest"),
    ("join", merge("statement", UNKNOWN_FIELD), Malformed, "JoinRequest"),
    ("task_request", merge("", UNKNOWN_FIELD), Malformed, "TaskRequest"),
    ("leave", merge("", UNKNOWN_FIELD), Malformed, "LeaveRequest"),
    ("join", put("run", ""), Malformed, "run"),
    ("join", put("run", "../trial"), Malformed, "run"),
    ("join", put("run", "a" * 64), Malformed, "run"),
    ("join", put("agreement_hash", bytes(31)), Malformed, "agreement_hash"),
    ("join", put("statement.channel_key", bytes(33)), Malformed, "channel key"),
    ("join", put("statement.certificate", bytes(4097)), TooLarge, "certificate"),
    ("join", put("left.phase", 4), Malformed, "left"),
    ("join", put("left.attempt", 0), Malformed, "attempt"),
    ("join", lambda message: message.ClearField("statement"), Malformed, "statement"),
    ("join_reply", put("poll_seconds", -1.0), Malformed, "poll_seconds"),
    ("join_reply", put("poll_seconds", 601.0), Malformed, "poll_seconds"),
    ("join_reply", put("poll_seconds", float("nan")), Malformed, "poll_seconds"),
    ("join_reply", put("session", 0), Malformed, "session"),
    ("leave", put("session", 0), Malformed, "session"),
    ("task", put("work.seconds_left", -1.0), Malformed, "seconds_left"),
    ("task", put("work.seconds_left", float("nan")), Malformed, "seconds_left"),
    ("task", put("work.seconds_left", float("inf")), Malformed, "seconds_left"),
    ("task", put("work.size", 0), Malformed, "empty"),
    ("task", put("work.size", 2**30 + 1), TooLarge, str(2**30 + 1)),
    ("task", put("stopped.reason", "\x1b[2J"), Malformed, "reason"),
    ("task", put("stopped.reason", "x" * 501), Malformed, "reason"),
    ("upload_header", put("header.size", 0), Malformed, "empty"),
    ("upload_header", put("header.size", 2**30 + 1), TooLarge, str(2**30 + 1)),
    ("upload_header", put("header.size", 2**63), TooLarge, str(2**63)),
    ("upload_header", put("chunk", b"x"), Malformed, "header"),
    ("upload_chunk", put("header.size", 10), Malformed, "chunk"),
    ("check_reply", put("fields.0.text", "\x1b[2J"), Malformed, "text"),
    ("check_reply", put("fields.0.text", "1\n2"), Malformed, "text"),
    ("check_reply", put("fields.0.text", "\u202e"), Malformed, "text"),
    ("check_reply", put("fields.0.text", ""), Malformed, "text"),
    ("check_reply", put("fields.0.text", 161 * "x"), Malformed, "text"),
    ("check_reply", put("fields.0.path", "\x1b[2J"), Malformed, "path"),
    ("check_reply", put("fields.0.path", 201 * "a"), Malformed, "path"),
    ("check_reply", put("fields.0.sha256", bytes(31)), Malformed, "sha256"),
    ("check_reply", repeat_field, Malformed, "fields"),
    ("check_reply", lambda message: message.ClearField("fields"), Malformed, "fields"),
    ("check_reply", add_fields, Malformed, "fields"),
    ("check_reply", put("agreement_hash", b""), Malformed, "agreement_hash"),
    ("check_reply", put("stage", 9), Malformed, "stage 9"),
    ("check_reply", put("listed", False), Malformed, "listed"),
    *(
        (kind, mutation, Malformed, field)
        for kind, path in (("task", "work.key"), ("upload_header", "header.key"), ("download", "key"))
        for mutation, field in (
            (put(f"{path}.run", ""), "run"),
            (put(f"{path}.attempt", 0), "attempt"),
            (put(f"{path}.phase", 0), "phase 0"),
            (put(f"{path}.phase", 11), "phase 11"),
            (put(f"{path}.phase", 1), "ROSTER"),
        )
    ),
]


@pytest.mark.parametrize(("kind", "mutation", "error", "field"), REFUSALS)
def test_call_refusals(
    kind: str, mutation: Callable[[Any], None], error: type[CodecError], field: str
) -> None:
    message = encode(kind, GOOD[kind])
    decode(kind, message)
    mutation(message)
    with pytest.raises(CodecError) as refused:
        decode(kind, TYPES[kind].FromString(message.SerializeToString()))
    assert type(refused.value) is error
    assert field in str(refused.value)


@pytest.mark.parametrize("kind", calls)
def test_call_empty_message_refused(kind: str) -> None:
    if kind == "download_chunk":
        assert decode(kind, TYPES[kind]()) == b""  # Assembly refuses it
    else:
        with pytest.raises(CodecError):
            decode(kind, TYPES[kind]())


@pytest.mark.parametrize("kind", ["check", "check_reply", "join", "join_reply", "task_request"])
@pytest.mark.parametrize("protocol", [0, *range(1, PROTOCOL_VERSION), 2**32 - 1])
def test_call_other_protocol_named_before_any_other_fault(kind: str, protocol: int) -> None:
    message = TYPES[kind].FromString(TYPES[kind](protocol=protocol).SerializeToString() + UNKNOWN_FIELD)
    with pytest.raises(OtherProtocol, match=str(protocol)):
        decode(kind, message)


@pytest.mark.parametrize("phase", Phase)
def test_phase_key_allows_only_setup_and_clustering_in_round_zero(phase: Phase) -> None:
    before = phase in (Phase.ROSTER, Phase.SECRET, Phase.PRESENCE, Phase.VALUES)
    within = phase not in (Phase.ROSTER, Phase.SECRET)
    for number, allowed in ((0, before), (1, within), (7, within)):
        message = codec.encode_download(DownloadRequest(replace(KEY, round=number, phase=phase)))
        if allowed:
            assert codec.decode_download(message).key == replace(KEY, round=number, phase=phase)
        else:
            with pytest.raises(Malformed, match=rf"{phase.name} .*{number}"):
                codec.decode_download(message)


def test_phase_numbers_equal_schema() -> None:
    schema = {name.removeprefix("PHASE_"): number for name, number in pb.Phase.items() if number}
    assert {phase.name: int(phase) for phase in Phase} == schema


def test_check_reply_long_text_cut_and_hash_kept() -> None:
    long = replace(FIELD, text=1000 * "x", sha256=bytes(range(32)))
    message = codec.encode_check_reply(replace(CHECK_REPLY, listing=replace(LISTING, fields=(long,))))
    listing = codec.decode_check_reply(message).listing
    assert listing is not None
    assert listing.fields == (replace(long, text=160 * "x"),)


def test_stopped_reason_sent_without_control_characters() -> None:
    sent = codec.encode_task(Stopped("too few sites:\n" + 600 * "x"))
    assert codec.decode_task(sent) == Stopped("too few sites: " + 485 * "x")


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


@pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_chunks_assembled_equal_content(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    pieces = list(chunks(content))
    assert all(len(piece) == CHUNK_BYTES for piece in pieces[:-1])
    assembly = Assembly(size, sha256(content))
    for piece in pieces:
        assembly.add(piece)
    assert assembly.content() == content


@pytest.mark.parametrize("size", [3, CHUNK_BYTES + 3])
@pytest.mark.parametrize("length", [0, 1, 2, CHUNK_BYTES - 1, CHUNK_BYTES + 1])
def test_assembly_chunk_of_other_length_refused(size: int, length: int) -> None:
    """Chunks of a byte would cost the receiver a message's work for a byte."""
    assembly = Assembly(size, sha256(bytes(size)))
    with pytest.raises((Malformed, TooLarge)):
        assembly.add(bytes(length))
    for chunk in chunks(bytes(size)):
        assembly.add(chunk)
    assert assembly.content() == bytes(size)


def test_assembly_too_many_bytes_refused_and_not_kept() -> None:
    assembly = Assembly(3, sha256(b"abc"))
    with pytest.raises(TooLarge, match="3"):
        assembly.add(b"abcd")
    assembly.add(b"abc")
    assert assembly.content() == b"abc"


def test_assembly_too_few_bytes_corrupted() -> None:
    with pytest.raises(Corrupted, match=r"0 .* 3"):
        Assembly(3, sha256(b"abc")).content()


def test_assembly_other_bytes_corrupted() -> None:
    assembly = Assembly(3, sha256(b"abc"))
    assembly.add(b"abd")
    with pytest.raises(Corrupted, match="SHA-256"):
        assembly.content()
