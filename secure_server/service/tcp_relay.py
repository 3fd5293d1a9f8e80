"""The two ends of a relayed connection: each writes what the other reads, and waits while the other cannot write."""

from __future__ import annotations

import asyncio
from ipaddress import IPv6Address, ip_address
from typing import Protocol


class End(asyncio.Protocol):
    """One end of a connection. Use :meth:`join` to give it the other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._other: End | None = None

    def join(self, other: End, first: bytes) -> None:
        """Relay to and from ``other`` from now on, beginning with ``first``, which this end has read."""
        self._other, other._other = other, self
        if other.transport is not None:
            other.transport.write(first)
        if self.transport is not None:
            self.transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio, as the others are."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError("a relay joins streams")
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Write to the other end what came in."""
        if self._other is not None and self._other.transport is not None:
            self._other.transport.write(data)

    def pause_writing(self) -> None:
        """Take nothing more from the other end: this one's reader is slow."""
        if self._other is not None and self._other.transport is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on taking from the other end."""
        if self._other is not None and self._other.transport is not None:
            self._other.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        """Close the other end once all is written to it."""
        if self._other is not None and self._other.transport is not None:
            self._other.transport.close()

    def abort(self) -> None:
        """Close both ends at once."""
        for end in (self, self._other):
            if end is not None and end.transport is not None:
                end.transport.abort()


class Keeper(Protocol):
    """Who counts connections from outside."""

    def admit(self, outer: Outer) -> None:
        """A connection is there."""
        ...

    def connect(self, outer: Outer, first: bytes) -> None:
        """A connection has sent its first bytes."""
        ...

    def remove(self, outer: Outer) -> None:
        """A connection is over."""
        ...


class Outer(End):
    """The end towards the network. Its other end is opened only once it has sent something.

    ``name`` is how the server names its other end, ``site`` who proved itself on it: None until then.
    """

    def __init__(self, keeper: Keeper) -> None:
        super().__init__()
        self._keeper = keeper
        self.origin = self.network = ""
        self.name: str | None = None
        self.site: str | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Have the new connection counted."""
        super().connection_made(transport)
        self.origin, self.network = _place(transport.get_extra_info("peername"))
        self._keeper.admit(self)

    def data_received(self, data: bytes) -> None:
        """Relay; the first bytes wait for the other end."""
        if self._other is not None:
            super().data_received(data)
        elif self.transport is not None:
            self.transport.pause_reading()
            self._keeper.connect(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        """Close the other end, and count this one no more."""
        super().connection_lost(error)
        self._end()

    def drop(self) -> None:
        """Close both ends at once, and count them no more."""
        self.abort()
        self._end()

    def _end(self) -> None:
        if not self.over:
            self.over = True
            self._keeper.remove(self)


def _place(peername: tuple[str, int] | tuple[str, int, int, int] | None) -> tuple[str, str]:
    """An address as gRPC names a peer, and the network that it is of: an IPv4 address, or an IPv6 /64."""
    if not peername:  # it is gone already
        return "unknown", "unknown"
    address, port = ip_address(peername[0].partition("%")[0]), peername[1]
    if isinstance(address, IPv6Address) and address.ipv4_mapped is None:
        return f"ipv6:%5B{address}%5D:{port}", f"{IPv6Address(int(address) >> 64 << 64)}/64"
    address = getattr(address, "ipv4_mapped", None) or address
    return f"ipv4:{address}:{port}", str(address)
