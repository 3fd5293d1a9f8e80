"""The values of the round machine: what a run is to keep to, and where it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter

from protoseal_wire.messages import Phase, PhaseKey


class Stage(StrEnum):
    """What the run is waiting for."""

    JOINING = "joining"
    SETUP = "setup"
    PRESENCE = "presence"
    VALUES = "values"
    COMPUTING = "computing"
    RESULT = "result"
    FINISHED = "finished"
    STOPPED = "stopped"


ASKED: Mapping[Stage, Phase] = {
    Stage.PRESENCE: Phase.PRESENCE,
    Stage.VALUES: Phase.VALUES,
    Stage.RESULT: Phase.RESULT,
}
"""The phase that each of a round's stages asks of sites."""

_COMPUTING_FACTOR = 10
"""Computing may take this many times what VALUES may: a bound for a worker that hangs, not for slow ones."""


@dataclass(frozen=True)
class Rules:
    """What a run keeps to. ``ValueError`` for rules that no run could keep.

    ``roster`` names the sites that may join; a round is computed over at least ``min_sites`` of them. After
    ``max_attempts`` failed attempts in a row the run stops. ``needs_secret``: the first member by name makes
    group keys that each other member must have. Times are in seconds; the set-up may take those of ROSTER
    and, with a group secret, SECRET together.
    """

    run: str
    roster: tuple[str, ...]
    min_sites: int
    rounds: int
    max_attempts: int
    needs_secret: bool
    join_seconds: float
    phase_seconds: Mapping[Phase, float]

    def __post_init__(self) -> None:
        if len(set(self.roster)) != len(self.roster):
            raise ValueError("a site is on the roster more than once")
        if not 2 <= self.min_sites <= len(self.roster):
            raise ValueError(
                f"min_sites is {self.min_sites}: it must be 2 to {len(self.roster)}, the roster's size"
            )
        if self.rounds < 1 or self.max_attempts < 1:
            raise ValueError("rounds and max_attempts must be at least 1")
        if absent := [phase.name for phase in Phase if phase not in self.phase_seconds]:
            raise ValueError(f"no time is given for {', '.join(absent)}")
        if not all(
            math.isfinite(time) and time > 0 for time in (self.join_seconds, *self.phase_seconds.values())
        ):
            raise ValueError("times must be finite and above 0 seconds")

    def seconds(self, stage: Stage) -> float:
        """How long a stage may take, at most."""
        times = self.phase_seconds
        match stage:
            case Stage.JOINING:
                return self.join_seconds
            case Stage.SETUP:
                return times[Phase.ROSTER] + (times[Phase.SECRET] if self.needs_secret else 0.0)
            case Stage.COMPUTING:
                return _COMPUTING_FACTOR * times[Phase.VALUES]
            case _:
                return times[ASKED[stage]]


@dataclass(frozen=True)
class State:
    """Where a run is. Immutable; ``ValueError`` for a combination that cannot come about.

    ``joined`` are the sites in touch since their last Join. ``members`` (sorted) is empty while joining is
    open and then fixed, but for a maker of group keys that failed to deliver. ``verified`` and ``keyed`` have
    answered ROSTER and SECRET of ``setup_attempt``. ``participants`` (sorted) are those whose presence the
    current attempt rests on, ``answered`` those who have answered the current stage. ``absent`` missed a
    deadline or left, and are not waited for. ``benched`` cost the current round an attempt, and are not asked
    again in it. ``failures`` counts failed attempts since the last success.
    ``deadline`` is in the unit and epoch of the ``now`` given to the machine. ``reason`` tells why the last
    attempt failed or the run stopped, and is empty after a success.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    run: str
    stage: Stage
    deadline: float
    joined: frozenset[str] = frozenset()
    members: tuple[str, ...] = ()
    verified: frozenset[str] = frozenset()
    keyed: frozenset[str] = frozenset()
    setup_attempt: int = 1
    round: int = 0
    attempt: int = 1
    failures: int = 0
    participants: tuple[str, ...] = ()
    answered: frozenset[str] = frozenset()
    absent: frozenset[str] = frozenset()
    benched: frozenset[str] = frozenset()
    reason: str = ""

    def __post_init__(self) -> None:
        members = set(self.members)
        if list(self.members) != sorted(members) or list(self.participants) != sorted(set(self.participants)):
            raise ValueError("members and participants must be sorted, each named once")
        if not members >= self.verified >= self.keyed:
            raise ValueError("only members can have verified, and only those be keyed")
        if not members >= self.absent | self.answered | self.benched:
            raise ValueError("only members can have answered, be absent or be benched")
        if not self.verified.issuperset(self.participants):
            raise ValueError("a participant must have verified the roster")
        if not self.benched.isdisjoint(self.participants):
            raise ValueError("a benched site takes no part")
        if self.setup_attempt < 1 or self.round < 0 or self.attempt < 1 or self.failures < 0:
            raise ValueError("rounds and failures count from 0, attempts from 1")

    @property
    def maker(self) -> str:
        """The member who makes the group's keys: the first by name. Only once joining is closed."""
        return self.members[0]

    @property
    def over(self) -> bool:
        """The run has finished or stopped."""
        return self.stage in (Stage.FINISHED, Stage.STOPPED)

    @property
    def roster_key(self) -> PhaseKey:
        """The set-up's ROSTER step."""
        return PhaseKey(self.run, 0, self.setup_attempt, Phase.ROSTER)

    @property
    def secret_key(self) -> PhaseKey:
        """The set-up's SECRET step."""
        return PhaseKey(self.run, 0, self.setup_attempt, Phase.SECRET)

    @property
    def presence_key(self) -> PhaseKey:
        """The current attempt's PRESENCE step."""
        return self._key(Phase.PRESENCE)

    @property
    def values_key(self) -> PhaseKey:
        """The current attempt's VALUES step."""
        return self._key(Phase.VALUES)

    @property
    def result_key(self) -> PhaseKey:
        """The current attempt's RESULT step."""
        return self._key(Phase.RESULT)

    @property
    def asked_key(self) -> PhaseKey | None:
        """The step that the current stage of a round asks of sites, or None."""
        phase = ASKED.get(self.stage)
        return None if phase is None else self._key(phase)

    def _key(self, phase: Phase) -> PhaseKey:
        return PhaseKey(self.run, self.round, self.attempt, phase)

    def to_json(self) -> str:
        """As text that :meth:`from_json` reads."""
        return _ADAPTER.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> State:
        """Read :meth:`to_json`'s text. ``ValueError`` for wrong types, unknown or missing fields."""
        return _ADAPTER.validate_json(text)


_ADAPTER = TypeAdapter(State)
