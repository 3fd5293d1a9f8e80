"""Ends of a relayed connection: each end writes what the other reads, and reads no faster than the other can write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from typing import Protocol

MOST_BYTES_BEFORE_A_CALL = 32 * 1024
"""Number of bytes that reach the server before a site's first call; a handshake and the call's headers take some 4 kB.

gRPC stores every field of a header block that it will refuse, up to 100 MiB for each connection (grpcio 1.85).
"""

_MOST_BYTES_OF_A_HANDSHAKE = 8 * 1024
_HEAD_BYTES, _HANDSHAKE, _ENCRYPTED = 5, b"\x16", b"\x17"
"""Length of a TLS record's head, which ends in the record's length, and two kinds of records by their first byte."""
_SHORTEST_WITH_CERTIFICATE = 200
"""Fewest bytes of a record with a P-256 certificate; an empty list in its place has some 60."""


class RelayEnd(asyncio.Protocol):
    """One end of a connection. Use :meth:`join` to give it the other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._other: RelayEnd | None = None
        self._other_is_slow = self.other_ended = False

    def join(self, other: RelayEnd, first: bytes) -> None:
        """Relay to and from ``other`` from now on, beginning with ``first``, which this end has read."""
        self._other = other
        other._other = self
        self.data_received(first)
        self.read_if_allowed()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record the transport; asyncio calls this and the methods below."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a relay joins streams")
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Write the received bytes to the other end."""
        if self._other is not None and self._other.transport is not None:
            self._other.transport.write(data)

    def pause_writing(self) -> None:
        """Stop reading from the other end, because this end's reader is slow."""
        if self._other is not None and self._other.transport is not None:
            self._other._other_is_slow = True
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading from the other end."""
        if self._other is not None:
            self._other._other_is_slow = False
            self._other.read_if_allowed()

    def read_if_allowed(self) -> None:
        """Read from this end, unless the other end's reader is slow."""
        if self.transport is not None and not self._other_is_slow:
            self.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """Close the other end once all bytes are written to it."""
        if self._other is not None and self._other.transport is not None:
            self._other.other_ended = True
            self._other.transport.close()

    def abort(self) -> None:
        """Close both ends at once."""
        for end in (self, self._other):
            if end is not None and end.transport is not None:
                end.transport.abort()


class ConnectionOwner(Protocol):
    """Counter of connections from outside."""

    def admit(self, outer: OuterEnd) -> None:
        """Count a new connection."""
        ...

    def connect(self, outer: OuterEnd, first: bytes) -> None:
        """Open the other end of a connection that has sent its first bytes."""
        ...

    def remove(self, outer: OuterEnd) -> None:
        """Forget a connection that has ended."""
        ...

    def report(self, outer: OuterEnd) -> None:
        """Log that a connection ended by itself before a site's first call."""
        ...


class OuterEnd(RelayEnd):
    """End towards the network. Its other end is opened only once it has sent bytes.

    ``name`` is the server's name for the other end, ``site`` the site that authenticated on it: None until then, and
    until then at most :data:`MOST_BYTES_BEFORE_A_CALL` are relayed; the rest waits.
    """

    def __init__(self, keeper: ConnectionOwner) -> None:
        super().__init__()
        self._keeper = keeper
        self.origin = self.network = ""
        self.name: str | None = None
        self.site: str | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.over = False
        self._first = b""
        self._room = MOST_BYTES_BEFORE_A_CALL
        self._waiting = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the new connection."""
        super().connection_made(transport)
        self.origin, self.network = _address_and_network(transport.get_extra_info("peername"))
        self._keeper.admit(self)

    def data_received(self, data: bytes) -> None:
        """Relay received bytes; the first bytes wait for the other end."""
        if self.site is None:
            self._first += data[: _MOST_BYTES_OF_A_HANDSHAKE - len(self._first)]
        if self._other is not None:
            self._relay(data)
        elif self.transport is not None:
            self.transport.pause_reading()
            self._keeper.connect(self, data)

    def _relay(self, data: bytes) -> None:
        if self.site is not None:
            super().data_received(data)
            return
        now, self._waiting = data[: self._room], data[self._room :]
        self._room -= len(now)
        super().data_received(now)
        if self._waiting and self.transport is not None:
            self.transport.pause_reading()

    def read_if_allowed(self) -> None:
        """Read from this end, unless the other end's reader is slow or bytes wait for a site's first call."""
        if not self._waiting:
            super().read_if_allowed()

    def vouch(self, site: str) -> None:
        """Relay without a limit from now on: ``site`` authenticated."""
        self.site = site
        waiting, self._waiting = self._waiting, b""
        super().data_received(waiting)
        self.read_if_allowed()

    def connection_lost(self, error: Exception | None) -> None:
        """Close the other end, and stop counting this one."""
        super().connection_lost(error)
        if not self.over and self.site is None and self._first:
            self._keeper.report(self)
        self._end()

    @property
    def problem(self) -> str:
        """The reason for which the server closed the connection during the TLS handshake, as far as lengths show it."""
        if self._first[:1] != _HANDSHAKE:
            return "the peer speaks no TLS"
        # The first encrypted record of TLS 1.3 has the peer's certificate, or an empty list of them.
        certificate = next((length for kind, length in _records(self._first) if kind == _ENCRYPTED), None)
        if certificate is not None and certificate < _SHORTEST_WITH_CERTIFICATE:
            return "the peer showed no certificate"
        refused = "the peer" if certificate is None else "the peer's certificate"
        return f"TLS refused {refused}; gRPC's line before this one, on standard error, has the reason"

    def drop(self) -> None:
        """Close both ends at once, and stop counting them."""
        self.abort()
        self._end()

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self._keeper.remove(self)


def _address_and_network(peername: tuple[str, int] | tuple[str, int, int, int] | None) -> tuple[str, str]:
    """Return an address as gRPC names a peer, and its network: an IPv4 address, or an IPv6 /64."""
    if not peername:  # the connection is closed already
        return "unknown", "unknown"
    address, port = ip_address(peername[0].partition("%")[0]), peername[1]
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return f"ipv6:%5B{address}%5D:{port}", f"{IPv6Address(int(address) >> 64 << 64)}/64"
    address = getattr(address, "ipv4_mapped", None) or address
    return f"ipv4:{address}:{port}", str(address)


def _records(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield kind and length of each TLS record whose head is in the content."""
    while len(content) >= _HEAD_BYTES:
        length = int.from_bytes(content[3:_HEAD_BYTES], "big")
        yield content[:1], length
        content = content[_HEAD_BYTES + length :]
