"""Hash chain of JSON lines, in which each line holds the hash of the line before.

A line is the canonical JSON (keys sorted, no spaces, ASCII) of an object with ``seq``, counted from 0, ``prev``, the
hash of the line before (64 zeros for the first line), ``salt``, 16 random bytes, and ``hash``: SHA-256, in hexadecimal,
over the JSON without ``hash``.

Guarantees: a changed, removed, moved or repeated line is detected. A hash, which others see, tells nothing about its
line, since the salt stays in the file: neither the time of a release nor a limit can be searched for. Limits: anyone
who can write the file can make another valid chain; only a hash that another party has kept reveals the replacement.
Lines of earlier ledgers have no salt, or only the first one has, and can be searched for.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

NO_LINE = "0" * 64
"""Value of ``prev`` in the first line."""
_CHAINING = frozenset({"seq", "prev", "salt", "hash"})


class ChainError(ValueError):
    """Fault in a chain: a line changed, removed, moved or repeated, or not a line. The message names line and fault."""


class Anchor(NamedTuple):
    """Sequence number and hash of a line, which identify the line and all lines before."""

    seq: int
    head: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.head}"


@dataclass(frozen=True)
class Chain:
    """Checked content of a file.

    ``contents`` are the lines' objects without ``seq``, ``prev``, ``salt`` and ``hash``. ``torn`` is the rest of the
    file: an unfinished line without a newline. ``unended`` is True if the last line is valid and lacks only its
    newline.
    """

    contents: tuple[Mapping[str, object], ...]
    hashes: tuple[str, ...]
    torn: bytes = b""
    unended: bool = False

    @property
    def anchor(self) -> Anchor:
        """Anchor of the last line."""
        return Anchor(len(self.hashes) - 1, self.hashes[-1] if self.hashes else NO_LINE)

    def has(self, anchor: Anchor) -> bool:
        """Return True if the anchored line is in this chain."""
        return 0 <= anchor.seq < len(self.hashes) and self.hashes[anchor.seq] == anchor.head


def make_line(after: Anchor, content: Mapping[str, object]) -> bytes:
    """Return a line that follows ``after``, with its newline; each call draws another salt.

    Raises ``ValueError`` for content that JSON cannot hold, or that has ``seq``, ``prev``, ``salt`` or ``hash``.
    """
    if _CHAINING & content.keys():
        raise ValueError(f"content must not have the fields {', '.join(sorted(_CHAINING & content.keys()))}")
    # Without the salt, other parties could search by the hash for the time or the limit in a line.
    unsigned = {**content, "seq": after.seq + 1, "prev": after.head, "salt": secrets.token_hex(16)}
    return canonical({**unsigned, "hash": _hash(unsigned)}) + b"\n"


def read_chain(content: bytes) -> Chain:
    """Return the chain of a file's lines. Raises :class:`ChainError` unless all lines with a newline form one chain.

    A line with a newline may have been acknowledged, so an invalid one is an error and never counts as unfinished.
    """
    # Only the rest after the last newline can be unfinished: a line is written with its newline in one call.
    *ended, rest = content.split(b"\n")
    entries = [_read_line(number, line) for number, line in enumerate(ended, 1)]
    _check_order(entries)
    # A writer that died may have written a whole line without its newline: if it continues the chain, it counts.
    try:
        last = [*entries, _read_line(len(entries) + 1, rest)]
        _check_order(last)
    except ChainError:
        return _build_chain(entries, rest)
    return _build_chain(last, unended=True)


def _build_chain(entries: Sequence[dict[str, object]], torn: bytes = b"", *, unended: bool = False) -> Chain:
    contents = tuple(
        {name: value for name, value in entry.items() if name not in _CHAINING} for entry in entries
    )
    return Chain(contents, tuple(str(entry["hash"]) for entry in entries), torn, unended)


def _read_line(number: int, line: bytes) -> dict[str, object]:
    try:
        entry = json.loads(line)
        # Two texts can decode to one object (by a repeated key or a space): only the canonical text is a line.
        is_canonical = isinstance(entry, dict) and canonical(entry) == line
    except (ValueError, RecursionError) as error:
        raise ChainError(f"line {number} is not JSON: it was changed") from error
    if not is_canonical or not entry.keys() | {"salt"} >= _CHAINING:
        raise ChainError(f"line {number} is not a line of a ledger: it was changed")
    if entry["hash"] != _hash({name: value for name, value in entry.items() if name != "hash"}):
        raise ChainError(f"line {number} was changed: its hash is not that of its content")
    if not re.fullmatch("[0-9a-f]{32}", str(entry.get("salt", "0" * 32))):
        raise ChainError(f"line {number} has a salt that is not 32 hexadecimal digits")
    return dict(entry)


def _check_order(entries: Sequence[dict[str, object]]) -> None:
    numbers = [entry["seq"] for entry in entries]
    previous = NO_LINE
    for wanted, entry in enumerate(entries):
        if type(entry["seq"]) is not int or entry["seq"] != wanted:
            raise ChainError(_out_of_order(wanted, entry["seq"], numbers))
        if entry["prev"] != previous:
            raise ChainError(f"line {wanted + 1} does not follow the one before it: that one was replaced")
        previous = str(entry["hash"])


def _out_of_order(wanted: int, number: object, numbers: Sequence[object]) -> str:
    where = f"line {wanted + 1} has sequence number {number} in place of {wanted}"
    if number in numbers[:wanted]:
        return f"{where}: a line was repeated"
    if wanted in numbers[wanted:]:
        return f"{where}: lines were moved"
    return f"{where}: a line was removed"


def _hash(unsigned: Mapping[str, object]) -> str:
    return hashlib.sha256(canonical(unsigned)).hexdigest()


def canonical(entry: Mapping[str, object]) -> bytes:
    """Return the one text of a line's object: keys sorted, no spaces, ASCII. Raises ``ValueError`` for NaN."""
    # JSON has no text for NaN and infinity, and its dialects have several; NaN also passes no comparison.
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
