"""Parties of a federation, honest ones and others, with certificates that are good now unless they say not."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from crypto.pki import Credentials, Identity, Stretching, approve, create_authority, create_request
from crypto.pki.identity import host_name
from crypto.pki.key_files import read_key

NAME = "clinics.example"
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
PASSPHRASE = b"correct horse"


class Federation:
    """A CA on disk and the parties it approved."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.trust = create_authority(
            directory / "ca", NAME, PASSPHRASE, stretching=Stretching.NONE_FOR_RANDOM_SECRET
        )

    def site(self, name: str = "clinic-a") -> Credentials:
        """Return a site, approved the honest way."""
        return self._approved(Identity.site(NAME, name))

    def coordinator(self, *hosts: str) -> Credentials:
        """Return a coordinator, approved the honest way; reached at 127.0.0.1 unless told otherwise."""
        return self._approved(Identity.coordinator(NAME), hosts or ("127.0.0.1",))

    def odd(
        self,
        identity: Identity,
        usages: Sequence[x509.ObjectIdentifier],
        hosts: Sequence[str] = (),
        days: tuple[int, int] = (-1, 1),
    ) -> Credentials:
        """Return a party with a certificate that this CA signed, but never would by its own rules."""
        key = ec.generate_private_key(ec.SECP256R1())
        ca = x509.load_pem_x509_certificate(self.trust.certificate_pem)
        names = [x509.UniformResourceIdentifier(identity.uri), *map(host_name, hosts)]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(ca.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.now(UTC) + timedelta(days=days[0]))
            .not_valid_after(datetime.now(UTC) + timedelta(days=days[1]))
            .add_extension(x509.BasicConstraints(False, None), critical=True)
            .add_extension(x509.KeyUsage(True, *[False] * 8), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .sign(read_key(self._directory / "ca" / "ca.key.pem", PASSPHRASE), hashes.SHA256())
        )
        return Credentials(certificate, key)

    def _approved(self, identity: Identity, hosts: Sequence[str] = ()) -> Credentials:
        folder = self._directory / identity.name
        create_request(
            folder, identity, PASSPHRASE, hosts, overwrite=True, stretching=Stretching.NONE_FOR_RANDOM_SECRET
        )
        request = (folder / "request.pem").read_bytes()
        (folder / "certificate.pem").write_bytes(approve(self._directory / "ca", PASSPHRASE, request))
        return Credentials.load(folder / "certificate.pem", folder / "key.pem", PASSPHRASE)
