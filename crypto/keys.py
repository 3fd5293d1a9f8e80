"""Keys of a run: channel keys (X25519), keys derived from secrets (HKDF), keys for storage at rest.

Every random value comes from the operating system. Python cannot wipe memory: whoever can read the memory of
the process can read every key here.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from functools import lru_cache

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from crypto.encoding import encode
from crypto.errors import DecryptionError, MalformedError, UnknownSchemeError, VerificationError

KEY_BYTES = 32
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
"""The canonical ones among the points of order 1, 2, 4 and 8 on the curve and its twist, by their u-coordinates."""
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_COMPARER = X25519PrivateKey.from_private_bytes(bytes(range(1, KEY_BYTES + 1)))
"""A key that is no secret: what it agrees to is the same for keys that are the same."""
_STORED_MARKER = b"protoseal-stored-1:"
_NONCE_BYTES = 12


def derive(secret: bytes, label: str, *context: bytes) -> bytes:
    """32 bytes from ``secret`` for one purpose: HKDF-SHA256 (RFC 5869), no salt, info = ``encode(label, …)``.

    ``secret`` must itself be hard to guess (a key, never a passphrase): HKDF is fast.
    """
    info = encode(label, *context)
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret)


class ChannelKey:
    """A site's X25519 key for one run; other sites seal to its public half.

    A key kept for the whole run gives no forward secrecy within it: whoever obtains the key opens everything
    that was sealed to it.
    """

    def __init__(self, private: X25519PrivateKey) -> None:
        self._private = private

    @classmethod
    def generate(cls) -> ChannelKey:
        """A fresh key from the operating system's randomness."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def from_private_bytes(cls, private: bytes) -> ChannelKey:
        """The key that :meth:`private_bytes` gave; :class:`MalformedError` unless it has 32 bytes."""
        if len(private) != KEY_BYTES:
            raise MalformedError(f"a channel key has {KEY_BYTES} bytes, not {len(private)}")
        return cls(X25519PrivateKey.from_private_bytes(private))

    def private_bytes(self) -> bytes:
        """The *secret* half, 32 bytes. To be stored encrypted only (:class:`StorageKey`)."""
        return self._private.private_bytes_raw()

    @property
    def public_bytes(self) -> bytes:
        """The public half, 32 bytes."""
        return self._private.public_key().public_bytes_raw()

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """What :func:`seal` sealed to this key under the same ``info``; else :class:`DecryptionError`.

        Says nothing about who sealed it: anyone can, so the sender's signature is the caller's to check.
        """
        try:
            return _SUITE.decrypt(sealed, self._private, info)
        except (InvalidTag, ValueError) as error:
            raise DecryptionError("a sealed message does not open with this key and context") from error

    def __repr__(self) -> str:
        return f"ChannelKey(public={self.public_bytes.hex()[:16]}…, private=<redacted>)"


def seal(public: bytes, plaintext: bytes, info: bytes) -> bytes:
    """Encrypt to a channel key: HPKE base mode (RFC 9180), X25519, HKDF-SHA256, ChaCha20-Poly1305.

    The result is the encapsulated key followed by the ciphertext (48 bytes more than ``plaintext``), and
    opens only under the same ``info``. The sender is not authenticated. Raises :class:`VerificationError` for
    a public key that :func:`check_channel_public` refuses.
    """
    check_channel_public(public)
    return _SUITE.encrypt(plaintext, X25519PublicKey.from_public_bytes(public), info)


def check_channel_public(public: bytes) -> None:
    """Raise :class:`VerificationError` unless ``public`` is a X25519 key in its one allowed form."""
    _check_canonical(public)
    _check_order(public)


def _check_canonical(public: bytes) -> None:
    """X25519 reads several byte strings as the same point; one form each keeps repeated keys visible."""
    if len(public) != KEY_BYTES or int.from_bytes(public, "little") >= _FIELD_PRIME:
        raise VerificationError("a channel key is not 32 bytes in canonical form (RFC 7748)")


def _check_order(public: bytes) -> None:
    """With a point of low order the shared secret is known to everyone (RFC 7748, section 6.1)."""
    if int.from_bytes(public, "little") in _LOW_ORDER:
        raise VerificationError("a channel key is a point of low order")


def check_distinct(publics: Sequence[bytes], refusal: str) -> None:
    """Raise :class:`VerificationError` with the text ``refusal`` if two of these X25519 keys are the same key.

    Keys that differ by a point of small order agree to the same secrets with everyone, so whoever has one has both.
    """
    if len({comparable(public) for public in publics}) != len(publics):
        raise VerificationError(refusal)


@lru_cache(maxsize=4096)
def comparable(public: bytes) -> bytes:
    """Return 32 bytes that are equal for two X25519 keys if and only if these agree to the same secrets.

    That is what a fixed key agrees to with them: its scalar is a multiple of 8, which takes every point of small order
    away. Such a point itself, which :func:`check_channel_public` refuses, is returned as it is.
    """
    try:
        return _COMPARER.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return public


class StorageKey:
    """Encrypts a site's secrets at rest: ChaCha20-Poly1305 with random nonces.

    Holds off whoever reads the disk, not whoever can put back an older copy of it. At most 2^32 messages a
    key (random 96-bit nonces).
    """

    def __init__(self, key: bytes) -> None:
        """``key``: 32 secret random bytes, such as :func:`crypto.pki.files.create_storage_key` draws."""
        self._cipher = ChaCha20Poly1305(key)

    def encrypt(self, plaintext: bytes, associated: bytes) -> bytes:
        """Version marker, nonce, ciphertext. ``associated`` (the secret's name, say) is bound, not stored."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return _STORED_MARKER + nonce + self._cipher.encrypt(nonce, plaintext, _stored_context(associated))

    def decrypt(self, stored: bytes, associated: bytes) -> bytes:
        """The plaintext of :meth:`encrypt`.

        Raises :class:`UnknownSchemeError` for another version marker, :class:`DecryptionError` for everything
        else that is not this key's.
        """
        if not stored.startswith(_STORED_MARKER):
            raise UnknownSchemeError("a stored secret has no version marker of this build")
        body = stored.removeprefix(_STORED_MARKER)
        try:
            return self._cipher.decrypt(body[:_NONCE_BYTES], body[_NONCE_BYTES:], _stored_context(associated))
        except (InvalidTag, ValueError) as error:
            raise DecryptionError(
                "a stored secret does not open: it was altered, or stored under another storage key"
            ) from error

    def __repr__(self) -> str:
        return "StorageKey(<redacted>)"


def _stored_context(associated: bytes) -> bytes:
    return encode("stored-secret", associated)
