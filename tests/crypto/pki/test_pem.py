"""Files of keys and certificates as people, editors and other programs leave them: read, or named for what they are."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from crypto.errors import CryptoError, KeyStoreError, MalformedError, VerificationError
from crypto.pki import (
    Credentials,
    Identity,
    Role,
    Stretching,
    TrustAnchor,
    approve,
    create_request,
    read_request,
)
from crypto.pki.key_files import read_key, rewrap
from tests.crypto.conftest import PASSPHRASE, Federation

CHEAP = Stretching.NONE_FOR_RANDOM_SECRET
Change = Callable[[bytes], bytes]
OTHER_CERTIFICATE = b""
HARMLESS: dict[str, Change] = {
    "CRLF": lambda pem: pem.replace(b"\n", b"\r\n"),
    "CR": lambda pem: pem.replace(b"\n", b"\r"),
    "mixed line ends": lambda pem: pem.replace(b"\n", b"\r\n", 2),
    "a blank line at the end": lambda pem: pem + b"\n",
    "blank lines at the end": lambda pem: pem + b"\r\n \t\r\n",
    "blank lines at the beginning": lambda pem: b"\n\n" + pem,
    "no line end at the end": lambda pem: pem.removesuffix(b"\n"),
    "a byte order mark": lambda pem: b"\xef\xbb\xbf" + pem,
    "a byte order mark and CRLF": lambda pem: b"\xef\xbb\xbf" + pem.replace(b"\n", b"\r\n"),
    "text before": lambda pem: b"Subject: north\nIssuer: the CA\n\n" + pem,
    "text in Latin-1 before": lambda pem: "für die Küche\n".encode("latin-1") + pem,
    "text behind": lambda pem: pem + b"-- \nRegards\n",
    "spaces at the ends of lines": lambda pem: pem.replace(b"\n", b"  \t\n"),
    "spaces at the beginnings of lines": lambda pem: b"  " + pem.replace(b"\n", b"\n  "),
    "blank lines inside": lambda pem: pem.replace(b"\n", b"\n\n"),
    "one long line": lambda pem: b"\n".join(
        [pem.splitlines()[0], b"".join(pem.splitlines()[1:-1]), pem.splitlines()[-1]]
    ),
    "a certificate of somebody else behind": lambda pem: pem + OTHER_CERTIFICATE,
}
"""Changes by editors and mail programs that have no meaning (RFC 7468, sections 2 and 3)."""


@pytest.fixture(scope="module", autouse=True)
def _other_certificate(stranger: Federation) -> None:
    globals()["OTHER_CERTIFICATE"] = stranger.site("clinic-z").certificate_pem


@pytest.fixture
def party(federation: Federation, tmp_path: Path) -> Path:
    """A folder with a site's key, request and certificate."""
    create_request(tmp_path, Identity.site(federation.name, "clinic-a"), PASSPHRASE, stretching=CHEAP)
    request = (tmp_path / "request.pem").read_bytes()
    (tmp_path / "certificate.pem").write_bytes(approve(federation.authority, PASSPHRASE, request))
    (tmp_path / "ca.pem").write_bytes(federation.trust.certificate_pem)
    return tmp_path


def load(party: Path) -> Credentials:
    return Credentials.load(party / "certificate.pem", party / "key.pem", PASSPHRASE)


def spoil(path: Path, change: Change) -> None:
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize("name", HARMLESS)
def test_pem_meaningless_change_reads_same(name: str, party: Path) -> None:
    expected = load(party).certificate_der
    for file in ("certificate.pem", "key.pem", "request.pem"):
        spoil(party / file, HARMLESS[name])
    assert load(party).certificate_der == expected
    assert read_request((party / "request.pem").read_bytes()).identity == load(party).identity
    if "certificate" not in name:
        expected_ca = TrustAnchor.load(party / "ca.pem").fingerprint
        spoil(party / "ca.pem", HARMLESS[name])
        assert TrustAnchor.load(party / "ca.pem").fingerprint == expected_ca


@pytest.mark.parametrize("ca_first", [True, False])
def test_pem_bundle_in_any_order(ca_first: bool, federation: Federation, party: Path) -> None:
    expected, ca = load(party).certificate_der, federation.trust.certificate_pem
    spoil(party / "certificate.pem", lambda pem: ca + pem if ca_first else pem + ca)
    assert load(party).certificate_der == expected
    (party / "ca.pem").write_bytes((party / "certificate.pem").read_bytes())
    assert TrustAnchor.load(party / "ca.pem").fingerprint == federation.trust.fingerprint


