"""Sources of a passphrase, their order, and the refusal of sources that others could read."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from protoseal.commands import passphrase_input
from protoseal.commands.passphrase_input import CREDENTIALS, VARIABLE, read_passphrase


@pytest.fixture(autouse=True)
def _nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(CREDENTIALS, raising=False)
    monkeypatch.setattr(passphrase_input, "on_terminal", lambda: False)


def write(path: Path, content: str, mode: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")
    path.chmod(mode)
    return path


def read(file: Path | None = None) -> bytes:
    return read_passphrase(file, what="the key")


def credential(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, mode: int, content: str = "credential\n"
) -> Path:
    """Provide a passphrase as a service gets it, by a credential."""
    monkeypatch.setenv(CREDENTIALS, str(folder))
    return write(folder / "passphrase", content, mode)


def test_passphrase_file_wins_over_environment_over_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential(tmp_path / "credentials", monkeypatch, mode=0o400)
    assert read() == b"credential"
    monkeypatch.setenv(VARIABLE, "environment")
    assert read() == b"environment"
    assert read(write(tmp_path / "file", "file\n", 0o600)) == b"file"


@pytest.mark.parametrize(
    "content", [b"secret", b"secret\n", b"secret\r\n", b"secret\n\n", b"\xef\xbb\xbfsecret\r\n"]
)
def test_passphrase_file_loses_line_ends_and_byte_order_mark(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "file", "", 0o600)
    file.write_bytes(content)
    assert read(file) == b"secret"
    monkeypatch.setenv(VARIABLE, "secret\r")
    assert read() == b"secret"


@pytest.mark.parametrize("content", [b" secret ", b'"secret"', bytes(range(1, 33)), b"\xfe\x00\x99secret"])
def test_passphrase_file_keeps_other_bytes(content: bytes, tmp_path: Path) -> None:
    file = write(tmp_path / "file", "", 0o600)
    file.write_bytes(content)
    assert read(file) == content


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_passphrase_file_in_utf_16_is_refused(encoding: str, tmp_path: Path) -> None:
    file = write(tmp_path / "file", "", 0o600)
    file.write_bytes("secret\r\n".encode(encoding))
    with pytest.raises(click.ClickException, match=str(file)):
        read(file)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o440, 0o660])
def test_passphrase_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(click.ClickException, match="chmod 600"):
        read(write(tmp_path / "file", "file", mode))


@pytest.mark.parametrize("mode", [0o400, 0o440])  # systemd's, without and with an access control list's mask
def test_passphrase_credential_with_systemds_modes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    credential(tmp_path, monkeypatch, mode=mode)
    assert read() == b"credential"


@pytest.mark.parametrize("mode", [0o444, 0o404, 0o666])
def test_passphrase_credential_that_everybody_can_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    credential(tmp_path, monkeypatch, mode=mode)
    with pytest.raises(click.ClickException, match="chmod 600"):
        read()


def test_passphrase_credential_that_is_empty_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential(tmp_path, monkeypatch, mode=0o400, content="\n")
    with pytest.raises(click.ClickException, match=str(tmp_path)):
        read()


def test_passphrase_credential_of_another_name_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential(tmp_path, monkeypatch, mode=0o400).rename(tmp_path / "something-else")
    with pytest.raises(click.ClickException, match=VARIABLE):
        read()


def test_passphrase_memory_is_private_before_the_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, steps = write(tmp_path / "file", "secret", 0o600), list[str]()
    monkeypatch.setattr(passphrase_input, "keep_memory_private", lambda: steps.append("private"))
    read_bytes = Path.read_bytes

    def noted(path: Path) -> bytes:
        steps.append("read")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    assert read(file) == b"secret"
    assert steps == ["private", "read"]
