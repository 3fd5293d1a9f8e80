"""Small HTTP proxy that opens tunnels (CONNECT) in a thread, with or without a password."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class ConnectProxy:
    """Proxy at ``port`` of 127.0.0.1. It resolves every host to 127.0.0.1; ``asked`` has the targets of its tunnels."""

    port: int
    login: str = ""
    status: str = ""
    """Status line that refuses every tunnel, such as ``403 Forbidden``, with fields behind it if there are any."""
    asked: list[str] = field(default_factory=list)

    def serve(self, client: socket.socket) -> None:
        """Answer one connection."""
        with client, suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request and (more := client.recv(4096)):
                request += more
            lines = request.decode().split("\r\n")
            if not lines[0].startswith("CONNECT "):
                return
            target = lines[0].split()[1]
            self.asked.append(target)
            wanted = f"Proxy-Authorization: Basic {base64.b64encode(self.login.encode()).decode()}"
            status = self.status or ("407 Proxy Authentication Required" if self.login else "")
            if self.status or (self.login and wanted not in lines):
                client.sendall(f"HTTP/1.1 {status}\r\n\r\n".encode())
                return
            with socket.create_connection(("127.0.0.1", int(target.rpartition(":")[2]))) as server:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=_copy, args=(server, client), daemon=True)
                back.start()
                _copy(client, server)
                back.join(10)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while content := source.recv(1 << 16):
            sink.sendall(content)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def connect_proxy(login: str = "", status: str = "") -> Iterator[ConnectProxy]:
    """Run a proxy while the block runs."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = ConnectProxy(listener.getsockname()[1], login, status)

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=proxy.serve, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
