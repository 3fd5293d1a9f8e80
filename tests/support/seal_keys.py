"""Malformed sets of evaluation keys in SEAL's own format, with any keys, none, or far too many.

SEAL itself never writes such sets. Their content does not matter here, so each polynomial is zero, and a compressed
set is a thousandth of its size.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

from crypto.ckks.parameters import POLY_DEGREE, SCALE, CkksLevel, context, level_id

PRIMES = 4
_HEADER = (0xA15E, 16, 4, 3)
NONE, ZLIB = 0, 1
FULL, EMPTY = PRIMES - 1, 0
"""The parts of a key: one for each prime but the special one, or none in the place of a key that is not there."""


def serialized(body: bytes, compression: int = NONE) -> bytes:
    """SEAL's header, for a body that is compressed as it says."""
    return struct.pack("<HBBBBHQ", *_HEADER, compression, 0, 16 + len(body)) + body


def key_set(sizes: Sequence[int], announced: int | None = None) -> bytes:
    """Build a set of keys, each given by its number of parts, uncompressed, that states ``announced`` as its size."""
    body = b"".join(struct.pack("<Q", size) + _zero_key() * size for size in sizes)
    return serialized(_parameters() + struct.pack("<Q", announced or len(sizes)) + body)


def bomb(keys: int) -> bytes:
    """Return a set of ``keys`` whole keys of 1.5 MiB, compressed."""
    packer = zlib.compressobj()
    key = struct.pack("<Q", FULL) + _zero_key() * FULL
    parts = [packer.compress(_parameters() + struct.pack("<Q", keys))]
    parts += [packer.compress(key) for _ in range(keys)]
    return serialized(b"".join(parts) + packer.flush(), ZLIB)


def inflating_ciphertext(polynomials: int, words: int) -> bytes:
    """Build a ciphertext at the level of uploads that announces, and holds, that many polynomials and ``words``."""
    fields = struct.pack("<4Q", *level_id(CkksLevel.UPLOAD))
    fields += struct.pack("<BQQQdQ", 1, polynomials, POLY_DEGREE, CkksLevel.UPLOAD, SCALE, 1)
    content = fields + struct.pack("<HBBBBHQQ", *_HEADER, NONE, 0, 24 + 8 * words, words)
    packer = zlib.compressobj()
    parts = [packer.compress(content)] + [packer.compress(bytes(2**20)) for _ in range(words // 2**17)]
    return serialized(b"".join(parts) + packer.flush(), ZLIB)


def _parameters() -> bytes:
    return struct.pack("<4Q", *context().key_parms_id())


def _zero_key() -> bytes:
    """Return one part: a ciphertext of two zero polynomials at the level of keys."""
    words = 2 * PRIMES * POLY_DEGREE
    polynomials = serialized(struct.pack("<Q", words) + bytes(8 * words))
    fields = struct.pack("<BQQQdQ", 1, 2, POLY_DEGREE, PRIMES, 1.0, 1)
    return serialized(_parameters() + fields + polynomials)
