"""Identity of a party, a SPIFFE-style URI in its certificate, and host names of a coordinator."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import ip_address

from cryptography import x509

from crypto.errors import VerificationError

NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,62}")
_SCHEME = "spiffe://"
_HOST_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST = re.compile(rf"{_HOST_LABEL}(\.{_HOST_LABEL})*")


class Role(StrEnum):
    """Role that a certificate gives its owner."""

    SITE = "site"
    COORDINATOR = "coordinator"


@dataclass(frozen=True)
class Identity:
    """Party of a federation; the coordinator's ``name`` is always ``coordinator``.

    Names are 1 to 63 lower-case letters, digits, dots and hyphens, the first a letter or digit; other names raise
    ``ValueError``.
    """

    federation: str
    role: Role
    name: str

    def __post_init__(self) -> None:
        check_name("federation", self.federation)
        check_name("site", self.name)
        if self.role is Role.COORDINATOR and self.name != Role.COORDINATOR.value:
            raise ValueError("a coordinator's name must be 'coordinator'")

    @classmethod
    def site(cls, federation: str, name: str) -> Identity:
        """Return the identity of a site."""
        return cls(federation, Role.SITE, name)

    @classmethod
    def coordinator(cls, federation: str) -> Identity:
        """Return the identity of the federation's coordinator."""
        return cls(federation, Role.COORDINATOR, Role.COORDINATOR.value)

    @classmethod
    def from_uri(cls, uri: str) -> Identity:
        """Parse the form of :attr:`uri`; raise :class:`VerificationError` for any other form."""
        federation, _, path = uri.removeprefix(_SCHEME).partition("/")
        try:
            identity = (
                cls.coordinator(federation)
                if path == Role.COORDINATOR.value
                else cls.site(federation, path.removeprefix("site/"))
            )
        except ValueError as error:
            raise VerificationError(f"{uri!r} names no site and no coordinator") from error
        if identity.uri != uri:
            raise VerificationError(f"{uri!r} names no site and no coordinator")
        return identity

    @property
    def uri(self) -> str:
        """URI ``spiffe://<federation>/site/<name>`` or ``spiffe://<federation>/coordinator``."""
        path = self.name if self.role is Role.COORDINATOR else f"site/{self.name}"
        return f"{federation_uri(self.federation)}/{path}"

    def __str__(self) -> str:
        return self.uri


def check_name(kind: str, name: str) -> None:
    """Raise ``ValueError`` unless ``name`` is a permitted name of a federation or site."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{kind} name {name!r} is not 1 to 63 of a-z, 0-9, '.' and '-', starting with a letter or digit"
        )


def federation_uri(federation: str) -> str:
    """Return the URI of the federation's CA."""
    return f"{_SCHEME}{federation}"


def federation_of(uri: str) -> str:
    """Return the federation whose CA has this URI; raise :class:`VerificationError` for any other form."""
    federation = uri.removeprefix(_SCHEME)
    if federation_uri(federation) != uri or not NAME.fullmatch(federation):
        raise VerificationError(f"{uri!r} names no federation")
    return federation


def host_name(host: str) -> x509.DNSName | x509.IPAddress:
    """Return a DNS name or IP address for a certificate; raise ``ValueError`` for other text, wildcards included."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        name = host.lower()
    if len(name) > 253 or not _HOST.fullmatch(name):
        raise ValueError(f"host {host!r} is neither a DNS name nor an IP address")
    return x509.DNSName(name)
