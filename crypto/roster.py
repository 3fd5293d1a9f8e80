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
from crypto.pki import Credentials, Role, TrustAnchor, verify
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
    # Otherwise a member could state a key under another member's name, with its own certificate.
    if statement.site != identity.name:
        raise VerificationError(
            f"the statement of {statement.site} comes with the certificate of {identity.name}"
        )
    check_channel_public(statement.channel_key)
    certificate = load_certificate(statement.certificate)
    public_key = p256_key(certificate)
    # Run and agreement are this verifier's own, so a statement for another run does not verify.
    fields = _fields(statement.site, statement.certificate, statement.channel_key, run, agreement_hash)
    verify(public_key, statement.signature, _LABEL, *fields)
    return Member(identity.name, statement.channel_key, public_key, fingerprint(certificate))


def assemble_roster(
    statements: Sequence[Statement], *, trust: TrustAnchor, run: str, agreement_hash: bytes, at: datetime
) -> Roster:
    """Return the roster of the members that the statements prove, with distinct names and channel keys.

    Raises as :func:`verify_statement`, and :class:`VerificationError` for a repeated name or channel key. Limit:
    missing sites are not noticed; a site uses :func:`verify_roster`.
    """
    if len({statement.site for statement in statements}) != len(statements):
        raise VerificationError("the roster names a site twice")
    verified = [verify_statement(trust, statement, run, agreement_hash, at) for statement in statements]
    # One key under two names would count one party as two.
    check_distinct(
        [member.channel_key for member in verified], "two sites of the roster have the same channel key"
    )
    members = {member.name: member for member in sorted(verified, key=lambda member: member.name)}
    # Signatures are left out of the hash: anyone can turn one into another that holds.
    fields = [run.encode(), agreement_hash]
    for statement in sorted(statements, key=lambda statement: statement.site):
        fields += [statement.site.encode(), statement.certificate, statement.channel_key]
    return Roster(MappingProxyType(members), hashlib.sha256(encode("roster", *fields)).digest())


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
    # The whole statement is compared: the coordinator may have an older one of this site, whose key has leaked.
    if own not in statements:
        raise VerificationError(f"the roster lacks the statement of {own.site}, or has an altered one")
    if len(statements) < minimum:
        raise VerificationError(
            f"the roster has {len(statements)} sites; this site requires {minimum} or more"
        )
    roster = assemble_roster(statements, trust=trust, run=run, agreement_hash=agreement_hash, at=at)
    # A dishonest CA can certify any name anew; a pinned name keeps the certificate that the peers compared.
    for member in roster.members.values():
        if pins.get(member.name, member.fingerprint) != member.fingerprint:
            raise VerificationError(
                f"the certificate of {member.name} ({member.fingerprint}) is not the pinned one; "
                "ask that site, and change the pin only if it renewed its certificate"
            )
    return roster


def _fields(
    site: str, certificate: bytes, channel_key: bytes, run: str, agreement_hash: bytes
) -> tuple[bytes, ...]:
    return (site.encode(), certificate, channel_key, run.encode(), agreement_hash)
