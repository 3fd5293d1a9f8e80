"""Service of the coordinator over gRPC: it identifies the caller, decodes, calls the handler and encodes.

A call that has to wait is held open until a change, and each refusal becomes the gRPC status of its class.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

import grpc
from grpc import StatusCode

from crypto.errors import CryptoError, MalformedError, VerificationError
from crypto.pki import Role, TrustAnchor
from protoseal_wire import codec
from protoseal_wire.messages import (
    CheckReply,
    CheckRequest,
    DownloadRequest,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    Task,
    TaskRequest,
    UploadHeader,
    Wait,
)
from protoseal_wire.v1 import protoseal_pb2 as pb
from protoseal_wire.v1 import protoseal_pb2_grpc as pb_grpc
from secure_server import errors
from secure_server.errors import WrongIdentity

_UPLOADS_AT_ONCE = 4
_HEADER_SECONDS = 30.0
_SLOWEST_BYTES_PER_SECOND = 16 * 1024
_REPLY_SECONDS = 2.0

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
P = ParamSpec("P")
R = TypeVar("R")

STATUS: Mapping[type[Exception], StatusCode] = {
    errors.NotOnRoster: StatusCode.PERMISSION_DENIED,
    errors.WrongIdentity: StatusCode.PERMISSION_DENIED,
    errors.WrongProtocol: StatusCode.UNIMPLEMENTED,
    codec.OtherProtocol: StatusCode.UNIMPLEMENTED,
    errors.WrongAgreement: StatusCode.FAILED_PRECONDITION,
    errors.NotJoined: StatusCode.FAILED_PRECONDITION,
    errors.JoinClosed: StatusCode.FAILED_PRECONDITION,
    errors.WrongPhase: StatusCode.ABORTED,
    errors.Conflict: StatusCode.ALREADY_EXISTS,
    errors.BadPayload: StatusCode.INVALID_ARGUMENT,
    codec.CodecError: StatusCode.INVALID_ARGUMENT,
    MalformedError: StatusCode.INVALID_ARGUMENT,
    VerificationError: StatusCode.INVALID_ARGUMENT,
    errors.UploadTooLarge: StatusCode.RESOURCE_EXHAUSTED,
    codec.TooLarge: StatusCode.RESOURCE_EXHAUSTED,
    codec.Corrupted: StatusCode.DATA_LOSS,
}
"""Errors with a meaning for the peer. Every other error is the coordinator's own: ``INTERNAL``, without details."""


class Handler(Protocol):
    """Coordinator of one run, free of transport. All calls come from one thread; each refuses by raising."""

    def check(self, site: str, request: CheckRequest) -> CheckReply:
        """Return the facts that a site compares before it joins; nothing changes."""
        ...

    def join(self, site: str, request: JoinRequest) -> JoinReply:
        """Admit a site."""
        ...

    def next_task(self, site: str, request: TaskRequest) -> Task:
        """Return the site's task without waiting: :class:`Wait` if there is none."""
        ...

    def check_upload(self, site: str, header: UploadHeader) -> None:
        """Refuse an upload by its header, before a byte of it is taken in."""
        ...

    def upload(self, site: str, header: UploadHeader, content: bytes) -> None:
        """Store an answer. Idempotent."""
        ...

    def download(self, site: str, request: DownloadRequest) -> bytes:
        """Return the request of a phase."""
        ...

    def leave(self, site: str, request: LeaveRequest) -> None:
        """Take the site out."""
        ...

    def tick(self) -> None:
        """Apply deadlines. Called a few times a second."""
        ...

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Register ``callback``, called from any thread whenever tasks may have changed."""
        ...

    @property
    def finished(self) -> bool:
        """True once the run is over and no site needs the server any more."""
        ...


class Connections(Protocol):
    """Relay between the network and the server. ``peer`` is the server's name for the other end of a call."""

    def vouch(self, peer: str, site: str) -> None:
        """Record that a site authenticated on the connection of a call."""
        ...

    def origin(self, peer: str) -> str:
        """Return the address that the call comes from."""
        ...


