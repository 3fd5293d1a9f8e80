"""The exceptions of :mod:`crypto`: one type per outcome that a caller can tell apart.

    CryptoError
    ├── MalformedError       bytes or arrays that are not what their scheme says
    │   └── UnknownSchemeError   a scheme or version marker that this build does not know
    ├── VerificationError    a signature, certificate or binding that does not hold
    ├── DecryptionError      an authenticated ciphertext that does not open
    ├── ImplausibleError     a decrypted answer that no honest computation gives
    ├── PrecisionError       a value that the chosen parameters cannot carry
    │   └── BoundError           a value beyond the bound that was agreed for it
    ├── GraphError           no sparse graph of a masked sum is as safe as is asked for
    └── KeyStoreError        a key file that is missing, already there, or locked by another passphrase

A check that fails raises; nothing in this package returns a bool for "verified".
"""

from __future__ import annotations


class CryptoError(Exception):
    """Base of every error of this package."""


class MalformedError(CryptoError):
    """Bytes or arrays are not what their scheme says they are."""


class UnknownSchemeError(MalformedError):
    """A scheme or version marker is not one of this build's."""


class VerificationError(CryptoError):
    """A signature, a certificate or a binding does not hold."""


class DecryptionError(CryptoError):
    """An authenticated ciphertext does not open. The cause is not told apart, on purpose."""


class ImplausibleError(CryptoError):
    """A decrypted answer is none that an honest computation gives.

    Whether this was raised follows from a decryption, so it must not show to whoever sent the answer.
    """


class PrecisionError(CryptoError):
    """A value lies outside what the chosen parameters can carry."""


class BoundError(PrecisionError):
    """A value is not finite, or lies beyond the bound that was agreed for it: nothing may be sent."""


class GraphError(CryptoError):
    """No sparse graph holds off so many colluders and goes on without so many members."""


class KeyStoreError(CryptoError):
    """A key file is missing, is already there, or is locked by another passphrase."""