def test_pem_key_and_certificate_in_one_file(party: Path) -> None:
    expected = load(party).certificate_der
    spoil(party / "key.pem", lambda pem: pem + (party / "certificate.pem").read_bytes())
    assert Credentials.load(party / "key.pem", party / "key.pem", PASSPHRASE).certificate_der == expected


def test_rewrap_keeps_text_around_key(party: Path) -> None:
    certificate = (party / "certificate.pem").read_bytes()
    spoil(party / "key.pem", lambda pem: b"\r\nof the north\r\n" + pem.replace(b"\n", b"\r\n") + certificate)
    rewrap(party / "key.pem", PASSPHRASE, b"new")
    read_key(party / "key.pem", b"new")
    content = (party / "key.pem").read_bytes()
    assert content.startswith(b"\nof the north\n-----BEGIN")
    assert content.endswith(certificate)
    with pytest.raises(KeyStoreError):
        read_key(party / "key.pem", PASSPHRASE)


def test_trust_anchor_two_cas_refused(stranger: Federation, party: Path) -> None:
    spoil(party / "ca.pem", lambda pem: pem + stranger.trust.certificate_pem)
    with pytest.raises(VerificationError, match=r"ca\.pem"):
        TrustAnchor.load(party / "ca.pem")


def _swap(party: Path) -> None:
    key, certificate = (party / "key.pem").read_bytes(), (party / "certificate.pem").read_bytes()
    (party / "key.pem").write_bytes(certificate)
    (party / "certificate.pem").write_bytes(key)


def _clear_key(encoding: serialization.Encoding, form: serialization.PrivateFormat) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(encoding, form, serialization.NoEncryption())


