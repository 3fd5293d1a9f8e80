"""The CA, requests and credentials; what a certificate must be is in test_trust.py."""

from __future__ import annotations

import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given
from hypothesis import strategies as st

from crypto.errors import KeyStoreError, MalformedError, VerificationError
from crypto.pki import (
    Credentials,
    Identity,
    Role,
    Stretching,
    TrustAnchor,
    approve,
    create_authority,
    create_request,
    read_request,
    verify,
)
from crypto.pki.key_files import read_key, write_public

if TYPE_CHECKING:
    from tests.crypto.conftest import Federation

PASSPHRASE = b"correct horse"
NAMES = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,62}", fullmatch=True)

CHEAP = Stretching.NONE_FOR_RANDOM_SECRET


def _certificate(credentials: Credentials) -> x509.Certificate:
    return x509.load_der_x509_certificate(credentials.certificate_der)


def _usages(credentials: Credentials) -> list[x509.ObjectIdentifier]:
    return list(_certificate(credentials).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


# Names


@given(NAMES, NAMES)
def test_identity_uri_round_trip(federation: str, name: str) -> None:
    for identity in (Identity.site(federation, name), Identity.coordinator(federation)):
        assert Identity.from_uri(identity.uri) == identity


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://f",
        "spiffe://f/",
        "spiffe://f/site/",
        "spiffe://f/site/a/b",
        "spiffe://f/site/A",
        "spiffe://f/sites/a",
        "spiffe://f/a",
        "spiffe://f/coordinator/",
        "spiffe:///site/a",
        "https://f/site/a",
        "f/site/a",
        " spiffe://f/site/a",
        "spiffe://f/site/a\n",
        f"spiffe://f/site/{'a' * 64}",
        "spiffe://f/site/site/a",
    ],
)
def test_identity_from_other_uri_refused(uri: str) -> None:
    with pytest.raises(VerificationError, match=r"names no"):
        Identity.from_uri(uri)


@pytest.mark.parametrize("name", ["", "A", "-a", ".a", "a_b", "a/b", "é", "a" * 64, "a\n"])
def test_identity_bad_name_refused(name: str) -> None:
    with pytest.raises(ValueError, match="63"):
        Identity.site("f", name)
    with pytest.raises(ValueError, match="63"):
        Identity.coordinator(name)


def test_identity_coordinator_with_other_name_refused() -> None:
    with pytest.raises(ValueError, match="coordinator"):
        Identity("f", Role.COORDINATOR, "second")


# The CA


def test_create_authority_path_length_and_usage(federation: Federation) -> None:
    ca = x509.load_pem_x509_certificate(federation.trust.certificate_pem)
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    usage = ca.extensions.get_extension_for_class(x509.KeyUsage)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert usage.value.crl_sign
    assert not usage.value.digital_signature
    assert federation.trust.federation == "clinics.example"


def test_approve_party_certificate_usage(federation: Federation) -> None:
    """Both extensions are critical, so that software that does not know them refuses the certificate."""
    for party in (federation.site("clinic-a"), federation.coordinator("localhost")):
        extensions = _certificate(party).extensions
        constraints = extensions.get_extension_for_class(x509.BasicConstraints)
        usage = extensions.get_extension_for_class(x509.KeyUsage)
        assert constraints.critical
        assert usage.critical
        assert not constraints.value.ca
        assert usage.value.digital_signature
        assert not usage.value.key_cert_sign
        assert not usage.value.crl_sign


def test_key_files_private_and_encrypted(tmp_path: Path) -> None:
    create_authority(tmp_path / "ca", "f", PASSPHRASE, stretching=CHEAP)
    create_request(tmp_path / "a", Identity.site("f", "a"), PASSPHRASE, stretching=CHEAP)
    for directory, name in (("ca", "ca.key.pem"), ("a", "key.pem")):
        path = tmp_path / directory / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        with pytest.raises(KeyStoreError, match=name):
            read_key(path, b"wrong")


def test_existing_files_kept_without_overwrite(tmp_path: Path) -> None:
    authority, party, identity = tmp_path / "ca", tmp_path / "a", Identity.site("f", "a")
    makers: list[Callable[[bool], object]] = [
        lambda overwrite: create_authority(authority, "f", PASSPHRASE, overwrite=overwrite, stretching=CHEAP),
        lambda overwrite: create_request(party, identity, PASSPHRASE, overwrite=overwrite, stretching=CHEAP),
    ]
    for make in makers:
        make(False)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*.pem")}
        with pytest.raises(KeyStoreError, match="--overwrite"):
            make(False)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*.pem")} == before
        make(True)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*.pem")} != before


def test_file_that_appears_meanwhile_kept(tmp_path: Path) -> None:
    """Nothing was there when it was looked for; the write itself must still refuse."""
    path = tmp_path / "certificate.pem"
    path.write_bytes(b"someone else's")
    with pytest.raises(KeyStoreError, match=r"exists"):
        write_public(path, b"mine", overwrite=False)
    assert path.read_bytes() == b"someone else's"
    assert list(tmp_path.iterdir()) == [path]


