"""A site's transport against real servers: whom it trusts, what it retries, what it takes for an answer."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from cryptography import x509

from crypto.pki import Credentials, Identity, TrustAnchor
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    CheckReply,
    Finished,
    JoinReply,
    LeaveRequest,
    Stopped,
    UploadHeader,
    Wait,
    Work,
)
from protoseal_wire.v1 import protoseal_pb2 as pb
from secure_client.errors import PhaseOver, Refused, SiteError, Unreachable, Violation
from secure_client.transport import FINAL, GrpcTransport, call_until
from secure_server import errors
from tests.secure_server.service.harness import KEY, RUN, SESSION, FakeHandler, join_request, serving
from tests.secure_server.service.parties import CLIENT, NAME, SERVER, Federation
from tests.support import processes

CONTENT = bytes(range(256)) * 3000
WORK = Work(KEY, len(CONTENT), hashlib.sha256(CONTENT).digest(), 60.0)


def transport_to(
    port: int,
    credentials: Credentials,
    trust: TrustAnchor,
    host: str = "127.0.0.1",
    retry_seconds: float = 0.0,
) -> GrpcTransport:
    return GrpcTransport(f"{host}:{port}", credentials, trust, RUN, retry_seconds=retry_seconds)


@pytest.fixture
def transport(port: int, site: Credentials, federation: Federation) -> Iterator[GrpcTransport]:
    """One that does not try again."""
    with transport_to(port, site, federation.trust) as connected:
        yield connected


@pytest.fixture
def free_port() -> int:
    """None that the system hands out to somebody else before a server of the test has it."""
    return processes.free_port()


class TestConversation:
    def test_a_site_can_do_all_it_has_to(self, transport: GrpcTransport, handler: FakeHandler) -> None:
        handler.content = CONTENT
        handler.tasks["clinic-a"] = WORK
        assert transport.join(join_request()) == JoinReply(PROTOCOL_VERSION, 20.0, SESSION)
        task = transport.next_task()
        assert task == WORK
        assert transport.download(WORK) == CONTENT
        transport.upload(KEY, CONTENT[:-1])
        transport.leave()
        assert handler.ended == [LeaveRequest(SESSION)]
        assert handler.uploads == {(KEY, "clinic-a"): CONTENT[:-1]}
        assert [call for _, call in handler.calls] == [
            "join",
            "next_task",
            "download",
            "check_upload",
            "upload",
            "leave",
        ]
        assert (transport.bytes_up, transport.bytes_down) == (len(CONTENT) - 1, len(CONTENT))

    @pytest.mark.parametrize("task", [Finished(5), Stopped("too few sites")], ids=["finished", "stopped"])
    def test_the_end_is_passed_on(
        self, task: Finished | Stopped, transport: GrpcTransport, handler: FakeHandler
    ) -> None:
        handler.tasks["clinic-a"] = task
        assert transport.next_task() == task

    def test_a_task_that_comes_later_ends_the_wait(
        self, transport: GrpcTransport, handler: FakeHandler
    ) -> None:
        threading.Timer(0.2, handler.change, ("clinic-a", Finished(5))).start()
        assert transport.next_task() == Finished(5)

    def test_check_joins_nothing(self, transport: GrpcTransport, handler: FakeHandler) -> None:
        assert transport.check() == CheckReply(PROTOCOL_VERSION, RUN, None)
        assert handler.calls == [("clinic-a", "check")]


class TestWhoIsTrusted:
    """The coordinator has a certificate for servers, of this CA, for this host; each alone is not enough."""

    COORDINATOR = Identity.coordinator(NAME)
    POSING = Identity.site(NAME, "clinic-b")

    def reach(
        self, federation: Federation, server: Credentials, trust: TrustAnchor, site: Credentials
    ) -> None:
        with (
            serving(FakeHandler(), server, trust) as port,
            transport_to(port, site, federation.trust) as transport,
        ):
            transport.join(join_request())

    @pytest.mark.parametrize(
        ("identity", "usages", "hosts", "days"),
        [
            (POSING, [CLIENT], (), (-1, 1)),
            (POSING, [CLIENT], ("127.0.0.1",), (-1, 1)),
            (COORDINATOR, [SERVER], ("elsewhere.example.org",), (-1, 1)),
            (COORDINATOR, [SERVER], ("127.0.0.1",), (-2, -1)),
        ],
        ids=["a site's", "a site's with the host's name", "for another host", "expired"],
    )
    def test_other_certificates_are_refused(
        self,
        identity: Identity,
        usages: list[x509.ObjectIdentifier],
        hosts: tuple[str, ...],
        days: tuple[int, int],
        federation: Federation,
        site: Credentials,
    ) -> None:
        server = federation.odd(identity, usages, hosts, days)
        with pytest.raises(Unreachable, match=r"(?i)certificate|hostname|verify|peer"):
            self.reach(federation, server, federation.trust, site)

    def test_a_site_could_pose_if_its_certificate_were_for_servers_too(
        self, federation: Federation, site: Credentials
    ) -> None:
        server = federation.odd(self.POSING, [CLIENT, SERVER], ("127.0.0.1",))
        self.reach(federation, server, federation.trust, site)

    def test_another_ca_is_refused(
        self, federation: Federation, stranger: Federation, site: Credentials
    ) -> None:
        with pytest.raises(Unreachable, match=r"(?i)certificate"):
            self.reach(federation, stranger.coordinator(), federation.trust, site)

    def test_host_names_are_checked_as_names(self, federation: Federation, site: Credentials) -> None:
        server = federation.coordinator("localhost")
        with serving(FakeHandler(), server, federation.trust) as port:
            with transport_to(port, site, federation.trust, host="localhost") as transport:
                transport.check()
            with transport_to(port, site, federation.trust) as transport, pytest.raises(Unreachable):
                transport.check()


class ForgetfulHandler(FakeHandler):
    """Takes each answer, and fails before it has said so: the first ``failures`` times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def upload(self, site: str, header: UploadHeader, content: bytes) -> None:
        super().upload(site, header, content)
        if self.failures > 0:
            self.failures -= 1
            raise RuntimeError("killed here")