class Servicer(pb_grpc.CoordinatorServicer):
    """Answers calls by a :class:`Handler` whose one thread is ``thread``.

    The caller is who its certificate says, checked on every call: a certificate may end while its owner is
    connected. Uploads are bounded in size by the handler, in time by a least speed, one for each site and four
    in all; so four sites together can hold up the others' uploads, but one alone cannot. Downloads are bounded in time
    by the same speed, and one for each site.
    """

    def __init__(
        self,
        handler: Handler,
        trust: TrustAnchor,
        thread: Executor,
        changes: Changes,
        poll_seconds: float,
        connections: Connections,
    ) -> None:
        self._handler = handler
        self._trust = trust
        self._thread = thread
        self._changes = changes
        self._poll_seconds = poll_seconds
        self._connections = connections
        self._uploading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._downloading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._slots = asyncio.Semaphore(_UPLOADS_AT_ONCE)

    async def Check(self, request: pb.CheckRequest, context: Context) -> pb.CheckReply:
        """Return the facts that a site compares before it joins."""
        async with self._caller("Check", context) as site:
            asked = codec.decode_check(request)
            return codec.encode_check_reply(await self._do(self._handler.check, site, asked))

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinReply:
        """Admit a site."""
        async with self._caller("Join", context) as site:
            join = codec.decode_join(request)
            return codec.encode_join_reply(await self._do(self._handler.join, site, join))

    async def NextTask(self, request: pb.TaskRequest, context: Context) -> pb.Task:
        """Return the site's task; the call is held open while there is none."""
        async with self._caller("NextTask", context) as site:
            asked = codec.decode_task_request(request)
            return codec.encode_task(await self._poll(site, asked, self._hold_seconds(context)))

    async def Upload(
        self, request_iterator: AsyncIterator[pb.UploadFrame], context: Context
    ) -> pb.UploadReply:
        """Receive an answer."""
        async with self._caller("Upload", context) as site:
            header = await _receive_header(request_iterator)
            async with self._uploading[site], self._slots:
                await self._do(self._handler.check_upload, site, header)
                content = await _receive_content(request_iterator, header)
                await self._do(self._handler.upload, site, header, content)
            return pb.UploadReply()

    async def Download(
        self, request: pb.DownloadRequest, context: Context
    ) -> AsyncIterator[pb.DownloadFrame]:
        """Send a request."""
        async with self._caller("Download", context) as site:
            asked = codec.decode_download(request)
            async with self._downloading[site]:  # a stalled reader holds one content, however often it asks
                content = await self._do(self._handler.download, site, asked)
                async with _in_time("download", len(content)):
                    for chunk in codec.chunks(content):
                        yield codec.encode_download_chunk(chunk)

    async def Leave(self, request: pb.LeaveRequest, context: Context) -> pb.LeaveReply:
        """Take a site out."""
        async with self._caller("Leave", context) as site:
            leave = codec.decode_leave(request)
            await self._do(self._handler.leave, site, leave)
            return pb.LeaveReply()

    async def _do(self, function: Callable[P, R], *args: P.args, **_: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    async def _poll(self, site: str, request: TaskRequest, seconds: float) -> Task:
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while True:
            change = self._changes.next()
            task = await self._do(self._handler.next_task, site, request)
            if not isinstance(task, Wait) or not await self._changes.wait(change, end - clock()):
                return task

    def _hold_seconds(self, context: Context) -> float:
        """Return the seconds to hold a call, so that it is answered before the caller gives up."""
        left = context.time_remaining()
        return self._poll_seconds if left is None else min(self._poll_seconds, left - _REPLY_SECONDS)

    @asynccontextmanager
    async def _caller(self, rpc: str, context: Context) -> AsyncIterator[str]:
        """Yield the calling site's name; an error raised inside becomes a status for the peer and a line in a log."""
        site: str | None = None
        try:
            site = identify_site(self._trust, context)
            self._connections.vouch(context.peer(), site)
            yield site
        except asyncio.CancelledError:
            _log.info("%s of %s at %s was cancelled", rpc, site, self._connections.origin(context.peer()))
            raise
        except Exception as error:
            status = find_status(error)
            if status is None:
                _log.exception("%s of %s failed", rpc, site)
                await context.abort(
                    grpc.StatusCode.INTERNAL, "the coordinator failed; see the coordinator's log"
                )
            else:
                log_refusal(error, rpc, site, self._connections.origin(context.peer()))
                await context.abort(status, str(error))


def identify_site(trust: TrustAnchor, context: Context) -> str:
    """Return the name of the site whose certificate the peer proved in the TLS handshake."""
    certificates = tuple(context.auth_context().get("x509_pem_cert", ()))
    if len(certificates) != 1:
        raise WrongIdentity("the call came without a certificate")
    try:
        return trust.identify(certificates[0], Role.SITE, datetime.now(UTC)).name
    except CryptoError as error:
        raise WrongIdentity(f"the certificate is not a valid site's: {error}") from error


def log_refusal(error: Exception, rpc: str, site: str | None, peer: str) -> None:
    """Log a refusal as one JSON line on the logger ``protoseal.security``: the reason, never the content."""
    event = {"event": type(error).__name__, "rpc": rpc, "site": site, "peer": peer, "reason": str(error)}
    _security.warning(json.dumps(event))


async def _receive_header(frames: AsyncIterator[pb.UploadFrame]) -> UploadHeader:
    async with _in_time("upload", 0):
        async for frame in frames:
            return codec.decode_upload_header(frame)
    raise codec.Corrupted("the upload ended before its header")


async def _receive_content(frames: AsyncIterator[pb.UploadFrame], header: UploadHeader) -> bytes:
    assembly = codec.Assembly(header.size, header.sha256)
    async with _in_time("upload", header.size):
        async for frame in frames:
            assembly.add(codec.decode_upload_chunk(frame))
    return assembly.content()


@asynccontextmanager
async def _in_time(what: str, size: int) -> AsyncIterator[None]:
    """Allow the time that ``size`` bytes may take; raise :class:`codec.Corrupted` when that is over."""
    seconds = _HEADER_SECONDS + size / _SLOWEST_BYTES_PER_SECOND
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise codec.Corrupted(f"the {what} stalled: not complete after {seconds:.0f} s") from error


class Changes:
    """Notifier of the calls that wait on the event loop it was made on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._next = asyncio.Event()
        self._closed = False

    def notify(self) -> None:
        """Wake all waiting calls. Callable from any thread; harmless once the loop is gone."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def next(self) -> asyncio.Event:
        """Return the next change. Take it *before* looking, so that no change in between is missed."""
        return self._next

    async def wait(self, change: asyncio.Event, seconds: float) -> bool:
        """Return True if ``change`` came within ``seconds``; False at once when closed."""
        if self._closed:
            return False
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await change.wait()
        except TimeoutError:
            return False
        return not self._closed

    def close(self) -> None:
        """Release every call that waits, now and later."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        change, self._next = self._next, asyncio.Event()
        change.set()


def find_status(error: Exception) -> StatusCode | None:
    """Return the status of a refusal, by the nearest class in the table; None for an error that is no refusal."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), None)


# ruff: noqa: N802 (the calls have the schema's names)


_log = logging.getLogger("protoseal.coordinator")
_security = logging.getLogger("protoseal.security")
