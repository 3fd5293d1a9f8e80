"""Loop of a site: it asks the coordinator for work, does it and sends the answer; the same in a simulation."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from protoseal_wire.messages import Finished, JoinReply, JoinRequest, PhaseKey, Stopped, Task, Work
from secure_client.errors import PhaseOver, SiteError, Unreachable
from secure_client.session import Session

_log = logging.getLogger("protoseal.site")
_SHORTEST_TURN_SECONDS = 0.05


class Transport(Protocol):
    """A site's way to the coordinator. Calls raise :class:`secure_client.errors.SiteError`."""

    def join(self, request: JoinRequest) -> JoinReply:
        """Ask to take part."""
        ...

    def next_task(self) -> Task:
        """Return the current task; may block for as long as the coordinator holds the call open."""
        ...

    def download(self, work: Work) -> bytes:
        """Return the request that ``work`` announces, checked against its size and hash."""
        ...

    def upload(self, key: PhaseKey, content: bytes) -> None:
        """Hand in an answer."""
        ...

    def leave(self) -> None:
        """Say that the site takes no further part in what it joined last."""
        ...


def take_part(session: Session, transport: Transport) -> Finished | Stopped:
    """Join, then work until the run ends.

    A site that cannot go on says so to the coordinator, which then does not wait for it, and raises: after a
    :class:`Violation`, a refusal, a budget that is spent, or an error of its own disk. What data, the model, training
    or a decryption come to is never a reason (:mod:`secure_client.error_containment`). An unreachable coordinator is
    told nothing. A site that sees the run end erases all secrets of the run. One that leaves, or sees the run stop,
    erases those of its last attempt, since a run that is resumed begins another attempt. One that lost its way to the
    coordinator keeps them, to resume.
    """
    reply = transport.join(session.join_request())
    try:
        session.take_welcome(reply)
        _log.info("joined as %s", session.site)
        return _work(session, transport)
    except Unreachable:
        raise
    except Exception as error:
        _log.error("leaving the run: %s", error)
        _erase(session)
        _leave(transport)
        raise


def _work(session: Session, transport: Transport) -> Finished | Stopped:
    while True:
        start = time.monotonic()
        task = step(session, transport)
        if isinstance(task, Finished | Stopped):
            return task
        # The coordinator holds a poll open; should it not, this keeps the site from asking in a tight loop.
        time.sleep(max(0.0, _SHORTEST_TURN_SECONDS - (time.monotonic() - start)))


def step(session: Session, transport: Transport) -> Task:
    """One task: fetched, and if it is work, done and handed in."""
    task = transport.next_task()
    if isinstance(task, Finished):
        session.finish()
    if isinstance(task, Stopped):
        session.end()
    if isinstance(task, Work):
        session.check_size(task)
        try:
            transport.upload(task.key, session.answer(task.key, transport.download(task)))
            _log.debug("handed in %s of round %d", task.key.phase.name, task.key.round)
        except PhaseOver as error:
            _log.warning("too late for %s of round %d: %s", task.key.phase.name, task.key.round, error)
    return task


def _erase(session: Session) -> None:
    try:
        session.end()
    except (
        Exception
    ) as error:  # whatever made the site leave may be in the way: it is what to raise, and to tell
        _log.error("could not erase the secrets of the last attempt: %s", error)


def _leave(transport: Transport) -> None:
    try:
        transport.leave()
    except SiteError as error:
        _log.warning("could not tell the coordinator: %s", error)
