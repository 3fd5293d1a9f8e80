"""Files of keys, requests and certificates: written atomically, secret keys encrypted under a passphrase.

An existing file is replaced only with ``overwrite``. A key file contains one secret (a party's or the CA's private key,
PKCS #8, or the key under which a site encrypts its stored secrets) under scrypt (RFC 7914) and ChaCha20-Poly1305. The
secret is in PEM armor, whose label names its kind; kind and parameters are bound to the ciphertext. Each guess at a
passphrase costs 128 MiB of memory and about half a second of a core. Limit: whoever copies the file can guess without
end, so a passphrase that a few million guesses find protects nothing.
"""

from __future__ import annotations

import base64
import secrets
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from pathlib import Path

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from crypto.errors import (
    DecryptionError,
    KeyStoreError,
    MalformedError,
    UnknownSchemeError,
    VerificationError,
)
from crypto.keys import KEY_BYTES, StorageKey, encode
from crypto.pki import pem
from crypto.text_decoding import near_name
from protoseal_files import durable_files

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
    text, block = pem.normalise(content), _block(content)
    return text[: block.start] + wrapped.removesuffix(b"\n") + text[block.end :]


def read_stretching(content: bytes) -> int:
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


def _block(content: bytes) -> pem.PemBlock:
    """Return the only block of a key file that is a wrapped key, with its place in the normalised content."""
    keys = [block for block in pem.blocks(pem.normalise(content)) if block.label.startswith(pem.KEY_FILE)]
    if len(keys) > 1:
        raise MalformedError("has several encrypted keys: put each into a file of its own")
    if not keys:
        raise MalformedError(pem.describe_other_content(content, "a key that protoseal encrypted"))
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


_PRIVATE = 0o600
_PUBLIC = 0o644


def check_absent(*paths: Path) -> None:
    """Raise :class:`KeyStoreError`, with the remedy, if one of the files exists."""
    for path in paths:
        if path.exists() or path.is_symlink():
            raise _already_there(path)


def make_directory(directory: Path) -> None:
    """Create a directory that only its owner can enter; an existing directory is left unchanged."""
    try:
        durable_files.make_folder(directory, 0o700)
    except OSError as error:
        raise KeyStoreError(f"{directory} cannot be created ({error.strerror})") from error


def write_public(path: Path, content: bytes, *, overwrite: bool) -> None:
    """Write a file that anyone may read; raise :class:`KeyStoreError` if it exists and ``overwrite`` is false."""
    _write(path, content, _PUBLIC, overwrite)


def write_key(
    path: Path,
    key: ec.EllipticCurvePrivateKey,
    passphrase: bytes,
    *,
    overwrite: bool,
    stretching: Stretching = Stretching.FOR_PASSPHRASE,
) -> None:
    """Write an encrypted private key, readable by its owner only; raise as :func:`write_public`."""
    encoding, form = serialization.Encoding.DER, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(encoding, form, serialization.NoEncryption())
    _write(path, wrap(Kind.PRIVATE_KEY, secret, passphrase, stretching), _PRIVATE, overwrite)


def create_storage_key(path: Path, passphrase: bytes, like: Path) -> StorageKey:
    """Write a random storage key with the work factor of the key file ``like``, readable by its owner only.

    Raises :class:`KeyStoreError` if the file exists or cannot be written, or ``like`` is not a key file.
    """
    secret = secrets.token_bytes(KEY_BYTES)
    with _key_file(like):
        stretching = read_stretching(read(like))
    _write(path, wrap(Kind.STORAGE_KEY, secret, passphrase, stretching), _PRIVATE, overwrite=False)
    return StorageKey(secret)


def rewrap(path: Path, old: bytes, new: bytes) -> None:
    """Encrypt a key file under another passphrase, in place and keeping its owner; a link is followed.

    Raises :class:`KeyStoreError` if the file does not decrypt with the old passphrase.
    """
    # Without this the link would be replaced, and its target would keep the old passphrase.
    path = path.resolve()
    kind, secret = _unwrap_file(path, old)
    content = read(path)
    stretching = max(read_stretching(content), Stretching.FOR_PASSPHRASE)
    _write(path, replace(content, wrap(kind, secret, new, stretching)), _PRIVATE, overwrite=True)


