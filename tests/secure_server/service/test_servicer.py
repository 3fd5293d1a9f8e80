"""The service over real TLS: who is let in, what becomes of what they send, and how calls wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import cast

import grpc
import pytest
from cryptography import x509

from crypto.errors import MalformedError, VerificationError
from crypto.pki import Credentials, Identity
from protoseal_wire import codec
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    CheckRequest,
    DownloadRequest,
    Finished,
    LeaveRequest,
    TaskRequest,
    Wait,
)
from protoseal_wire.v1 import protoseal_pb2 as pb
from protoseal_wire.v1.protoseal_pb2_grpc import CoordinatorStub
from secure_server import errors
from secure_server.service.servicer import STATUS
from tests.secure_server.service.conftest import SecurityLog
from tests.secure_server.service.harness import (
    KEY,
    RUN,
    SESSION,
    SMALLEST_TOO_LARGE,
    FakeHandler,
    dialling,
    join_request,
    serving,
    upload_header,
)
from tests.secure_server.service.parties import CLIENT, NAME, SERVER, Federation

SECONDS = 20


@pytest.fixture
def stub(port: int, federation: Federation, site: Credentials) -> Iterator[CoordinatorStub]:
    """``clinic-a``'s connection."""
    with dialling(port, federation.trust, site) as connected:
        yield connected


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """Status and details that a call fails with."""
    with pytest.raises(grpc.RpcError) as failed:
        call()
    call_failed = cast(grpc.Call, failed.value)
    return call_failed.code(), call_failed.details()


def ask(stub: CoordinatorStub) -> pb.Task:
    return stub.NextTask(codec.encode_task_request(TaskRequest(PROTOCOL_VERSION, RUN)), timeout=SECONDS)


def join(stub: CoordinatorStub, site: str = "clinic-a") -> pb.JoinReply:
    return stub.Join(codec.encode_join(join_request(site)), timeout=SECONDS)


def upload(stub: CoordinatorStub, frames: Iterable[pb.UploadFrame]) -> pb.UploadReply:
    return stub.Upload(iter(frames), timeout=SECONDS)


def frames_of(content: bytes) -> list[pb.UploadFrame]:
    header = codec.encode_upload_header(upload_header(content))
    return [header, *map(codec.encode_upload_chunk, codec.chunks(content))]


def download(stub: CoordinatorStub) -> list[pb.DownloadFrame]:
    return list(stub.Download(codec.encode_download(DownloadRequest(KEY)), timeout=SECONDS))


def leave(stub: CoordinatorStub) -> pb.LeaveReply:
    return stub.Leave(codec.encode_leave(LeaveRequest(SESSION)), timeout=SECONDS)


def check(stub: CoordinatorStub) -> pb.CheckReply:
    return stub.Check(codec.encode_check(CheckRequest(PROTOCOL_VERSION)), timeout=SECONDS)


EVERY_CALL: dict[str, Callable[[CoordinatorStub], object]] = {
    "Check": check,
    "Join": join,
    "NextTask": ask,
    "Upload": lambda stub: upload(stub, frames_of(b"values")),
    "Download": download,
    "Leave": leave,
}


