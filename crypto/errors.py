"""Exceptions of :mod:`crypto`, one type per outcome that a caller can distinguish.

    CryptoError
    ├── MalformedError       bytes or arrays do not have their scheme's form
    │   └── UnknownSchemeError   this build does not know the scheme or version marker
    ├── VerificationError    a signature, certificate or binding is invalid
    ├── DecryptionError      an authenticated ciphertext does not decrypt
    ├── ImplausibleError     no honest computation gives the decrypted answer
    ├── PrecisionError       the chosen parameters cannot represent a value
    │   └── BoundError           a value exceeds its agreed bound
    ├── GraphError           no sparse graph of a masked sum is as safe as requested
    └── KeyStoreError        a key file is missing, already exists, or has another passphrase

A check that fails raises; nothing in this package returns a bool for "verified".
"""

from __future__ import annotations

__all__ = [
    "BoundError",
    "CryptoError",
    "DecryptionError",
    "GraphError",
    "ImplausibleError",
    "KeyStoreError",
    "MalformedError",
    "PrecisionError",
    "UnknownSchemeError",
    "VerificationError",
]


class CryptoError(Exception):
    """Base class of every error of this package."""


class MalformedError(CryptoError):
    """Error: bytes or arrays do not have their scheme's form."""


class UnknownSchemeError(MalformedError):
    """Error: this build does not know the scheme or version marker."""


class VerificationError(CryptoError):
    """Error: a signature, a certificate or a binding is invalid."""


class DecryptionError(CryptoError):
    """Error: an authenticated ciphertext does not decrypt; the cause is withheld on purpose."""


class ImplausibleError(CryptoError):
    """Error: no honest computation gives the decrypted answer.

    The error depends on a decryption, so the sender of the answer must not learn whether it was raised.
    """


class PrecisionError(CryptoError):
    """Error: the chosen parameters cannot represent a value."""


class BoundError(PrecisionError):
    """Error: a value is not finite, or exceeds its agreed bound, and must not be sent."""


class GraphError(CryptoError):
    """Error: no sparse graph resists that many colluders and tolerates that many drop-outs."""


class KeyStoreError(CryptoError):
    """Error: a key file is missing, already exists, or has another passphrase."""
