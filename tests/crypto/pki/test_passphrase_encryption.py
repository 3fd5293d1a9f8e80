"""Key files: a passphrase opens them, nothing else does, and reading a crafted one costs little."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

import crypto.pki.key_files
from crypto.errors import CryptoError, DecryptionError, KeyStoreError, MalformedError, UnknownSchemeError
from crypto.pki import Stretching
from crypto.pki.key_files import (
    Kind,
    create_storage_key,
    read_key,
    read_storage_key,
    read_stretching,
    rewrap,
    unwrap,
    wrap,
    write_key,
)
from tests.crypto.conftest import Federation
from tests.crypto.protocol_reference import layout

PASSPHRASE, SECRET = b"correct horse", bytes(range(32))
CHEAP = Stretching.NONE_FOR_RANDOM_SECRET


def wrapped(stretching: int = CHEAP) -> bytes:
    return wrap(Kind.STORAGE_KEY, SECRET, PASSPHRASE, stretching)


def body_of(content: bytes) -> bytes:
    return base64.b64decode(b"".join(content.splitlines()[1:-1]))


def armored(body: bytes, kind: str = "STORAGE KEY") -> bytes:
    label = f"PROTOSEAL ENCRYPTED {kind}".encode()
    return b"-----BEGIN " + label + b"-----\n" + base64.b64encode(body) + b"\n-----END " + label + b"-----\n"


def test_unwrap_with_passphrase_alone() -> None:
    assert unwrap(wrapped(), PASSPHRASE) == (Kind.STORAGE_KEY, SECRET)
    assert wrapped() != wrapped()
    for wrong in (b"", b"correct hors", PASSPHRASE + b"\n"):
        with pytest.raises(DecryptionError):
            unwrap(wrapped(), wrong)
    with pytest.raises(KeyStoreError):
        wrap(Kind.STORAGE_KEY, SECRET, b"", CHEAP)


def test_wrap_equals_reference_bytes() -> None:
    """scrypt with r = 8 and p = 1 by its salt, then ChaCha20-Poly1305 that binds kind and header."""
    body = body_of(wrapped())
    header, sealed = body[:30], body[30:]
    assert header[:2] == bytes([1, CHEAP])
    key = Scrypt(salt=header[2:18], length=32, n=1 << header[1], r=8, p=1).derive(PASSPHRASE)
    bound = layout("wrapped-key", b"STORAGE KEY", header)
    assert ChaCha20Poly1305(key).decrypt(header[18:], sealed, bound) == SECRET


def test_unwrap_every_altered_byte_refused() -> None:
    """Version and work factor are bound as well, so that no other reading of a file opens."""
    body = body_of(wrapped())
    for position in range(len(body)):
        for flip in (1, 2):
            altered = body[:position] + bytes([body[position] ^ flip]) + body[position + 1 :]
            with pytest.raises((DecryptionError, MalformedError)):
                unwrap(armored(altered), PASSPHRASE)
    with pytest.raises(DecryptionError):
        unwrap(armored(body, "PRIVATE KEY"), PASSPHRASE)


@pytest.mark.parametrize("work", [0, 3, 19, 40, 255])
def test_unwrap_work_factor_out_of_bounds_refused(work: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before any key is derived: the double that derives one is never called."""

    def derived(*_: object, **__: object) -> None:
        raise AssertionError("scrypt was asked for")

    monkeypatch.setattr(crypto.pki.key_files, "Scrypt", derived)
    body = body_of(wrapped_before(monkeypatch))
    with pytest.raises(MalformedError):
        unwrap(armored(bytes([body[0], work]) + body[2:]), PASSPHRASE)


def wrapped_before(monkeypatch: pytest.MonkeyPatch) -> bytes:
    with monkeypatch.context() as patch:
        patch.setattr(crypto.pki.key_files, "Scrypt", Scrypt)
        return wrapped()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", MalformedError),
        (
            b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n",
            MalformedError,
        ),
        (armored(b"\x01\x04"), MalformedError),
        (armored(b"\x02" + bytes(60)), UnknownSchemeError),
        (armored(bytes(60), "OTHER KEY"), UnknownSchemeError),
        (armored(bytes(60)).replace(b"A", b"=", 1), MalformedError),
    ],
)
def test_unwrap_other_bytes_refused(content: bytes, error: type[CryptoError]) -> None:
    with pytest.raises(error):
        unwrap(content, PASSPHRASE)


def test_new_key_files_work_factor(federation: Federation, tmp_path: Path) -> None:
    key = read_key(federation.authority / "ca.key.pem", PASSPHRASE)
    write_key(tmp_path / "key.pem", key, PASSPHRASE, overwrite=False)
    storage = create_storage_key(tmp_path / "storage.key", PASSPHRASE, like=tmp_path / "key.pem")
    for name in ("key.pem", "storage.key"):
        path = tmp_path / name
        assert read_stretching(path.read_bytes()) == 17
        assert path.stat().st_mode & 0o777 == 0o600
    assert read_storage_key(tmp_path / "storage.key", PASSPHRASE).decrypt(
        storage.encrypt(b"secret", b"name"), b"name"
    ) == (b"secret")
    with pytest.raises(KeyStoreError):  # one kind of key is not taken for the other
        read_storage_key(tmp_path / "key.pem", PASSPHRASE)


def test_rewrap_opens_with_new_passphrase_only(tmp_path: Path) -> None:
    path = tmp_path / "storage.key"
    path.write_bytes(wrapped())
    with pytest.raises(KeyStoreError, match=r"storage\.key"):
        rewrap(path, b"wrong", b"new")
    assert unwrap(path.read_bytes(), PASSPHRASE)[1] == SECRET
    rewrap(path, PASSPHRASE, b"new")
    assert unwrap(path.read_bytes(), b"new") == (Kind.STORAGE_KEY, SECRET)
    assert read_stretching(path.read_bytes()) == Stretching.FOR_PASSPHRASE  # a person's passphrase, maybe
    with pytest.raises(DecryptionError):
        unwrap(path.read_bytes(), PASSPHRASE)


def test_rewrap_follows_link(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(wrapped())
    (tmp_path / "storage.key").symlink_to("kept")
    rewrap(tmp_path / "storage.key", PASSPHRASE, b"new")
    assert (tmp_path / "storage.key").is_symlink()
    assert unwrap((tmp_path / "kept").read_bytes(), b"new")[1] == SECRET


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_rewrap_keeps_owner(tmp_path: Path) -> None:
    path = tmp_path / "storage.key"
    path.write_bytes(wrapped())
    os.chown(path, 10001, 10001)
    rewrap(path, PASSPHRASE, b"new")
    assert (path.stat().st_uid, path.stat().st_gid) == (10001, 10001)
