"""Proxy in front of gRPC: it accepts TCP connections, and limits those that have not shown a certificate.

gRPC can limit handshakes by time and connections by number, but at its limit it refuses the *newest* connection: a host
that opens many and opens them again shuts every site out. The front passes bytes between each connection and the gRPC
server, and at its limit it closes the *oldest* connection of the network that has most of those without a certificate.
TLS ends at the server, so the front sees ciphertext only; the service vouches for a connection at its first call, which
nobody makes without a certificate of the federation's CA (:meth:`TcpProxy.vouch`).

Guaranteed, however many connections are opened: files and memory for them are bounded, since few bytes of a connection
reach gRPC before a site's first call on it; a network (an IPv4 address, an
IPv6 /64) loses its connections to another one only while it has more of them itself; and a host that shares its network
with an attacker is served if it finishes its handshake before ``ConnectionLimits.strangers`` newer connections arrive.
Limit: a flood that saturates the network, or the processor by handshakes, is not stopped here.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import resource
import socket
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from secure_server.errors import CannotListen
from secure_server.service.tcp_relay import OuterEnd, RelayEnd

_log = logging.getLogger("protoseal.coordinator")
_security = logging.getLogger("protoseal.security")
_MOST_FILES = 65_536
_FILES_FOR_THE_REST = 256
"""Number of files for the store, the workers, gRPC itself, and connections accepted since the last cleanup."""
_FILES_EACH = 3
"""Number of files for a connection: its outer end, and two between the front and the server."""
_MOST_STRANGERS = 512
_FOR_EACH_SITE = 4
_CALL_SECONDS = 30.0
_AT_ONCE = 64
_LOG_SECONDS = 60.0


@dataclass(frozen=True)
class ConnectionLimits:
    """The most connections in all, of strangers (who have made no call yet), and of one site.

    ``seconds`` is the time from the connection to its first call.
    """

    connections: int
    strangers: int
    of_a_site: int = _FOR_EACH_SITE
    seconds: float = _CALL_SECONDS


def raise_file_limit() -> ConnectionLimits:
    """Raise the soft limit of open files to the hard one, 65,536 at most, and return the limits that fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    files = max(soft, wanted) if soft != resource.RLIM_INFINITY else _MOST_FILES
    connections = max(files // 2, files - _FILES_FOR_THE_REST) // _FILES_EACH
    return ConnectionLimits(connections, min(_MOST_STRANGERS, connections // 2))


class TcpProxy:
    """Proxy between the network and the server at a Unix socket. All calls come on one event loop."""

    def __init__(self, server: Path, limits: ConnectionLimits) -> None:
        self._server, self._limits = server, limits
        self._strangers: defaultdict[str, dict[OuterEnd, None]] = defaultdict(dict)
        self._sites: defaultdict[str, dict[OuterEnd, None]] = defaultdict(dict)
        self._by_name: dict[str, OuterEnd] = {}
        self._closing = False
        self._listening: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._rejected = 0
        self._logged = -_LOG_SECONDS
        self._reported: dict[tuple[str, str], float] = {}

    async def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections at these bound sockets, which the front owns from now on."""
        loop = asyncio.get_running_loop()
        for bound in sockets:
            self._listening.append(
                await loop.create_server(lambda: OuterEnd(self), sock=bound, backlog=_AT_ONCE)
            )
            bound.listen(
                socket.SOMAXCONN
            )  # asyncio takes one number for the queue and for the connections accepted at once

    def vouch(self, peer: str, site: str) -> None:
        """Keep the connection of a call on which ``site`` authenticated. ``peer`` is the name that gRPC gives it."""
        outer = self._by_name.get(peer)
        if outer is None or outer.site is not None:
            return
        self._forget(outer)
        outer.vouch(site)
        self._sites[site][outer] = None
        if len(self._sites[site]) > self._limits.of_a_site:
            next(iter(self._sites[site])).drop()

    def origin(self, peer: str) -> str:
        """Return the address of a call as gRPC would name it without the front; ``peer`` itself if it is unknown."""
        outer = self._by_name.get(peer)
        return peer if outer is None else outer.origin

    def close(self) -> None:
        """Accept no more connections. Open ones stay until :meth:`drop_all`."""
        self._closing = True
        for listener in self._listening:
            listener.close()

    def drop_all(self) -> None:
        """Close every connection."""
        for outer in [end for ends in (*self._strangers.values(), *self._sites.values()) for end in ends]:
            outer.drop()

    # Calls of its connections

    def admit(self, outer: OuterEnd) -> None:
        """Count a new connection, and close another one for it if there are too many."""
        self._strangers[outer.network][outer] = None
        outer.timer = asyncio.get_running_loop().call_later(self._limits.seconds, outer.drop)
        strangers = sum(map(len, self._strangers.values()))
        in_all = strangers + sum(map(len, self._sites.values()))
        if strangers > self._limits.strangers or in_all > self._limits.connections:
            self._turn_away(max(self._strangers, key=lambda network: len(self._strangers[network])))

    def connect(self, outer: OuterEnd, first: bytes) -> None:
        """Open the other half of a connection that has sent its ``first`` bytes."""
        task = asyncio.get_running_loop().create_task(self._connect_to_server(outer, first))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def remove(self, outer: OuterEnd) -> None:
        """Forget a connection that has ended."""
        self._forget(outer)
        if outer.name is not None:
            self._by_name.pop(outer.name, None)

    def report(self, outer: OuterEnd) -> None:
        """Log a connection that ended in the TLS handshake: the server's refusals as security events.

        One line a minute for each network and reason: a site tries again every few seconds, and others could fill the
        log.
        """
        if not outer.other_ended:
            _log.info("%s closed its connection before a first call", outer.origin)
            return
        now = asyncio.get_running_loop().time()
        self._reported = {name: at for name, at in self._reported.items() if now - at < _LOG_SECONDS}
        key = (outer.network, outer.problem)
        if key in self._reported or len(self._reported) >= _MOST_STRANGERS or self._closing:
            return
        self._reported[key] = now
        event = {
            "event": "TlsRefused",
            "rpc": None,
            "site": None,
            "peer": outer.origin,
            "reason": outer.problem,
        }
        _security.warning(json.dumps(event))

    async def _connect_to_server(self, outer: OuterEnd, first: bytes) -> None:
        inner, loop = RelayEnd(), asyncio.get_running_loop()
        end: socket.socket | None = None
        try:
            end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            end.setblocking(False)
            end.bind("")  # the kernel assigns a unique name, by which the server knows its peer
            outer.name = f"unix-abstract:{end.getsockname()[1:].decode()}"
            self._by_name[outer.name] = outer
            await loop.sock_connect(end, str(self._server))
            await loop.create_connection(lambda: inner, sock=end)
        except OSError as error:  # OSError also means that files have run out
            if end is not None:
                end.close()
            outer.drop()
            _log.error("the TCP proxy cannot reach the gRPC server: %s", error)
            return
        outer.join(inner, first)
        if outer.over:
            outer.abort()

    def _forget(self, outer: OuterEnd) -> None:
        if outer.timer is not None:
            outer.timer.cancel()
        groups = self._strangers if outer.site is None else self._sites
        key = outer.network if outer.site is None else outer.site
        groups[key].pop(outer, None)
        if not groups[key]:
            del groups[key]

    def _turn_away(self, network: str) -> None:
        next(iter(self._strangers[network])).drop()
        self._rejected += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged >= _LOG_SECONDS:
            _log.warning(
                "too many connections without a certificate, most of them from %s: closed %d "
                "since the last such line",
                network,
                self._rejected,
            )
            self._rejected = 0
            self._logged = now


def bind_sockets(listen: str) -> list[socket.socket]:
    """Bind sockets at every address of ``listen``, host:port, all with the same port; port 0 for any.

    An address that this machine does not have is left out. Raises :class:`CannotListen` if none is left or one is in
    use.
    """
    host, _, port = listen.rpartition(":")
    bound: list[socket.socket] = []
    try:
        places = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, _kind, _protocol, _name, place in dict.fromkeys(places):
            number = bound[0].getsockname()[1] if bound else place[1]
            try:
                bound.append(_bind(family, (place[0], number, *place[2:])))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
    except (OSError, ValueError) as error:
        for opened in bound:
            opened.close()
        raise CannotListen(f"cannot listen on {listen}: {_problem(error)}") from error
    if not bound:
        raise CannotListen(f"cannot listen on {listen}: the address does not belong to this machine")
    return bound


def _problem(error: OSError | ValueError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the host is unknown ({error.strerror})"
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return "another process listens on this port"
        case errno.EACCES:
            return "this user may not listen on this port; ports below 1024 are root's"
        case _:
            return str(getattr(error, "strerror", None) or error)


def _bind(family: int, place: tuple[object, ...]) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # a restart must not wait for old connections
        # Accepted connections inherit the option. Without it a small answer waits 40 ms for the peer's delayed
        # acknowledgement. asyncio sets it only on sockets that were made with the protocol's number.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(place[0] != "::"))
        bound.bind(place)
    except OSError:
        bound.close()
        raise
    return bound
