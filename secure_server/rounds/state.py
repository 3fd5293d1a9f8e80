"""State and rules of the round machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter

from agreement import MaskingSection
from protoseal_wire.messages import Phase, PhaseKey


class Stage(StrEnum):
    """Stage of a run, named after the event that it waits for."""

    JOINING = "joining"
    SETUP = "setup"
    PRESENCE = "presence"
    PLANNING = "planning"
    DIRECTIONS = "directions"
    SHARES = "shares"
    VALUES = "values"
    SURVIVORS = "survivors"
    UNMASK = "unmask"
    MEANS = "means"
    COMPUTING = "computing"
    RESULT = "result"
    FINISHED = "finished"
    STOPPED = "stopped"


ASKED: Mapping[Stage, Phase] = {
    Stage.PRESENCE: Phase.PRESENCE,
    Stage.DIRECTIONS: Phase.DIRECTIONS,
    Stage.SHARES: Phase.SHARES,
    Stage.VALUES: Phase.VALUES,
    Stage.SURVIVORS: Phase.SURVIVORS,
    Stage.UNMASK: Phase.UNMASK,
    Stage.MEANS: Phase.MEANS,
    Stage.RESULT: Phase.RESULT,
}
"""Phase that each of a round's stages asks of sites."""

ASKING: Mapping[Phase, Stage] = {phase: stage for stage, phase in ASKED.items()}
"""Stage of a round that asks sites for a phase."""

STEPS = (Phase.DIRECTIONS, Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK, Phase.MEANS)
"""Possible phases between PRESENCE and the computation, in their order."""

OPENING = (Phase.UNMASK, Phase.MEANS)
"""Phases after which a party may know a sum: no other sum may then be taken over the same values."""

PLANNED_ANEW = Phase.DIRECTIONS
"""Step after which the quorums of later steps are settled again, because they depend on its answers."""

Groups = tuple[tuple[str, ...], ...]
"""Partition of sites that average together: each group sorted, the groups by their first names."""

_COMPUTING_FACTOR = 10
"""Factor between the time limits of computing and VALUES: a bound for workers that hang, not for slow ones."""

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Rules:
    """Rules of a run. ``ValueError`` unless ``min_sites`` is 2 to the roster's size.

    An agreement and the coordinator's file, which are checked as they are read, give the rest.

    ``roster`` names the sites that may join; a round is computed over at least ``min_sites`` of them. After
    ``max_attempts`` failed attempts in a row the run stops. ``needs_secret``: the first member by name makes
    group keys that each other member must have. Times are in seconds; the set-up may take those of ROSTER
    and, with a group secret, SECRET together.

    ``first_round`` is 0 when sites are clustered before training, in ``clustering_steps``; there is no RESULT in
    it. ``round_steps`` are those of all other rounds. With ``common_group`` all members are one group from the start.
    Of a group, ``smallest_group`` members or none take part, and under masks no fewer than ``masking`` says of a run of
    so many members. A round whose survivors were signed is over for groups of more than its ``complete_up_to``; for
    none where that is None, without masks.

    A run of which every member has left, or missed a deadline and not been heard of since, stops after
    ``empty_seconds``; never where that is infinite.
    """

    run: str
    roster: tuple[str, ...]
    min_sites: int
    rounds: int
    max_attempts: int
    needs_secret: bool
    join_seconds: float
    phase_seconds: Mapping[Phase, float]
    first_round: int = 1
    clustering_steps: tuple[Phase, ...] = (Phase.VALUES,)
    round_steps: tuple[Phase, ...] = (Phase.VALUES,)
    common_group: bool = False
    smallest_group: int = 1
    masking: MaskingSection | None = None
    empty_seconds: float = math.inf

    def __post_init__(self) -> None:
        if not 2 <= self.min_sites <= len(self.roster):
            raise ValueError(
                f"min_sites is {self.min_sites}: it must be 2 to {len(self.roster)}, the roster's size"
            )

    def steps(self, round_number: int) -> tuple[Phase, ...]:
        """Phases of a round between PRESENCE and the computation."""
        return self.round_steps if round_number else self.clustering_steps

    def fewest_listed(self, members: int) -> int:
        """Return the fewest members of a group that take part in an attempt, in a run of so many members."""
        return max(self.smallest_group, self.masking.fewest_listed(members) if self.masking else 1)

    def seconds(self, stage: Stage) -> float:
        """Return the longest time of a stage, in seconds."""
        times = self.phase_seconds
        match stage:
            case Stage.JOINING:
                return self.join_seconds
            case Stage.SETUP:
                return times[Phase.ROSTER] + (times[Phase.SECRET] if self.needs_secret else 0.0)
            case Stage.PLANNING:
                return times[Phase.VALUES]
            case Stage.COMPUTING:
                return _COMPUTING_FACTOR * times[Phase.VALUES]
            case _:
                return times[ASKED[stage]]


