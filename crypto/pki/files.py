"""Key and certificate files: written once, whole, and never over what is there unless told to.

Private keys are PKCS #8, encrypted under a passphrase (PBES2: AES-256-CBC, PBKDF2 with 2048 rounds). The
limit: so few rounds hardly slow a guesser, so a stolen file is as safe as the passphrase is hard to guess;
use a generated one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from crypto import durable
from crypto.errors import KeyStoreError, MalformedError, VerificationError

_PRIVATE = 0o600
_PUBLIC = 0o644


def check_absent(*paths: Path) -> None:
    """:class:`KeyStoreError`, naming the remedy, if one of the files is there."""
    for path in paths:
        if path.exists() or path.is_symlink():
            raise _already_there(path)


def make_directory(directory: Path) -> None:
    """Create a directory that only its owner can enter; one that exists is left as it is."""
    try:
        durable.make_folder(directory, 0o700)
    except OSError as error:
        raise KeyStoreError(f"{directory} cannot be created ({error.strerror})") from error


def write_public(path: Path, content: bytes, *, overwrite: bool) -> None:
    """Write a file that anyone may read. :class:`KeyStoreError` if it is there and may not be replaced."""
    _write(path, content, _PUBLIC, overwrite)


def write_key(path: Path, key: ec.EllipticCurvePrivateKey, passphrase: bytes, *, overwrite: bool) -> None:
    """Write a private key encrypted, readable by its owner only. Raises like :func:`write_public`."""
    content = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, _encryption(passphrase)
    )
    _write(path, content, _PRIVATE, overwrite)


def read(path: Path) -> bytes:
    """A file's content; :class:`KeyStoreError` if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise KeyStoreError(f"{path} cannot be read ({error.strerror})") from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put the file's name before what is found wrong with its content."""
    try:
        yield
    except (MalformedError, VerificationError) as error:
        raise type(error)(f"{path}: {error}") from error


def read_key(path: Path, passphrase: bytes) -> ec.EllipticCurvePrivateKey:
    """An encrypted P-256 key. :class:`KeyStoreError` if it is missing, not encrypted, or does not open."""
    content = read(path)
    try:
        key = serialization.load_pem_private_key(content, passphrase)
    except TypeError as error:
        raise KeyStoreError(
            f"{path} is not encrypted; make a new key with 'protoseal pki request'"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyStoreError(f"{path} does not open: wrong passphrase, or not an encrypted PEM key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise KeyStoreError(f"{path} is not an ECDSA P-256 key; make one with 'protoseal pki request'")
    return key


def _encryption(passphrase: bytes) -> serialization.KeySerializationEncryption:
    if not passphrase:
        raise KeyStoreError("the passphrase is empty; a private key is stored under a passphrase only")
    return serialization.BestAvailableEncryption(passphrase)


def _already_there(path: Path) -> KeyStoreError:
    return KeyStoreError(
        f"{path} is already there and what it holds would be lost: "
        "choose another place, move it away, or give --overwrite"
    )


def _write(path: Path, content: bytes, mode: int, overwrite: bool) -> None:
    """A crash leaves the old file or the new one, never a part; two writers at once never both succeed."""
    try:
        durable.write(path, content, mode=mode, overwrite=overwrite)
    except FileExistsError as error:
        raise _already_there(path) from error
    except OSError as error:
        raise KeyStoreError(f"{path} cannot be written ({error.strerror})") from error
