"""Transport of a site: gRPC over mutual TLS, with retries after lost connections and none after refusals.

The site connects to the coordinator; nothing listens here.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Self, TypeVar, cast

import grpc
from grpc import StatusCode

from crypto.pki import Credentials, TrustAnchor
from protoseal_wire import codec
from protoseal_wire.codec import CodecError, OtherProtocol
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
from secure_client.errors import PhaseOver, Refused, SiteError, Unreachable, Violation
from secure_client.proxy import find_proxy, split_target

_log = logging.getLogger("protoseal.site")
_CALL_SECONDS = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 15.0
"""Seconds between tries of a call, which double up to the longest."""
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
FINAL: Mapping[StatusCode, type[SiteError]] = {
    StatusCode.ABORTED: PhaseOver,
    StatusCode.ALREADY_EXISTS: Refused,
    StatusCode.FAILED_PRECONDITION: Refused,
    StatusCode.INVALID_ARGUMENT: Refused,
    StatusCode.PERMISSION_DENIED: Refused,
    StatusCode.RESOURCE_EXHAUSTED: Refused,
    StatusCode.UNIMPLEMENTED: Refused,
}
"""gRPC statuses that are decisions of the coordinator. Any other status is a lost call or a failing coordinator."""
_WITHOUT_CONNECTION = {StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED}
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
        self._run = run
        self._retry_seconds = retry_seconds
        self._poll_seconds = 0.0
        self._session = 0
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
        return call_until(
            lambda: codec.decode_check_reply(self._stub.Check(message, timeout=_CALL_SECONDS)),
            0.0,
            self._explain,
        )

    def join(self, request: JoinRequest) -> JoinReply:
        """Ask to take part."""
        message = codec.encode_join(request)
        reply = self._call(lambda: codec.decode_join_reply(self._stub.Join(message, timeout=_CALL_SECONDS)))
        self._poll_seconds = reply.poll_seconds
        self._session = reply.session
        return reply

    def next_task(self) -> Task:
        """Return the current task; blocks for as long as the coordinator holds the call open."""
        message = codec.encode_task_request(TaskRequest(PROTOCOL_VERSION, self._run))
        seconds = self._poll_seconds + _CALL_SECONDS
        return self._call(lambda: codec.decode_task(self._stub.NextTask(message, timeout=seconds)))

    def download(self, work: Work) -> bytes:
        """Return the request that ``work`` announces; raise ``Violation`` for another size or hash."""
        message = codec.encode_download(DownloadRequest(work.key))

        def download() -> bytes:
            assembly = codec.Assembly(work.size, work.sha256)
            frames = self._stub.Download(message, timeout=_seconds_for(work.size))
            try:
                for frame in frames:
                    assembly.add(codec.decode_download_chunk(frame))
            finally:
                frames.cancel()  # a coordinator that sends more than it announced is not read to its end
            return assembly.content()

        content = self._call(download)
        self.bytes_down += len(content)
        return content

    def upload(self, key: PhaseKey, content: bytes) -> None:
        """Upload an answer. The call is idempotent: the coordinator accepts the same bytes again."""
        header = UploadHeader(key, len(content), codec.content_hash(content))

        def frames() -> Iterator[pb.UploadFrame]:
            yield codec.encode_upload_header(header)
            yield from map(codec.encode_upload_chunk, codec.chunks(content))

        self._call(lambda: self._stub.Upload(frames(), timeout=_seconds_for(len(content))))
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


def _seconds_for(size: int) -> float:
    return _CALL_SECONDS + size / _SLOWEST_BYTES_PER_SECOND


def call_once(call: Callable[[], R]) -> R:
    """Return the call's outcome; raise :class:`Unreachable`, or the error of the coordinator's status."""
    try:
        return call()
    except grpc.RpcError as error:
        raise _translate(error) from error
    except OtherProtocol as error:
        raise Refused(str(error)) from error
    except CodecError as error:
        raise Violation(f"the coordinator's answer does not decode: {error}") from error


def call_until(
    call: Callable[[], R],
    seconds: float,
    explain: Callable[[Unreachable], Unreachable] = lambda error: error,
) -> R:
    """Retry a call as :func:`call_once` does, for ``seconds``, before raising :class:`Unreachable`.

    ``call`` must be harmless to repeat. Pauses double up to 15 s, each drawn from its upper half, so that sites do not
    reconnect simultaneously. ``explain`` may take some seconds to find the cause; it is asked at the first failure,
    for the log, and at the last.
    """
    longest, end, warned = _FIRST_PAUSE, time.monotonic() + seconds, False
    while True:
        try:
            return call_once(call)
        except Unreachable as error:
            # From the upper half, so that all sites that lost one coordinator do not come back in the same moment.
            pause = secrets.SystemRandom().uniform(longest / 2, longest)
            longest = min(2 * longest, _LONGEST_PAUSE)
            if time.monotonic() + pause > end:
                raise explain(error) from error
            # The cause is looked for and logged once, so that a long absence does not fill the log.
            if not warned:
                warned = True
                left = end - time.monotonic()
                _log.warning("%s; this site retries for %.0f seconds", explain(error), left)
            _log.debug("%s", error)
            time.sleep(pause)


def _translate(error: grpc.RpcError) -> SiteError:
    call = cast(grpc.Call, error)  # an RpcError that a call raised is also that call
    code, details = call.code(), call.details()
    if code in FINAL:
        return FINAL[code](f"the coordinator refused this site's call: {details}")
    return Unreachable(f"the coordinator cannot be reached ({code.name}): {details}")
