"""HTTP proxy between a site and its coordinator, as gRPC chooses one from the environment.

gRPC reads the first of ``grpc_proxy``, ``https_proxy`` and ``http_proxy`` that is set, in small letters only, and the
hosts that need no proxy from ``no_grpc_proxy``, else ``no_proxy``: names with the names below them, addresses and
networks, without ``*`` and ports. A value must begin with ``http://``, in any case; gRPC ignores every other one. This
module chooses by the same rules, so that messages can name the proxy, and refuses a value of which gRPC would make
another host, such as one with ``#`` in its password. gRPC opens a tunnel through the proxy (CONNECT), so the
proxy sees the coordinator's address and ciphertext only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from urllib.parse import unquote

from secure_client.errors import Unreachable

_READ_BY_GRPC = ("grpc_proxy", "https_proxy", "http_proxy")
_NOT_READ_BY_GRPC = ("HTTPS_PROXY", "HTTP_PROXY", "GRPC_PROXY", "all_proxy", "ALL_PROXY")
_SCHEME = "http://"
_DEFAULT_PORT = 443
"""Port that gRPC takes for a proxy without a port."""
_PLACE = re.compile(
    r"(?:(?P<login>[^/?#]*)@)?(?P<host>\[[0-9A-Fa-f:.]+\]|[^/?#@:\[\]\s]+)(?::(?P<port>\d{0,5}))?\s*(?:[/?#][^@]*)?"
)
"""User and password, host and port. An ``@`` behind ``/``, ``?`` or ``#`` means that these stand in a password."""


@dataclass(frozen=True)
class Proxy:
    """HTTP proxy and the environment variable that names it; as text, the password is left out."""

    variable: str
    host: str
    port: int
    login: str = field(repr=False)
    """User and password, joined by a colon; empty without them."""

    def __str__(self) -> str:
        name, colon, _ = self.login.partition(":")
        user = f"{name}:***@" if colon else "***@" if self.login else ""  # without a colon it may be a token
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{_SCHEME}{user}{host}:{self.port} (from {self.variable})"


def split_target(target: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, the host without brackets."""
    host, _, port = target.rpartition(":")
    return host.strip("[]"), int(port)


def find_proxy(host: str) -> Proxy | None:
    """Return the proxy through which gRPC connects to ``host``; None for a direct connection.

    Raises :class:`Unreachable`, without the value, for one that gRPC does not read as it was meant.
    """
    variable = next((name for name in _READ_BY_GRPC if name in os.environ), None)
    if variable is None or not _is_read_by_grpc(os.environ[variable]) or _is_excepted(host):
        return None
    if (proxy := _parse(variable)) is not None:
        return proxy
    if re.search("[/?#].*@", os.environ[variable][len(_SCHEME) :], re.DOTALL):
        problem = "has '/', '?' or '#' before its '@': write %2F, %3F or %23 in the user and password"
    else:
        problem = "is not http://HOST:PORT, with a port from 1 to 65535 and an IPv6 address in brackets"
    raise Unreachable(f"the value of the environment variable {variable} {problem}")


def list_ignored_proxies() -> Iterator[Proxy]:
    """Yield the proxies that the environment names for other programs, and that gRPC does not read."""
    first = next((name for name in _READ_BY_GRPC if name in os.environ), None)
    for name in (*_READ_BY_GRPC, *_NOT_READ_BY_GRPC):
        value = os.environ.get(name, "")
        if value and not (name == first and _is_read_by_grpc(value)):
            proxy = _parse(name)
            if proxy is not None:
                yield proxy


def _parse(variable: str) -> Proxy | None:
    parts = _PLACE.fullmatch(os.environ[variable].partition("://")[2] or os.environ[variable])
    port = int(parts["port"] or _DEFAULT_PORT) if parts else 0
    if parts is None or not 0 < port < 65_536:
        return None
    return Proxy(variable, unquote(parts["host"]).strip("[]"), port, unquote(parts["login"] or ""))


def _is_read_by_grpc(value: str) -> bool:
    """Return whether gRPC takes the value for a proxy, be it right or wrong."""
    return value.lower().startswith(_SCHEME) and value[len(_SCHEME) :][:1] not in {"", "/", "?", "#"}


def suggest_exception(host: str) -> str:
    """Return how to except ``host`` from the proxy; forms that other programs read and gRPC does not are named."""
    variable = _exceptions_variable()
    entries = map(str.strip, os.environ.get(variable, "").split(","))
    unread = [entry for entry in entries if "*" in entry or entry.startswith(f"{host}:")]
    if unread:
        return f"write the host into {variable} instead of {unread[0]!r}, since gRPC reads neither * nor ports there"
    capitals = " in small letters, since gRPC does not read NO_PROXY" if "NO_PROXY" in os.environ else ""
    return f"name the host in {variable}{capitals}"


def _exceptions_variable() -> str:
    """Return the variable in which gRPC looks for hosts without a proxy."""
    return "no_grpc_proxy" if "no_grpc_proxy" in os.environ else "no_proxy"


def _is_excepted(host: str) -> bool:
    # gRPC's own rules: a name matches its subdomains, with or without a dot before it, and a network its addresses.
    for entry in filter(None, map(str.strip, os.environ.get(_exceptions_variable(), "").split(","))):
        name = entry.lstrip(".").lower()
        if host.lower() == name or host.lower().endswith(f".{name}"):
            return True
        with suppress(ValueError):
            if ip_address(host) in ip_network(entry, strict=False):
                return True
    return False
