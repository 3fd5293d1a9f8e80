"""``protoseal pki`` as its users call it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import protoseal.commands.passphrase_input
import protoseal.commands.pki
from crypto.pki import Credentials, Identity, Role, TrustAnchor
from protoseal.commands.passphrase_input import VARIABLE, read_passphrase
from protoseal.commands.pki import pki

PASSPHRASE = "correct horse"  # noqa: S105 (of keys that a test makes)
FEDERATION = ["--federation", "clinics.example"]
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Call the group in an empty directory, with nobody at the terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)

    def call(*arguments: str, typed: str = "", passphrase: str | None = PASSPHRASE) -> Result:
        return CliRunner().invoke(pki, arguments, input=typed, env={VARIABLE: passphrase})

    return call


def _ok(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def _facts(result: Result) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(_ok(result).stdout)
    return facts


def _refused(result: Result, *texts: str) -> None:
    """Check for failure, with one line on standard error that says all of this, and nothing on standard output."""
    assert result.exit_code != 0
    assert not result.stdout
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    for text in texts:
        assert text in result.stderr


def _on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (protoseal.commands.passphrase_input, protoseal.commands.pki):
        monkeypatch.setattr(module, "on_terminal", lambda: True)


def _made(run: Run, *commands: Sequence[str]) -> None:
    for command in commands:
        _ok(run(*command))


INIT = ["init", "--dir", "ca", *FEDERATION]
SITE = ["request", "--dir", "a", *FEDERATION, "--site", "clinic-a"]
COORDINATOR = [
    "request",
    "--dir",
    "c",
    *FEDERATION,
    "--coordinator",
    "--host",
    "localhost",
    "--host",
    "127.0.0.1",
]
APPROVE = ["approve", "--ca", "ca", "--request", "a/request.pem", "--out", "a/certificate.pem"]


def test_pki_certificates_of_a_federation_authenticate_each_other(run: Run, tmp_path: Path) -> None:
    ca = _facts(run(*INIT, "--json"))
    request = _facts(run(*SITE, "--json"))
    certificate = _facts(run(*APPROVE, "--fingerprint", request["fingerprint"], "--json"))
    coordinator = _facts(run(*COORDINATOR, "--json"))
    _ok(
        run(
            *("approve", "--ca", "ca", "--request", "c/request.pem", "--out", "c/certificate.pem"),
            *("--fingerprint", coordinator["fingerprint"].upper()),
        )
    )
    trust = TrustAnchor.load(tmp_path / "ca" / "ca.pem")
    now = datetime.now(UTC)
    for folder, role in (("a", Role.SITE), ("c", Role.COORDINATOR)):
        files = tmp_path / folder / "certificate.pem", tmp_path / folder / "key.pem"
        credentials = Credentials.load(*files, PASSPHRASE.encode())
        assert trust.identify(credentials.certificate_der, role, now) == credentials.identity
    assert ca["identity"] == "spiffe://clinics.example"
    assert ca["fingerprint"] == trust.fingerprint
    assert request["identity"] == Identity.site("clinics.example", "clinic-a").uri
    assert (certificate["usage"], certificate["hosts"]) == (["clientAuth"], [])
    assert coordinator["hosts"] == ["localhost", "127.0.0.1"]


def test_pki_show_prints_certificates_and_requests(run: Run, tmp_path: Path) -> None:
    _made(run, INIT, SITE, [*APPROVE, "--yes-without-checking"])
    shown = {
        name: _facts(run("show", "--json", name))
        for name in ("ca/ca.pem", "a/request.pem", "a/certificate.pem")
    }
    assert [facts["kind"] for facts in shown.values()] == ["CA certificate", "request", "certificate"]
    text = _ok(run("show", "a/certificate.pem")).stdout
    for value in (
        "spiffe://clinics.example/site/clinic-a",
        "clientAuth",
        shown["a/certificate.pem"]["fingerprint"],
    ):
        assert value in text
    _refused(run("show", "a/key.pem"), "a/key.pem: ")
    _refused(run("show", "absent.pem"), "absent.pem")
    (tmp_path / "half.pem").write_bytes((tmp_path / "a" / "request.pem").read_bytes()[:200])
    _refused(run("show", "half.pem"), "half.pem: ", "END CERTIFICATE REQUEST")


@pytest.mark.parametrize("command", [INIT, SITE, [*APPROVE, "--yes-without-checking"]], ids=lambda c: c[0])
def test_pki_existing_files_stay_without_overwrite(run: Run, tmp_path: Path, command: list[str]) -> None:
    _made(run, INIT, SITE, [*APPROVE, "--yes-without-checking"])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.pem")}
    _refused(run(*command), "already exists", "--overwrite")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.pem")} == before
    _ok(run(*command, "--overwrite"))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.pem")} != before


def test_pki_approve_without_comparison_is_refused(run: Run, tmp_path: Path) -> None:
    _made(run, INIT, SITE)
    _refused(run(*APPROVE), "was not compared", "--fingerprint", "--yes-without-checking")
    _refused(run(*APPROVE, "--fingerprint", "0" * 64), "another party may have made")
    assert not (tmp_path / "a" / "certificate.pem").exists()
    result = _ok(run(*APPROVE, "--yes-without-checking"))
    assert "approved without comparing fingerprints" in result.stderr


def test_pki_approve_at_a_terminal_asks_for_the_comparison(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _made(run, INIT, SITE)
    fingerprint = _facts(run("show", "--json", "a/request.pem"))["fingerprint"]
    _on_terminal(monkeypatch)
    result = run(*APPROVE, typed="n\n")
    assert result.exit_code != 0
    assert fingerprint in result.stderr
    assert not (tmp_path / "a" / "certificate.pem").exists()
    _ok(run(*APPROVE, typed="y\n"))
    assert (tmp_path / "a" / "certificate.pem").exists()


def test_pki_refuses_impossible_arguments_in_one_line(run: Run, tmp_path: Path) -> None:
    _made(run, INIT)
    _refused(run("init", "--dir", "x", "--federation", "Clinics"), "'Clinics' is not 1 to 63")
    _refused(
        run("request", "--dir", "x", *FEDERATION, "--site", "a", "--host", "h"), "nothing listens at a site"
    )
    _refused(run("request", "--dir", "x", *FEDERATION, "--coordinator"), "at least one host")
    _ok(run("request", "--dir", "e", "--federation", "elsewhere", "--site", "a"))
    elsewhere = [
        "approve",
        "--ca",
        "ca",
        "--request",
        "e/request.pem",
        "--out",
        "e/c.pem",
        "--yes-without-checking",
    ]
    result = run(*elsewhere)
    assert result.exit_code != 0
    assert "this is the CA of clinics.example" in result.stderr
    assert not (tmp_path / "e" / "c.pem").exists()
    for names in ([], ["--site", "a", "--coordinator"]):
        result = run("request", "--dir", "x", *FEDERATION, *names)
        assert result.exit_code == 2
        assert "either --site NAME or --coordinator" in result.stderr
    assert not (tmp_path / "x").exists()


def test_pki_wrong_passphrase_is_named(run: Run) -> None:
    _made(run, INIT, SITE)
    fingerprint = _facts(run("show", "--json", "a/request.pem"))["fingerprint"]
    result = run(*APPROVE, "--fingerprint", fingerprint, passphrase="wrong")  # noqa: S106 (opens nothing)
    _refused(result, "ca/ca.key.pem does not open: wrong passphrase")


# Passphrases


def test_pki_passphrase_file_must_be_private(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "passphrase"
    path.write_text("from a file\n")
    path.chmod(0o600)
    assert read_passphrase(path, what="it") == b"from a file"
    _ok(run(*INIT, "--passphrase-file", str(path), passphrase=None))
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        _refused(run(*INIT, "--overwrite", "--passphrase-file", str(path)), f"chmod 600 {path}")
    path.chmod(0o600)
    for empty in ("", "\n", "\r\n"):
        path.write_text(empty)
        _refused(run(*INIT, "--overwrite", "--passphrase-file", str(path)), "empty passphrase")
    _refused(run(*INIT, "--overwrite", "--passphrase-file", "absent"), "absent cannot be read")


def test_pki_passphrase_file_loses_line_ends_alone(tmp_path: Path) -> None:
    path = tmp_path / "passphrase"
    path.touch(0o600)
    for content, passphrase in ((b" a b \n", b" a b "), (b"a\n\n", b"a"), (b"a\r\n", b"a"), (b"a", b"a")):
        path.write_bytes(content)
        assert read_passphrase(path, what="it") == passphrase


def test_pki_passphrase_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "from the environment")
    assert read_passphrase(None, what="it") == b"from the environment"


def test_pki_without_passphrase_states_the_remedy(run: Run) -> None:
    _refused(run(*INIT, passphrase=None), "the CA's key", VARIABLE, "--passphrase-file")
    _refused(run(*INIT, passphrase=""), VARIABLE, "empty passphrase")


@pytest.mark.full
def test_pki_new_passphrase_is_prompted_twice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _on_terminal(monkeypatch)
    result = run(*INIT, typed="one\ntwo\nsecret\nsecret\n", passphrase=None)
    assert "do not match" in _ok(result).stderr
    assert "secret" not in result.output
    _made(run, SITE)
    _ok(run(*APPROVE, typed="y\nsecret\n", passphrase=None))


@pytest.mark.full
def test_pki_passphrase_changes_a_keys_passphrase(run: Run, tmp_path: Path) -> None:
    _ok(run("request", "--dir", ".", *FEDERATION, "--site", "a"))
    (tmp_path / "new").write_text("another\n", encoding="utf-8")
    (tmp_path / "new").chmod(0o600)
    change = ("passphrase", "key.pem", "--new-passphrase-file", "new")
    _refused(run(*change, passphrase=PASSPHRASE + "s"), "key.pem")
    _refused(run("passphrase", "key.pem"), "--new-passphrase-file")
    _ok(run(*change))
    _refused(run(*change), "key.pem")
