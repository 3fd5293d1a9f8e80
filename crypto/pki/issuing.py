"""Certificate requests (PKCS #10), which parties create, and the certificate authority (CA) that approves them.

The CA's key must not be at the coordinator: whoever holds the key can make any identity, and the coordinator, which
relays all messages, could then forge every signature between sites.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from crypto.errors import KeyStoreError, MalformedError, VerificationError
from crypto.pki import key_files, pem
from crypto.pki.identity import (
    Identity,
    Role,
    check_name,
    extension,
    federation_uri,
    host_name,
    load_certificate,
    only_uri,
    p256_key,
)
from crypto.pki.key_files import Stretching
from crypto.pki.trust import EXTENDED_USAGE, TrustAnchor, check_validity

KEY_FILE = "key.pem"
REQUEST_FILE = "request.pem"


@dataclass(frozen=True)
class Request:
    """Content of a verified certificate request; all other fields of the request are ignored.

    ``hosts`` are the DNS names and IP addresses of a coordinator, as text.
    """

    identity: Identity
    hosts: tuple[str, ...]
    public_key: ec.EllipticCurvePublicKey = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key (DER) in hexadecimal, which the requester reads out to the CA's holder."""
        encoding, form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        return hashlib.sha256(self.public_key.public_bytes(encoding, form)).hexdigest()


def create_request(
    directory: Path,
    identity: Identity,
    passphrase: bytes,
    hosts: Sequence[str] = (),
    *,
    overwrite: bool = False,
    stretching: Stretching = Stretching.FOR_PASSPHRASE,
) -> Request:
    """Make a P-256 key (``key.pem``, encrypted, mode 0600) and a certificate request (``request.pem``).

    A coordinator needs at least one host (DNS name or IP address) at which sites reach it; a site must have none.
    Raises ``ValueError`` for other hosts, and :class:`crypto.errors.KeyStoreError` for an empty passphrase and for
    existing files unless ``overwrite``, which destroys the old key.
    """
    key_path, request_path = directory / KEY_FILE, directory / REQUEST_FILE
    names = [host_name(host) for host in dict.fromkeys(hosts)]
    _check_hosts(identity.role, hosts)
    if not overwrite:
        key_files.check_absent(key_path, request_path)
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri), *names])
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject(identity))
        .add_extension(alternatives, critical=False)
        .sign(key, hashes.SHA256())
    )
    key_files.make_directory(directory)
    key_files.write_key(key_path, key, passphrase, overwrite=overwrite, stretching=stretching)
    content = csr.public_bytes(serialization.Encoding.PEM)
    key_files.write_public(request_path, content, overwrite=overwrite)
    return read_request(content)


def read_request(content: bytes) -> Request:
    """Return the verified content of a PEM request.

    Raises :class:`MalformedError` for other bytes, and :class:`VerificationError` unless the request is signed with
    its own P-256 key, names exactly one identity, and has hosts if and only if that is a coordinator's. Limit: the
    request does not show *who* made it; compare :attr:`Request.fingerprint` over another channel.
    """
    requests = pem.read_blocks(content, pem.REQUEST)
    if len(requests) > 1:
        raise MalformedError("has several certificate requests: give a file for each of them")
    try:
        csr = x509.load_der_x509_csr(requests[0])
    except (ValueError, x509.InvalidVersion) as error:
        raise MalformedError("is damaged: what it calls a certificate request is none") from error
    # The signature shows that the requester has the private key; an altered name would be certified otherwise.
    try:
        signed = csr.is_signature_valid
    except (ValueError, UnsupportedAlgorithm):
        signed = False
    if not signed:
        raise VerificationError("a request was altered, or is not signed with the key that it names")
    identity = Identity.from_uri(only_uri(csr))
    try:
        hosts = _hosts(csr)
        _check_hosts(identity.role, hosts)
    except ValueError as error:
        raise VerificationError(f"a request for {identity} cannot be approved: {error}") from error
    return Request(identity, hosts, p256_key(csr))


def subject(identity: Identity) -> x509.Name:
    """Return the X.509 subject of a party, which is for people to read and not used in any check."""
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, identity.federation),
            x509.NameAttribute(NameOID.COMMON_NAME, identity.name),
        ]
    )


def _check_hosts(role: Role, hosts: Sequence[str]) -> None:
    if role is Role.COORDINATOR and not hosts:
        raise ValueError(
            "a coordinator needs at least one host name or IP address under which sites reach it"
        )
    if role is Role.SITE and hosts:
        raise ValueError("a site must have no host name: nothing listens at a site")


def _hosts(csr: x509.CertificateSigningRequest) -> tuple[str, ...]:
    """Return DNS names and IP addresses; raise ``ValueError`` for a name of another kind (e.g. an e-mail address)."""
    names = extension(csr, x509.SubjectAlternativeName)
    others = [name for name in names if not isinstance(name, x509.UniformResourceIdentifier)]
    hosts = [str(name.value) for name in others]
    if [host_name(host) for host in hosts] != others:
        raise ValueError("the request has names that are neither an identity nor a host")
    return tuple(hosts)


