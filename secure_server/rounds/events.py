"""What can happen to a run. :func:`secure_server.rounds.machine.step` says what follows."""

from __future__ import annotations

from dataclasses import dataclass

from protoseal_wire.messages import PhaseKey
from secure_server.rounds.state import Groups, Quorum


@dataclass(frozen=True)
class Joined:
    """A site asks to take part, for the first time or after a restart.

    It has erased the secrets of the attempt that ``left``, a PRESENCE, began.
    """

    site: str
    left: PhaseKey | None = None


@dataclass(frozen=True)
class Polled:
    """A site asks for its task: it is there."""

    site: str


@dataclass(frozen=True)
class Answered:
    """A site's answer to ``key`` arrived, and its content is good."""

    site: str
    key: PhaseKey


@dataclass(frozen=True)
class Left:
    """A site says that it goes."""

    site: str


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class Planned:
    """How many answers each step of the current attempt needs, and of whom."""

    quorums: tuple[Quorum, ...] = ()


@dataclass(frozen=True)
class Computed:
    """The current attempt's results are there; of a clustering, its ``groups``. Participants ``without`` get none."""

    groups: Groups = ()
    without: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ComputeFailed:
    """The current attempt's plan or results cannot be computed. Why is for the coordinator's log, not for sites."""


@dataclass(frozen=True)
class Resumed:
    """The coordinator was started again on a stored state."""


Event = Joined | Polled | Answered | Left | Tick | Planned | Computed | ComputeFailed | Resumed
