"""A coordinator's server over real TLS in a thread, with a handler that only remembers what it was asked."""
# ruff: noqa: ARG002 (the signatures are the Handler's)

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Queue

import grpc

from crypto.pki import Credentials, TrustAnchor
from crypto.roster import Statement
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    CheckReply,
    CheckRequest,
    DownloadRequest,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Phase,
    PhaseKey,
    Task,
    TaskRequest,
    UploadHeader,
    Wait,
)
from protoseal_wire.v1.protoseal_pb2_grpc import CoordinatorStub
from secure_server.errors import Conflict, NotOnRoster, UploadTooLarge
from secure_server.service.server import serve

RUN = "trial"
KEY = PhaseKey(RUN, 1, 1, Phase.VALUES)
SESSION = 7
SMALLEST_TOO_LARGE = 2**20 + 1


class FakeHandler:
    """Takes everything from ``clinic-a`` and ``clinic-b`` up to 1 MiB, and raises what it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.uploads: dict[tuple[PhaseKey, str], bytes] = {}
        self.tasks: dict[str, Task] = {}
        self.ended: list[LeaveRequest] = []
        self.content = b"a request"
        self.error: Exception | None = None
        self.finished = False
        self.threads: set[str] = set()
        self._callbacks: list[Callable[[], None]] = []

    def change(self, site: str, task: Task) -> None:
        """Give a site something to do, as another site's call would."""
        self.tasks[site] = task
        for callback in self._callbacks:
            callback()

    def check(self, site: str, request: CheckRequest) -> CheckReply:
        self._note(site, "check")
        return CheckReply(request.protocol, RUN, None)

    def join(self, site: str, request: JoinRequest) -> JoinReply:
        self._note(site, "join")
        return JoinReply(request.protocol, 20.0, SESSION)

    def next_task(self, site: str, request: TaskRequest) -> Task:
        self._note(site, "next_task")
        return self.tasks.get(site, Wait())

    def check_upload(self, site: str, header: UploadHeader) -> None:
        self._note(site, "check_upload")
        if header.size >= SMALLEST_TOO_LARGE:
            raise UploadTooLarge("too large for its phase")

    def upload(self, site: str, header: UploadHeader, content: bytes) -> None:
        self._note(site, "upload")
        if self.uploads.setdefault((header.key, site), content) != content:
            raise Conflict("answered before with other content")

    def download(self, site: str, request: DownloadRequest) -> bytes:
        self._note(site, "download")
        return self.content

    def leave(self, site: str, request: LeaveRequest) -> None:
        self._note(site, "leave")
        self.ended.append(request)

    def tick(self) -> None:
        self.threads.add(threading.current_thread().name)

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def _note(self, site: str, call: str) -> None:
        self.calls.append((site, call))
        self.threads.add(threading.current_thread().name)
        if site not in ("clinic-a", "clinic-b"):
            raise NotOnRoster(f"{site} is not on this run's roster")
        if self.error is not None:
            raise self.error


@contextmanager
def serving(
    handler: FakeHandler,
    credentials: Credentials,
    trust: TrustAnchor,
    *,
    port: int = 0,
    poll_seconds: float = 20.0,
) -> Iterator[int]:
    """Serve on 127.0.0.1 while the block runs, and yield the port. What ``serve`` raised is raised here."""
    events: Queue[int | BaseException] = Queue()

    def run() -> None:
        try:
            listen = f"127.0.0.1:{port}"
            asyncio.run(
                serve(
                    handler,
                    credentials=credentials,
                    trust=trust,
                    listen=listen,
                    ready=events.put,
                    poll_seconds=poll_seconds,
                )
            )
        except BaseException as error:
            events.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield _port_or_raise(events.get(timeout=30))
    finally:
        handler.finished = True
        thread.join(30)
        handler.finished = False
    if not events.empty():
        _port_or_raise(events.get())


def _port_or_raise(event: int | BaseException) -> int:
    if isinstance(event, BaseException):
        raise event
    return event


@contextmanager
def dialling(
    port: int, trust: TrustAnchor, credentials: Credentials | None, *options: tuple[str, int]
) -> Iterator[CoordinatorStub]:
    """Yield a bare stub, to send what no honest site sends."""
    tls = grpc.ssl_channel_credentials(
        trust.certificate_pem,
        credentials.private_key_pem() if credentials else None,
        credentials.certificate_pem if credentials else None,
    )
    with grpc.secure_channel(f"127.0.0.1:{port}", tls, options) as channel:
        yield CoordinatorStub(channel)


def join_request(site: str = "clinic-a") -> JoinRequest:
    """Return a well-formed wish to take part; the handler here does not verify it."""
    return JoinRequest(
        PROTOCOL_VERSION, RUN, bytes(32), Statement(site, b"certificate", bytes(32), bytes(70))
    )


def upload_header(content: bytes) -> UploadHeader:
    """Return the header that announces ``content``."""
    return UploadHeader(KEY, len(content), hashlib.sha256(content).digest())