def read(path: Path, remedy: str = "") -> bytes:
    """Return a file's content; raise :class:`KeyStoreError` if it cannot be read, with the remedy if it is missing."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise KeyStoreError(f"{path} does not exist{near_name(path) or remedy}") from error
    except IsADirectoryError as error:
        raise KeyStoreError(f"{path} is a folder, not a file") from error
    except OSError as error:
        raise KeyStoreError(f"{path} cannot be read ({error.strerror})") from error


@contextmanager
def errors_name_file(path: Path, more: str = "") -> Iterator[None]:
    """Begin errors about a file's content with the file's name, and end them with ``more``."""
    try:
        yield
    except (MalformedError, VerificationError) as error:
        raise type(error)(f"{path}: {error}{more}") from error


def read_key(path: Path, passphrase: bytes, remedy: str = "") -> ec.EllipticCurvePrivateKey:
    """Read an encrypted P-256 key.

    Raises :class:`KeyStoreError` if it is missing (with the ``remedy``), malformed, or does not decrypt.
    """
    secret = _read_secret(path, passphrase, Kind.PRIVATE_KEY, remedy)
    try:
        key = serialization.load_der_private_key(secret, None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyStoreError(f"{path} opens, but what it contains is no private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise KeyStoreError(f"{path} has a private key that is not ECDSA P-256")
    return key


def read_storage_key(path: Path, passphrase: bytes) -> StorageKey:
    """Read a storage key; raise :class:`KeyStoreError` if it is missing, malformed, or does not decrypt."""
    return StorageKey(_read_secret(path, passphrase, Kind.STORAGE_KEY))


def _read_secret(path: Path, passphrase: bytes, kind: Kind, remedy: str = "") -> bytes:
    stored, secret = _unwrap_file(path, passphrase, remedy)
    if stored is not kind:
        raise KeyStoreError(f"{path} is a {stored.value.lower()}, not a {kind.value.lower()}")
    return secret


def _unwrap_file(path: Path, passphrase: bytes, remedy: str = "") -> tuple[Kind, bytes]:
    content = read(path, remedy)
    with _key_file(path):
        try:
            return unwrap(content, passphrase)
        except DecryptionError:
            for change, other in _other_spellings(passphrase).items():
                if _unwraps(content, other):
                    raise KeyStoreError(
                        f"{path} does not open with this passphrase, but does {change}"
                    ) from None
            raise


def _unwraps(content: bytes, passphrase: bytes) -> bool:
    try:
        unwrap(content, passphrase)
    except DecryptionError:
        return False
    return True


def _other_spellings(passphrase: bytes) -> dict[str, bytes]:
    """Return what the passphrase may have been before an editor, a shell or a keyboard changed it."""
    text = passphrase.decode(errors="surrogateescape")
    spellings = {
        "without the spaces and line ends around it": text.strip()
        .strip("\ufeff\u200b")
        .strip()
        .encode(errors="surrogateescape"),
        "when it is its first line alone": text.strip()
        .partition("\n")[0]
        .strip()
        .encode(errors="surrogateescape"),
        "without the quotation marks around it": passphrase.strip()[1:-1]
        if text.strip()[:1] in {"'", '"'}
        else b"",
        **{
            f"when it is written in Unicode form {form}": unicodedata.normalize(form, text).encode(
                errors="surrogateescape"
            )
            for form in ("NFC", "NFD")
        },
        "when it is written in UTF-8": passphrase.decode("latin-1").encode(),
        "when it is written in Latin-1": text.encode("latin-1", "replace"),
    }
    return {change: other for change, other in spellings.items() if other not in (b"", passphrase)}


@contextmanager
def _key_file(path: Path) -> Iterator[None]:
    """Convert errors about a key file's content to :class:`KeyStoreError`, with the file's name."""
    try:
        yield
    except DecryptionError as error:
        raise KeyStoreError(
            f"{path} does not open: wrong passphrase, or the file was altered. Each key file keeps the "
            "passphrase under which it was written until 'protoseal pki passphrase' changes it"
        ) from error
    except MalformedError as error:
        raise KeyStoreError(f"{path}: {error}") from error


def _already_there(path: Path) -> KeyStoreError:
    return KeyStoreError(
        f"{path} already exists and its content would be lost: choose another path, move it away, or give --overwrite"
    )


def _write(path: Path, content: bytes, mode: int, overwrite: bool) -> None:
    """Write atomically: a crash leaves the old file or the new one, and two concurrent writers never both succeed."""
    try:
        durable_files.write(path, content, mode=mode, overwrite=overwrite)
    except FileExistsError as error:
        raise _already_there(path) from error
    except OSError as error:
        raise KeyStoreError(f"{path} cannot be written ({error.strerror})") from error
