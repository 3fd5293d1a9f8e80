"""``protoseal`` as a test instruments it: with a point at which its process sends itself SIGKILL, a clock, a stopwatch.

Run as ``python -m tests.support.killed_party`` in place of ``python -m protoseal``, with the point in the environment.
A kill from outside falls where the machine happens to be; this one falls between the same two steps each time. Up to
it, the process does what it does without this module. With :data:`RELEASE` it dies in the middle of a release, as
:mod:`tests.support.killed_spending` says. With a file named as its clock, a coordinator's deadlines pass when a test
says so, and never because a machine is slow. With :data:`ARRIVALS` a coordinator writes to a file, line by line, when
it handed out requests and received the answers.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from typing import Any, Self

from protoseal_wire.messages import DownloadRequest, Phase, PhaseKey, UploadHeader
from secure_server.coordinator import Coordinator


@dataclass(frozen=True)
class Arrival:
    """One answer: seconds from handing out its request to its first byte."""

    site: str
    phase: Phase
    round: int
    seconds: float


def write_arrivals(path: Path) -> None:
    """Have the coordinator of this process write its times to ``path``."""
    download, check_upload = Coordinator.download, Coordinator.check_upload
    handed_out: dict[tuple[str, Phase], float] = {}

    @wraps(download)
    def timed_download(coordinator: Coordinator, site: str, request: DownloadRequest) -> bytes:
        content = download(coordinator, site, request)
        handed_out[site, request.key.phase] = time.monotonic()
        return content

    @wraps(check_upload)
    def timed_upload(coordinator: Coordinator, site: str, header: UploadHeader) -> None:
        seconds = time.monotonic() - handed_out[site, header.key.phase]
        line = {"site": site, "phase": header.key.phase.name, "round": header.key.round, "seconds": seconds}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        check_upload(coordinator, site, header)

    doubles: dict[str, Any] = {"download": timed_download, "check_upload": timed_upload}
    for name, double in doubles.items():
        setattr(Coordinator, name, double)


def read_arrivals(path: Path) -> list[Arrival]:
    """Return what :func:`write_arrivals` wrote."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Arrival(each["site"], Phase[each["phase"]], each["round"], each["seconds"]) for each in lines]


POINT, CLOCK, LOGGED = "PROTOSEAL_TEST_POINT", "PROTOSEAL_TEST_CLOCK", "PROTOSEAL_TEST_LOGGED"
RELEASE, ARRIVALS = "PROTOSEAL_TEST_RELEASE", "PROTOSEAL_TEST_ARRIVALS"
"""Names in the environment: of what :meth:`Point.to_text` gives; of a file with the seconds that have passed; of the
number of the sites' rounds that a simulation does not log any more; of what `killed_release.Fate.to_text` gives; of a
file for the times of answers (:mod:`tests.support.killed_party`)."""


class When(StrEnum):
    """Pair of consecutive steps of answering a phase between which the kill falls: the named step and the next."""

    ASKED = "asked"
    """A site has the request, and has done nothing."""
    NOTING = "noting"
    """A site has taken a result, and has not noted the round in its log."""
    MADE = "made"
    """A site's answer and what follows from it are written, in a transaction that is still open."""
    KEPT = "kept"
    """The answer and what follows from it are durable, and nothing is sent."""
    SENT = "sent"
    """A site was told that its answer was taken."""
    RECEIVED = "received"
    """The coordinator has a site's answer, checked, and has not stored it."""
    TAKEN = "taken"
    """The coordinator has stored it with what follows from it, and has told nobody."""
    COMPUTED = "computed"
    """The coordinator has what the values come to, and has not stored it. Of phase RESULT, in round 0 too."""
    BEGUN = "begun"
    """The coordinator has stored that a phase begins, and has told nobody."""


