"""Second implementation of docs/reference/protocol.md: byte layouts, HKDF, HPKE, keystreams, Lagrange, rotations.

The implementation shares no code with the project. X25519, ChaCha20 and Poly1305 are the library's; the rest is hashlib
and Python's integers and fractions.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

Numbers = list[float]


def normals(key: bytes, dim: int, size: int) -> Numbers:
    """x of one step: its keystream's words, and Box and Muller."""
    half = (size + 1) // 2
    nonce = dim.to_bytes(6, "little") + size.to_bytes(6, "little")
    stream = (
        Cipher(algorithms.ChaCha20(key, bytes(4) + nonce), mode=None).encryptor().update(bytes(16 * half))
    )
    uniform = [((word >> 12) + 0.5) * 2.0**-52 for (word,) in struct.iter_unpack("<Q", stream)]
    radius = [math.sqrt(-2.0 * math.log(y)) for y in uniform[:half]]
    angle = [2.0 * math.pi * y for y in uniform[half:]]
    both = [r * math.cos(a) for r, a in zip(radius, angle, strict=True)]
    return (both + [r * math.sin(a) for r, a in zip(radius, angle, strict=True)])[:size]


def rotated(key: bytes, vector: Sequence[float], *, back: bool = False) -> Numbers:
    """Return a row under the class's rotation, or rotated back."""
    dim, result = len(vector), list(vector)
    steps = range(1, dim + 1)
    for size in reversed(steps) if back else steps:
        x, part = normals(key, dim, size), result[dim - size :]
        sign = -1.0 if x[0] >= 0 else 1.0
        u = [x[0] - sign * math.sqrt(sum(each * each for each in x)), *x[1:]]
        if not back:
            part[0] *= sign
        along = 2.0 * sum(a * b for a, b in zip(u, part, strict=True)) / sum(a * a for a in u)
        part = [p - along * a for p, a in zip(part, u, strict=True)]
        if back:
            part[0] *= sign
        result[dim - size :] = part
    return result


def fraction_bits(bound: float, sites: int, ring: int) -> int:
    """f; ``ValueError`` where there is none."""
    for f in range(40, 15, -1):
        if sites * (Fraction(bound) * 2**f + Fraction(1, 2)) < 2 ** (ring - 2):
            return f
    raise ValueError("no room")


def narrowest_ring(segments: Sequence[tuple[int, float]], sites: int) -> int:
    """Return the ring's bits where the agreement says none; segments are lengths and bounds."""
    largest = max(Fraction(bound) for length, bound in segments if length)
    return 32 if sites * (largest + Fraction(1, 1 << 17)) < 1 << 14 else 64


def word(value: float, bound: float, sites: int, ring: int) -> int:
    """Return a number in fixed point."""
    if not abs(value) <= bound:
        raise ValueError("beyond its bound")
    number: int = round(Fraction(value) * (1 << fraction_bits(bound, sites, ring)))
    return number % (1 << ring)


PRIME = 2**256 + 297
_KEM = b"KEM" + struct.pack(">H", 0x0020)
_SUITE = b"HPKE" + struct.pack(">HHH", 0x0020, 0x0001, 0x0003)


def layout(label: str, *fields: bytes) -> bytes:
    """Return a label and fields, each with its length before it."""
    return b"protoseal/v1/" + label.encode() + b"".join(struct.pack(">Q", len(f)) + f for f in fields)


def extract(salt: bytes, secret: bytes) -> bytes:
    """RFC 5869, 2.2."""
    return hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()


