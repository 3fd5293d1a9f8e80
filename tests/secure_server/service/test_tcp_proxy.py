"""Hosts without a certificate: however many connections they hold, a site is served; one site's are bounded too."""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from crypto.pki import Credentials
from protoseal_wire import codec
from protoseal_wire.messages import PROTOCOL_VERSION, DownloadRequest, Finished, TaskRequest
from protoseal_wire.v1 import protoseal_pb2 as pb
from protoseal_wire.v1.protoseal_pb2_grpc import CoordinatorStub
from secure_server.errors import CannotListen
from secure_server.service.tcp_proxy import ConnectionLimits, bind_sockets, raise_file_limit
from tests.secure_server.service.harness import KEY, RUN, FakeHandler, dialling, join_request, serving
from tests.secure_server.service.parties import Federation
from tests.secure_server.service.test_server import process

FILES = 256
HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(20)
"""The first bytes of a TLS handshake that never goes on."""
STRANGERS: dict[str, Callable[[socket.socket], object]] = {
    "idle": lambda each: None,
    "handshakes that stall": lambda each: each.send(HELLO),
    "garbage": lambda each: each.send(os.urandom(300)),
}
PROGRAM = f"""
import asyncio, resource, sys
from pathlib import Path
from crypto.pki import Credentials, TrustAnchor
from secure_server.service.tcp_proxy import TcpProxy
from secure_server.service.server import serve
from tests.secure_server.service.harness import FakeHandler
from tests.secure_server.service.parties import PASSPHRASE

resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES // 2}, {FILES}))
folder, coordinator = Path(sys.argv[1]), Path(sys.argv[1], "coordinator")
asyncio.run(
    serve(
        FakeHandler(),
        credentials=Credentials.load(coordinator / "certificate.pem", coordinator / "key.pem", PASSPHRASE),
        trust=TrustAnchor.load(folder / "ca" / "ca.pem"),
        listen="127.0.0.1:0",
        ready=lambda port: print(port, flush=True),
    )
)
"""
DOUBLES = {
    "no limit": "TcpProxy._turn_away = lambda self, network: None",
    "refuses the newest": "TcpProxy._turn_away = lambda self, network: [*self._strangers[network]][-1].drop()",
}


@contextmanager
def strangers(
    port: int, number: int, kind: str = "idle", source: str = "127.0.0.1"
) -> Iterator[list[socket.socket]]:
    """Connections without a certificate, open while the block runs unless the server closes them."""
    with ExitStack() as stack:
        opened = []
        for _ in range(number):
            each = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10, (source, 0)))
            STRANGERS[kind](each)
            opened.append(each)
        yield opened


