"""Secrets that must show nowhere, their possible forms, a search for all of them at once, and the places to search.

The places are logs, objects' representations, tracebacks of failures, and the coordinator's files.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protoseal.simulation.local_federation import DirectTransport, LocalFederation
from protoseal_wire.messages import JoinReply, JoinRequest, PhaseKey, Task, UploadHeader, Work
from secure_client.session import Session

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
        pieces = _secret_pieces(secret)
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


def _secret_pieces(secret: bytes) -> list[bytes]:
    starts = range(0, len(secret) - _PIECE + 1, _PIECE)
    if len(secret) >= _LARGE:
        starts = range(len(secret) // 8, len(secret) - _PIECE, len(secret) // _SAMPLES)
    pieces = [secret[start : start + _PIECE] for start in starts]
    # Zeros are no secret. Of random pieces, 4 in 10^7 are passed over as if they were none.
    return [piece for piece in pieces if len(set(piece[:_HEAD])) >= _HEAD - 3]


PACKAGES = ("algorithms", "crypto", "protoseal", "protoseal_wire", "secure_client", "secure_server")
_MOST_OBJECTS = 20_000


class Logs(logging.Handler):
    """Every record of every logger, down to DEBUG, formatted with its traceback."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it, and its arguments as they are in the record."""
        self.lines.append(f"{self.format(record)} {record.args!r}")

    def __enter__(self) -> Logs:
        self._level = logging.getLogger().level
        logging.getLogger().addHandler(self)
        logging.getLogger().setLevel(logging.DEBUG)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)
        logging.getLogger().setLevel(self._level)


class Provoking:
    """A site's transport on which each request and each answer comes once spoilt, before it comes as it is."""

    def __init__(self, inner: DirectTransport, session: Session, site: str, tracebacks: list[str]) -> None:
        self._inner, self._session, self._site, self._tracebacks = inner, session, site, tracebacks

    def join(self, request: JoinRequest) -> JoinReply:
        return self._inner.join(request)

    def next_task(self) -> Task:
        return self._inner.next_task()

    def download(self, work: Work) -> bytes:
        """Ask the site with a request that is cut short, and with bytes that are no request."""
        request = self._inner.download(work)
        for spoilt in filter(None, (request[:-1], b"\xff" * 40)):
            self._fails(partial(self._session.answer, work.key, spoilt))
        return request

    def upload(self, key: PhaseKey, content: bytes) -> None:
        """Send the coordinator an answer that is cut short, bytes that are no answer, and another answer after the real
        one.
        """
        for spoilt in filter(None, (content[:-1], b"\xff" * 40)):
            self._fails(partial(self._spoil, key, spoilt))
        self._inner.upload(key, content)
        self._fails(partial(self._spoil, key, content + b"\0"))

    def _spoil(self, key: PhaseKey, content: bytes) -> None:
        header = UploadHeader(key, len(content), hashlib.sha256(content).digest())
        self._inner._coordinator.check_upload(self._site, header)
        self._inner._coordinator.upload(self._site, header, content)

    def leave(self) -> None:
        self._inner.leave()

    def _fails(self, attempt: Callable[[], object]) -> None:
        with pytest.raises(Exception) as raised:  # noqa: PT011 (which one is other tests' matter)
            attempt()
        self._tracebacks.append("".join(traceback.format_exception(raised.value)))
        self._tracebacks.append(repr(raised.value))


def said_by(roots: Iterable[object]) -> set[str]:
    """Return ``repr`` and ``str`` of every object of a project's class that can be reached through attributes."""
    seen: dict[int, object] = {}
    waiting = list(roots)
    texts: set[str] = set()
    while waiting and len(seen) < _MOST_OBJECTS:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each  # kept, so that no other object gets its id
        if _is_own(each):
            texts |= {repr(each), str(each)}
        waiting += _parts(each)
    assert not waiting, "there is more to see"
    return texts


def _is_own(each: object) -> bool:
    return type(each).__module__.partition(".")[0] in PACKAGES


def _parts(each: object) -> list[object]:
    if isinstance(each, Mapping):
        return [*each.keys(), *each.values()]
    if isinstance(each, list | tuple | set | frozenset):
        return list(each)
    if not _is_own(each):
        return []
    slots: Any = getattr(type(each), "__slots__", ())
    slots = (slots,) if isinstance(slots, str) else slots
    return [*getattr(each, "__dict__", {}).values(), *(getattr(each, name, None) for name in slots)]


def coordinator_files(federation: LocalFederation) -> dict[str, bytes]:
    """Return all files of the coordinator by name: the store with its log, the evaluation keys, and others."""
    state = federation._state
    sites = (state / "identities", state / "sites")
    files = (path for path in sorted(state.rglob("*")) if path.is_file())
    return {str(path.relative_to(state)): path.read_bytes() for path in files if not _is_within(path, sites)}


def _is_within(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(folder in path.parents for folder in folders)
