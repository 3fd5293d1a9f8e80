"""Processes that spend and send, and that die between any two steps of it: alone, or a site in a round's release.

Run as ``python -m tests.support.killed_spending SETTINGS``, with :class:`Settings` as JSON. What it sends is a line
in a file, for each release its run and round. The steps of a site are those of the ledger's file, of the noise, of the
journal and of the upload, in the order in which they come, from the request of PRESENCE in one round to the
coordinator's word that it has the answer.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import wraps
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import privacy.ledger.ledger as ledger_module
from privacy.accounting.events import Event
from privacy.errors import BudgetError
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Limit
from protoseal_files import append_only_file
from protoseal_files.durable_files import sync_folder
from protoseal_wire.messages import Phase, PhaseKey
from tests.support.ledgers import DATASET, LIMIT, exact_epsilon, spending
from tests.support.processes import Running, own_nursery

_MODULE = "tests.support.killed_spending"
STEPS = ("open", "write", "ftruncate", "fsync")
"""Calls that change the file, or that decide how much of it survives a power cut."""


@dataclass(frozen=True)
class Settings:
    """``point`` is the step before which it dies, counted from 1, or 0. ``meet`` is a folder in which processes wait
    for each other, a moment, between reading the ledger and writing it.

    ``double`` weakens the code: "sent first", "not synced" or "not locked". ``line`` is what it writes before it sends:
    a "spending", that values leave "exact", or another "limit".
    """

    folder: str
    run: str = "run-1"
    releases: int = 2
    point: int = 0
    meet: str = ""
    double: str = ""
    noise: float = 6.2
    line: str = "spending"

    @property
    def ledger(self) -> Path:
        return Path(self.folder) / "heart.ledger"

    @property
    def sent(self) -> Path:
        return Path(self.folder) / f"sent-{self.run}"

    @property
    def death(self) -> Path:
        """File in which :class:`Steps` notes its death."""
        return Path(self.folder) / "death.json"

    def start(self) -> Running:
        """Start the process, off this process's nursery."""
        Path(self.folder).mkdir(exist_ok=True)
        text = json.dumps(asdict(self))
        return Running(
            Path(self.folder), text, module=_MODULE, log=f"log-{self.run}.txt", nursery=own_nursery()
        )