CA_KEY_FILE = "ca.key.pem"
CA_FILE = "ca.pem"
DEFAULT_CA_DAYS = 3650
LONGEST_DAYS = 36_500
DEFAULT_DAYS = {Role.SITE: 365, Role.COORDINATOR: 30}
"""Days of validity by role; a coordinator's certificate is short-lived, because all sites connect to its holder."""

_CLOCK_SKEW = timedelta(minutes=5)
"""Time by which certificates start early, for machines whose clocks are behind."""


def create_authority(
    directory: Path,
    federation: str,
    passphrase: bytes,
    days: int = DEFAULT_CA_DAYS,
    *,
    overwrite: bool = False,
    now: datetime | None = None,
    stretching: Stretching = Stretching.FOR_PASSPHRASE,
) -> TrustAnchor:
    """Create a CA: ``ca.key.pem`` (P-256, encrypted, mode 0600) and ``ca.pem``, which every party gets.

    Raises ``ValueError`` for a bad name or number of days, and :class:`KeyStoreError` for an empty passphrase and for
    existing files unless ``overwrite``, which invalidates every certificate that the old CA signed.
    """
    check_name("federation", federation)
    key_path, certificate_path = directory / CA_KEY_FILE, directory / CA_FILE
    if not overwrite:
        key_files.check_absent(key_path, certificate_path)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _authority_certificate(key, federation, days, now or datetime.now(UTC))
    key_files.make_directory(directory)
    key_files.write_key(key_path, key, passphrase, overwrite=overwrite, stretching=stretching)
    content = certificate.public_bytes(serialization.Encoding.PEM)
    key_files.write_public(certificate_path, content, overwrite=overwrite)
    return TrustAnchor(content)


def approve(
    authority: Path,
    passphrase: bytes,
    request_pem: bytes,
    days: int | None = None,
    *,
    now: datetime | None = None,
) -> bytes:
    """Return the certificate (PEM) for a request, signed by the CA in the directory ``authority``.

    The caller must have compared the request's fingerprint with the requester's. Only identity, hosts and public key
    are taken from the request. The certificate is valid for ``days`` (365 for a site, 30 for a coordinator), and never
    longer than the CA. Raises as :func:`crypto.pki.issuing.read_request`, :class:`VerificationError` for a request of
    another federation or a CA outside its validity, and :class:`KeyStoreError` for a CA that is missing or does not
    decrypt.
    """
    moment = now or datetime.now(UTC)
    trust = TrustAnchor.load(authority / CA_FILE)
    issuer = load_certificate(trust.certificate_pem)
    request = read_request(request_pem)
    _check_same_federation(request, trust.federation)
    # An expired CA would sign certificates that nobody accepts.
    check_validity(issuer, moment)
    key = key_files.read_key(authority / CA_KEY_FILE, passphrase)
    if issuer.public_key() != key.public_key():
        raise KeyStoreError(f"{CA_FILE} and {CA_KEY_FILE} in {authority} do not belong together")
    lifetime = _lifetime(DEFAULT_DAYS[request.identity.role] if days is None else days)
    certificate = _party_certificate(request, issuer, key, moment, lifetime)
    return certificate.public_bytes(serialization.Encoding.PEM)


def _check_same_federation(request: Request, federation: str) -> None:
    if request.identity.federation != federation:
        raise VerificationError(f"the request is for {request.identity}, but this is the CA of {federation}")


def _lifetime(days: int) -> timedelta:
    if not 1 <= days <= LONGEST_DAYS:
        raise ValueError(f"a certificate must be valid for 1 to {LONGEST_DAYS} days, not {days}")
    return timedelta(days=days)


def _authority_certificate(
    key: ec.EllipticCurvePrivateKey, federation: str, days: int, moment: datetime
) -> x509.Certificate:
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            x509.NameAttribute(NameOID.COMMON_NAME, "federation CA"),
        ]
    )
    uri = x509.UniformResourceIdentifier(federation_uri(federation))
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - _CLOCK_SKEW)
        .not_valid_after(moment + _lifetime(days))
        # No CA below this one, so that the issuer of every certificate is this key.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _party_certificate(
    request: Request,
    issuer: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    moment: datetime,
    lifetime: timedelta,
) -> x509.Certificate:
    names = [x509.UniformResourceIdentifier(request.identity.uri), *map(host_name, request.hosts)]
    usage = EXTENDED_USAGE[request.identity.role]
    issuer_key = extension(issuer, x509.SubjectKeyIdentifier)
    return (
        x509.CertificateBuilder()
        .subject_name(subject(request.identity))
        .issuer_name(issuer.subject)
        .public_key(request.public_key)
        .serial_number(x509.random_serial_number())
        # Never beyond the CA's own validity, outside which peers refuse the certificate anyway.
        .not_valid_before(max(moment - _CLOCK_SKEW, issuer.not_valid_before_utc))
        .not_valid_after(min(moment + lifetime, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(request.public_key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), critical=False
        )
        .sign(key, hashes.SHA256())
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )
