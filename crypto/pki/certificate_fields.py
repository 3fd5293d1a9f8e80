"""Readers of the fields of certificates and requests, which check that a field is present, single and well-formed."""

from __future__ import annotations

from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec

from crypto.errors import MalformedError, VerificationError
from crypto.pki import pem

Extension = TypeVar("Extension", bound=x509.ExtensionType)
Holder = x509.Certificate | x509.CertificateSigningRequest
_LONGEST_NAME = 200


def load_certificate(content: bytes) -> x509.Certificate:
    """Load a certificate from PEM or DER; raise :class:`MalformedError` for other bytes."""
    try:
        if content.startswith(b"-----BEGIN"):
            return x509.load_pem_x509_certificate(content)
        return x509.load_der_x509_certificate(content)
    except (ValueError, x509.InvalidVersion) as error:
        raise MalformedError("these bytes are not an X.509 certificate") from error


def certificates_in(content: bytes) -> list[x509.Certificate]:
    """Return the certificates of a file that people handle: a DER certificate, or PEM with one or several.

    Raises :class:`MalformedError`, whose message follows the file's name.
    """
    try:
        return [x509.load_der_x509_certificate(der) for der in pem.contents(content, pem.CERTIFICATE)]
    except (ValueError, x509.InvalidVersion) as error:
        raise MalformedError("is damaged: what it calls a certificate is none") from error


def extension(holder: Holder, kind: type[Extension]) -> Extension:
    """Return the value of an extension; raise :class:`VerificationError` if it is absent, repeated or malformed."""
    try:
        return holder.extensions.get_extension_for_class(kind).value
    except (
        x509.ExtensionNotFound,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
        ValueError,
    ) as error:
        raise VerificationError(f"a {_noun(holder)} has no usable {kind.__name__}") from error


def only_uri(holder: Holder) -> str:
    """Return the URI among the alternative names; raise :class:`VerificationError` unless there is exactly one."""
    names = extension(holder, x509.SubjectAlternativeName)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise VerificationError(f"a {_noun(holder)} names {len(uris)} identities, not one")
    return uris[0]


def p256_key(holder: Holder) -> ec.EllipticCurvePublicKey:
    """Return the public key; raise :class:`VerificationError` unless it is ECDSA P-256."""
    try:
        key = holder.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise VerificationError(
            f"the {_noun(holder)} of {subject_of(holder)} has a key that cannot be read"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise VerificationError(
            f"the {_noun(holder)} of {subject_of(holder)} has a key that is not ECDSA P-256, so 'protoseal pki' did "
            "not make it"
        )
    return key


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names and IP addresses; raise :class:`VerificationError` without alternative names."""
    names = extension(certificate, x509.SubjectAlternativeName)
    return [str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress)]


def subject_of(holder: Holder) -> str:
    """Return the name of the owner of a certificate or request, for people to read and not for any check."""
    try:
        return holder.subject.rfc4514_string()[:_LONGEST_NAME] or "(no name)"
    except ValueError:
        return "(a name that cannot be read)"


def issuer_of(certificate: x509.Certificate) -> str:
    """Return the name that the certificate gives its signer, for people to read and not for any check."""
    try:
        return certificate.issuer.rfc4514_string()[:_LONGEST_NAME] or "(no name)"
    except ValueError:
        return "(a name that cannot be read)"


def _noun(holder: Holder) -> str:
    return "certificate" if isinstance(holder, x509.Certificate) else "request"