PEM, DER = serialization.Encoding.PEM, serialization.Encoding.DER
PKCS8, SEC1 = serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL
NOT_A_KEY: dict[str, tuple[Change, str]] = {
    "empty": (lambda pem: b"", "empty"),
    "blank": (lambda pem: b"\n \r\n", "empty"),
    "UTF-16": (lambda pem: pem.decode().encode("utf-16"), "UTF-16"),
    "UTF-16, other order, no mark": (lambda pem: pem.decode().encode("utf-16-be"), "UTF-16"),
    "UTF-32": (lambda pem: pem.decode().encode("utf-32"), "UTF-32"),
    "its END is missing": (lambda pem: pem[: len(pem) // 2], "END PROTOSEAL ENCRYPTED PRIVATE KEY"),
    "its BEGIN is missing": (lambda pem: pem.partition(b"\n")[2], "BEGIN PROTOSEAL ENCRYPTED PRIVATE KEY"),
    "dashes of a word processor": (lambda pem: pem.replace(b"-----B", "—–-B".encode()), "line 1 "),
    "its line ends are lost": (lambda pem: pem.replace(b"\n", b""), "behind -----BEGIN"),
    "spaces in the place of line ends": (lambda pem: pem.replace(b"\n", b" "), "behind -----BEGIN"),
    "line ends as an escape": (lambda pem: pem.replace(b"\n", b"\\n"), "behind -----BEGIN"),
    "quoted by mail": (lambda pem: b"> " + pem.replace(b"\n", b"\n> "), "before -----BEGIN"),
    "its last line end is lost": (lambda pem: pem.replace(b"\n-----E", b"-----E"), "before -----END"),
    "six hyphens": (lambda pem: b"-" + pem, "five hyphens"),
    "four hyphens at its END": (lambda pem: pem.replace(b"-----E", b"----E"), "five hyphens"),
    "a letter that is not base64": (lambda pem: pem.replace(b"\n", b"\n*", 3), "line 2 "),
    "a letter of a word processor": (lambda pem: pem.replace(b"\n-----E", b"\xe2\x80\xa6\n-----E"), "'…'"),
    "a letter too few": (lambda pem: pem.replace(b"-----\nA", b"-----\n"), "letters are missing"),
    "a certificate": (lambda pem: OTHER_CERTIFICATE, "has a certificate"),
    "a key of another program": (lambda pem: _clear_key(PEM, PKCS8), "another program"),
    "a key of another program, SEC 1": (lambda pem: _clear_key(PEM, SEC1), "another program"),
    "a key in DER": (lambda pem: _clear_key(DER, PKCS8), "DER"),
    "a certificate in DER": (
        lambda pem: x509.load_pem_x509_certificate(OTHER_CERTIFICATE).public_bytes(DER),
        "a certificate in DER",
    ),
    "PKCS #12": (
        lambda pem: pkcs12.serialize_key_and_certificates(
            b"north",
            ec.generate_private_key(ec.SECP256R1()),
            None,
            None,
            serialization.BestAvailableEncryption(b"word"),
        ),
        "PKCS #12",
    ),
    "a site's file": (lambda pem: b'name = "north"\n', "-----BEGIN"),
    "two keys": (lambda pem: pem + pem, "several"),
}
"""Contents that are no key file, and a word of the sentence that says what the file is."""


@pytest.mark.parametrize("name", NOT_A_KEY)
def test_read_key_other_content_named(name: str, party: Path) -> None:
    change, named = NOT_A_KEY[name]
    spoil(party / "key.pem", change)
    with pytest.raises(KeyStoreError) as refused:
        load(party)
    assert str(party / "key.pem") in str(refused.value)
    assert named in str(refused.value)
    assert "pki request" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_read_key_missing_names_remedy(party: Path) -> None:
    (party / "key.pem").unlink()
    with pytest.raises(KeyStoreError, match=r"key\.pem"):
        load(party)
    (party / "key.pem").mkdir()
    with pytest.raises(KeyStoreError) as refused:
        load(party)
    assert "pki request" not in str(refused.value)


@pytest.mark.parametrize(
    ("file", "change", "error"),
    [
        ("certificate.pem", lambda pem: b"", MalformedError),
        ("certificate.pem", lambda pem: pem.decode().encode("utf-16"), MalformedError),
        ("certificate.pem", lambda pem: pem.replace(b"M", b"\xe4", 1), MalformedError),
        ("certificate.pem", lambda pem: OTHER_CERTIFICATE, KeyStoreError),
        ("ca.pem", lambda pem: OTHER_CERTIFICATE, VerificationError),
        (
            "ca.pem",
            lambda pem: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            MalformedError,
        ),
        ("ca.pem", lambda pem: b"\x30\x03\x02\x01\x03", MalformedError),
    ],
)
def test_certificate_other_content_named(
    file: str, change: Change, error: type[CryptoError], party: Path
) -> None:
    spoil(party / file, change)
    with pytest.raises(error) as refused:
        TrustAnchor.load(party / "ca.pem").identify(load(party).certificate_der, Role.SITE, datetime.now(UTC))
    assert str(party / file) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")
@pytest.mark.parametrize("file", ["request.pem", "ca.pem"])
def test_pem_altered_letter_refused(file: str, party: Path) -> None:
    """One letter in each place of the base64 text; a letter that bears no meaning may stay."""
    sound = (party / file).read_bytes()
    begin, end = sound.index(b"\n"), sound.rindex(b"\n-----END")
    for place in range(begin, end):
        if sound[place : place + 1] in b"\n=":
            continue
        spoil(party / file, lambda _: sound[:place] + b"g" + sound[place + 1 :])  # noqa: B023
        with suppress(CryptoError):
            if file == "request.pem":
                read_request((party / file).read_bytes())
            else:
                TrustAnchor.load(party / file)


def test_key_and_certificate_swapped_named(party: Path) -> None:
    _swap(party)
    with pytest.raises(MalformedError, match=r"certificate\.pem"):
        load(party)


def test_der_certificate_and_request_read(party: Path) -> None:
    expected = load(party).certificate_der
    (party / "certificate.pem").write_bytes(expected)
    assert load(party).certificate_der == expected
    request = x509.load_pem_x509_csr((party / "request.pem").read_bytes()).public_bytes(DER)
    assert read_request(request).identity == load(party).identity


@pytest.mark.parametrize(
    ("written", "given"),
    [
        ("correct horse", b"correct horse "),
        ("correct horse", b"correct horse\n\n"),
        ("correct horse", b"correct horse\nof the north"),
        ("correct horse", b"correct horse\r\n# until May"),
        ("correct horse", "correct horse\u00a0".encode()),
        ("correct horse", "\ufeffcorrect horse".encode()),
        ("correct horse", b'"correct horse"'),
        ("pferdestärke", "pferdestärke".encode("latin-1")),
        ("pferdest\u00e4rke", "pferdesta\u0308rke".encode()),
        ("pferdesta\u0308rke", "pferdest\u00e4rke".encode()),
    ],
)
def test_read_key_passphrase_changed_by_editor_named(written: str, given: bytes, tmp_path: Path) -> None:
    identity = Identity.site("f", "a")
    create_request(tmp_path, identity, written.encode(), stretching=CHEAP)
    with pytest.raises(KeyStoreError) as near:
        read_key(tmp_path / "key.pem", given)
    with pytest.raises(KeyStoreError) as wrong:
        read_key(tmp_path / "key.pem", b"another " + given)
    assert str(near.value) != str(wrong.value)
    assert str(tmp_path / "key.pem") in str(near.value)
