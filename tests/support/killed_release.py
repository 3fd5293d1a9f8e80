"""A site that dies between two steps of a round's release, each of which changes what is on its disk or has left it.

The steps are those of the ledger's file, of the noise, of the journal and of the upload, in the order in which they
come, from the request of PRESENCE in one round to the coordinator's word that it has the answer.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from protoseal_wire.messages import Phase, PhaseKey
from tests.support.budgets import exact_epsilon
from tests.support.spending_process import Steps

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
        def transaction(*args: Any) -> Iterator[None]:
            with method(*args):
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
