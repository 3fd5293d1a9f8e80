"""Server of the coordinator: mutual TLS, the service, the health service, and an orderly end.

gRPC listens at a Unix socket that only this user can reach; sites connect through
:mod:`secure_server.service.tcp_proxy`.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from crypto.pki import Credentials, TrustAnchor
from protoseal_wire.codec import CHUNK_BYTES
from protoseal_wire.v1 import protoseal_pb2_grpc as pb_grpc
from secure_server.service.servicer import Changes, Handler, Servicer
from secure_server.service.tcp_proxy import TcpProxy, bind_sockets, raise_file_limit

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

    ``listen`` is host:port, port 0 for any; ``ready`` gets the port. Peers need a certificate of the same CA: TLS
    refuses others before a call exists, with a line of gRPC's own on standard error ("Handshake failed with error ...":
    the reason) unless GRPC_VERBOSITY hides it, and a security event of the TCP proxy (the address). The process's limit
    of open files is raised as far as it goes, and connections are bounded by it. Raises
    :class:`secure_server.errors.CannotListen`, and whatever ``handler.tick`` raises.
    """
    _warn_if_quiet()
    stop, changes = asyncio.Event(), Changes()
    handler.subscribe(changes.notify)
    with (
        ThreadPoolExecutor(1, thread_name_prefix="coordinator") as thread,
        _stopped_by_signals(stop),
        _listening(listen) as sockets,
        _socket_path() as inside,
    ):
        front = TcpProxy(inside, raise_file_limit())
        server, checkup = grpc.aio.server(options=_OPTIONS), health.aio.HealthServicer()
        server.add_secure_port(f"unix:{inside}", _tls(credentials, trust))
        health_pb2_grpc.add_HealthServicer_to_server(checkup, server)
        servicer = Servicer(handler, trust, thread, changes, poll_seconds, front)
        pb_grpc.add_CoordinatorServicer_to_server(servicer, server)
        await server.start()
        try:
            await checkup.set(_service_name(), health_pb2.HealthCheckResponse.SERVING)
            await front.listen(sockets)
            ready(sockets[0].getsockname()[1])
            await _tick_until_over(handler, thread, stop)
        finally:
            front.close()
            await checkup.enter_graceful_shutdown()
            changes.close()
            await server.stop(_GRACE_SECONDS)
            front.drop_all()


def _tls(credentials: Credentials, trust: TrustAnchor) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(credentials.private_key_pem(), credentials.certificate_pem)],
        root_certificates=trust.certificate_pem,
        require_client_auth=True,
    )


@contextmanager
def _listening(listen: str) -> Iterator[list[socket.socket]]:
    sockets = bind_sockets(listen)
    try:
        yield sockets
    finally:
        for bound in sockets:
            bound.close()


@contextmanager
def _socket_path() -> Iterator[Path]:
    """Yield a socket path for gRPC in a temporary folder that only this user can enter.

    The path names the folder by its descriptor, since a Unix socket's path has 107 bytes at most. The lock keeps
    systemd-tmpfiles from removing the socket of a run that lasts for weeks
    (https://systemd.io/TEMPORARY_DIRECTORIES).
    """
    with tempfile.TemporaryDirectory(prefix="protoseal-") as folder:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield Path(f"/proc/self/fd/{descriptor}/server")
        finally:
            os.close(descriptor)


def _service_name() -> str:
    return "protoseal.v1.Coordinator"


async def _tick_until_over(handler: Handler, thread: Executor, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        if await loop.run_in_executor(thread, _tick, handler):
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _TICK_SECONDS)
    _log.info("stopping on a signal; restart the coordinator to resume the run")


def _tick(handler: Handler) -> bool:
    handler.tick()
    return handler.finished


@contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Stop on SIGTERM or SIGINT. Python delivers signals to the main thread only; elsewhere nothing is installed."""
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
    """Warn if gRPC's log is off, because the reasons of refused handshakes show nowhere else."""
    if os.environ.get("GRPC_VERBOSITY", "").upper() not in _LOUD_ENOUGH:
        _log.warning("GRPC_VERBOSITY hides why TLS handshakes are refused: unset it, or set it to INFO")