class Steps:
    """Counts them, dies before one, and knows what a power cut at that moment would leave of the ledger.

    ``point`` is that one's number, counted from 1, or its name. ``passed`` are those before it, while ``counting``.
    """

    def __init__(self, ledger: Path, note: Path, point: int | str, *, synced: bool = True) -> None:
        self._note, self._point, self._synced = note, point, synced
        self.passed: list[str] = []
        self.counting = True
        self._named = ledger.exists()
        self._size = ledger.stat().st_size if self._named else 0

    def watch(self) -> None:
        """Have the ledger's calls of the system counted, in :mod:`protoseal_files.append_only_file` and below it."""
        system = SimpleNamespace(**{**vars(os), **{name: self._counted(getattr(os, name)) for name in STEPS}})
        # Copies of the functions, so that the journal's calls stay uncounted.
        names = {**sync_folder.__globals__, "os": system}
        names["_sync"] = FunctionType(names["_sync"].__code__, names)
        counted = FunctionType(sync_folder.__code__, names)
        append_only_file.__dict__.update(os=system)
        ledger_module.__dict__.update(sync_folder=counted)

    def before(self, name: str) -> None:
        self.at(f"before {name}", lambda: None)

    def at(self, where: str, last: Callable[[], object]) -> None:
        """``last`` is what it still does if it dies here."""
        if not self.counting:
            return
        if self._point in (len(self.passed) + 1, where):
            last()
            self._die(where)
        self.passed.append(where)

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any) -> Any:
            self.before(step.__name__)
            if step is os.write:
                self.at("during write", lambda: os.write(args[0], args[1][: len(args[1]) // 2]))
            if step is os.fsync:
                return self._sync(args[0])
            return step(*args)

        return counted

    def _sync(self, file: int) -> None:
        if not self._synced:
            return
        os.fsync(file)
        status = os.fstat(file)
        if stat.S_ISDIR(status.st_mode):
            self._named = True
        else:
            self._size = status.st_size

    def _die(self, where: str) -> None:
        note = {"where": where, "left": self._size if self._named else None}
        self._note.write_text(json.dumps(note), encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)


def _send(settings: Settings, number: int) -> None:
    with settings.sent.open("a", encoding="utf-8") as sent:
        sent.write(f"{number}\n")


def _meeting(settings: Settings) -> Callable[[Sequence[Event], float], float]:
    """Return the accountant that waits until another process is where this one is, or half a second.

    Where there is no lock both come there, however slow the machine.
    """
    folder = Path(settings.meet)

    def epsilon(history: Sequence[Event], delta: float) -> float:
        (folder / settings.run).touch()
        deadline = time.monotonic() + (60 if settings.double else 0.5)
        while len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.005)
        return exact_epsilon(history, delta)

    return epsilon


def _write(ledger: Ledger, settings: Settings, number: int) -> None:
    if settings.line == "exact":
        ledger.record_exposure(exposed_in(number), bytes(32))
    elif settings.line == "limit":
        ledger.allow(limit_after(number), "the board's decision")
    else:
        ledger.spend(spending(number, settings.run, noise=settings.noise))


def exposed_in(number: int) -> str:
    """Return the run of the line that comes before what is sent as this number."""
    return f"exact-{number}"


def limit_after(number: int) -> Limit:
    """Return the limit in the line that precedes the spending of this number."""
    return replace(LIMIT, epsilon=LIMIT.epsilon + number)


def main(settings: Settings) -> None:
    """Spend and send, until all is sent or nothing remains."""
    steps = Steps(settings.ledger, settings.death, settings.point, synced=settings.double != "not synced")
    steps.watch()
    if settings.double == "not locked":
        append_only_file.__dict__["fcntl"] = SimpleNamespace(**{**vars(fcntl), "flock": lambda *_: None})
    ledger = Ledger(settings.ledger, DATASET, LIMIT, epsilon=exact_epsilon)
    if settings.meet:
        ledger.__dict__["_epsilon"] = _meeting(settings)
    for number in range(1, settings.releases + 1):
        if settings.double == "sent first":
            _send(settings, number)
        try:
            _write(ledger, settings, number)
        except BudgetError:
            return
        steps.before("send")
        if settings.double != "sent first":
            _send(settings, number)
        steps.before("what follows")


if __name__ == "__main__":
    main(Settings(**json.loads(sys.argv[1])))


LEDGER, DEATH, PASSED = "ledger.jsonl", "death.json", "passed.json"
"""Files in the site's folder: its ledger, facts about its death, and the steps of a release that it survived."""
LAST = "before what follows"
_NEVER = 0


@dataclass(frozen=True)
class Fate:
    """``point``: before which step of the release of ``round`` it dies, by number from 1 or by name.

    ``double`` weakens the code: "not synced", or "sent first", where it pays after it has sent.
    """

    round: int
    point: int | str
    double: str = ""

    def to_text(self) -> str:
        """Return the fate as text for the environment."""
        return json.dumps(asdict(self))


UNHARMED = Fate(_NEVER, _NEVER)
"""Fate of a site that counts its spendings as these tests do, and survives."""


def meet(text: str) -> None:
    """Lay the fate that :meth:`Fate.to_text` gave on the way of this process, whose folder is the site's."""
    fate = Fate(**json.loads(text))
    steps = Steps(Path(LEDGER), Path(DEATH), fate.point, synced=fate.double != "not synced")
    steps.counting = False
    # The accountant takes most of a round's time, and is not what is tested.
    for name, accountant in (
        ("secure_client.privacy.cost", "pld_cost"),
        ("privacy.accounting.accounting_rules", "pld_cost"),
    ):
        module = importlib.import_module(name).__dict__
        if accountant not in module:
            raise LookupError(f"{name} has no {accountant}")
        module[accountant] = exact_epsilon
    steps.watch()
    _step("privacy.mechanisms.prototype_query", "Sums", "release", steps, "draw")
    for name in ("put", "record"):
        _step("secure_client.protocol.journal", "Journal", name, steps, name)
    _commit(steps)
    _window(fate, steps)
    if fate.double == "sent first":
        _pay_last()


def _wrap(
    module: str, owner: str, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    found = getattr(importlib.import_module(module), owner)
    method = getattr(found, name)
    setattr(found, name, wraps(method)(wrapper(method)))


def _step(module: str, owner: str, name: str, steps: Steps, what: str) -> None:
    def wrapper(method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **named: Any) -> Any:
            steps.before(what)
            return method(*args, **named)

        return counted

    _wrap(module, owner, name, wrapper)


def _commit(steps: Steps) -> None:
    def wrapper(method: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def transaction(*args: Any, **named: Any) -> Iterator[None]:
            with method(*args, **named):
                yield
                steps.before("commit")

        return transaction

    _wrap("secure_client.protocol.journal", "Journal", "transaction", wrapper)


def _window(fate: Fate, steps: Steps) -> None:
    def is_it(key: PhaseKey) -> bool:
        return (key.phase, key.round) == (Phase.PRESENCE, fate.round)

    def answering(method: Callable[..., Any]) -> Callable[..., Any]:
        def answer(session: Any, key: PhaseKey, request: bytes) -> Any:
            steps.counting = is_it(key)
            return method(session, key, request)

        return answer

    def uploading(method: Callable[..., Any]) -> Callable[..., Any]:
        def upload(transport: Any, key: PhaseKey, content: bytes) -> None:
            steps.before("upload")
            method(transport, key, content)
            steps.at(LAST, lambda: None)
            if steps.counting:
                Path(PASSED).write_text(json.dumps(steps.passed), encoding="utf-8")
            steps.counting = False

        return upload

    _wrap("secure_client.session", "Session", "answer", answering)
    _wrap("secure_client.transport", "GrpcTransport", "upload", uploading)


def _pay_last() -> None:
    """Pay after each upload, when it is too late to die, for what was due before the upload."""
    owed: list[Callable[[], Any]] = []

    def spending(method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: owed.append(lambda: method(*args))

    def uploading(method: Callable[..., Any]) -> Callable[..., Any]:
        def upload(*args: Any) -> None:
            method(*args)
            while owed:
                owed.pop(0)()

        return upload

    _wrap("privacy.ledger.ledger", "Ledger", "spend", spending)
    _wrap("secure_client.transport", "GrpcTransport", "upload", uploading)
