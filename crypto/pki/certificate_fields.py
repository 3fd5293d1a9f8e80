"""Readers of the fields of certificates and requests, which check that a field is present, single and well-formed."""

from __future__ import annotations

from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from crypto.errors import MalformedError, VerificationError

Extension = TypeVar("Extension", bound=x509.ExtensionType)
Holder = x509.Certificate | x509.CertificateSigningRequest


def load_certificate(content: bytes) -> x509.Certificate:
    """Load a certificate from PEM or DER; raise :class:`MalformedError` for other bytes."""
    try:
        if content.startswith(b"-----BEGIN"):
            return x509.load_pem_x509_certificate(content)
        return x509.load_der_x509_certificate(content)
    except (ValueError, x509.InvalidVersion) as error:
        raise MalformedError("these bytes are not an X.509 certificate") from error


def extension(holder: Holder, kind: type[Extension]) -> Extension:
    """Return the value of an extension; raise :class:`VerificationError` if it is absent, repeated or malformed."""
    try:
        return holder.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError) as error:
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
    except ValueError as error:
        raise VerificationError(f"a {_noun(holder)} has a key that cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise VerificationError(f"a {_noun(holder)} has a key that is not ECDSA P-256")
    return key


def _noun(holder: Holder) -> str:
    return "certificate" if isinstance(holder, x509.Certificate) else "request"