class TestIdentity:
    """The caller is who its certificate says."""

    @pytest.mark.parametrize("call", EVERY_CALL)
    @pytest.mark.parametrize("site", ["clinic-a", "clinic-b"])
    def test_caller_is_who_the_certificate_says(
        self,
        call: str,
        site: str,
        port: int,
        federation: Federation,
        handler: FakeHandler,
        security: SecurityLog,
    ) -> None:
        """The bytes are the same for both sites; the statement in Join is clinic-a's for both."""
        handler.tasks[site] = Finished(3)
        with dialling(port, federation.trust, federation.site(site)) as stub:
            EVERY_CALL[call](stub)
        assert {who for who, _ in handler.calls} == {site}
        assert security.events == []

    def test_caller_without_federation_certificate_is_refused_by_tls(
        self, port: int, federation: Federation, stranger: Federation, site: Credentials, handler: FakeHandler
    ) -> None:
        ours = Identity.site(NAME, "clinic-a")
        strangers = {
            "no certificate": None,
            "another CA's": stranger.site("clinic-a"),
            "expired": federation.odd(ours, [CLIENT], days=(-2, -1)),
            "not valid yet": federation.odd(ours, [CLIENT], days=(1, 2)),
            "the coordinator's own": federation.coordinator(),
        }
        for who, credentials in strangers.items():
            with dialling(port, federation.trust, credentials) as stub:
                assert refusal(partial(join, stub))[0] is grpc.StatusCode.UNAVAILABLE, who
        assert handler.calls == []
        with dialling(port, federation.trust, site) as stub:
            join(stub)

    @pytest.mark.parametrize(
        ("identity", "usages"),
        [
            (Identity.coordinator(NAME), [CLIENT]),
            (Identity.site(NAME, "clinic-a"), [CLIENT, SERVER]),
            (Identity.site("banks.example", "clinic-a"), [CLIENT]),
        ],
        ids=["the coordinator's name", "both usages", "another federation"],
    )
    def test_caller_certificate_accepted_by_tls_is_checked_again(
        self,
        identity: Identity,
        usages: list[x509.ObjectIdentifier],
        port: int,
        federation: Federation,
        handler: FakeHandler,
        security: SecurityLog,
    ) -> None:
        odd = federation.odd(identity, usages)
        with dialling(port, federation.trust, odd) as stub:
            code, details = refusal(lambda: join(stub))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "not a valid site's" in details
        assert handler.calls == []
        assert [(event["event"], event["site"]) for event in security.events] == [("WrongIdentity", None)]

    def test_caller_certificate_ending_while_connected_is_refused(
        self, stub: CoordinatorStub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class InTwoYears(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> InTwoYears:
                return cls.fromtimestamp(time.time(), tz) + timedelta(days=730)

        join(stub)
        monkeypatch.setattr("secure_server.service.servicer.datetime", InTwoYears)
        code, details = refusal(lambda: join(stub))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "renew it" in details

    def test_caller_not_on_roster_is_refused_and_logged(
        self, port: int, federation: Federation, security: SecurityLog
    ) -> None:
        with dialling(port, federation.trust, federation.site("clinic-z")) as stub:
            assert refusal(lambda: join(stub, "clinic-z"))[0] is grpc.StatusCode.PERMISSION_DENIED
        (event,) = security.events
        assert (event["event"], event["rpc"], event["site"]) == ("NotOnRoster", "Join", "clinic-z")
        assert event["peer"].startswith("ipv4:127.0.0.1:")


class TestRefusals:
    """Each error has its status, a line in the log, and no effect on the next call."""

    @pytest.mark.parametrize("kind", STATUS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
    def test_status_every_error_of_the_table(
        self, kind: type[Exception], stub: CoordinatorStub, handler: FakeHandler, security: SecurityLog
    ) -> None:
        handler.error = kind("do this")
        assert refusal(lambda: join(stub)) == (STATUS[kind], "do this")
        (event,) = security.events
        assert (event["event"], event["reason"], event["rpc"]) == (kind.__name__, "do this", "Join")
        handler.error = None
        join(stub)

    def test_status_table_is_that_of_the_protocol(self) -> None:
        told = {
            errors.NotOnRoster: "PERMISSION_DENIED",
            errors.WrongIdentity: "PERMISSION_DENIED",
            errors.WrongProtocol: "UNIMPLEMENTED",
            errors.WrongAgreement: "FAILED_PRECONDITION",
            errors.NotJoined: "FAILED_PRECONDITION",
            errors.JoinClosed: "FAILED_PRECONDITION",
            errors.WrongPhase: "ABORTED",
            errors.Conflict: "ALREADY_EXISTS",
            errors.BadPayload: "INVALID_ARGUMENT",
            MalformedError: "INVALID_ARGUMENT",
            VerificationError: "INVALID_ARGUMENT",
            errors.UploadTooLarge: "RESOURCE_EXHAUSTED",
            codec.Corrupted: "DATA_LOSS",
        }
        assert {kind: STATUS[kind].name for kind in told} == told

    @pytest.mark.parametrize(
        "error", [RuntimeError("secret"), errors.WrongStore("secret")], ids=["bug", "store"]
    )
    def test_status_internal_error_stays_in_the_log(
        self,
        error: Exception,
        stub: CoordinatorStub,
        handler: FakeHandler,
        security: SecurityLog,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        handler.error = error
        code, details = refusal(lambda: join(stub))
        assert code is grpc.StatusCode.INTERNAL
        assert "secret" not in details
        assert "secret" in caplog.text
        assert security.events == []

    def test_call_other_protocol_version_is_refused(
        self, stub: CoordinatorStub, handler: FakeHandler
    ) -> None:
        request = codec.encode_join(join_request())
        request.protocol = PROTOCOL_VERSION + 1
        code, details = refusal(lambda: stub.Join(request, timeout=SECONDS))
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert "install matching releases" in details
        assert handler.calls == []

    def test_call_malformed_message_is_refused(
        self, stub: CoordinatorStub, handler: FakeHandler, security: SecurityLog
    ) -> None:
        request = codec.encode_join(join_request())
        request.agreement_hash = b"short"
        assert refusal(lambda: stub.Join(request, timeout=SECONDS))[0] is grpc.StatusCode.INVALID_ARGUMENT
        assert handler.calls == []
        assert [event["event"] for event in security.events] == ["Malformed"]

    def test_call_too_large_message_is_refused(self, stub: CoordinatorStub, handler: FakeHandler) -> None:
        frames = [frames_of(b"x")[0], codec.encode_upload_chunk(bytes(2**20))]
        assert refusal(lambda: upload(stub, frames))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert handler.uploads == {}

    def test_call_too_large_once_decompressed_is_refused(
        self, port: int, federation: Federation, site: Credentials, handler: FakeHandler
    ) -> None:
        frames = [frames_of(b"x")[0], codec.encode_upload_chunk(bytes(2**25))]
        with dialling(port, federation.trust, site, ("grpc.max_send_message_length", -1)) as stub:
            packed = partial(stub.Upload, iter(frames), timeout=SECONDS, compression=grpc.Compression.Gzip)
            assert refusal(packed)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert handler.uploads == {}


CONTENT = bytes(range(256)) * 3000
HEADER, *CHUNKS = frames_of(CONTENT)
OTHER = codec.encode_upload_chunk(bytes(len(CHUNKS[-1].chunk)))
BAD_UPLOADS = {
    "nothing": ([], "DATA_LOSS"),
    "no header": (CHUNKS, "INVALID_ARGUMENT"),
    "a header alone": ([HEADER], "DATA_LOSS"),
    "a header twice": ([HEADER, HEADER, *CHUNKS], "INVALID_ARGUMENT"),
    "truncated": ([HEADER, *CHUNKS[:-1]], "DATA_LOSS"),
    "more than announced": ([HEADER, *CHUNKS, OTHER], "RESOURCE_EXHAUSTED"),
    "another hash": ([HEADER, *CHUNKS[:-1], OTHER], "DATA_LOSS"),
    "bytes one by one": ([HEADER, *map(codec.encode_upload_chunk, [b"x"] * 100)], "INVALID_ARGUMENT"),
    "an empty chunk": ([HEADER, codec.encode_upload_chunk(b""), *CHUNKS], "INVALID_ARGUMENT"),
    "an empty frame": ([HEADER, pb.UploadFrame()], "INVALID_ARGUMENT"),
}


class TestUploads:
    """Nothing is taken in that is not what its header announced."""

    def test_upload_arrives_whole_and_is_idempotent(
        self, stub: CoordinatorStub, handler: FakeHandler
    ) -> None:
        upload(stub, frames_of(CONTENT))
        upload(stub, frames_of(CONTENT))
        assert handler.uploads == {(KEY, "clinic-a"): CONTENT}

    @pytest.mark.parametrize("name", BAD_UPLOADS)
    def test_upload_malformed_frames_change_nothing(
        self, name: str, stub: CoordinatorStub, handler: FakeHandler, security: SecurityLog
    ) -> None:
        frames, status = BAD_UPLOADS[name]
        assert refusal(lambda: upload(stub, frames))[0].name == status
        assert handler.uploads == {}
        assert len(security.events) == 1
        upload(stub, frames_of(CONTENT))
        assert handler.uploads == {(KEY, "clinic-a"): CONTENT}

    def test_upload_too_large_is_refused_by_its_header(
        self, stub: CoordinatorStub, handler: FakeHandler
    ) -> None:
        with stalled(bytes(SMALLEST_TOO_LARGE)) as frames:
            assert refusal(lambda: upload(stub, frames()))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert handler.calls == [("clinic-a", "check_upload")]

    def test_upload_stalled_is_given_up(self, stub: CoordinatorStub, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as impatient, stalled(b"values") as frames:
            impatient.setattr("secure_server.service.servicer._HEADER_SECONDS", 0.2)
            code, details = refusal(lambda: upload(stub, frames()))
        assert (code, "stalled" in details) == (grpc.StatusCode.DATA_LOSS, True)
        upload(stub, frames_of(b"values"))

    def test_upload_stalled_site_does_not_block_others(
        self, port: int, federation: Federation, stub: CoordinatorStub, handler: FakeHandler
    ) -> None:
        with (
            stalled(CONTENT) as frames,
            dialling(port, federation.trust, federation.site("clinic-b")) as other,
        ):
            waiting = [stub.Upload.future(frames(), timeout=SECONDS) for _ in range(8)]
            wait_for(lambda: ("clinic-a", "check_upload") in handler.calls)
            upload(other, frames_of(b"values"))
            for call in waiting:
                call.cancel()
        assert list(handler.uploads) == [(KEY, "clinic-b")]


@contextmanager
def stalled(content: bytes) -> Iterator[Callable[[], Iterator[pb.UploadFrame]]]:
    """Makes uploads that send their header and then nothing while the block runs."""
    over = threading.Event()

    def frames() -> Iterator[pb.UploadFrame]:
        yield frames_of(content)[0]
        over.wait(SECONDS)

    try:
        yield frames
    finally:
        over.set()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.01)


class TestPolling:
    """NextTask waits for something to do, and for no longer than it may."""

    def test_next_task_change_wakes_waiting_call(self, stub: CoordinatorStub, handler: FakeHandler) -> None:
        began = time.monotonic()
        call = stub.NextTask.future(
            codec.encode_task_request(TaskRequest(PROTOCOL_VERSION, RUN)), timeout=SECONDS
        )
        wait_for(lambda: ("clinic-a", "next_task") in handler.calls)
        handler.change("clinic-b", Finished(1))
        wait_for(lambda: len(handler.calls) == 2)
        assert not call.done()
        handler.change("clinic-a", Finished(3))
        assert codec.decode_task(call.result()) == Finished(3)
        assert time.monotonic() - began < SECONDS / 2

    def test_next_task_answers_wait_after_poll_seconds(
        self, handler: FakeHandler, coordinator: Credentials, federation: Federation, site: Credentials
    ) -> None:
        with (
            serving(handler, coordinator, federation.trust, poll_seconds=0.3) as port,
            dialling(port, federation.trust, site) as stub,
        ):
            began = time.monotonic()
            assert codec.decode_task(ask(stub)) == Wait()
            assert time.monotonic() - began >= 0.3

    def test_next_task_answers_wait_before_caller_gives_up(
        self, stub: CoordinatorStub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("secure_server.service.servicer._REPLY_SECONDS", 10.0)
        request = codec.encode_task_request(TaskRequest(PROTOCOL_VERSION, RUN))
        assert codec.decode_task(stub.NextTask(request, timeout=10.2)) == Wait()

    def test_handler_is_called_from_one_thread(self, stub: CoordinatorStub, handler: FakeHandler) -> None:
        join(stub)
        upload(stub, frames_of(b"values"))
        assert len(handler.threads) == 1
        assert threading.current_thread().name not in handler.threads
