"""The coordinator's server: mutual TLS, the service, the health service, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from crypto.pki import Credentials, TrustAnchor
from protoseal_wire.codec import CHUNK_BYTES
from protoseal_wire.v1 import protoseal_pb2_grpc as pb_grpc
from secure_server.errors import CannotListen
from secure_server.polling import Changes
from secure_server.servicer import Handler, Servicer

_log = logging.getLogger("protoseal.coordinator")
_TICK_SECONDS = 0.25
_GRACE_SECONDS = 5.0
_LOUD_ENOUGH = ("", "INFO", "DEBUG")
_OPTIONS = (
    ("grpc.max_receive_message_length", 2 * CHUNK_BYTES),
    ("grpc.max_send_message_length", 2 * CHUNK_BYTES),
    ("grpc.max_concurrent_streams", 32),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    # Else a second coordinator could share the port, and sites would be dealt out among the two.
    ("grpc.so_reuseport", 0),
)


async def serve(
    handler: Handler,
    *,
    credentials: Credentials,
    trust: TrustAnchor,
    listen: str,
    ready: Callable[[int], None],
    poll_seconds: float = 20.0,
) -> None:
    """Serve until ``handler.finished``, or SIGTERM or SIGINT (when called on the main thread).

    ``listen`` is host:port, port 0 for any; ``ready`` gets the port. Peers need a certificate of the same CA:
    TLS refuses others before a call exists, with a line of gRPC's own on standard error ("Handshake failed
    with error ...": the reason, not the address) unless GRPC_VERBOSITY hides it. Raises
    :class:`CannotListen`, and whatever ``handler.tick`` raises.
    """
    _warn_if_quiet()
    stop, changes = asyncio.Event(), Changes()
    handler.subscribe(changes.notify)
    server = grpc.aio.server(options=_OPTIONS)
    port = _bind(server, listen, credentials, trust)
    checkup = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checkup, server)
    with ThreadPoolExecutor(1, thread_name_prefix="coordinator") as thread, _stopped_by_signals(stop):
        servicer = Servicer(handler, trust, thread, changes, poll_seconds)
        pb_grpc.add_CoordinatorServicer_to_server(servicer, server)
        await server.start()
        try:
            await checkup.set(_service_name(), health_pb2.HealthCheckResponse.SERVING)
            ready(port)
            await _tick_until_over(handler, thread, stop)
        finally:
            await checkup.enter_graceful_shutdown()
            changes.close()
            await server.stop(_GRACE_SECONDS)


def _bind(server: grpc.aio.Server, listen: str, credentials: Credentials, trust: TrustAnchor) -> int:
    tls = grpc.ssl_server_credentials(
        [(credentials.private_key_pem(), credentials.certificate_pem)],
        root_certificates=trust.certificate_pem,
        require_client_auth=True,
    )
    try:
        return server.add_secure_port(listen, tls)
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {listen}: it is in use or not this machine's") from error


def _service_name() -> str:
    return "protoseal.v1.Coordinator"


async def _tick_until_over(handler: Handler, thread: Executor, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        if await loop.run_in_executor(thread, _tick, handler):
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _TICK_SECONDS)
    _log.info("stopping on a signal; the run can be continued")


def _tick(handler: Handler) -> bool:
    handler.tick()
    return handler.finished


@contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Signals can be taken on the main thread only; elsewhere there are none."""
    signals = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _warn_if_quiet() -> None:
    """Refused handshakes show nowhere but in gRPC's own log."""
    if os.environ.get("GRPC_VERBOSITY", "").upper() not in _LOUD_ENOUGH:
        _log.warning("GRPC_VERBOSITY hides refused TLS handshakes: unset it, or set it to INFO")
