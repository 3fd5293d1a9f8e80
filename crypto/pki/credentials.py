"""Credentials of a party: its certificate and private key, for signatures and TLS."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from crypto.errors import KeyStoreError, VerificationError
from crypto.keys import KEY_BYTES, encode
from crypto.pki.identity import certificates_in, load_certificate, subject_text
from crypto.pki.key_files import errors_name_file, read, read_key
from crypto.pki.trust import claimed_identity, fingerprint

_ALGORITHM = ec.ECDSA(hashes.SHA256())


class Credentials:
    """Certificate and private key of a party; ``TrustAnchor`` checks that the CA signed the certificate."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        """Take a matching pair; raise :class:`KeyStoreError` unless the certificate is this key's."""
        if certificate.public_key() != key.public_key():
            raise KeyStoreError(
                "the certificate does not match the private key; use the key it was issued for"
            )
        self._certificate = certificate
        self._key = key
        self.identity = claimed_identity(certificate)

    @classmethod
    def load(cls, certificate_path: Path, key_path: Path, passphrase: bytes) -> Credentials:
        """Load credentials from a certificate file (PEM or DER) and an encrypted key file.

        Of several certificates in the file (with the CA's, say, in any order) the key's own is taken. Raises
        :class:`KeyStoreError` for a file that cannot be read, a wrong passphrase or a pair that does not match, and
        :class:`crypto.errors.MalformedError` or :class:`VerificationError` for a certificate that is not a party's.
        """
        with errors_name_file(certificate_path):
            certificates = certificates_in(read(certificate_path))
        key = read_key(key_path, passphrase, "; make a key with 'protoseal pki request'")
        # Files often have the CA's certificate too, in any order; the key says which one is the party's.
        for certificate in certificates:
            if certificate.public_key() == key.public_key():
                with errors_name_file(certificate_path):
                    return cls(certificate, key)
        names = " and ".join(map(subject_text, certificates))
        raise KeyStoreError(
            f"{certificate_path} is the certificate of {names}, and none for the key in {key_path}: name the "
            "certificate and the key of one request"
        )

    @classmethod
    def from_stored(cls, certificate_der: bytes, private_key: bytes) -> Credentials:
        """Build credentials from a certificate and the result of :meth:`private_bytes`; raise as :meth:`load`."""
        try:
            key = ec.derive_private_key(int.from_bytes(private_key, "big"), ec.SECP256R1())
        except ValueError as error:
            raise KeyStoreError("a stored private key is not a P-256 scalar") from error
        return cls(load_certificate(certificate_der), key)

    @property
    def certificate_der(self) -> bytes:
        """Certificate as DER, the form used in statements."""
        return self._certificate.public_bytes(serialization.Encoding.DER)

    @property
    def certificate_pem(self) -> bytes:
        """Certificate as PEM, for TLS."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate (DER) in hexadecimal, which a peer can pin."""
        return fingerprint(self._certificate)

    def private_key_pem(self) -> bytes:
        """Return the private key as PEM **without encryption**, the only form in which gRPC takes TLS keys.

        The result must stay in memory: never write it, log it or pass it to another process.
        """
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def encrypted_key_pem(self, password: bytes) -> bytes:
        """Return the private key as PEM under a password, for TLS libraries that take keys from files."""
        encryption = serialization.BestAvailableEncryption(password)
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        )

    def private_bytes(self) -> bytes:
        """Return the *secret* scalar, 32 bytes, which must be stored encrypted (:class:`crypto.keys.StorageKey`)."""
        return self._key.private_numbers().private_value.to_bytes(KEY_BYTES, "big")

    def sign(self, label: str, *fields: bytes) -> bytes:
        """Sign :func:`encode` of the label and fields with ECDSA-SHA256; return the signature as DER.

        Do not use a signature as an identifier: signing twice gives different bytes, and anyone can turn a signature
        into another valid one over the same fields.
        """
        return self._key.sign(encode(label, *fields), _ALGORITHM)

    def __repr__(self) -> str:
        return f"Credentials({self.identity.uri}, private=<redacted>)"


def verify(public_key: ec.EllipticCurvePublicKey, signature: bytes, label: str, *fields: bytes) -> None:
    """Raise :class:`VerificationError` unless the key's owner signed these fields under this label."""
    try:
        public_key.verify(signature, encode(label, *fields), _ALGORITHM)
    except InvalidSignature as error:
        raise VerificationError(f"a signature ({label}) does not hold") from error
