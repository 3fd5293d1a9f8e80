"""Encryption of secret keys in files under a passphrase: scrypt (RFC 7914) and ChaCha20-Poly1305.

A file contains one secret in PEM armor, whose label names the kind of secret; kind and parameters are bound to the
ciphertext. Each guess at a passphrase costs 128 MiB of memory and about half a second of a core. Limit: whoever copies
the file can guess without end, so a passphrase that a few million guesses find protects nothing.
"""

from __future__ import annotations

import base64
import secrets
from enum import IntEnum, StrEnum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from crypto.errors import DecryptionError, KeyStoreError, MalformedError, UnknownSchemeError
from crypto.keys import KEY_BYTES
from crypto.pki import pem
from crypto.signed_encoding import encode

_VERSION = 1
_SALT_BYTES, _NONCE_BYTES = 16, 12
_HEADER_BYTES = 2 + _SALT_BYTES + _NONCE_BYTES
_R, _P = 8, 1
_LEAST_WORK, _MOST_WORK = 4, 18
"""Bounds on a file's scrypt work factor log2(N): reading a crafted file costs at most 256 MiB, for 2^18."""
_LINE = 64


class Kind(StrEnum):
    """Kind of secret that a file contains."""

    PRIVATE_KEY = "PRIVATE KEY"
    STORAGE_KEY = "STORAGE KEY"


class Stretching(IntEnum):
    """Work factor log2(N) of scrypt in a new file."""

    FOR_PASSPHRASE = 17
    """Cost of 128 MiB and about half a second for each guess."""
    NONE_FOR_RANDOM_SECRET = 4
    """Cost only for a passphrase of at least 128 random bits from a program, which no speed suffices to guess."""


def wrap(kind: Kind, secret: bytes, passphrase: bytes, stretching: int) -> bytes:
    """Return the content of a file with ``secret``; ``stretching`` is one of :class:`Stretching` or another file's.

    Raises :class:`KeyStoreError` for an empty passphrase.
    """
    if not passphrase:
        raise KeyStoreError(
            "the passphrase is empty; give one, since a secret key is never stored unencrypted"
        )
    header = bytes([_VERSION, stretching]) + secrets.token_bytes(_SALT_BYTES + _NONCE_BYTES)
    sealed = _cipher(header, passphrase).encrypt(header[-_NONCE_BYTES:], secret, _bound(kind, header))
    text = base64.b64encode(header + sealed)
    lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
    label = f"{pem.KEY_FILE}{kind.value}".encode()
    return b"\n".join([b"-----BEGIN " + label + b"-----", *lines, b"-----END " + label + b"-----", b""])


def unwrap(content: bytes, passphrase: bytes) -> tuple[Kind, bytes]:
    """Return the kind and the secret from a file's content.

    Raises :class:`MalformedError` for bytes of another form and for a work factor out of bounds,
    :class:`UnknownSchemeError` for another version or kind, :class:`DecryptionError` for another passphrase or altered
    bytes.
    """
    kind, body = _read(content)
    header, sealed = body[:_HEADER_BYTES], body[_HEADER_BYTES:]
    try:
        return kind, _cipher(header, passphrase).decrypt(header[-_NONCE_BYTES:], sealed, _bound(kind, header))
    except InvalidTag as error:
        raise DecryptionError("a wrapped key does not decrypt with this passphrase") from error


def replace(content: bytes, wrapped: bytes) -> bytes:
    """Return a key file's content with another wrapped key in the place of its own; other text stays."""
    text, block = pem.normalised(content), _block(content)
    return text[: block.start] + wrapped.removesuffix(b"\n") + text[block.end :]


def stretching_of(content: bytes) -> int:
    """Return the work factor of a file's content; raise as :func:`unwrap`, except for the passphrase."""
    return _read(content)[1][1]


def _read(content: bytes) -> tuple[Kind, bytes]:
    """Return kind and bytes, checked before any costly computation."""
    block = _block(content)
    try:
        kind = Kind(block.label.removeprefix(pem.KEY_FILE))
    except ValueError as error:
        raise UnknownSchemeError(f"has a {block.label}, which this version does not know") from error
    body = block.content()
    _check_header(body)
    return kind, body


def _block(content: bytes) -> pem.Block:
    """Return the only block of a key file that is a wrapped key, with its place in the normalised content."""
    keys = [block for block in pem.blocks(pem.normalised(content)) if block.label.startswith(pem.KEY_FILE)]
    if len(keys) > 1:
        raise MalformedError("has several encrypted keys: put each into a file of its own")
    if not keys:
        raise MalformedError(pem.described(content, "a key that protoseal encrypted"))
    return keys[0]


def _check_header(body: bytes) -> None:
    if len(body) <= _HEADER_BYTES:
        raise MalformedError("is damaged: the encrypted key is cut short")
    if body[0] != _VERSION:
        raise UnknownSchemeError(f"has an encrypted key of version {body[0]}; this build reads {_VERSION}")
    if not _LEAST_WORK <= body[1] <= _MOST_WORK:
        raise MalformedError(
            f"has an encrypted key with work factor 2^{body[1]}; 2^{_LEAST_WORK} to 2^{_MOST_WORK} are allowed"
        )


def _cipher(header: bytes, passphrase: bytes) -> ChaCha20Poly1305:
    salt = header[2 : 2 + _SALT_BYTES]
    return ChaCha20Poly1305(
        Scrypt(salt=salt, length=KEY_BYTES, n=1 << header[1], r=_R, p=_P).derive(passphrase)
    )


def _bound(kind: Kind, header: bytes) -> bytes:
    return encode("wrapped-key", kind.value.encode(), header)
