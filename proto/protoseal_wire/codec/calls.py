"""Codec of a run's calls: one ``encode_`` and one ``decode_`` for each message.

Every ``decode_`` raises a :class:`protoseal_wire.codec.errors.CodecError` for a message with a field out of bounds or
unknown to this version. The protocol version is checked first, whatever the other fields are.
"""

from __future__ import annotations

from google.protobuf.message import Message

from protoseal_wire.codec.errors import Malformed, OtherProtocol
from protoseal_wire.codec.fields import (
    anchor_message,
    check_content_size,
    check_exact,
    check_known_fields,
    check_name,
    check_present,
    check_seconds,
    read_anchor,
)
from protoseal_wire.codec.setup import read_statement, statement_message
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    DownloadRequest,
    Finished,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Phase,
    PhaseKey,
    Stopped,
    Task,
    TaskRequest,
    UploadHeader,
    Wait,
    Work,
)
from protoseal_wire.v1 import protoseal_pb2 as pb

LONGEST_POLL_SECONDS = 600.0
_LONGEST_REASON = 500
_SETUP = frozenset({Phase.ROSTER, Phase.SECRET})
_CLUSTERING = frozenset({Phase.PRESENCE, Phase.VALUES})
_BEFORE_TRAINING = _SETUP | _CLUSTERING
_IN_ROUNDS = frozenset(Phase) - _SETUP


def encode_join(request: JoinRequest) -> pb.JoinRequest:
    """Encode a site's request to join."""
    return pb.JoinRequest(
        protocol=request.protocol,
        run=request.run,
        agreement_hash=request.agreement_hash,
        statement=statement_message(request.statement),
        anchor=anchor_message(request.anchor),
        left=None if request.left is None else _key_message(request.left),
    )


def decode_join(message: pb.JoinRequest) -> JoinRequest:
    """Decode a site's request to join."""
    check_protocol(message.protocol)
    check_fields(message, "statement")
    return JoinRequest(
        message.protocol,
        check_name("run", message.run),
        check_exact("agreement_hash", message.agreement_hash),
        read_statement(message.statement),
        read_anchor(message.anchor) if message.HasField("anchor") else None,
        _read_left(message.left) if message.HasField("left") else None,
    )


def encode_join_reply(reply: JoinReply) -> pb.JoinReply:
    """Encode the coordinator's reply to a join."""
    return pb.JoinReply(
        protocol=reply.protocol,
        poll_seconds=reply.poll_seconds,
        session=reply.session,
        anchor=anchor_message(reply.anchor),
    )


def decode_join_reply(message: pb.JoinReply) -> JoinReply:
    """Decode the coordinator's reply to a join."""
    check_protocol(message.protocol)
    check_fields(message)
    return JoinReply(
        message.protocol,
        check_seconds("poll_seconds", message.poll_seconds, LONGEST_POLL_SECONDS),
        _check_session(message.session),
        read_anchor(message.anchor) if message.HasField("anchor") else None,
    )


def encode_task_request(request: TaskRequest) -> pb.TaskRequest:
    """Encode a site's question for its next task."""
    return pb.TaskRequest(protocol=request.protocol, run=request.run)


def decode_task_request(message: pb.TaskRequest) -> TaskRequest:
    """Decode a site's question for its next task."""
    check_protocol(message.protocol)
    check_fields(message)
    return TaskRequest(message.protocol, check_name("run", message.run))


def encode_task(task: Task) -> pb.Task:
    """Encode a site's task; a reason is cut to 500 printable characters."""
    match task:
        case Wait():
            return pb.Task(wait=pb.Wait())
        case Work():
            return pb.Task(work=_work_message(task))
        case Finished(rounds):
            return pb.Task(finished=pb.Finished(rounds=rounds))
        case Stopped(reason):
            return pb.Task(stopped=pb.Stopped(reason=_printable(reason)))


def decode_task(message: pb.Task) -> Task:
    """Decode a site's task."""
    check_fields(message)
    match message.WhichOneof("task"):
        case "wait":
            return Wait()
        case "work":
            return _read_work(message.work)
        case "finished":
            return Finished(message.finished.rounds)
        case "stopped":
            return Stopped(_check_reason(message.stopped.reason))
        case _:
            raise Malformed("a Task is empty")


def encode_upload_header(header: UploadHeader) -> pb.UploadFrame:
    """Encode the first frame of an upload."""
    return pb.UploadFrame(
        header=pb.UploadHeader(key=_key_message(header.key), size=header.size, sha256=header.sha256)
    )


