"""The loop of a site: ask for work, do it, hand it in. The same in deployment and in simulation."""

from __future__ import annotations

import logging
from typing import Protocol

from protoseal_wire.messages import Finished, JoinReply, JoinRequest, PhaseKey, Stopped, Task, Work
from secure_client.errors import PhaseOver, SiteError, Violation
from secure_client.session import Session

_log = logging.getLogger("protoseal.site")


class Transport(Protocol):
    """A site's way to the coordinator. Calls raise :class:`secure_client.errors.SiteError`."""

    def join(self, request: JoinRequest) -> JoinReply:
        """Ask to take part."""
        ...

    def next_task(self) -> Task:
        """What to do now; may block for as long as the coordinator holds the call open."""
        ...

    def download(self, work: Work) -> bytes:
        """The request that ``work`` announces, checked against its size and hash."""
        ...

    def upload(self, key: PhaseKey, content: bytes) -> None:
        """Hand in an answer."""
        ...

    def leave(self) -> None:
        """Say that the site takes no further part."""
        ...


def take_part(session: Session, transport: Transport) -> Finished | Stopped:
    """Join, then work until the run ends. A :class:`Violation` ends the site's part at once."""
    transport.join(session.join_request())
    _log.info("joined as %s", session.site)
    while True:
        task = step(session, transport)
        if isinstance(task, Finished | Stopped):
            return task


def step(session: Session, transport: Transport) -> Task:
    """One task: fetched, and if it is work, done and handed in."""
    task = transport.next_task()
    if isinstance(task, Work):
        try:
            transport.upload(task.key, session.answer(task.key, transport.download(task)))
            _log.debug("handed in %s of round %d", task.key.phase.name, task.key.round)
        except PhaseOver as error:
            _log.warning("too late for %s of round %d: %s", task.key.phase.name, task.key.round, error)
        except Violation as error:
            _log.error("leaving the run: %s", error)
            _leave(transport)
            raise
    return task


def _leave(transport: Transport) -> None:
    try:
        transport.leave()
    except SiteError as error:
        _log.warning("could not tell the coordinator: %s", error)