def test_empty_passphrase_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreError, match="empty"):
        create_authority(tmp_path / "ca", "f", b"")
    assert not list(tmp_path.rglob("*.pem"))


def test_unreadable_or_unwritable_file_named(tmp_path: Path) -> None:
    with pytest.raises(KeyStoreError, match=r"nowhere\.pem"):
        TrustAnchor.load(tmp_path / "nowhere.pem")
    (tmp_path / "file").write_bytes(b"no certificate")
    with pytest.raises(KeyStoreError, match=r"created"):
        create_authority(tmp_path / "file" / "ca", "f", PASSPHRASE)
    with pytest.raises(KeyStoreError, match=r"written"):
        write_public(tmp_path / "absent" / "a.pem", b"", overwrite=False)
    with pytest.raises(MalformedError, match="file"):
        TrustAnchor.load(tmp_path / "file")


# Requests


@pytest.mark.parametrize("hosts", [["bad host"], ["*.example.org"], ["10.0.0.0/8"], [""], ["a..b"], ["-a"]])
def test_host_name_other_text_refused(tmp_path: Path, hosts: list[str]) -> None:
    with pytest.raises(ValueError, match="DNS"):
        create_request(tmp_path, Identity.coordinator("f"), PASSPHRASE, hosts, stretching=CHEAP)


def test_create_request_hosts_by_role(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="host"):
        create_request(tmp_path, Identity.coordinator("f"), PASSPHRASE)
    with pytest.raises(ValueError, match="site"):
        create_request(tmp_path, Identity.site("f", "a"), PASSPHRASE, ["localhost"])
    hosts = ["Coordinator.example.org", "127.0.0.1", "::1", "localhost", "localhost"]
    request = create_request(tmp_path, Identity.coordinator("f"), PASSPHRASE, hosts, stretching=CHEAP)
    assert request.hosts == ("coordinator.example.org", "127.0.0.1", "::1", "localhost")
    assert request == read_request((tmp_path / "request.pem").read_bytes())