def is_open(each: socket.socket) -> bool:
    each.setblocking(False)
    try:
        return bool(each.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def wait_until_closed(each: socket.socket) -> None:
    each.settimeout(30)
    with suppress(ConnectionError):
        assert each.recv(1) == b""


@contextmanager
def served(tmp_path: Path, weakened: str = "") -> Iterator[tuple[int, Callable[[float], object]]]:
    """Yield a server's port, in a process of few files, and a call of a site with the seconds that it may take."""
    federation = Federation(tmp_path)
    federation.coordinator()
    with (
        process(tmp_path, PROGRAM.replace("asyncio.run", f"{weakened}\nasyncio.run")) as running,
        ExitStack() as stack,
    ):
        assert running.stdout is not None
        port = int(running.stdout.readline())
        stub = stack.enter_context(dialling(port, federation.trust, federation.site()))
        yield port, lambda seconds: stub.Join(codec.encode_join(join_request()), timeout=seconds)


@pytest.mark.parametrize("kind", STRANGERS)
def test_proxy_flood_without_certificates_site_is_served(tmp_path: Path, kind: str) -> None:
    with served(tmp_path) as (port, join), strangers(port, 2 * FILES, kind):
        join(30)


@pytest.mark.parametrize("weakened", DOUBLES)
def test_proxy_flood_without_limits_shuts_site_out(tmp_path: Path, weakened: str) -> None:
    with (
        served(tmp_path, DOUBLES[weakened]) as (port, join),
        strangers(port, 2 * FILES),
        pytest.raises(grpc.RpcError),
    ):
        join(2)


class TestFewAtOnce:
    """Server with limits of a few connections."""

    @pytest.fixture(autouse=True)
    def _limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        limits = ConnectionLimits(connections=40, strangers=8, of_a_site=2)
        monkeypatch.setattr("secure_server.service.server.raise_file_limit", lambda: limits)

    def test_proxy_flood_from_another_network_costs_nothing(self, port: int) -> None:
        with strangers(port, 2, source="127.0.0.2") as few, strangers(port, 30) as many:
            wait_until_closed(many[21])
            assert [is_open(each) for each in few] == [True, True]
            assert sum(map(is_open, many)) <= 8

    def test_proxy_site_over_its_share_loses_its_oldest_connection(
        self, port: int, federation: Federation, site: Credentials, handler: FakeHandler
    ) -> None:
        other = federation.site("clinic-b")
        with ExitStack() as stack:
            stubs = [stack.enter_context(_alone(port, federation, site)) for _ in range(3)]
            peer = stack.enter_context(_alone(port, federation, other))
            kept = peer.NextTask.future(_asks(), timeout=30)
            polls = [_polling(handler, stub) for stub in stubs]
            with pytest.raises(grpc.RpcError):
                polls[0].result(30)
            for name in ("clinic-a", "clinic-b"):
                handler.change(name, Finished(1))
            for each in (kept, *polls[1:]):
                assert codec.decode_task(each.result(30)) == Finished(1)


def test_proxy_connection_without_a_call_is_closed_in_time(
    coordinator: Credentials,
    federation: Federation,
    site: Credentials,
    handler: FakeHandler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "secure_server.service.server.raise_file_limit", lambda: ConnectionLimits(40, 8, seconds=2.0)
    )
    with serving(handler, coordinator, federation.trust) as port, _alone(port, federation, site) as stub:
        poll = _polling(handler, stub)
        with strangers(port, 1) as (stranger,):
            wait_until_closed(stranger)
        handler.change("clinic-a", Finished(1))
        assert codec.decode_task(poll.result(30)) == Finished(1)


def test_download_stalled_reader_holds_one_content(
    port: int, federation: Federation, site: Credentials, handler: FakeHandler
) -> None:
    handler.content = os.urandom(2**24)
    asked = codec.encode_download(DownloadRequest(KEY))
    with _alone(port, federation, site) as stub:
        stalled = stub.Download(asked, timeout=60)
        begun = [next(stalled)]
        again = stub.Download(asked, timeout=60)
        stub.Join(codec.encode_join(join_request()), timeout=30)
        assert handler.calls.count(("clinic-a", "download")) == 1
        assert b"".join(frame.chunk for frame in [*begun, *stalled]) == handler.content
        assert b"".join(frame.chunk for frame in again) == handler.content


@pytest.mark.parametrize(
    ("soft", "hard", "raised_to", "limits"),
    [
        (1024, 1024, None, (256, 128)),
        (1024, 524_288, 65_536, (21_760, 512)),
        (256, 4096, 4096, (1280, 512)),
        (64, 64, None, (10, 5)),
        (1024, -1, 65_536, (21_760, 512)),
        (-1, -1, None, (21_760, 512)),
    ],
)
def test_raise_file_limit_connections_fit(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised_to: int | None, limits: tuple[int, int]
) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: set_to.append(both))
    found = raise_file_limit()
    assert (found.connections, found.strangers) == limits
    assert set_to == ([] if raised_to is None else [(raised_to, hard)])


@pytest.mark.parametrize("listen", ["localhost:0", "127.0.0.1:0", "0.0.0.0:0"])
def test_bind_sockets_one_port_and_second_listener_is_refused(listen: str) -> None:
    sockets = bind_sockets(listen)
    try:
        (port,) = {each.getsockname()[1] for each in sockets}
        for each in sockets:
            each.listen()
        with pytest.raises(CannotListen):
            bind_sockets(listen.replace(":0", f":{port}"))
    finally:
        for each in sockets:
            each.close()


def test_bind_sockets_connections_send_small_packets_at_once() -> None:
    (listening,) = bind_sockets("127.0.0.1:0")
    with listening:
        listening.listen()
        with socket.create_connection(listening.getsockname()), listening.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@contextmanager
def _alone(port: int, federation: Federation, who: Credentials) -> Iterator[CoordinatorStub]:
    """Yield a stub with a connection of its own."""
    with dialling(port, federation.trust, who, ("grpc.use_local_subchannel_pool", 1)) as stub:
        yield stub


def _asks() -> pb.TaskRequest:
    return codec.encode_task_request(TaskRequest(PROTOCOL_VERSION, RUN))


def _polling(handler: FakeHandler, stub: CoordinatorStub) -> grpc.Future[pb.Task]:
    """Return a call that the server holds open; it has arrived."""
    before = handler.calls.count(("clinic-a", "next_task"))
    poll = stub.NextTask.future(_asks(), timeout=60)
    while handler.calls.count(("clinic-a", "next_task")) == before:
        if poll.done():  # the connection took longer than a stranger's may
            poll = stub.NextTask.future(_asks(), timeout=60)
        time.sleep(0.005)
    return poll


@pytest.mark.parametrize(
    ("listen", "named"), [("nowhere.invalid:0", "nowhere.invalid:0"), ("192.0.2.1:0", "192.0.2.1:0")]
)
def test_bind_sockets_unusable_address_is_named(listen: str, named: str) -> None:
    with pytest.raises(CannotListen, match=named):
        bind_sockets(listen)