@dataclass(frozen=True)
class Point:
    """Point at which a process dies; for RECEIVED and TAKEN the coordinator dies of the answer of ``site``."""

    when: When
    phase: Phase
    round: int
    site: str = ""
    attempt: int = 1

    def to_text(self) -> str:
        """Return the point as text for the environment."""
        return f"{self.when} {self.phase.name} {self.round} {self.attempt} {self.site}"

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse the text of :meth:`to_text`; raise ``ValueError`` or ``KeyError`` for any other text."""
        when, phase, number, attempt, site = text.split(" ")
        return cls(When(when), Phase[phase], int(number), site, int(attempt))

    def is_at(self, key: PhaseKey, site: str) -> bool:
        """Return True if the process, at a step of this kind, has reached the point."""
        here = (key.phase, key.round, key.attempt, site)
        return here == (self.phase, self.round, self.attempt, self.site)


@dataclass(frozen=True)
class _Step:
    """A method that the process goes through, imported by name: a coordinator has no torch.

    ``of`` tells of which key and which site's answer a call is, or None, by its positional and keyword arguments.
    """

    module: str
    owner: str
    method: str
    of: Callable[[tuple[Any, ...], Mapping[str, Any]], tuple[PhaseKey, str] | None]
    before: bool = False


def _by_argument(args: tuple[Any, ...], _: Mapping[str, Any]) -> tuple[PhaseKey, str]:
    return args[1], ""


def _by_upload(_: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[PhaseKey, str] | None:
    upload = named.get("upload")
    return None if upload is None else upload[:2]


def _by_state(args: tuple[Any, ...], _: Mapping[str, Any]) -> tuple[PhaseKey, str] | None:
    asked = args[1].asked_key
    return None if asked is None else (asked, "")


def _by_attempt(args: tuple[Any, ...], _: Mapping[str, Any]) -> tuple[PhaseKey, str]:
    return replace(args[1].key, phase=Phase.RESULT), ""


def _by_figures(args: tuple[Any, ...], _: Mapping[str, Any]) -> tuple[PhaseKey, str]:
    return PhaseKey("", args[1].round, args[1].attempt, Phase.RESULT), ""


_STEPS: Mapping[When, _Step] = {
    When.ASKED: _Step("secure_client.session", "Session", "answer", _by_argument, before=True),
    When.NOTING: _Step("secure_client.app", "_LogWriter", "add", _by_figures, before=True),
    When.MADE: _Step("secure_client.protocol.journal", "Journal", "record", _by_argument),
    When.KEPT: _Step("secure_client.session", "Session", "answer", _by_argument),
    When.SENT: _Step("secure_client.transport", "GrpcTransport", "upload", _by_argument),
    When.RECEIVED: _Step("secure_server.store", "Store", "save", _by_upload, before=True),
    When.TAKEN: _Step("secure_server.store", "Store", "save", _by_upload),
    When.COMPUTED: _Step("secure_server.aggregator", "Aggregator", "combine", _by_attempt),
    When.BEGUN: _Step("secure_server.store", "Store", "save", _by_state),
}


def die_at(point: Point) -> None:
    """Lay the kill on the process's way."""
    step = _STEPS[point.when]
    owner = getattr(importlib.import_module(step.module), step.owner)
    method = getattr(owner, step.method)

    @wraps(method)
    def method_or_death(*args: Any, **named: Any) -> Any:
        found = step.of(args, named)
        there = found is not None and point.is_at(*found)
        if there and step.before:
            _die()
        outcome = method(*args, **named)
        if there:
            _die()
        return outcome

    setattr(owner, step.method, method_or_death)


def die_of_log(count: int) -> None:
    """Kill a simulation when a site's round is about to be logged for the ``count``-th time.

    The site has taken its result, and has not yet recorded that it did. A run on tensors has a checkpoint after each
    round.
    """
    log = importlib.import_module("protoseal.simulation.run_log").RunLog
    importlib.import_module("protoseal.simulation.tensors.checkpoint").Checkpoints.is_due = True
    put, told = log.put_site_round, itertools.count(1)

    @wraps(put)
    def put_or_death(*args: Any, **named: Any) -> None:
        if next(told) == count:
            _die()
        put(*args, **named)

    log.put_site_round = put_or_death


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def go_by_file(clock: Path) -> None:
    """Have a coordinator in this process go by the seconds in ``clock``, which is replaced as time passes."""
    app = importlib.import_module("secure_server.app")
    app.__dict__["Coordinator"] = partial(app.Coordinator, clock=partial(seconds_in, clock))


def seconds_in(clock: Path) -> float:
    """Return the seconds that the file ``clock`` holds."""
    return float(clock.read_text(encoding="utf-8"))


def main() -> None:
    """``protoseal``, as the environment says."""
    if CLOCK in os.environ:
        go_by_file(Path(os.environ[CLOCK]))
    if POINT in os.environ:
        die_at(Point.from_text(os.environ[POINT]))
    if RELEASE in os.environ:
        importlib.import_module("tests.support.killed_spending").meet(os.environ[RELEASE])
    if ARRIVALS in os.environ:
        importlib.import_module("tests.support.killed_party").write_arrivals(Path(os.environ[ARRIVALS]))
    if LOGGED in os.environ:
        die_of_log(int(os.environ[LOGGED]))
    importlib.import_module("protoseal.cli").main()


if __name__ == "__main__":
    main()
