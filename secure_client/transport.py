"""Transport of a site: gRPC over mutual TLS to the coordinator. The site connects; nothing listens here."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from typing import Self, TypeVar, cast

import grpc

from crypto.pki import Credentials, TrustAnchor
from protoseal_wire import codec
from protoseal_wire.messages import (
    PROTOCOL_VERSION,
    CheckReply,
    CheckRequest,
    DownloadRequest,
    JoinReply,
    JoinRequest,
    LeaveRequest,
    PhaseKey,
    Task,
    TaskRequest,
    UploadHeader,
    Work,
)
from protoseal_wire.v1 import protoseal_pb2 as pb
from protoseal_wire.v1 import protoseal_pb2_grpc as pb_grpc
from secure_client.connection_diagnosis import diagnose
from secure_client.errors import Unreachable
from secure_client.proxy import find_proxy, split_target
from secure_client.retry import call_once, call_until

_log = logging.getLogger("protoseal.site")
_CALL_SECONDS = 30.0
_SLOWEST_BYTES_PER_SECOND = 16 * 1024
_OPTIONS = (
    ("grpc.max_receive_message_length", 2 * codec.CHUNK_BYTES),
    ("grpc.max_send_message_length", 2 * codec.CHUNK_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
)
_WITHOUT_CONNECTION = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
R = TypeVar("R")


class GrpcTransport:
    """Calls of one site in one run; :class:`secure_client.client_loop.Transport` is the contract.

    The coordinator is who can show a certificate for server authentication, of this federation's CA alone and for the
    host in ``target`` (host:port); gRPC checks all three. A lost call is retried for ``retry_seconds``; then, and after
    a refusal by the coordinator, it raises a :class:`secure_client.errors.SiteError`. ``bytes_up`` and ``bytes_down``
    count the transferred contents, each once, without the overhead of gRPC and TLS.
    """

    def __init__(
        self,
        target: str,
        credentials: Credentials,
        trust: TrustAnchor,
        run: str,
        *,
        retry_seconds: float,
    ) -> None:
        """Set up the transport, which connects at the first call."""
        self._run, self._retry_seconds = run, retry_seconds
        self._poll_seconds, self._session = 0.0, 0
        self.bytes_up = self.bytes_down = 0
        tls = grpc.ssl_channel_credentials(
            root_certificates=trust.certificate_pem,
            private_key=credentials.private_key_pem(),
            certificate_chain=credentials.certificate_pem,
        )
        self._target = target
        self._credentials = credentials
        self._trust = trust
        proxy = find_proxy(split_target(target)[0])
        if proxy is not None:
            _log.info("connecting to %s through the proxy %s", target, proxy)
        self._channel = grpc.secure_channel(target, tls, options=_OPTIONS)
        self._stub = pb_grpc.CoordinatorStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def check(self) -> CheckReply:
        """Ask the coordinator once for its run. The call joins nothing and changes nothing there."""
        message = codec.encode_check(CheckRequest(PROTOCOL_VERSION))
        call = lambda: codec.decode_check_reply(self._stub.Check(message, timeout=_CALL_SECONDS))  # noqa: E731
        return call_until(call, 0.0, self._explain)

    def join(self, request: JoinRequest) -> JoinReply:
        """Ask to take part."""
        message = codec.encode_join(request)
        reply = self._call(lambda: codec.decode_join_reply(self._stub.Join(message, timeout=_CALL_SECONDS)))
        self._poll_seconds, self._session = reply.poll_seconds, reply.session
        return reply

    def next_task(self) -> Task:
        """Return the current task; blocks for as long as the coordinator holds the call open."""
        message = codec.encode_task_request(TaskRequest(PROTOCOL_VERSION, self._run))
        seconds = self._poll_seconds + _CALL_SECONDS
        return self._call(lambda: codec.decode_task(self._stub.NextTask(message, timeout=seconds)))

    def download(self, work: Work) -> bytes:
        """Return the request that ``work`` announces; raise ``Violation`` for another size or hash."""
        content = self._call(lambda: self._download(work))
        self.bytes_down += len(content)
        return content

    def upload(self, key: PhaseKey, content: bytes) -> None:
        """Upload an answer. The call is idempotent: the coordinator accepts the same bytes again."""
        header = UploadHeader(key, len(content), hashlib.sha256(content).digest())
        seconds = _seconds_for(len(content))
        self._call(lambda: self._stub.Upload(_frames(header, content), timeout=seconds))
        self.bytes_up += len(content)

    def leave(self) -> None:
        """Tell the coordinator that the site leaves, without a retry: the coordinator notices a missing site anyway."""
        message = codec.encode_leave(LeaveRequest(self._session))
        call_once(lambda: self._stub.Leave(message, timeout=_CALL_SECONDS))

    def _call(self, call: Callable[[], R]) -> R:
        return call_until(call, self._retry_seconds, self._explain)

    def _explain(self, error: Unreachable) -> Unreachable:
        """Return the error of a call that did not reach the coordinator with the cause in the place of gRPC's words."""
        status = cast(grpc.Call, error.__cause__).code()
        if status not in _WITHOUT_CONNECTION:
            return error
        cause = diagnose(self._target, self._credentials, self._trust)
        if cause is None:
            return Unreachable(f"{error}; a connection that was tried just afterwards succeeded")
        return Unreachable(f"the coordinator cannot be reached ({status.name}): {cause}")

    def _download(self, work: Work) -> bytes:
        message = codec.encode_download(DownloadRequest(work.key))
        assembly = codec.Assembly(work.size, work.sha256)
        frames = self._stub.Download(message, timeout=_seconds_for(work.size))
        try:
            for frame in frames:
                assembly.add(codec.decode_download_chunk(frame))
        finally:
            frames.cancel()  # a coordinator that sends more than it announced is not read to its end
        return assembly.content()


def _frames(header: UploadHeader, content: bytes) -> Iterator[pb.UploadFrame]:
    yield codec.encode_upload_header(header)
    for chunk in codec.chunks(content):
        yield codec.encode_upload_chunk(chunk)


def _seconds_for(size: int) -> float:
    return _CALL_SECONDS + size / _SLOWEST_BYTES_PER_SECOND
