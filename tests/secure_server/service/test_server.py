"""The server as a process: how it begins, what it says of refused handshakes, how it ends."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from crypto.pki import Credentials
from protoseal_wire import codec
from secure_server.errors import CannotListen
from tests.secure_server.service.harness import FakeHandler, dialling, join_request, serving
from tests.secure_server.service.parties import Federation

ROOT = Path(__file__).parents[3]
PROGRAM = """
import asyncio, sys
from pathlib import Path
from crypto.pki import TrustAnchor
from secure_server.service.server import serve
from tests.secure_server.service.harness import FakeHandler
from tests.secure_server.service.parties import Federation

federation = Federation(Path(sys.argv[1]))
Path(sys.argv[1], "ca.pem").write_bytes(federation.trust.certificate_pem)
asyncio.run(
    serve(
        FakeHandler(),
        credentials=federation.coordinator(),
        trust=federation.trust,
        listen="127.0.0.1:0",
        ready=lambda port: print(port, flush=True),
    )
)
print("ended", flush=True)
"""


@contextmanager
def process(folder: Path, program: str = PROGRAM) -> Iterator[subprocess.Popen[str]]:
    """Run a server in a process of its own; ``PROGRAM``'s has a federation of its own below ``folder``."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "proto"), str(ROOT)])
    command = [sys.executable, "-c", program, str(folder)]
    with (
        (folder / "stderr").open("w") as stderr,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        ) as running,
    ):
        try:
            yield running
        finally:
            running.kill()


def test_serve_logs_refused_handshakes_and_ends_on_signal(
    tmp_path: Path, federation: Federation, site: Credentials
) -> None:
    with process(tmp_path) as running:
        assert running.stdout is not None
        port = int(running.stdout.readline())
        trust = type(federation.trust)((tmp_path / "ca.pem").read_bytes())
        for who in (None, site):
            with dialling(port, trust, who) as stub, pytest.raises(grpc.RpcError):
                stub.Join(codec.encode_join(join_request()), timeout=20)
        running.send_signal(signal.SIGTERM)
        assert running.stdout.readline() == "ended\n"
        assert running.wait(20) == 0
    said = (tmp_path / "stderr").read_text()
    assert "PEER_DID_NOT_RETURN_A_CERTIFICATE" in said
    assert "CERTIFICATE_VERIFY_FAILED" in said


@pytest.mark.parametrize(
    ("verbosity", "quiet"), [("ERROR", True), ("NONE", True), ("info", False), ("", False)]
)
def test_serve_quiet_grpc_log_warns(
    verbosity: str,
    quiet: bool,
    coordinator: Credentials,
    federation: Federation,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", verbosity)
    with caplog.at_level(logging.WARNING), serving(FakeHandler(), coordinator, federation.trust):
        pass
    assert ("GRPC_VERBOSITY" in caplog.text) == quiet


def test_serve_long_temporary_folder_is_locked(
    tmp_path: Path,
    coordinator: Credentials,
    federation: Federation,
    site: Credentials,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = tmp_path / ("long-" * 22)  # a Unix socket's path has 107 bytes at most
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with (
        serving(FakeHandler(), coordinator, federation.trust) as port,
        dialling(port, federation.trust, site) as stub,
    ):
        codec.decode_join_reply(stub.Join(codec.encode_join(join_request()), timeout=20))
        (folder,) = place.iterdir()
        with (
            pytest.raises(BlockingIOError),
            opened(folder) as descriptor,
        ):  # systemd-tmpfiles leaves it alone then
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert not list(place.iterdir())


@contextmanager
def opened(folder: Path) -> Iterator[int]:
    """Yield a folder's descriptor."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def test_serve_port_in_use_is_refused(port: int, coordinator: Credentials, federation: Federation) -> None:
    with (
        pytest.raises(CannotListen, match=f"127.0.0.1:{port}"),
        serving(FakeHandler(), coordinator, federation.trust, port=port),
    ):
        pass


class BrokenHandler(FakeHandler):
    """Its disk is full."""

    def tick(self) -> None:
        raise OSError("no space left on device")


def test_serve_error_in_tick_ends_server(coordinator: Credentials, federation: Federation) -> None:
    with (
        pytest.raises(OSError, match="no space left"),
        serving(BrokenHandler(), coordinator, federation.trust),
    ):
        pass