class TestRetries:
    def test_an_answer_whose_receipt_was_lost_is_sent_again(
        self, coordinator: Credentials, site: Credentials, federation: Federation
    ) -> None:
        handler = ForgetfulHandler(failures=2)
        with (
            serving(handler, coordinator, federation.trust) as port,
            transport_to(port, site, federation.trust, retry_seconds=30) as transport,
        ):
            transport.upload(KEY, CONTENT)
        assert [call for _, call in handler.calls].count("upload") == 3
        assert handler.uploads == {(KEY, "clinic-a"): CONTENT}
        assert transport.bytes_up == len(CONTENT)

    def test_a_coordinator_that_comes_late_or_comes_back_is_found(
        self,
        free_port: int,
        coordinator: Credentials,
        site: Credentials,
        federation: Federation,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        handler = FakeHandler()
        outcome: list[object] = []

        def take_part() -> None:
            with transport_to(free_port, site, federation.trust, retry_seconds=60) as transport:
                transport.join(join_request())
                while isinstance(task := transport.next_task(), Wait):
                    pass
                outcome.append(task)

        thread = threading.Thread(target=take_part)
        thread.start()
        _wait_until(lambda: "this site retries" in caplog.text)
        with serving(handler, coordinator, federation.trust, port=free_port):
            _wait_until(lambda: ("clinic-a", "next_task") in handler.calls)
        handler.tasks["clinic-a"] = Finished(5)
        with serving(handler, coordinator, federation.trust, port=free_port):
            thread.join(60)
        assert outcome == [Finished(5)]

    def test_no_coordinator_at_all_is_reported_in_time(
        self, free_port: int, site: Credentials, federation: Federation
    ) -> None:
        began = time.monotonic()
        with (
            transport_to(free_port, site, federation.trust, retry_seconds=1) as transport,
            pytest.raises(Unreachable, match=f"{free_port}"),
        ):
            transport.join(join_request())
        assert time.monotonic() - began < 20

    @pytest.mark.parametrize(
        ("error", "meaning"),
        [
            (errors.NotOnRoster, Refused),
            (errors.WrongAgreement, Refused),
            (errors.WrongProtocol, Refused),
            (errors.NotJoined, Refused),
            (errors.Conflict, Refused),
            (errors.BadPayload, Refused),
            (errors.UploadTooLarge, Refused),
            (errors.WrongPhase, PhaseOver),
        ],
    )
    def test_a_decision_of_the_coordinator_is_not_retried(
        self,
        error: type[Exception],
        meaning: type[SiteError],
        port: int,
        site: Credentials,
        federation: Federation,
        handler: FakeHandler,
    ) -> None:
        handler.error = error("do this")
        with (
            transport_to(port, site, federation.trust, retry_seconds=60) as transport,
            pytest.raises(meaning, match="do this"),
        ):
            transport.upload(KEY, b"values")
        assert len(handler.calls) == 1

    def test_leaving_is_tried_once(self, free_port: int, site: Credentials, federation: Federation) -> None:
        with (
            transport_to(free_port, site, federation.trust, retry_seconds=1e6) as gone,
            pytest.raises(Unreachable),
        ):
            gone.leave()


class TestWhatComesBack:
    """A coordinator that breaks the protocol is not asked again."""

    @pytest.mark.parametrize(
        "content",
        [CONTENT[:-1] + b"\x00", CONTENT[:-1], CONTENT + b"\x00", b""],
        ids=["another", "less", "more", "nothing"],
    )
    def test_another_request_than_announced(
        self, content: bytes, port: int, site: Credentials, federation: Federation, handler: FakeHandler
    ) -> None:
        handler.content = content
        with transport_to(port, site, federation.trust, retry_seconds=60) as transport:
            with pytest.raises(Violation, match="announced"):
                transport.download(WORK)
            assert transport.bytes_down == 0

    def test_a_task_that_does_not_decode(self, transport: GrpcTransport, handler: FakeHandler) -> None:
        handler.tasks["clinic-a"] = replace(WORK, size=0)
        with pytest.raises(Violation, match="does not decode"):
            transport.next_task()

    def test_another_protocol(self, transport: GrpcTransport, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "protoseal_wire.codec.encode_join_reply",
            lambda _: pb.JoinReply(protocol=PROTOCOL_VERSION + 1, poll_seconds=1.0),
        )
        with pytest.raises(Refused, match="install matching releases"):
            transport.join(join_request())


class LostCall(grpc.RpcError):
    """Error that gRPC raises, which is also the call."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "lost"


class TestPauses:
    @pytest.fixture
    def slept(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The pauses, which take no time here."""
        pauses: list[float] = []
        monkeypatch.setattr("secure_client.transport.time.monotonic", lambda: sum(pauses))
        monkeypatch.setattr("secure_client.transport.time.sleep", pauses.append)
        return pauses

    @pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code not in FINAL])
    def test_lost_calls_are_tried_until_the_time_is_over(
        self, code: grpc.StatusCode, slept: list[float]
    ) -> None:
        def lose() -> Any:
            raise LostCall(code)

        with pytest.raises(Unreachable, match=code.name):
            call_until(lose, 100)
        assert 85 <= sum(slept) <= 100
        assert all(0.125 <= pause <= 15 for pause in slept)
        assert slept[0] <= 0.25
        assert slept[-1] >= 7.5

    def test_a_call_that_comes_through_ends_it(self, slept: list[float]) -> None:
        outcomes: list[grpc.StatusCode | str] = [
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DATA_LOSS,
            "joined",
        ]

        def call() -> str:
            outcome = outcomes.pop(0)
            if isinstance(outcome, grpc.StatusCode):
                raise LostCall(outcome)
            return outcome

        assert call_until(call, 100) == "joined"
        assert len(slept) == 2


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.01)