def expand(key: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, 2.3."""
    block, out = b"", b""
    while len(out) < length:
        block = hmac.new(key, block + info + bytes([len(out) // 32 + 1]), hashlib.sha256).digest()
        out += block
    return out[:length]


def derived(secret: bytes, label: str, *fields: bytes) -> bytes:
    """Return a key for one purpose."""
    return expand(extract(b"", secret), layout(label, *fields), 32)


def public_of(private: bytes) -> bytes:
    """RFC 7748."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes) -> bytes:
    """RFC 7748."""
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def hpke_seal(recipient: bytes, ephemeral: bytes, plaintext: bytes, info: bytes) -> bytes:
    """RFC 9180, base mode, with an ephemeral key of the caller's; the encapsulated key comes first."""
    encapsulated = public_of(ephemeral)
    cipher, nonce = _hpke(agreed(ephemeral, recipient), encapsulated, recipient, info)
    return encapsulated + cipher.encrypt(nonce, plaintext, b"")


def hpke_open(private: bytes, message: bytes, info: bytes) -> bytes:
    """RFC 9180, base mode."""
    encapsulated = message[:32]
    cipher, nonce = _hpke(agreed(private, encapsulated), encapsulated, public_of(private), info)
    return cipher.decrypt(nonce, message[32:], b"")


def _hpke(secret: bytes, encapsulated: bytes, public: bytes, info: bytes) -> tuple[ChaCha20Poly1305, bytes]:
    key = _expand(_KEM, _extract(_KEM, b"", "eae_prk", secret), "shared_secret", encapsulated + public, 32)
    hashed = [_extract(_SUITE, b"", "psk_id_hash", b""), _extract(_SUITE, b"", "info_hash", info)]
    context = b"\0" + b"".join(hashed)
    scheduled = _extract(_SUITE, key, "secret", b"")
    cipher = ChaCha20Poly1305(_expand(_SUITE, scheduled, "key", context, 32))
    return cipher, _expand(_SUITE, scheduled, "base_nonce", context, 12)


def _extract(suite: bytes, salt: bytes, label: str, secret: bytes) -> bytes:
    return extract(salt, b"HPKE-v1" + suite + label.encode() + secret)


def _expand(suite: bytes, key: bytes, label: str, info: bytes, length: int) -> bytes:
    return expand(key, struct.pack(">H", length) + b"HPKE-v1" + suite + label.encode() + info, length)


def keystream(key: bytes, bits: int, count: int) -> list[int]:
    """RFC 8439, counter and nonce of zero, as little-endian words."""
    content = (
        Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(count * bits // 8))
    )
    return [int.from_bytes(content[i : i + bits // 8], "little") for i in range(0, len(content), bits // 8)]


def lagrange(shares: Mapping[int, int]) -> int:
    """Return the polynomial's value at 0."""
    total = 0
    for x, value in shares.items():
        term = value
        for other in shares:
            if other != x:
                term = term * other * pow(other - x, -1, PRIME) % PRIME
        total += term
    return total % PRIME


def secrets_of(shares: Mapping[int, bytes], threshold: int) -> set[int]:
    """Return the secrets that all choices of ``threshold`` shares give; good shares give one."""
    values = {x: int.from_bytes(share, "big") for x, share in shares.items()}
    return {lagrange({x: values[x] for x in chosen}) for chosen in combinations(values, threshold)}


def names_field(names: Sequence[str]) -> bytes:
    """Names as one field."""
    return layout("pairwise-names", *(name.encode() for name in names))


def binding_fields(values: Mapping[str, Any]) -> tuple[bytes, ...]:
    """Return the fields to which every value of an attempt is bound, from a vector's ``binding``."""
    return (
        values["run"].encode(),
        struct.pack(">Q", values["round"]),
        struct.pack(">Q", values["attempt"]),
        bytes.fromhex(values["roster_hash"]),
        bytes.fromhex(values["agreement_hash"]),
        names_field(values["group"]),
        bytes.fromhex(values["broadcast"]),
    )


def check_signature(point: bytes, signature: bytes, label: str, *fields: bytes) -> None:
    """FIPS 186-5 over P-256; raises the library's own error."""
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    key.verify(signature, layout(label, *fields), ec.ECDSA(hashes.SHA256()))