def _request(
    *names: x509.GeneralName,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None,
    ca: bool = False,
) -> bytes:
    """Return a request that another program might make: for site a of clinics.example unless names are given."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")])
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if ca:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CODE_SIGNING]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    request = builder.sign(key or ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


SITE_A = x509.UniformResourceIdentifier("spiffe://clinics.example/site/a")
COORDINATOR = x509.UniformResourceIdentifier("spiffe://clinics.example/coordinator")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ([], "no usable SubjectAlternativeName"),
        ([x509.DNSName("a")], "names 0 identities"),
        ([SITE_A, COORDINATOR], "names 2 identities"),
        ([x509.UniformResourceIdentifier("spiffe://clinics.example")], "names no site"),
        ([SITE_A, x509.DNSName("localhost")], "nothing listens at a site"),
        ([COORDINATOR], "at least one host"),
        ([COORDINATOR, x509.RFC822Name("root@example.org")], "neither"),
        ([COORDINATOR, x509.DNSName("*.example.org")], "neither"),
    ],
)
def test_read_request_other_identity_refused(names: list[x509.GeneralName], problem: str) -> None:
    with pytest.raises(VerificationError, match=problem):
        read_request(_request(*names))


def test_read_request_other_kind_of_key_refused() -> None:
    for key in (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)):
        with pytest.raises(VerificationError, match="P-256"):
            read_request(_request(SITE_A, key=key))


def test_read_request_wrong_signature_refused() -> None:
    """Somebody asks for a certificate over a public key that is not theirs."""
    mine, other = _request(SITE_A), _request(SITE_A)
    first, second = x509.load_pem_x509_csr(mine), x509.load_pem_x509_csr(other)
    forged = first.public_bytes(serialization.Encoding.DER).replace(
        first.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
        second.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )
    pem = x509.load_der_x509_csr(forged).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(VerificationError, match=r"signed"):
        read_request(pem)


def test_read_request_other_content_refused(federation: Federation) -> None:
    for content in (b"", b"-----BEGIN CERTIFICATE REQUEST-----\n", federation.trust.certificate_pem):
        with pytest.raises(MalformedError):
            read_request(content)


# Approval


def test_approve_extended_usage_by_role(federation: Federation) -> None:
    site, coordinator = (
        federation.site("clinic-a"),
        federation.coordinator("coordinator.example.org", "127.0.0.1"),
    )
    assert _usages(site) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert _usages(coordinator) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = _certificate(coordinator).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["coordinator.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    lifetimes = [
        _certificate(party).not_valid_after_utc - _certificate(party).not_valid_before_utc
        for party in (site, coordinator)
    ]
    skew = timedelta(minutes=5)
    assert lifetimes == [timedelta(days=365) + skew, timedelta(days=30) + skew]


def test_approve_copies_no_extensions(federation: Federation) -> None:
    certificate = x509.load_pem_x509_certificate(
        approve(federation.authority, PASSPHRASE, _request(SITE_A, ca=True))
    )
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == "a"


def test_approve_other_federation_refused(federation: Federation) -> None:
    elsewhere = x509.UniformResourceIdentifier("spiffe://elsewhere/site/a")
    with pytest.raises(VerificationError, match=r"clinics\.example"):
        approve(federation.authority, PASSPHRASE, _request(elsewhere))


def test_approve_never_outlives_ca(tmp_path: Path) -> None:
    create_authority(tmp_path, "clinics.example", PASSPHRASE, days=10, stretching=CHEAP)
    certificate = x509.load_pem_x509_certificate(approve(tmp_path, PASSPHRASE, _request(SITE_A), days=365))
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    assert certificate.not_valid_after_utc == ca.not_valid_after_utc
    assert certificate.not_valid_before_utc >= ca.not_valid_before_utc
    with pytest.raises(VerificationError, match="federation CA"):
        approve(tmp_path, PASSPHRASE, _request(SITE_A), now=ca.not_valid_after_utc + timedelta(seconds=1))
    with pytest.raises(ValueError, match="36500"):
        approve(tmp_path, PASSPHRASE, _request(SITE_A), days=0)


def test_approve_mismatched_ca_files_refused(tmp_path: Path) -> None:
    create_authority(tmp_path / "one", "clinics.example", PASSPHRASE, stretching=CHEAP)
    create_authority(tmp_path / "two", "clinics.example", PASSPHRASE, stretching=CHEAP)
    (tmp_path / "one" / "ca.pem").write_bytes((tmp_path / "two" / "ca.pem").read_bytes())
    with pytest.raises(KeyStoreError, match=r"belong"):
        approve(tmp_path / "one", PASSPHRASE, _request(SITE_A))


def test_certificates_accepted_by_openssl(federation: Federation) -> None:
    """The X.509 profile of the Web PKI, as pyca/cryptography checks it."""
    site, coordinator = federation.site("clinic-a"), federation.coordinator("localhost")
    store = Store([x509.load_pem_x509_certificate(federation.trust.certificate_pem)])
    at = _certificate(site).not_valid_before_utc + timedelta(days=1)
    builder = PolicyBuilder().store(store).time(at)
    client = builder.build_client_verifier().verify(_certificate(site), [])
    assert client.subjects == [x509.UniformResourceIdentifier("spiffe://clinics.example/site/clinic-a")]
    builder.build_server_verifier(x509.DNSName("localhost")).verify(_certificate(coordinator), [])


# Credentials


def test_credentials_sign_and_redacted_repr(federation: Federation) -> None:
    credentials = federation.site("clinic-a")
    assert credentials.identity == Identity.site("clinics.example", "clinic-a")
    assert repr(credentials) == "Credentials(spiffe://clinics.example/site/clinic-a, private=<redacted>)"
    key = _certificate(credentials).public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    signature = credentials.sign("test", b"one", b"two")
    verify(key, signature, "test", b"one", b"two")
    for label, fields in (("test", (b"onet", b"wo")), ("other", (b"one", b"two")), ("test", (b"one",))):
        with pytest.raises(VerificationError, match=r"hold"):
            verify(key, signature, label, *fields)
    for bad in (b"", signature[:-1], b"\x30\x06\x02\x01\x00\x02\x01\x00"):
        with pytest.raises(VerificationError, match=r"hold"):
            verify(key, bad, "test", b"one", b"two")


def test_credentials_wrong_pair_or_passphrase_refused(federation: Federation, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for directory in (one, two):
        create_request(directory, Identity.site("clinics.example", "a"), PASSPHRASE, stretching=CHEAP)
        request = (directory / "request.pem").read_bytes()
        (directory / "c.pem").write_bytes(approve(federation.authority, PASSPHRASE, request))
    Credentials.load(one / "c.pem", one / "key.pem", PASSPHRASE)
    with pytest.raises(KeyStoreError, match=r"one/c\.pem .*two/key\.pem"):
        Credentials.load(one / "c.pem", two / "key.pem", PASSPHRASE)
    for wrong in (b"wrong", b""):
        with pytest.raises(KeyStoreError, match=r"key\.pem"):
            Credentials.load(one / "c.pem", one / "key.pem", wrong)
    with pytest.raises(KeyStoreError, match=r"c\.pem"):
        Credentials.load(one / "c.pem", one / "c.pem", PASSPHRASE)
    with pytest.raises(MalformedError, match=r"key\.pem"):
        Credentials.load(one / "key.pem", one / "key.pem", PASSPHRASE)


def test_read_key_clear_or_other_format_refused(federation: Federation, tmp_path: Path) -> None:
    credentials = federation.site("clinic-a")
    (tmp_path / "c.pem").write_bytes(credentials.certificate_pem)
    key = serialization.load_pem_private_key(credentials.private_key_pem(), None)
    pkcs8 = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(PASSPHRASE),
    )
    for content in (credentials.private_key_pem(), pkcs8):
        (tmp_path / "key.pem").write_bytes(content)
        with pytest.raises(KeyStoreError, match=r"key\.pem"):
            Credentials.load(tmp_path / "c.pem", tmp_path / "key.pem", PASSPHRASE)