@dataclass(frozen=True)
class Quorum:
    """Quorum of a step: the attempt continues after ``phase`` only if ``least`` of ``sites`` have answered."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    phase: Phase
    sites: frozenset[str]
    least: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= len(self.sites):
            raise ValueError(f"a quorum of {self.least} among {len(self.sites)} sites")

    def met_by(self, answered: Set[str]) -> bool:
        """Return True if these answers are enough."""
        return len(self.sites & answered) >= self.least


@dataclass(frozen=True)
class Survivors:
    """Sites that answered ``phase`` of the current attempt, sorted; only these are asked for its other steps."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    phase: Phase
    sites: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """Position of a run. Immutable; ``ValueError`` for a combination that cannot come about.

    ``joined`` are the sites in touch since their last Join. ``members`` (sorted) is empty while joining is
    open; a maker of group keys that failed to deliver is taken out, and a site that joins before the set-up is over is
    taken in; then they are fixed. ``verified`` and ``keyed`` have
    answered ROSTER and SECRET of ``setup_attempt``. ``begun``: the set-up is over. ``groups`` (a partition of the
    members) come from the clustering, or are one from the start, and are then fixed.

    ``participants`` (sorted) are those whose presence the current attempt rests on, ``survivors`` those of them
    who answered each step that is over, ``answered`` those who have answered the current stage. ``quorums`` are the
    current attempt's; a step without one needs everyone. ``without`` (sorted) are participants for whom it came to no
    result, ``last_result`` is the last round that had one, 0 before. ``committed`` are the UNMASK quorums of those of
    the current round's attempts that asked for masked values: sites of a group that has not as many of them there
    refuse another attempt.

    ``sessions`` counts each site's Joins, by name. ``absent`` missed a deadline or left, and are not waited for.
    ``left`` joined again and said that they left the current attempt: they have erased what it needs, so they are asked
    for nothing more of it but its result. ``benched`` cost the current round an attempt, or the one before it its
    result, and are not asked again in it. ``failures`` counts failed attempts since the last success. ``deadline`` is
    in the unit and epoch of the ``now`` given to the machine. ``reason`` tells why the last attempt failed or the run
    stopped, and is empty after a success. ``empty_until`` is set while nobody is there to wait for: the run stops then,
    unless a member is heard of before.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    run: str
    stage: Stage
    deadline: float
    joined: frozenset[str] = frozenset()
    sessions: tuple[tuple[str, int], ...] = ()
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
    left: frozenset[str] = frozenset()
    benched: frozenset[str] = frozenset()
    reason: str = ""
    begun: bool = False
    groups: Groups = ()
    quorums: tuple[Quorum, ...] = ()
    survivors: tuple[Survivors, ...] = ()
    without: tuple[str, ...] = ()
    committed: tuple[Quorum, ...] = ()
    last_result: int = 0
    empty_until: float | None = None

    def __post_init__(self) -> None:
        members = set(self.members)
        if list(self.members) != sorted(members) or list(self.participants) != sorted(set(self.participants)):
            raise ValueError("members and participants must be sorted, each named once")
        if not members >= self.verified >= self.keyed:
            raise ValueError("only members can have verified, and only those be keyed")
        if not members >= self.answered | self.benched | self.left:
            raise ValueError("only members can have answered or left, or be benched")
        if not members | self.joined >= self.absent:
            raise ValueError("only members and joined sites can be absent")
        if not self.verified.issuperset(self.participants):
            raise ValueError("a participant must have verified the roster")
        if not self.benched.isdisjoint(self.participants):
            raise ValueError("a benched site takes no part")
        if self.setup_attempt < 1 or self.round < 0 or self.attempt < 1 or self.failures < 0:
            raise ValueError("rounds and failures count from 0, attempts from 1")
        if not 0 <= self.last_result <= self.round:
            raise ValueError("the last result is of a round that there has been")
        self._check_groups()
        self._check_steps()

    def _check_groups(self) -> None:
        sites = [site for group in self.groups for site in group]
        if self.groups and sorted(sites) != list(self.members):
            raise ValueError("groups are a partition of the members")
        if list(self.groups) != sorted(tuple(sorted(group)) for group in self.groups) or () in self.groups:
            raise ValueError("each group is sorted, and groups are by their first names")

    def _check_steps(self) -> None:
        taking_part = [self.participants, *(each.sites for each in self.survivors)]
        if any(not set(after) <= set(before) for before, after in pairwise(taking_part)):
            raise ValueError("nobody comes into an attempt late")
        if any(list(each.sites) != sorted(set(each.sites)) for each in self.survivors):
            raise ValueError("survivors must be sorted, each named once")
        participants = set(self.participants)
        if any(not quorum.sites <= participants for quorum in self.quorums):
            raise ValueError("a quorum is of participants")
        if any(not quorum.sites <= set(self.members) for quorum in self.committed):
            raise ValueError("only members can have been asked for values")
        if list(self.without) != sorted(set(self.without) & set(self.participants)):
            raise ValueError("those without a result are participants, sorted, each named once")

    @property
    def asked(self) -> tuple[str, ...]:
        """Sites that the current step is asked of, once PRESENCE is over: those that answered the step before.

        Means are asked of the groups' leaders alone. The result is for all participants that there is one for, also
        for those that dropped out on the way to it.
        """
        if self.stage is Stage.MEANS:
            return self.leaders
        if self.stage is Stage.RESULT:
            return tuple(site for site in self.participants if site not in self.without)
        if not self.survivors:
            return self.participants
        return self.survivors[-1].sites

    def session(self, site: str) -> int:
        """Return the number of the site's last Join, from 1; 0 before the first."""
        return dict(self.sessions).get(site, 0)

    @property
    def leaders(self) -> tuple[str, ...]:
        """First participant by name of each group that takes part; sorted."""
        there = set(self.participants)
        return tuple(sorted(min(there & set(group)) for group in self.groups if there & set(group)))

    @property
    def maker(self) -> str:
        """Member that makes the group's keys: the first by name. Only once joining is closed."""
        return self.members[0]

    @property
    def is_empty(self) -> bool:
        """True if every member has left, or missed a deadline and not been heard of since."""
        return bool(self.members) and self.absent.issuperset(self.members)

    @property
    def over(self) -> bool:
        """True if the run has finished or stopped."""
        return self.stage in (Stage.FINISHED, Stage.STOPPED)

    @property
    def roster_key(self) -> PhaseKey:
        """ROSTER step of the set-up."""
        return PhaseKey(self.run, 0, self.setup_attempt, Phase.ROSTER)

    @property
    def secret_key(self) -> PhaseKey:
        """SECRET step of the set-up."""
        return PhaseKey(self.run, 0, self.setup_attempt, Phase.SECRET)

    @property
    def presence_key(self) -> PhaseKey:
        """PRESENCE step of the current attempt."""
        return self.key(Phase.PRESENCE)

    @property
    def result_key(self) -> PhaseKey:
        """RESULT step of the current attempt."""
        return self.key(Phase.RESULT)

    def key(self, phase: Phase) -> PhaseKey:
        """Return a step of the current attempt."""
        return PhaseKey(self.run, self.round, self.attempt, phase)

    @property
    def asked_key(self) -> PhaseKey | None:
        """Step that the current stage of a round asks of sites, or None."""
        phase = ASKED.get(self.stage)
        return None if phase is None else self.key(phase)

    def to_json(self) -> str:
        """Return the state as text that :meth:`from_json` reads."""
        return _ADAPTER.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> State:
        """Read the text of :meth:`to_json`; raise ``ValueError`` for wrong types, unknown or missing fields."""
        return _ADAPTER.validate_json(text)


_ADAPTER = TypeAdapter(State)
