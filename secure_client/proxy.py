"""HTTP proxy between a site and its coordinator, as gRPC chooses one from the environment.

gRPC reads the first of ``grpc_proxy``, ``https_proxy`` and ``http_proxy`` that is set, in small letters only, and the
hosts that need no proxy from ``no_grpc_proxy``, else ``no_proxy``: names with the names below them, addresses and
networks, without ``*`` and ports. A value must begin with ``http://``; gRPC ignores every other one. This module
chooses by the same rules, so that messages can name the proxy. gRPC opens a tunnel through the proxy (CONNECT), so the
proxy sees the coordinator's address and ciphertext only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from urllib.parse import unquote, urlsplit

_READ_BY_GRPC = ("grpc_proxy", "https_proxy", "http_proxy")
_NOT_READ_BY_GRPC = ("HTTPS_PROXY", "HTTP_PROXY", "GRPC_PROXY", "all_proxy", "ALL_PROXY")
_SCHEME = "http://"
_DEFAULT_PORT = 443
"""Port that gRPC takes for a proxy without a port."""


@dataclass(frozen=True)
class Proxy:
    """HTTP proxy and the environment variable that names it; as text, the password is left out."""

    variable: str
    host: str
    port: int
    login: str = field(repr=False)
    """User and password, joined by a colon; empty without them."""

    def __str__(self) -> str:
        user = f"{self.login.partition(':')[0]}:***@" if self.login else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{_SCHEME}{user}{host}:{self.port} (from {self.variable})"


def split_target(target: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, the host without brackets."""
    host, _, port = target.rpartition(":")
    return host.strip("[]"), int(port)


def proxy_to(host: str) -> Proxy | None:
    """Return the proxy through which gRPC connects to ``host``; None for a direct connection."""
    variable = next((name for name in _READ_BY_GRPC if name in os.environ), None)
    if variable is None or not os.environ[variable].startswith(_SCHEME):
        return None
    return None if _needs_none(host) else _parsed(variable)


def ignored_proxies() -> Iterator[Proxy]:
    """Yield the proxies that the environment names for other programs, and that gRPC does not read."""
    first = next((name for name in _READ_BY_GRPC if name in os.environ), None)
    for name in (*_READ_BY_GRPC, *_NOT_READ_BY_GRPC):
        value = os.environ.get(name, "")
        if value and not (name == first and value.startswith(_SCHEME)):
            proxy = _parsed(name)
            if proxy is not None:
                yield proxy


def _parsed(variable: str) -> Proxy | None:
    value = os.environ[variable]
    try:
        parts = urlsplit(value if "://" in value else _SCHEME + value)
        port = parts.port or _DEFAULT_PORT
    except ValueError:
        return None
    login = ":".join(unquote(part) for part in (parts.username, parts.password) if part is not None)
    return Proxy(variable, parts.hostname or "", port, login)


def _needs_none(host: str) -> bool:
    variable = "no_grpc_proxy" if "no_grpc_proxy" in os.environ else "no_proxy"
    exceptions = os.environ.get(variable, "")
    for entry in filter(None, map(str.strip, exceptions.split(","))):
        name = entry.lstrip(".").lower()
        if host.lower() == name or host.lower().endswith(f".{name}"):
            return True
        with suppress(ValueError):
            if ip_address(host) in ip_network(entry, strict=False):
                return True
    return False
