"""The federation's CA as every party holds it, and what a certificate must be to be believed.

The limit of all of it: the CA can make any identity it likes (a site may pin its peers' certificates against
that), and there is no revocation here; a certificate is good until it expires.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from crypto.errors import VerificationError
from crypto.pki.fields import extension, load_certificate, only_uri, p256_key
from crypto.pki.files import naming, read
from crypto.pki.identity import Identity, Role, federation_of

EXTENDED_USAGE = {
    Role.SITE: ExtendedKeyUsageOID.CLIENT_AUTH,
    Role.COORDINATOR: ExtendedKeyUsageOID.SERVER_AUTH,
}
"""Each role has one usage and not the other: with both, a site could pose as the coordinator."""


class TrustAnchor:
    """A federation's CA certificate: what a party trusts, and all it trusts."""

    def __init__(self, certificate: bytes) -> None:
        """``certificate``: PEM or DER; :class:`VerificationError` unless it is a federation's own CA."""
        self._certificate = load_certificate(certificate)
        _check_issuer(self._certificate, self._certificate)
        _check_is_authority(self._certificate)
        _check_key(self._certificate)
        self.federation = federation_of(only_uri(self._certificate))

    @classmethod
    def load(cls, path: Path) -> TrustAnchor:
        """From a file; raises like the class, and ``KeyStoreError`` when it cannot be read."""
        with naming(path):
            return cls(read(path))

    @property
    def certificate_pem(self) -> bytes:
        """The CA certificate as PEM, for TLS."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the CA certificate (DER) in hexadecimal: what parties compare by telephone."""
        return fingerprint(self._certificate)

    def identify(self, certificate: bytes, role: Role, at: datetime) -> Identity:
        """Whose certificate (PEM or DER) this is, at the time ``at`` (with a time zone).

        Raises :class:`VerificationError` unless this CA signed it as a party's of this federation in this
        very role and both are in their validity, and :class:`crypto.errors.MalformedError` if it is no
        certificate. That its owner is at the other end is for TLS, or for a signature, to show.
        """
        loaded = load_certificate(certificate)
        _check_issuer(loaded, self._certificate)
        check_validity(self._certificate, at)
        check_validity(loaded, at)
        _check_key(loaded)
        _check_not_authority(loaded)
        _check_critical_extensions(loaded)
        _check_key_usage(loaded)
        _check_extended_usage(loaded, role)
        identity = identity_of(loaded)
        _check_federation(identity, self.federation)
        _check_role(identity, role)
        return identity


def identity_of(certificate: x509.Certificate) -> Identity:
    """The identity that a certificate *claims*; :class:`VerificationError` unless it claims exactly one."""
    return Identity.from_uri(only_uri(certificate))


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate (DER) in hexadecimal."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def _check_issuer(certificate: x509.Certificate, authority: x509.Certificate) -> None:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise VerificationError("a certificate was not signed by this federation's CA") from error


def check_validity(certificate: x509.Certificate, at: datetime) -> None:
    """Raise :class:`VerificationError` unless the certificate is valid at ``at`` (with a time zone)."""
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not start <= at <= end:
        raise VerificationError(
            f"the certificate of {certificate.subject.rfc4514_string()} is valid from {start:%Y-%m-%d %H:%M} "
            f"to {end:%Y-%m-%d %H:%M} UTC, not at {at:%Y-%m-%d %H:%M}: check the clock, or renew it"
        )


def _check_key(certificate: x509.Certificate) -> None:
    p256_key(certificate)


def _check_is_authority(certificate: x509.Certificate) -> None:
    if not extension(certificate, x509.BasicConstraints).ca:
        raise VerificationError("a certificate is not a CA's")


def _check_not_authority(certificate: x509.Certificate) -> None:
    if extension(certificate, x509.BasicConstraints).ca:
        raise VerificationError("a CA's certificate where a party's is due")


def _check_critical_extensions(certificate: x509.Certificate) -> None:
    """RFC 5280, 4.2: what is critical and not understood makes a certificate void."""
    for item in certificate.extensions:
        if item.critical and isinstance(item.value, x509.UnrecognizedExtension):
            raise VerificationError(
                f"a certificate has an unknown critical extension {item.oid.dotted_string}"
            )


def _check_key_usage(certificate: x509.Certificate) -> None:
    if not extension(certificate, x509.KeyUsage).digital_signature:
        raise VerificationError("a certificate's key may not sign")


def _check_extended_usage(certificate: x509.Certificate, role: Role) -> None:
    if list(extension(certificate, x509.ExtendedKeyUsage)) != [EXTENDED_USAGE[role]]:
        raise VerificationError(f"a certificate's extended key usage is not that of a {role} alone")


def _check_federation(identity: Identity, federation: str) -> None:
    if identity.federation != federation:
        raise VerificationError(f"{identity} is not of the federation {federation}")


def _check_role(identity: Identity, role: Role) -> None:
    if identity.role is not role:
        raise VerificationError(f"{identity} is not a {role}")
