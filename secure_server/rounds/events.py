"""Events of a run, the inputs of :func:`secure_server.rounds.machine.step`."""

from __future__ import annotations

from dataclasses import dataclass

from protoseal_wire.messages import PhaseKey
from secure_server.rounds.state import Groups, Quorum


@dataclass(frozen=True)
class Joined:
    """Request of a site to take part, for the first time or after a restart.

    The site has erased the secrets of the attempt that ``left``, a PRESENCE, began.
    """

    site: str
    left: PhaseKey | None = None


@dataclass(frozen=True)
class Polled:
    """Request of a site for its task, which shows that the site is there."""

    site: str


@dataclass(frozen=True)
class Answered:
    """Answer of a site to ``key``; its content was checked."""

    site: str
    key: PhaseKey


@dataclass(frozen=True)
class Left:
    """Leave of a site."""

    site: str


@dataclass(frozen=True)
class Tick:
    """Passage of time."""


@dataclass(frozen=True)
class Planned:
    """Plan of the current attempt: the number of answers that each step needs, and from which sites."""

    quorums: tuple[Quorum, ...] = ()


@dataclass(frozen=True)
class Computed:
    """Results of the current attempt; for a clustering its ``groups``. Participants ``excluded`` get none."""

    groups: Groups = ()
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ComputeFailed:
    """Failure of the current attempt's plan or results. The reason is for the coordinator's log, not for sites."""


@dataclass(frozen=True)
class Resumed:
    """Restart of the coordinator on a stored state."""


Event = Joined | Polled | Answered | Left | Tick | Planned | Computed | ComputeFailed | Resumed
