"""Certificate requests (PKCS #10), which a party creates and the CA's holder reads and approves."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from crypto.errors import MalformedError, VerificationError
from crypto.pki import key_files, pem
from crypto.pki.identity import Identity, Role, extension, host_name, only_uri, p256_key
from crypto.pki.key_files import Stretching

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
