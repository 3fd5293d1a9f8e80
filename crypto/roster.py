"""Roster of a run: the sites that take part, each with a channel key that it signed itself.

Each site verifies every statement against the CA, finds its own statement unaltered, and requires its own minimum
number of sites. So the coordinator, which relays the statements, can neither add, swap nor alter a key.

Limits: the coordinator can leave sites out, and can show two sites different rosters; protocol steps that need one
roster for all therefore bind the roster's hash. The holder of the CA's key can add members, except under the name of
a pinned site.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from cryptography.hazmat.primitives.asymmetric import ec

from crypto.errors import VerificationError
from crypto.keys import check_channel_public, check_distinct, encode
from crypto.pki import Credentials, Identity, Role, TrustAnchor, verify
from crypto.pki.identity import load_certificate, p256_key
from crypto.pki.trust import fingerprint

_LABEL = "channel-key"


@dataclass(frozen=True)
class Statement:
    """Signed statement of a site's channel key (X25519, 32 bytes) for one run, with its certificate (DER)."""

    site: str
    certificate: bytes = field(repr=False)
    channel_key: bytes
    signature: bytes = field(repr=False)


@dataclass(frozen=True)
class Member:
    """Site whose statement was verified; ``fingerprint`` is the SHA-256 of its certificate (DER), hexadecimal."""

    name: str
    channel_key: bytes
    public_key: ec.EllipticCurvePublicKey = field(repr=False)
    fingerprint: str


@dataclass(frozen=True)
class Roster:
    """Verified members by name, sorted and read-only, and the hash (32 bytes) of all their statements."""

    members: Mapping[str, Member]
    hash: bytes

    @property
    def maker(self) -> str:
        """Name of the member that makes the group's secrets: the first by name, so that nobody chooses."""
        return next(iter(self.members))


def sign_statement(
    credentials: Credentials, run: str, agreement_hash: bytes, channel_public: bytes
) -> Statement:
    """Sign this site's channel key for a run under the agreement with this SHA-256."""
    site, certificate = credentials.identity.name, credentials.certificate_der
    fields = _fields(site, certificate, channel_public, run, agreement_hash)
    return Statement(site, certificate, channel_public, credentials.sign(_LABEL, *fields))


def verify_statement(
    trust: TrustAnchor, statement: Statement, run: str, agreement_hash: bytes, at: datetime
) -> Member:
    """Return the member that made the statement for this run and agreement, at the time ``at`` (with a time zone).

    Raises :class:`VerificationError` unless the certificate belongs to a site of this federation with the stated name,
    its key signed exactly this statement, and the channel key is usable, and :class:`crypto.errors.MalformedError` for
    bytes that are not a certificate.
    """
    identity = trust.identify(statement.certificate, Role.SITE, at)
    _check_name(statement, identity)
    check_channel_public(statement.channel_key)
    certificate = load_certificate(statement.certificate)
    public_key = p256_key(certificate)
    _check_signature(statement, public_key, run, agreement_hash)
    return Member(identity.name, statement.channel_key, public_key, fingerprint(certificate))


def assemble_roster(
    statements: Sequence[Statement], *, trust: TrustAnchor, run: str, agreement_hash: bytes, at: datetime
) -> Roster:
    """Return the roster of the members that the statements prove, with distinct names and channel keys.

    Raises as :func:`verify_statement`, and :class:`VerificationError` for a repeated name or channel key. Limit:
    missing sites are not noticed; a site uses :func:`verify_roster`.
    """
    _check_names_distinct(statements)
    verified = [verify_statement(trust, statement, run, agreement_hash, at) for statement in statements]
    _check_keys_distinct(verified)
    members = {member.name: member for member in sorted(verified, key=lambda member: member.name)}
    return Roster(MappingProxyType(members), _hash(statements, run, agreement_hash))


def verify_roster(
    statements: Sequence[Statement],
    *,
    trust: TrustAnchor,
    run: str,
    agreement_hash: bytes,
    own: Statement,
    minimum: int,
    pins: Mapping[str, str],
    at: datetime,
) -> Roster:
    """Return the roster, at a site, of the statements that the coordinator relays.

    ``minimum`` is this site's least number of sites, itself included. ``pins`` maps a peer's name to the fingerprint
    (64 lower-case hexadecimal digits) of the only certificate the peer may have; a name without a pin rests on the CA
    alone. Raises as :func:`assemble_roster`, and :class:`VerificationError` if ``own`` is absent or altered, a pin
    does not match, or there are fewer than ``minimum`` sites.
    """
    _check_own(statements, own)
    _check_minimum(len(statements), minimum)
    roster = assemble_roster(statements, trust=trust, run=run, agreement_hash=agreement_hash, at=at)
    _check_pins(tuple(roster.members.values()), pins)
    return roster


def _fields(
    site: str, certificate: bytes, channel_key: bytes, run: str, agreement_hash: bytes
) -> tuple[bytes, ...]:
    return (site.encode(), certificate, channel_key, run.encode(), agreement_hash)


def _hash(statements: Sequence[Statement], run: str, agreement_hash: bytes) -> bytes:
    """Return the hash of the statements without their signatures, which can be altered and stay valid."""
    fields = [run.encode(), agreement_hash]
    for statement in sorted(statements, key=lambda statement: statement.site):
        fields += [statement.site.encode(), statement.certificate, statement.channel_key]
    return hashlib.sha256(encode("roster", *fields)).digest()


def _check_name(statement: Statement, identity: Identity) -> None:
    if statement.site != identity.name:
        raise VerificationError(
            f"the statement of {statement.site} comes with the certificate of {identity.name}"
        )


def _check_signature(
    statement: Statement, public_key: ec.EllipticCurvePublicKey, run: str, agreement_hash: bytes
) -> None:
    fields = _fields(statement.site, statement.certificate, statement.channel_key, run, agreement_hash)
    verify(public_key, statement.signature, _LABEL, *fields)


def _check_names_distinct(statements: Sequence[Statement]) -> None:
    if len({statement.site for statement in statements}) != len(statements):
        raise VerificationError("the roster names a site twice")


def _check_own(statements: Sequence[Statement], own: Statement) -> None:
    if own not in statements:
        raise VerificationError(f"the roster lacks the statement of {own.site}, or has an altered one")


def _check_minimum(count: int, minimum: int) -> None:
    if count < minimum:
        raise VerificationError(f"the roster has {count} sites; this site requires {minimum} or more")


def _check_keys_distinct(members: Sequence[Member]) -> None:
    """Raise if two sites have the same channel key, which would count one party twice."""
    keys = [member.channel_key for member in members]
    check_distinct(keys, "two sites of the roster have the same channel key")


def _check_pins(members: Sequence[Member], pins: Mapping[str, str]) -> None:
    for member in members:
        if pins.get(member.name, member.fingerprint) != member.fingerprint:
            raise VerificationError(
                f"the certificate of {member.name} ({member.fingerprint}) is not the pinned one; "
                "ask that site, and change the pin only if it renewed its certificate"
            )
