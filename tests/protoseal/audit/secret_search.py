"""Secrets that must show nowhere, their possible forms, and a search for all of them at once."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_PIECE, _HEAD = 16, 8
_LARGE, _SAMPLES = 4096, 40
_TABLE = np.uint64(2**22)


@dataclass
class Needles:
    """Bytes to search for, and whose and what they are; each of eight bytes or more."""

    named: dict[bytes, str] = field(default_factory=dict)

    def add_secret(self, name: str, secret: bytes) -> None:
        """Add a secret in every form: raw, hexadecimal, base64, decimal numbers, Python's own text of bytes.

        In pieces of 16 bytes, so that half of it is found too; of a large one some pieces all over it.
        """
        pieces = _pieces(secret)
        for piece in pieces:
            for form, content in forms(piece):
                self.named[content] = f"{name}, {form}"
        if pieces and len(secret) < _LARGE:
            self.named[str(int.from_bytes(secret, "big")).encode()] = f"{name}, a number"
            self.named[str(int.from_bytes(secret, "little")).encode()] = f"{name}, a number"

    def add_values(self, name: str, rows: NDArray[np.float64], bound: float) -> None:
        """Add rows (K, d) as float64 and float32, as they are and divided by ``bound``; each number as text as well."""
        for scaled in (rows, rows / bound):
            for kind in (np.float64, np.float32):
                for row in scaled.astype(kind):
                    self.add_secret(f"{name}, {kind.__name__}", row.tobytes())
            for value in scaled[np.abs(scaled) > 1e-3].tolist():
                # Shorter forms of a number are not told from others by chance.
                for text in (
                    repr(value),
                    repr(float(np.float32(value))),
                    f"{value:.8f}",
                    str(np.float32(value)),
                ):
                    if len(text) >= _HEAD + 2:
                        self.named[text.encode()] = f"{name}, a number"

    def found_in(self, content: bytes) -> set[str]:
        """Return the forms and pieces of secrets that are in ``content``."""
        by_head: dict[int, list[bytes]] = {}
        for needle in self.named:
            by_head.setdefault(int.from_bytes(needle[:_HEAD], "little"), []).append(needle)
        heads = np.array(sorted(by_head), dtype="<u8")
        return {self.named[needle] for needle in _hits(content, heads, by_head)}


def _hits(content: bytes, heads: NDArray[np.uint64], by_head: Mapping[int, list[bytes]]) -> Iterator[bytes]:
    """Search eight bytes at a time, from each of eight beginnings: a needle's first eight, and then the rest."""
    likely = np.zeros(int(_TABLE), dtype=np.bool_)
    likely[heads % _TABLE] = True  # nearly all places are passed over by this alone
    for shift in range(_HEAD):
        count = max(0, len(content) - shift) // _HEAD
        words = np.frombuffer(content, dtype="<u8", count=count, offset=shift if count else 0)
        for place in np.flatnonzero(likely[words % _TABLE]).tolist():
            needles, start = by_head.get(int(words[place]), []), shift + place * _HEAD
            yield from (each for each in needles if content.startswith(each, start))


def forms(secret: bytes) -> Iterator[tuple[str, bytes]]:
    """Return names of forms, and the secret in each of them."""
    yield "raw", secret
    yield "hex", secret.hex().encode()
    yield "HEX", secret.hex().upper().encode()
    for separator in (", ", ",", " "):
        yield "decimal list", separator.join(map(str, secret)).encode()
    yield "Python's text", repr(secret)[2:-1].encode()
    for shift in range(3):  # wherever in a longer base64 text it begins
        rest = secret[shift:]
        whole = rest[: len(rest) // 3 * 3]
        yield "base64", base64.b64encode(whole)
        yield "base64 for URLs", base64.urlsafe_b64encode(whole)


def _pieces(secret: bytes) -> list[bytes]:
    starts = range(0, len(secret) - _PIECE + 1, _PIECE)
    if len(secret) >= _LARGE:
        starts = range(len(secret) // 8, len(secret) - _PIECE, len(secret) // _SAMPLES)
    pieces = [secret[start : start + _PIECE] for start in starts]
    # Zeros are no secret. Of random pieces, 4 in 10^7 are passed over as if they were none.
    return [piece for piece in pieces if len(set(piece[:_HEAD])) >= _HEAD - 3]
