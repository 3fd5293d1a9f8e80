"""Trust anchor of a party, the federation's CA certificate, and the checks that a certificate must pass.

Limits: the CA can make any identity (a site can pin its peers' certificates against that), and there is no revocation
here: a certificate is valid until it expires.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from crypto.errors import VerificationError
from crypto.pki.identity import (
    Identity,
    Role,
    certificates_in,
    extension,
    issuer_text,
    load_certificate,
    only_uri,
    p256_key,
    parse_federation,
    subject_text,
)
from crypto.pki.key_files import errors_name_file, read

EXTENDED_USAGE = {
    Role.SITE: ExtendedKeyUsageOID.CLIENT_AUTH,
    Role.COORDINATOR: ExtendedKeyUsageOID.SERVER_AUTH,
}
"""Extended key usage by role; a role has one usage only, since with both a site could pose as the coordinator."""


class TrustAnchor:
    """CA certificate of a federation, the only certificate that a party trusts by itself."""

    def __init__(self, certificate: bytes) -> None:
        """Take a PEM or DER certificate; raise :class:`VerificationError` unless it is a self-signed federation CA."""
        self._certificate = load_certificate(certificate)
        if not extension(self._certificate, x509.BasicConstraints).ca:
            raise VerificationError(
                f"is the certificate of {subject_text(self._certificate)}, which is not a CA"
            )
        _check_issuer(self._certificate, self._certificate)
        p256_key(self._certificate)
        self.federation = parse_federation(only_uri(self._certificate))
        self.source = "memory"

    @classmethod
    def load(cls, path: Path) -> TrustAnchor:
        """Load a trust anchor from a file; raise as the class, and ``KeyStoreError`` if it cannot be read.

        A file may have other certificates beside the CA's, but not those of two CAs: only one can be trusted.
        """
        with errors_name_file(path):
            certificates = certificates_in(read(path))
            authorities = {item for item in certificates if _is_authority(item)} or set(certificates[:1])
            if len(authorities) > 1:
                raise VerificationError(
                    f"has the certificates of {len(authorities)} CAs: keep the one whose fingerprint was compared"
                )
            anchor = cls(authorities.pop().public_bytes(serialization.Encoding.DER))
            anchor.source = str(path)
            return anchor

    @property
    def certificate_pem(self) -> bytes:
        """CA certificate as PEM, for TLS."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the CA certificate (DER) in hexadecimal, which parties compare by telephone."""
        return fingerprint(self._certificate)

    def identify(self, certificate: bytes, role: Role, at: datetime) -> Identity:
        """Return the identity of a certificate (PEM or DER) that is valid at the time ``at`` (with a time zone).

        Raises :class:`VerificationError` unless this CA signed the certificate for a party of this federation in this
        role and both certificates are within their validity, and :class:`crypto.errors.MalformedError` for bytes that
        are not a certificate. Limit: TLS or a signature must show that the peer is the certificate's owner.
        """
        loaded = load_certificate(certificate)
        # RFC 5280, section 6.1, for a path of length one: issuer, validity, constraints, usage, name.
        _check_issuer(loaded, self._certificate)
        check_validity(self._certificate, at)
        check_validity(loaded, at)
        p256_key(loaded)
        # A party whose certificate were a CA's could issue others.
        if extension(loaded, x509.BasicConstraints).ca:
            raise VerificationError("a certificate is a CA's, where a party's certificate is required")
        # An unknown critical extension may restrict the certificate in a way that is not understood here (4.2).
        for item in loaded.extensions:
            if item.critical and isinstance(item.value, x509.UnrecognizedExtension):
                raise VerificationError(
                    f"a certificate has an unknown critical extension {item.oid.dotted_string}"
                )
        if not extension(loaded, x509.KeyUsage).digital_signature:
            raise VerificationError("a certificate's key usage does not allow signatures")
        # Exactly one usage: with both, a site could pose as the coordinator in TLS.
        if list(extension(loaded, x509.ExtendedKeyUsage)) != [EXTENDED_USAGE[role]]:
            raise VerificationError(
                f"the certificate of {subject_text(loaded)} is not a {role}'s, by its extended key usage"
            )
        identity = claimed_identity(loaded)
        if identity.federation != self.federation:
            raise VerificationError(f"{identity} is not in the federation {self.federation}")
        if identity.role is not role:
            raise VerificationError(f"{identity} is not a {role}")
        return identity


def claimed_identity(certificate: x509.Certificate) -> Identity:
    """Return the identity that a certificate *claims*; raise :class:`VerificationError` unless it claims one."""
    return Identity.from_uri(only_uri(certificate))


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate (DER) in hexadecimal."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def _check_issuer(certificate: x509.Certificate, authority: x509.Certificate) -> None:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError) as error:
        if issuer_text(certificate) == subject_text(authority):
            raise VerificationError(
                f"the certificate of {subject_text(certificate)} was altered, or another CA by the name "
                f"{subject_text(authority)} signed it: the key of the CA whose fingerprint begins "
                f"{fingerprint(authority)[:16]} did not; compare the fingerprints of both sides' ca.pem: if they"
                " differ, one side has the wrong ca.pem; if they are equal, the certificate has to be requested again"
            ) from error
        raise VerificationError(
            f"the certificate of {subject_text(certificate)} was signed by {issuer_text(certificate)} and not by this "
            f"federation's CA, {subject_text(authority)}, whose fingerprint begins {fingerprint(authority)[:16]}"
        ) from error


def check_validity(certificate: x509.Certificate, at: datetime) -> None:
    """Raise :class:`VerificationError` unless the certificate is valid at ``at`` (with a time zone)."""
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if start <= at <= end:
        return
    early = at < start
    bound = f"from {start:%Y-%m-%d %H:%M}" if early else f"until {end:%Y-%m-%d %H:%M}"
    remedy = "compare the clocks of the two machines" if early else "renew it"
    raise VerificationError(
        f"the certificate of {subject_text(certificate)} is valid {bound} UTC, and not at {at:%Y-%m-%d %H:%M} UTC: "
        f"{remedy}"
    )


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return extension(certificate, x509.BasicConstraints).ca
    except VerificationError:
        return False
