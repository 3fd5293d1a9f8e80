"""Faults, and plans of them: drawn from one number, written as one line, and read back from it."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

COORDINATOR = "coordinator"
AWAY = 3
"""Turns until a party that died by a fault of a write, or of its own, is started again."""
LONGEST = 20
"""The most turns that a party stays away, or that a message is late."""
_LAST_TURN, _LAST_CALL, _LAST_WRITE, _LAST_ANSWER = 60, 50, 30, 14
"""Turns, calls, writes and answers of a run without faults.

A drawn order doubles the turns; repeated rounds add to them.
"""
_SPREAD = 0.12
"""Distance between faults that come together, as a fraction of the run."""
_SET_UP = 0.05
"""Point of the run, as a fraction, around which faults come together in the set-up."""
_RUN = "/"
"""Separator between a run's number and the party hit there; the first run has no number."""


class Kind(StrEnum):
    """Fault of one kind. ``at`` counts a party's durable writes, calls or answers, or the turns of the world."""

    BEFORE = "killed-before-write"
    """The party is killed before its durable write number ``at``."""
    AFTER = "killed-after-write"
    TORN = "killed-in-write"
    """Half of what the write would add is on the disk."""
    FULL = "disk-full"
    """The write number ``at`` fails, and the party lives."""
    KILLED = "killed"
    """The party is killed in turn ``at`` and comes back ``length`` turns later."""
    GONE = "gone"
    """The site is killed in turn ``at`` and never comes back."""
    PAUSED = "paused"
    """The site does nothing for ``length`` turns."""
    NOT_SENT = "request-lost"
    """The site's call number ``at`` does not arrive; the site tries again."""
    NO_REPLY = "reply-lost"
    """The call arrives, its reply does not."""
    TWICE = "duplicated"
    """The call arrives once more, ``length`` turns later."""
    LATE = "late"
    """The call arrives ``length`` turns later; the site takes it for lost and tries again."""
    UNREACHABLE = "unreachable"
    """The site gives up at its call number ``at``, and its process ends without a word."""
    ERROR = "error"
    """The site's answer number ``at`` fails for a reason of the site's own: it leaves, and is back in ``length``."""
    EXPIRED = "deadline"
    """The deadline of whatever stage there is passes in turn ``at``."""
    SPOILT = "keys-torn"
    """The coordinator is killed in turn ``at``, or is down, and half of the file of its evaluation keys is left."""
    PUT_BACK = "put-back"
    """The party is killed in turn ``at``, and its folder is as it was before its last durable write."""
    LINE_LOST = "line-lost"
    """The site is killed in turn ``at``, or is down, and the last line of its privacy ledger is lost."""


TIMED = (
    *(Kind.KILLED, Kind.GONE, Kind.PAUSED, Kind.EXPIRED),
    *(Kind.SPOILT, Kind.PUT_BACK, Kind.LINE_LOST),
)
"""Faults that come in a turn; the others come at what a party does."""
OLDER_STATE = (Kind.PUT_BACK, Kind.LINE_LOST)
"""Faults after which a party no longer knows what it did: only their detection is promised."""
CALLS = (Kind.NOT_SENT, Kind.NO_REPLY, Kind.TWICE, Kind.LATE, Kind.UNREACHABLE)
WRITES = (Kind.BEFORE, Kind.AFTER, Kind.TORN, Kind.FULL)


@dataclass(frozen=True, order=True)
class Fault:
    """One fault of a plan; ``who`` is empty where it is nobody's."""

    at: int
    kind: Kind
    who: str = ""
    length: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{self.who}:{self.at}:{self.length}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read :meth:`__str__` back; ``ValueError`` for anything else."""
        kind, who, at, length = text.split(":")
        return cls(int(at), Kind(kind), who, int(length))


@dataclass(frozen=True)
class FaultPlan:
    """Faults, and the number from which the order of steps is drawn; 0: every party acts in every turn."""

    faults: tuple[Fault, ...]
    order: int = 0

    def __str__(self) -> str:
        return " ".join([f"order:{self.order}", *map(str, self.faults)])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read :meth:`__str__` back; ``ValueError`` for anything else."""
        order, *faults = text.split()
        name, number = order.split(":")
        if name != "order":
            raise ValueError(f"a plan begins with order:NUMBER, not with {order}")
        return cls(tuple(map(Fault.parse, faults)), int(number))

    def without(self, fault: Fault) -> FaultPlan:
        """Return the plan less one fault."""
        return FaultPlan(tuple(each for each in self.faults if each is not fault), self.order)

    def of_run(self, number: int) -> FaultPlan:
        """Return the faults that hit run ``number`` of those that are played at once, as a plan of that run alone."""
        told = [(*each.who.rpartition(_RUN)[::2], each) for each in self.faults]
        own = [replace(each, who=who) for run, who, each in told if int(run or 1) == number]
        return FaultPlan(tuple(own), self.order)


