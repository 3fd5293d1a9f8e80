"""Checks of a certificate: each attack succeeds only where its one check is missing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from crypto.errors import MalformedError, VerificationError
from crypto.pki import Identity, Role, TrustAnchor
from tests.support.weakened_builds import weaken

if TYPE_CHECKING:
    from tests.crypto.conftest import Federation

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
SITE_URI = "spiffe://clinics.example/site/clinic-a"
COORDINATOR_URI = "spiffe://clinics.example/coordinator"


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"\x05\x00")


def test_identify_honest_parties(federation: Federation) -> None:
    site, coordinator, trust = federation.site("clinic-a"), federation.coordinator(), federation.trust
    assert trust.identify(site.certificate_der, Role.SITE, NOW) == Identity.site(
        "clinics.example", "clinic-a"
    )
    assert trust.identify(site.certificate_pem, Role.SITE, NOW) == site.identity
    assert trust.identify(coordinator.certificate_der, Role.COORDINATOR, NOW) == coordinator.identity
    for party, other in ((site, Role.COORDINATOR), (coordinator, Role.SITE)):
        with pytest.raises(VerificationError, match=r"extended key usage"):
            trust.identify(party.certificate_der, other, NOW)


Attack = Callable[["Federation", "Federation"], x509.Certificate]
IDENTIFY = "crypto.pki.trust.TrustAnchor.identify: "
_UNKNOWN = "item.critical and isinstance(item.value, x509.UnrecognizedExtension)"
_USAGE = "list(extension(loaded, x509.ExtendedKeyUsage)) != [EXTENDED_USAGE[role]]"

ATTACKS: dict[str, tuple[str, Role, Attack]] = {
    "another CA's": (
        "crypto.pki.trust._check_issuer",
        Role.SITE,
        lambda _own, stranger: x509.load_der_x509_certificate(stranger.site("clinic-a").certificate_der),
    ),
    "expired": (
        "crypto.pki.trust.check_validity",
        Role.SITE,
        lambda own, _stranger: own.odd_certificate(days=(-30, -1)),
    ),
    "not yet valid": (
        "crypto.pki.trust.check_validity",
        Role.SITE,
        lambda own, _stranger: own.odd_certificate(days=(1, 30)),
    ),
    "another kind of key": (
        "crypto.pki.trust.p256_key",
        Role.SITE,
        lambda own, _stranger: own.odd_certificate(key=ec.generate_private_key(ec.SECP384R1())),
    ),
    "a CA under the CA": (
        IDENTIFY + "extension(loaded, x509.BasicConstraints).ca",
        Role.SITE,
        lambda own, _stranger: own.odd_certificate(authority=True),
    ),
    "a critical extension that nobody knows": (
        IDENTIFY + _UNKNOWN,
        Role.SITE,
        lambda own, _stranger: own.odd_certificate(more=[UNKNOWN]),
    ),
    "a key that does not allow signatures": (
        IDENTIFY + "not extension(loaded, x509.KeyUsage).digital_signature",
        Role.SITE,
        lambda own, _stranger: own.odd_certificate(may_sign=False),
    ),
    "a client as coordinator": (
        IDENTIFY + _USAGE,
        Role.COORDINATOR,
        lambda own, _stranger: own.odd_certificate(uris=[COORDINATOR_URI], usages=[CLIENT]),
    ),
    "both usages": (
        IDENTIFY + _USAGE,
        Role.SITE,
        lambda own, _stranger: own.odd_certificate(usages=[CLIENT, SERVER]),
    ),
    "another federation's name": (
        IDENTIFY + "identity.federation != self.federation",
        Role.SITE,
        lambda own, _stranger: own.odd_certificate(uris=["spiffe://elsewhere/site/clinic-a"]),
    ),
    "a site's name as coordinator": (
        IDENTIFY + "identity.role is not role",
        Role.COORDINATOR,
        lambda own, _stranger: own.odd_certificate(uris=[SITE_URI], usages=[SERVER]),
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_identify_attack_refused_by_its_layer_alone(
    name: str, federation: Federation, stranger: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, role, attack = ATTACKS[name]
    certificate = der(attack(federation, stranger))
    with pytest.raises(VerificationError):
        federation.trust.identify(certificate, role, NOW)
    weaken(layer, monkeypatch)
    assert federation.trust.identify(certificate, role, NOW).name in {"clinic-a", "coordinator"}


@pytest.mark.parametrize("uris", [[], [SITE_URI, COORDINATOR_URI], [SITE_URI, SITE_URI]])
def test_identify_certificate_with_other_than_one_identity_refused(
    federation: Federation, uris: list[str]
) -> None:
    certificate = der(federation.odd_certificate(uris=uris))
    with pytest.raises(VerificationError, match=r"SubjectAlternativeName|identities"):
        federation.trust.identify(certificate, Role.SITE, NOW)


def test_verify_other_partys_signature_refused(federation: Federation) -> None:
    """A site's own certificate is no anchor, and what it signs is nobody's."""
    with pytest.raises(VerificationError, match="CN=clinic-a"):
        TrustAnchor(federation.site("clinic-a").certificate_der)


def test_trust_anchor_other_certificates_refused(federation: Federation) -> None:
    again = TrustAnchor.load(federation.authority / "ca.pem")
    assert again.federation == "clinics.example"
    assert again.fingerprint == federation.trust.fingerprint
    with pytest.raises(MalformedError):
        TrustAnchor(b"nothing")


def test_identify_after_ca_expired_refused(federation: Federation) -> None:
    """The certificate outlives the CA here, as an honest CA's never does."""
    certificate = der(federation.odd_certificate(days=(0, 5000)))
    assert federation.trust.identify(certificate, Role.SITE, NOW + timedelta(days=3649))
    with pytest.raises(VerificationError, match="federation CA"):
        federation.trust.identify(certificate, Role.SITE, NOW + timedelta(days=3651))


