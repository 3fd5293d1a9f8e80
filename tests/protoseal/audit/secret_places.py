"""Places where secrets could show: logs, objects' representations, tracebacks of failures, the coordinator's files."""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from protoseal.simulation.local_federation import DirectTransport, LocalFederation
from protoseal_wire.messages import JoinReply, JoinRequest, PhaseKey, Task, UploadHeader, Work
from secure_client.session import Session

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
