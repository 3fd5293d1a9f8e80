"""Key and certificate files, written atomically, and never over an existing file unless ``overwrite`` is given.

Secret keys are encrypted under a passphrase (:mod:`crypto.pki.passphrase_encryption`): a party's or the CA's private
key (PKCS #8), and the key under which a site encrypts its stored secrets.
"""

from __future__ import annotations

import secrets
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from crypto.errors import DecryptionError, KeyStoreError, MalformedError, VerificationError
from crypto.keys import KEY_BYTES, StorageKey
from crypto.pki.passphrase_encryption import Kind, Stretching, replace, stretching_of, unwrap, wrap
from crypto.text_decoding import near_name
from protoseal_files import durable_files

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
        stretching = stretching_of(read(like))
    _write(path, wrap(Kind.STORAGE_KEY, secret, passphrase, stretching), _PRIVATE, overwrite=False)
    return StorageKey(secret)


def rewrap(path: Path, old: bytes, new: bytes) -> None:
    """Encrypt a key file under another passphrase, in place and keeping its owner; a link is followed.

    Raises :class:`KeyStoreError` if the file does not decrypt with the old passphrase.
    """
    path = (
        path.resolve()
    )  # otherwise the link would be replaced, and its target would keep the old passphrase
    kind, secret = _opened(path, old)
    content = read(path)
    stretching = max(stretching_of(content), Stretching.FOR_PASSPHRASE)
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
def naming(path: Path, more: str = "") -> Iterator[None]:
    """Begin errors about a file's content with the file's name, and end them with ``more``."""
    try:
        yield
    except (MalformedError, VerificationError) as error:
        raise type(error)(f"{path}: {error}{more}") from error


def read_key(path: Path, passphrase: bytes, remedy: str = "") -> ec.EllipticCurvePrivateKey:
    """Read an encrypted P-256 key.

    Raises :class:`KeyStoreError` if it is missing (with the ``remedy``), malformed, or does not decrypt.
    """
    secret = _secret(path, passphrase, Kind.PRIVATE_KEY, remedy)
    try:
        key = serialization.load_der_private_key(secret, None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise KeyStoreError(f"{path} opens, but what it contains is no private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise KeyStoreError(f"{path} has a private key that is not ECDSA P-256")
    return key


def read_storage_key(path: Path, passphrase: bytes) -> StorageKey:
    """Read a storage key; raise :class:`KeyStoreError` if it is missing, malformed, or does not decrypt."""
    return StorageKey(_secret(path, passphrase, Kind.STORAGE_KEY))


def _secret(path: Path, passphrase: bytes, kind: Kind, remedy: str = "") -> bytes:
    stored, secret = _opened(path, passphrase, remedy)
    if stored is not kind:
        raise KeyStoreError(f"{path} is a {stored.value.lower()}, not a {kind.value.lower()}")
    return secret


def _opened(path: Path, passphrase: bytes, remedy: str = "") -> tuple[Kind, bytes]:
    content = read(path, remedy)
    with _key_file(path):
        try:
            return unwrap(content, passphrase)
        except DecryptionError:
            for change, other in _other_spellings(passphrase).items():
                if _opens(content, other):
                    raise KeyStoreError(
                        f"{path} does not open with this passphrase, but does {change}"
                    ) from None
            raise


def _opens(content: bytes, passphrase: bytes) -> bool:
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
