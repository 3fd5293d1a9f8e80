"""Loop of a site: ask the coordinator for a task, do the task, send the answer. Simulations use the same loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from protoseal_wire.messages import Finished, JoinReply, JoinRequest, PhaseKey, Stopped, Task, Work
from secure_client.errors import PhaseOver, SiteError, Unreachable
from secure_client.session import Session

_log = logging.getLogger("protoseal.site")
_SHORTEST_TURN_SECONDS = 0.05
AnswerTime = Callable[[PhaseKey], AbstractContextManager[object]]
"""Context in which a request is answered: the context ends when the answer may leave."""


def at_once(_: PhaseKey) -> AbstractContextManager[object]:
    """Let an answer leave as soon as it is ready, as in a simulation."""
    return nullcontext()


class Transport(Protocol):
    """A site's calls to the coordinator. Calls raise :class:`secure_client.errors.SiteError`."""

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
        """Upload an answer."""
        ...

    def leave(self) -> None:
        """Tell the coordinator that the site leaves the run that it joined last."""
        ...


def take_part(
    session: Session, transport: Transport, answer_time: AnswerTime = at_once
) -> Finished | Stopped:
    """Join, then work until the run ends. Each request is answered within ``answer_time``.

    A site that cannot continue tells the coordinator that it leaves, so that the coordinator does not wait, and raises
    the error: a :class:`secure_client.errors.Violation`, a refusal, an exhausted budget, or an error of the site's own
    disk. The outcome of model, training or decryption never makes a site leave
    (:mod:`secure_client.error_containment`), and data only if they can no longer be read
    (:mod:`secure_client.training.lost_data`). When the run ends, the site erases all secrets of the run. When the site
    leaves or the run stops, the site erases the secrets of its last attempt, since a resumed run begins another
    attempt. A site that cannot reach the coordinator sends nothing and keeps its secrets, to resume.
    """
    reply = transport.join(session.join_request())
    try:
        session.take_welcome(reply)
        _log.info("joined as %s", session.site)
        return _work_until_over(session, transport, answer_time)
    except Unreachable:  # its secrets stay, since the attempt may go on once the coordinator is back
        raise
    except Exception as error:
        _log.error("leaving the run: %s", error)
        # Secrets first: a call that fails must not keep them. Either failure is logged, and the error above is raised.
        try:
            session.end()
        except Exception as failure:
            _log.error("secrets, or values of earlier rounds, could not be erased: %s", failure)
        try:
            transport.leave()
        except SiteError as failure:
            _log.warning("the coordinator could not be informed that this site leaves: %s", failure)
        raise


def _work_until_over(session: Session, transport: Transport, answer_time: AnswerTime) -> Finished | Stopped:
    while True:
        start = time.monotonic()
        task = step(session, transport, answer_time)
        if isinstance(task, Finished | Stopped):
            return task
        # The coordinator holds a poll open. The pause bounds the rate of polls if the coordinator does not.
        time.sleep(max(0.0, _SHORTEST_TURN_SECONDS - (time.monotonic() - start)))


def step(session: Session, transport: Transport, answer_time: AnswerTime = at_once) -> Task:
    """Fetch one task; if the task is work, do the work and upload the answer."""
    task = transport.next_task()
    if isinstance(task, Finished):
        session.finish()
    if isinstance(task, Stopped):
        session.end()
    if isinstance(task, Work):
        # Before the download: a coordinator could otherwise fill this site's memory with a request of any size.
        session.check_size(task)
        try:
            request = transport.download(task)
            with answer_time(task.key):
                answer = session.answer(task.key, request)
            transport.upload(task.key, answer)
            _log.debug("uploaded %s of round %d", task.key.phase.name, task.key.round)
        except PhaseOver as error:
            _log.warning(
                "the answer to %s of round %d came too late: %s", task.key.phase.name, task.key.round, error
            )
    return task