def decode_upload_header(frame: pb.UploadFrame) -> UploadHeader:
    """Decode the first frame of an upload."""
    check_fields(frame, "header")
    check_present(frame.header, "key")
    return UploadHeader(
        _read_key(frame.header.key),
        check_content_size(frame.header.size),
        check_exact("sha256", frame.header.sha256),
    )


def encode_upload_chunk(chunk: bytes) -> pb.UploadFrame:
    """Encode a later frame of an upload."""
    return pb.UploadFrame(chunk=chunk)


def decode_upload_chunk(frame: pb.UploadFrame) -> bytes:
    """Decode a later frame of an upload."""
    check_fields(frame, "chunk")
    return frame.chunk


def encode_download(request: DownloadRequest) -> pb.DownloadRequest:
    """Encode a site's question for the request of a phase."""
    return pb.DownloadRequest(key=_key_message(request.key))


def decode_download(message: pb.DownloadRequest) -> DownloadRequest:
    """Decode a site's question for the request of a phase."""
    check_fields(message, "key")
    return DownloadRequest(_read_key(message.key))


def encode_download_chunk(chunk: bytes) -> pb.DownloadFrame:
    """Encode a frame of a download."""
    return pb.DownloadFrame(chunk=chunk)


def decode_download_chunk(frame: pb.DownloadFrame) -> bytes:
    """Decode a frame of a download."""
    check_fields(frame)
    return frame.chunk


def encode_leave(request: LeaveRequest) -> pb.LeaveRequest:
    """Encode a site's notice that it leaves the run."""
    return pb.LeaveRequest(session=request.session)


def decode_leave(message: pb.LeaveRequest) -> LeaveRequest:
    """Decode a site's notice that it leaves the run."""
    check_fields(message)
    return LeaveRequest(_check_session(message.session))


def check_protocol(protocol: int) -> None:
    """Raise :class:`OtherProtocol` for another version than this build's."""
    if protocol != PROTOCOL_VERSION:
        raise OtherProtocol(
            f"the peer speaks protocol {protocol}, this build {PROTOCOL_VERSION}: install matching releases"
        )


def check_fields(message: Message, *fields: str) -> None:
    """Raise :class:`Malformed` for unknown fields, and for a message that lacks one of ``fields``."""
    check_known_fields(message)
    check_present(message, *fields)


def _key_message(key: PhaseKey) -> pb.PhaseKey:
    return pb.PhaseKey(
        run=key.run, round=key.round, attempt=key.attempt, phase=pb.Phase.ValueType(int(key.phase))
    )


def _read_key(message: pb.PhaseKey) -> PhaseKey:
    try:
        phase = Phase(message.phase)
    except ValueError as error:
        raise Malformed(f"phase {message.phase} does not exist") from error
    if phase not in (_BEFORE_TRAINING if message.round == 0 else _IN_ROUNDS):
        raise Malformed(f"{phase.name} does not belong to round {message.round}")
    if message.attempt == 0:
        raise Malformed("an attempt's number must be at least 1")
    return PhaseKey(check_name("run", message.run), message.round, message.attempt, phase)


def _read_left(message: pb.PhaseKey) -> PhaseKey:
    key = _read_key(message)
    if key.phase is not Phase.PRESENCE:
        raise Malformed(f"left must be the PRESENCE of an attempt, not {key.phase.name}")
    return key


def _check_session(number: int) -> int:
    if number == 0:
        raise Malformed("session must be at least 1")
    return number


def _work_message(work: Work) -> pb.Work:
    return pb.Work(
        key=_key_message(work.key), size=work.size, sha256=work.sha256, seconds_left=work.seconds_left
    )


def _read_work(message: pb.Work) -> Work:
    check_present(message, "key")
    return Work(
        _read_key(message.key),
        check_content_size(message.size),
        check_exact("sha256", message.sha256),
        check_seconds("seconds_left", message.seconds_left),
    )


def _printable(reason: str) -> str:
    return "".join(each if each.isprintable() else " " for each in reason[:_LONGEST_REASON])


def _check_reason(reason: str) -> str:
    """Return the reason if it is short and, because terminals show it, without control characters."""
    if len(reason) > _LONGEST_REASON or not reason.isprintable():
        raise Malformed(f"a reason must be at most {_LONGEST_REASON} printable characters")
    return reason
