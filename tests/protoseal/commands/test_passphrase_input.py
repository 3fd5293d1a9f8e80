"""Sources of a passphrase, their order, and the refusal of sources that others could read."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from protoseal.commands.passphrase_input import CREDENTIALS, VARIABLE, read_passphrase


@pytest.fixture(autouse=True)
def _nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(CREDENTIALS, raising=False)
    monkeypatch.setattr("protoseal.commands.passphrase_input.on_terminal", lambda: False)


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


def test_a_file_wins_over_the_environment_and_that_over_a_credential(
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
def test_line_ends_and_a_byte_order_mark_are_no_part_of_a_passphrase(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "file", "", 0o600)
    file.write_bytes(content)
    assert read(file) == b"secret"
    monkeypatch.setenv(VARIABLE, "secret\r")
    assert read() == b"secret"


@pytest.mark.parametrize("content", [b" secret ", b'"secret"', bytes(range(1, 33)), b"\xfe\x00\x99secret"])
def test_other_letters_are_part_of_a_passphrase(content: bytes, tmp_path: Path) -> None:
    file = write(tmp_path / "file", "", 0o600)
    file.write_bytes(content)
    assert read(file) == content


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_passphrase_in_another_encoding_is_refused_by_the_files_name(encoding: str, tmp_path: Path) -> None:
    file = write(tmp_path / "file", "", 0o600)
    file.write_bytes("secret\r\n".encode(encoding))
    with pytest.raises(click.ClickException, match=str(file)):
        read(file)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o440, 0o660])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(click.ClickException, match="open to others on this machine"):
        read(write(tmp_path / "file", "file", mode))


@pytest.mark.parametrize("mode", [0o400, 0o440])  # systemd's, without and with an access control list's mask
def test_a_credential_is_taken_as_systemd_hands_it_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    credential(tmp_path, monkeypatch, mode=mode)
    assert read() == b"credential"


@pytest.mark.parametrize("mode", [0o444, 0o404, 0o666])
def test_a_credential_that_everybody_can_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    credential(tmp_path, monkeypatch, mode=mode)
    with pytest.raises(click.ClickException, match="open to others on this machine"):
        read()


def test_an_empty_credential_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credential(tmp_path, monkeypatch, mode=0o400, content="\n")
    with pytest.raises(click.ClickException, match="has an empty passphrase"):
        read()


def test_other_credentials_of_a_service_are_none_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential(tmp_path, monkeypatch, mode=0o400).rename(tmp_path / "something-else")
    with pytest.raises(click.ClickException, match="the passphrase of the key is needed"):
        read()


def test_a_processs_memory_is_private_before_it_has_a_passphrase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, steps = write(tmp_path / "file", "secret", 0o600), list[str]()
    monkeypatch.setattr(
        "protoseal.commands.passphrase_input.keep_memory_private", lambda: steps.append("private")
    )
    read_bytes = Path.read_bytes

    def noted(path: Path) -> bytes:
        steps.append("read")
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", noted)
    assert read(file) == b"secret"
    assert steps == ["private", "read"]
