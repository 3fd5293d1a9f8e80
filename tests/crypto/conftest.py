"""A federation to test with: its CA, its parties, and certificates that an honest CA never signs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from crypto.pki import Credentials, Identity, Stretching, approve, create_authority, create_request
from crypto.pki.key_files import read_key
from tests.crypto.masked_group import BINDING, Group

PASSPHRASE = b"correct horse"
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Federation:
    """A CA on disk, all of whose certificates are valid from :data:`NOW` on."""

    def __init__(self, directory: Path, name: str = "clinics.example") -> None:
        self.name = name
        self.authority = directory / "ca"
        self.trust = create_authority(
            self.authority, name, PASSPHRASE, now=NOW, stretching=Stretching.NONE_FOR_RANDOM_SECRET
        )
        self._parties = directory / "parties"

    def site(self, name: str) -> Credentials:
        """Return a site with a certificate made the honest way."""
        return self._credentials(self._parties / name, Identity.site(self.name, name))

    def coordinator(self, *hosts: str) -> Credentials:
        """Return a coordinator with a certificate made the honest way."""
        identity = Identity.coordinator(self.name)
        return self._credentials(self._parties / "coordinator", identity, hosts or ("localhost",))

    def _credentials(self, directory: Path, identity: Identity, hosts: Sequence[str] = ()) -> Credentials:
        create_request(
            directory,
            identity,
            PASSPHRASE,
            hosts,
            overwrite=True,
            stretching=Stretching.NONE_FOR_RANDOM_SECRET,
        )
        request = (directory / "request.pem").read_bytes()
        (directory / "certificate.pem").write_bytes(approve(self.authority, PASSPHRASE, request, now=NOW))
        return Credentials.load(directory / "certificate.pem", directory / "key.pem", PASSPHRASE)

    def odd_certificate(
        self,
        *,
        uris: Sequence[str] | None = None,
        key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None,
        usages: Sequence[x509.ObjectIdentifier] = (ExtendedKeyUsageOID.CLIENT_AUTH,),
        authority: bool = False,
        may_sign: bool = True,
        days: tuple[int, int] = (0, 365),
        more: Sequence[x509.UnrecognizedExtension] = (),
    ) -> x509.Certificate:
        """Site ``clinic-a``'s certificate, truly signed by the CA, but for what the arguments change."""
        named = uris if uris is not None else [Identity.site(self.name, "clinic-a").uri]
        ca = x509.load_pem_x509_certificate(self.trust.certificate_pem)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "odd")]))
            .issuer_name(ca.subject)
            .public_key((key or ec.generate_private_key(ec.SECP256R1())).public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW + timedelta(days=days[0]))
            .not_valid_after(NOW + timedelta(days=days[1]))
            .add_extension(x509.BasicConstraints(authority, None), critical=True)
            .add_extension(_key_usage(may_sign), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in named]), False
            )
        )
        for extension in more:
            builder = builder.add_extension(extension, critical=True)
        return builder.sign(read_key(self.authority / "ca.key.pem", PASSPHRASE), hashes.SHA256())

    def odd_credentials(self, name: str) -> Credentials:
        """Issue a second certificate for a name that is already another's, as a dishonest CA can."""
        key = ec.generate_private_key(ec.SECP256R1())
        uri = Identity.site(self.name, name).uri
        return Credentials(self.odd_certificate(uris=[uri], key=key), key)


def _key_usage(may_sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(may_sign, True, False, False, False, False, False, False, False)


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """The federation of most tests."""
    return Federation(tmp_path_factory.mktemp("federation"))


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """Another CA, of a federation with the same name."""
    return Federation(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def group() -> Group:
    """Five members of a masked sum, threshold 4, that have made and received shares."""
    ready = Group.of(BINDING)
    ready.share()
    return ready