class Pending:
    """The faults of a plan that have not come yet; each comes once."""

    def __init__(self, plan: FaultPlan) -> None:
        self._left = list(plan.faults)

    def __len__(self) -> int:
        return len(self._left)

    def due(self, kinds: Collection[Kind], who: str, at: int) -> Fault | None:
        """Take the first fault of one of these kinds that hits ``who`` at its write, call or answer number ``at``."""
        found = next(
            (each for each in self._left if each.kind in kinds and each.who == who and each.at == at), None
        )
        if found is not None:
            self._left.remove(found)
        return found

    def timed(self, turn: int) -> tuple[Fault, ...]:
        """Take all faults that come in a turn."""
        found = tuple(each for each in self._left if each.kind in TIMED and each.at == turn)
        self._left = [each for each in self._left if each not in found]
        return found


def draw_plan(seed: int, sites: Sequence[str], *, runs: int = 1, most: int = 6) -> FaultPlan:
    """Draw up to ``most`` faults. At most one site is gone for good: the others are enough to finish a run.

    Every eighth plan has state that is put back. In a third of the plans the faults come
    together, in another third in the set-up. Of several ``runs``
    that are played at once each fault hits one, and no state is put back: what one process shows of a ledger that
    another one's fault cut cannot be judged.
    """
    rng = random.Random(seed)  # noqa: S311 (a test's choices, to be repeated from the seed)
    kinds = [kind for kind in Kind if kind not in OLDER_STATE]
    if runs == 1 and rng.random() < 1 / 8:
        kinds += OLDER_STATE * 3
    order = rng.choice([0, rng.randrange(1, 10**6)])
    focus = rng.choice([None, rng.random(), _SET_UP])
    faults = [_draw(rng, rng.choice(kinds), sites, order, focus) for _ in range(rng.randint(1, most))]
    if runs > 1:
        faults = [_in_run(fault, rng.randint(1, runs)) for fault in faults]
    gone = [fault for fault in faults if fault.kind is Kind.GONE]
    kept = sorted(fault for fault in faults if fault not in gone[1:])
    return FaultPlan(tuple(kept), order)


def _draw(rng: random.Random, kind: Kind, sites: Sequence[str], order: int, focus: float | None) -> Fault:
    everyone = (*sites, COORDINATOR, COORDINATOR)
    when = rng.random() if focus is None else min(0.99, max(0.0, rng.gauss(focus, _SPREAD)))
    length = rng.randint(1, rng.choice([2, LONGEST]))
    if kind in WRITES:
        who = rng.choice(everyone)
        writes = _LAST_WRITE * (4 if who == COORDINATOR else 1)
        return Fault(1 + int(when * writes), kind, who)
    if kind in CALLS:
        return Fault(int(when * _LAST_CALL), kind, rng.choice(sites), length)
    if kind is Kind.ERROR:
        return Fault(int(when * _LAST_ANSWER), kind, rng.choice(sites), length)
    who = rng.choice(_WHOM.get(kind, everyone if kind in (Kind.KILLED, Kind.PUT_BACK) else sites))
    return Fault(int(when * _LAST_TURN * (2 if order else 1)), kind, who, length)


def _in_run(fault: Fault, number: int) -> Fault:
    return fault if number == 1 else replace(fault, who=f"{number}{_RUN}{fault.who}")


_WHOM = {Kind.EXPIRED: ("",), Kind.SPOILT: (COORDINATOR,)}
