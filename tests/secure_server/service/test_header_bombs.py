"""Header blocks of an admitted site that take the coordinator far more memory than the network.

The frames are HTTP/2 by hand, since no honest client sends them. gRPC refuses the calls, but stores every field until
then. The proxy relays few bytes before a site's first call, so that connections without a call, of which there may be
many, take little. Limit: a site that makes a call first may send such a block on each of its few connections.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from crypto.pki import Credentials
from protoseal_wire import codec
from tests.secure_server.service.harness import dialling, join_request
from tests.secure_server.service.parties import Federation
from tests.secure_server.service.test_server import process
from tests.secure_server.service.test_tcp_proxy import PROGRAM
from tests.support.processes import wait_until

CONNECTIONS = 8
MOST_MIB = 96
"""Growth of the server that passes. Measured: 36 after all of these bombs; 441 without the limit, by one of them."""
SECONDS = 10.0
HEADERS, PING, CONTINUATION, END_STREAM, END_HEADERS, FRAME_BYTES = 1, 6, 9, 1, 4, 16_384
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
WITHOUT_LIMIT = "import secure_server.service.tcp_relay as relay; relay.MOST_BYTES_BEFORE_A_CALL = 2**40"


def frame(kind: int, flags: int, payload: bytes) -> bytes:
    """Return one frame, of stream 1 unless it is of the connection."""
    stream = 0 if kind == PING else 1
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def field(name: bytes, value: bytes, *, kept: bool = False) -> bytes:
    """Return one field of a header block (RFC 7541, section 6.2), which the receiver keeps in its table if ``kept``."""
    return bytes([0x40 if kept else 0]) + _text(name) + _text(value)


def _text(text: bytes) -> bytes:
    length, rest = [min(len(text), 127)], len(text) - 127
    while rest >= 0:
        length.append(rest % 128 | (128 if rest >= 128 else 0))
        rest = rest // 128 if rest >= 128 else -1
    return bytes(length) + text


CALL = b"".join(
    field(name, value)
    for name, value in (
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", b"/protoseal.v1.Coordinator/Check"),
        (b":authority", b"127.0.0.1"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
)
NEWEST_FIELD = bytes([0x80 | 62])
"""Reference to the field that was kept last, in one byte."""


def block(fields: bytes, *, ended: bool = True) -> Iterator[bytes]:
    """Yield a header block in HEADERS and CONTINUATION frames."""
    parts = [fields[start : start + FRAME_BYTES] for start in range(0, len(fields), FRAME_BYTES)]
    for number, part in enumerate(parts):
        flags = END_HEADERS if ended and number == len(parts) - 1 else 0
        yield frame(CONTINUATION if number else HEADERS, flags if number else flags | END_STREAM, part)


WORST = "many short fields"
BOMBS: Mapping[str, Callable[[], Iterator[bytes]]] = {
    "a field of 16 MiB": lambda: block(CALL + field(b"x", bytes(2**24))),
    "references to a long field": lambda: block(
        CALL + field(b"x", bytes(3900), kept=True) + NEWEST_FIELD * 2**20
    ),
    WORST: lambda: block(CALL + field(b"x", b"", kept=True) + NEWEST_FIELD * 2**20),
    "a block that never ends": lambda: block(CALL + field(b"x", b"y") * 2**20, ended=False),
    "empty continuations": lambda: iter(
        [*block(CALL, ended=False), *[frame(CONTINUATION, 0, b"") * 1000] * 100]
    ),
    "pings": lambda: iter([frame(PING, 0, bytes(8)) * 1000] * 100),
}


@contextmanager
def connected(port: int, folder: Path, site: Credentials, patience: float) -> Iterator[ssl.SSLSocket]:
    """Yield a connection of an admitted site that has made no call."""
    own = folder / "own.pem"
    own.write_bytes(site.certificate_pem + site.private_key_pem())
    context = ssl.create_default_context(cafile=str(folder / "ca" / "ca.pem"))
    context.check_hostname = False
    context.load_cert_chain(own)
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), SECONDS) as plain,
        context.wrap_socket(plain) as stream,
    ):
        stream.sendall(PREFACE)
        stream.settimeout(patience)
        yield stream


def send(stream: ssl.SSLSocket, frames: Iterator[bytes]) -> None:
    """Send as much as the other side takes."""
    with suppress(OSError):
        for each in frames:
            stream.sendall(each)


def peak_mib(pid: int) -> int:
    """Return the most memory that a process has had."""
    (line,) = (
        each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith("VmHWM")
    )
    return int(line.split()[1]) // 1024


@contextmanager
def attacked(
    folder: Path, bomb: Callable[[], Iterator[bytes]], weakened: str = "", patience: float = 0.05
) -> Iterator[Callable[[], int]]:
    """Send a bomb on all connections at once, and then have another site served.

    While the connections are open, yield a function that returns the MiB by which the server has grown at most.
    """
    federation = Federation(folder)
    federation.coordinator()
    attacker, honest = federation.site("clinic-a"), federation.site("clinic-b")
    with process(folder, f"{weakened}\n{PROGRAM}") as running, ExitStack() as stack:
        assert running.stdout is not None
        port = int(running.stdout.readline())
        stub = stack.enter_context(dialling(port, federation.trust, honest))
        stub.Join(codec.encode_join(join_request("clinic-b")), timeout=SECONDS)
        before = peak_mib(running.pid)
        streams = [
            stack.enter_context(connected(port, folder, attacker, patience)) for _ in range(CONNECTIONS)
        ]
        for stream in streams:
            send(stream, bomb())
        stub.Join(codec.encode_join(join_request("clinic-b")), timeout=SECONDS)
        yield lambda: peak_mib(running.pid) - before


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == WORST else pytest.mark.full) for name in BOMBS]
)
def test_header_bombs_take_little_memory_and_site_is_served(tmp_path: Path, name: str) -> None:
    with attacked(tmp_path, BOMBS[name]) as grown:
        assert grown() < MOST_MIB


@pytest.mark.full
def test_header_bombs_without_the_limit_take_much_memory(tmp_path: Path) -> None:
    bomb = [*block(CALL + field(b"x", b"", kept=True) + NEWEST_FIELD * 2**21)]
    with attacked(tmp_path, lambda: iter(bomb), WITHOUT_LIMIT, SECONDS) as grown:
        wait_until(lambda: grown() > 2 * MOST_MIB, "growth of the server")