def test_check_validity_includes_both_ends(federation: Federation) -> None:
    certificate = federation.odd_certificate(days=(1, 2))
    start, end, second = NOW + timedelta(days=1), NOW + timedelta(days=2), timedelta(seconds=1)
    for at in (start, end):
        assert federation.trust.identify(der(certificate), Role.SITE, at)
    for at in (start - second, end + second):
        with pytest.raises(VerificationError):
            federation.trust.identify(der(certificate), Role.SITE, at)


def test_identify_altered_certificate_refused(federation: Federation) -> None:
    """Wherever a bit of it is another, but for how many bits of the signature's last byte count: it is the same."""
    honest = federation.site("clinic-a").certificate_der
    uncounted = honest.rindex(x509.load_der_x509_certificate(honest).signature) - 1
    for position in set(range(len(honest))) - {uncounted}:
        content = bytearray(honest)
        content[position] ^= 0x01
        with pytest.raises((VerificationError, MalformedError)):
            federation.trust.identify(bytes(content), Role.SITE, NOW)


def test_trust_anchor_other_kind_of_key_named() -> None:
    """An institution's RSA root in the place of the federation's CA."""
    key, name = rsa.generate_private_key(65537, 2048), x509.Name.from_rfc4514_string("CN=HospitalRoot")
    root = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, NOW, NOW + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    with pytest.raises(VerificationError, match="CN=HospitalRoot"):
        TrustAnchor(der(root))


def test_identify_ca_of_same_name_and_foreign_ca_named(federation: Federation, stranger: Federation) -> None:
    with pytest.raises(VerificationError) as same:
        federation.trust.identify(stranger.site("clinic-a").certificate_der, Role.SITE, NOW)
    assert str(same.value).count("CN=federation CA") == 1
    assert federation.trust.fingerprint[:16] in str(same.value)
