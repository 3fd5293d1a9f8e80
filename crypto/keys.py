"""Keys of a run, and the canonical encoding of what is signed, hashed or bound to a key.

Channel keys are X25519, keys derived from secrets HKDF, keys for storage at rest ChaCha20-Poly1305. Every random value
comes from the operating system. Limit: Python cannot wipe memory, so whoever can read the memory of the process can
read every key here.

The encoding (:func:`encode`) is ``protoseal/v1/<label>`` followed by each field, prefixed with its length (8 bytes,
big-endian). A label has no zero byte and every length starts with a zero byte (no field reaches 2^56 bytes), so two
different calls never give the same bytes. The label contains the version, so that bytes of another version of this
encoding never verify as this version's.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from crypto.errors import DecryptionError, MalformedError, UnknownSchemeError, VerificationError

_PREFIX = "protoseal/v1/"
_ENCODING_LABEL = re.compile(r"[a-z0-9-]+")


def encode(label: str, *fields: bytes) -> bytes:
    """Return the canonical bytes of ``fields`` for the purpose ``label`` (lower-case letters, digits, hyphens).

    Raises ``ValueError`` for any other label; labels are constants of the calling code.
    """
    if not _ENCODING_LABEL.fullmatch(label):
        raise ValueError(f"label {label!r} must consist of a-z, 0-9 and hyphens")
    parts = [f"{_PREFIX}{label}".encode()]
    for field in fields:
        parts += [len(field).to_bytes(8, "big"), field]
    return b"".join(parts)


__all__ = ["KEY_BYTES", "derive"]

KEY_BYTES = 32
"""Length of every key that :func:`derive` returns."""
LEAST_SECRET_BYTES = 16
"""Length of the shortest secret that :func:`derive` takes."""
_FIELD_PRIME = 2**255 - 19
_LOW_ORDER = frozenset(
    {
        0,
        1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
        _FIELD_PRIME - 1,
    }
)
"""Canonical u-coordinates of the points of order 1, 2, 4 and 8 on the curve and its twist."""
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_COMPARER = X25519PrivateKey.from_private_bytes(bytes(range(1, KEY_BYTES + 1)))
"""Public constant as a private key: equivalent public keys give equal shared secrets with it."""
_STORED_MARKER = b"protoseal-stored-1:"
_NONCE_BYTES = 12


def derive(secret: bytes, label: str, *context: bytes) -> bytes:
    """Derive 32 bytes from ``secret`` for one purpose: HKDF-SHA256 (RFC 5869), no salt, info = ``encode(label, …)``.

    ``secret`` must be hard to guess (a key, never a passphrase), because HKDF is fast. Raises ``ValueError`` for fewer
    than :data:`LEAST_SECRET_BYTES`: from an empty secret everybody derives the same key.
    """
    if len(secret) < LEAST_SECRET_BYTES:
        raise ValueError(f"a secret of {len(secret)} bytes can be guessed; {LEAST_SECRET_BYTES} are needed")
    info = encode(label, *context)
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


class ChannelKey:
    """X25519 key of a site for one run; other sites seal messages to its public half.

    Limit: the key is kept for the whole run, so there is no forward secrecy within the run: whoever obtains the key can
    open everything that was sealed to it.
    """

    def __init__(self, private: X25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def generate(cls) -> ChannelKey:
        """Generate a key from the operating system's randomness."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def from_private_bytes(cls, private: bytes) -> ChannelKey:
        """Load the key that :meth:`private_bytes` returned; raise :class:`MalformedError` unless it has 32 bytes."""
        if len(private) != KEY_BYTES:
            raise MalformedError(f"a channel key must have {KEY_BYTES} bytes, not {len(private)}")
        return cls(X25519PrivateKey.from_private_bytes(private))

    def private_bytes(self) -> bytes:
        """Return the *secret* half, 32 bytes, which must be stored encrypted only (:class:`StorageKey`)."""
        return self._private.private_bytes_raw()

    @property
    def public_bytes(self) -> bytes:
        """Public half, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """Decrypt a message sealed (:func:`seal`) to this key and ``info``; raise :class:`DecryptionError` for others.

        Limit: anyone can seal a message, so the caller must check the sender's signature.
        """
        try:
            return _SUITE.decrypt(sealed, self._private, info)
        except (InvalidTag, ValueError) as error:
            raise DecryptionError("a sealed message does not open with this key and context") from error

    def __repr__(self) -> str:
        return f"ChannelKey(public={self.public_bytes.hex()[:16]}…, private=<redacted>)"


def seal(public: bytes, plaintext: bytes, info: bytes) -> bytes:
    """Encrypt to a channel key: HPKE base mode (RFC 9180), X25519, HKDF-SHA256, ChaCha20-Poly1305.

    The result is the encapsulated key followed by the ciphertext (48 bytes more than ``plaintext``), and decrypts only
    under the same ``info``. Limit: the sender is not authenticated. Raises :class:`VerificationError` for a public key
    that :func:`check_channel_public` rejects.
    """
    check_channel_public(public)
    return _SUITE.encrypt(plaintext, X25519PublicKey.from_public_bytes(public), info)


def check_channel_public(public: bytes) -> None:
    """Raise :class:`VerificationError` unless ``public`` is an X25519 key in canonical form and not of low order."""
    # X25519 decodes several byte strings to one point, so a repeated key could hide behind another form.
    if len(public) != KEY_BYTES or int.from_bytes(public, "little") >= _FIELD_PRIME:
        raise VerificationError("a channel key is not 32 bytes in canonical form (RFC 7748)")
    # Everyone knows the secret shared with a point of low order (RFC 7748, section 6.1).
    if int.from_bytes(public, "little") in _LOW_ORDER:
        raise VerificationError("a channel key is a point of low order")


def check_distinct(publics: Sequence[bytes], refusal: str) -> None:
    """Raise :class:`VerificationError` with the text ``refusal`` if two of these X25519 keys are equivalent.

    Keys that differ by a point of small order agree to the same secrets with everyone, so whoever has one has both.
    """
    if len({comparable(public) for public in publics}) != len(publics):
        raise VerificationError(refusal)


@lru_cache(maxsize=4096)
def comparable(public: bytes) -> bytes:
    """Return 32 bytes that are equal for two X25519 keys if and only if both agree to the same secrets.

    The bytes are the shared secret with a fixed key, whose scalar is a multiple of 8 and so cancels every point of
    small order. A point of small order itself, which :func:`check_channel_public` rejects, is returned unchanged.
    """
    try:
        return _COMPARER.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return public


class StorageKey:
    """Key that encrypts a site's secrets at rest: ChaCha20-Poly1305 with random nonces.

    Limits: the encryption protects against reading the disk, not against restoring an older copy of it, and random
    96-bit nonces allow at most 2^32 messages per key.
    """

    def __init__(self, key: bytes) -> None:
        """Take 32 secret random bytes, such as :func:`crypto.pki.key_files.create_storage_key` draws."""
        self._cipher = ChaCha20Poly1305(key)

    def encrypt(self, plaintext: bytes, associated: bytes) -> bytes:
        """Return version marker, nonce and ciphertext; ``associated`` (e.g. the secret's name) is bound, not stored."""
        # A counter would repeat nonces when an older copy of the disk is restored; random nonces do not.
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return (
            _STORED_MARKER
            + nonce
            + self._cipher.encrypt(nonce, plaintext, encode("stored-secret", associated))
        )

    def decrypt(self, stored: bytes, associated: bytes) -> bytes:
        """Return the plaintext of :meth:`encrypt`.

        Raises :class:`UnknownSchemeError` for another version marker, and :class:`DecryptionError` for altered bytes or
        another key's.
        """
        if not stored.startswith(_STORED_MARKER):
            raise UnknownSchemeError("a stored secret lacks this build's version marker")
        body = stored.removeprefix(_STORED_MARKER)
        try:
            return self._cipher.decrypt(
                body[:_NONCE_BYTES], body[_NONCE_BYTES:], encode("stored-secret", associated)
            )
        except (InvalidTag, ValueError) as error:
            raise DecryptionError(
                "a stored secret does not decrypt: it was altered, or stored under another storage key"
            ) from error

    def __repr__(self) -> str:
        return "StorageKey(<redacted>)"
