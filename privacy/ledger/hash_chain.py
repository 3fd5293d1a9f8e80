"""Lines of JSON of which each holds the hash of the one before it.

A line is the canonical JSON (keys sorted, no spaces, ASCII) of an object with ``seq``, counted from 0, ``prev``, the
hash of the line before it (64 zeros for the first), and ``hash``: SHA-256, in hexadecimal, over the same JSON without
``hash``. Whoever can write the file can make another chain that holds. What that cannot do is to agree with a hash
that others have kept of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

NO_LINE = "0" * 64
"""``prev`` of the first line."""
_CHAINING = frozenset({"seq", "prev", "hash"})


class ChainError(ValueError):
    """A line was changed, removed, moved or repeated, or is none of a chain. The message says which, and where."""


class Anchor(NamedTuple):
    """A line's sequence number and hash, which stand for it and all lines before it."""

    seq: int
    head: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.head}"


@dataclass(frozen=True)
class Chain:
    """What a file holds. ``contents`` are the lines' objects without ``seq``, ``prev`` and ``hash``.

    ``complete`` is the length in bytes of the lines that hold. What lies behind is ``torn``: a line that has no newline
    yet. ``unended`` tells that the last line holds all the same, and lacks no more than its newline.
    """

    contents: tuple[Mapping[str, object], ...]
    hashes: tuple[str, ...]
    complete: int
    torn: bytes = b""
    unended: bool = False

    @property
    def anchor(self) -> Anchor:
        """Of the last line."""
        return Anchor(len(self.hashes) - 1, self.hashes[-1] if self.hashes else NO_LINE)

    def has(self, anchor: Anchor) -> bool:
        """Whether this chain is the anchored one, or went on from it."""
        return 0 <= anchor.seq < len(self.hashes) and self.hashes[anchor.seq] == anchor.head


def make_line(after: Anchor, content: Mapping[str, object]) -> bytes:
    """The line that follows, with its newline. ``ValueError`` for content that JSON does not have."""
    if _CHAINING & content.keys():
        raise ValueError(f"content may not have {', '.join(sorted(_CHAINING & content.keys()))}")
    unsigned = {**content, "seq": after.seq + 1, "prev": after.head}
    return _canonical({**unsigned, "hash": _hash(unsigned)}) + b"\n"


def read_chain(content: bytes) -> Chain:
    """All of a file's lines; :class:`ChainError` unless they are one chain, but for an end without a newline.

    A line that has its newline was perhaps acknowledged, whatever became of it since: it is never taken for unfinished.
    """
    *ended, rest = content.split(b"\n")
    found = [_read_line(number, line) for number, line in enumerate(ended, 1)]
    _check_order(found)
    complete = len(content) - len(rest)
    last = _finished(rest, found)
    if last is not None:
        return _chain([*found, last], complete + len(rest), unended=True)
    return _chain(found, complete, rest)


def _finished(rest: bytes, found: Sequence[dict[str, object]]) -> dict[str, object] | None:
    try:
        last = _read_line(len(found) + 1, rest)
        _check_order([*found, last])
    except ChainError:
        return None
    return last


def _chain(
    found: Sequence[dict[str, object]], complete: int, torn: bytes = b"", *, unended: bool = False
) -> Chain:
    contents = tuple({name: value for name, value in each.items() if name not in _CHAINING} for each in found)
    return Chain(contents, tuple(str(each["hash"]) for each in found), complete, torn, unended)


def _read_line(number: int, line: bytes) -> dict[str, object]:
    try:
        entry = json.loads(line)
        # Two texts that read as the same object, by a key given twice or a space, are not the same line.
        canonical = isinstance(entry, dict) and _canonical(entry) == line
    except (ValueError, RecursionError) as error:
        raise ChainError(f"line {number} is not JSON: it was changed") from error
    if not canonical or not entry.keys() >= _CHAINING:
        raise ChainError(f"line {number} is not a line of a ledger: it was changed")
    if entry["hash"] != _hash({name: value for name, value in entry.items() if name != "hash"}):
        raise ChainError(f"line {number} was changed: its hash is not that of its content")
    return dict(entry)


def _check_order(found: Sequence[dict[str, object]]) -> None:
    numbers = [each["seq"] for each in found]
    previous = NO_LINE
    for wanted, entry in enumerate(found):
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
    return hashlib.sha256(_canonical(unsigned)).hexdigest()


def _canonical(entry: Mapping[str, object]) -> bytes:
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
