"""State of the round machine."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from protoseal_wire.messages import Phase, PhaseKey


class RoundStage(StrEnum):
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


PHASE_OF_STAGE: Mapping[RoundStage, Phase] = {
    RoundStage.PRESENCE: Phase.PRESENCE,
    RoundStage.DIRECTIONS: Phase.DIRECTIONS,
    RoundStage.SHARES: Phase.SHARES,
    RoundStage.VALUES: Phase.VALUES,
    RoundStage.SURVIVORS: Phase.SURVIVORS,
    RoundStage.UNMASK: Phase.UNMASK,
    RoundStage.MEANS: Phase.MEANS,
    RoundStage.RESULT: Phase.RESULT,
}
"""Phase that each of a round's stages asks of sites."""

STAGE_OF_PHASE: Mapping[Phase, RoundStage] = {phase: stage for stage, phase in PHASE_OF_STAGE.items()}
"""Stage of a round that asks sites for a phase."""

STEPS = (Phase.DIRECTIONS, Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK, Phase.MEANS)
"""Possible phases between PRESENCE and the computation, in their order."""

SUM_OPENING_STEPS = (Phase.UNMASK, Phase.MEANS)
"""Phases after which a party may know a sum: no other sum may then be taken over the same values."""

REPLANNING_STEP = Phase.DIRECTIONS
"""Step after which the quorums of later steps are settled again, because they depend on its answers."""

Groups = tuple[tuple[str, ...], ...]
"""Partition of sites that average together: each group sorted, the groups by their first names."""

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Quorum:
    """Quorum of a step: the attempt continues after ``phase`` only if ``least`` of ``sites`` have answered."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    phase: Phase
    sites: frozenset[str]
    least: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= len(self.sites):
            raise ValueError(f"a quorum needs 1 to {len(self.sites)} sites, not {self.least}")

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
    """Position of a run. Immutable; ``ValueError`` for an impossible combination.

    Stored states keep the shorter names that four fields had in earlier releases, given here as aliases.

    Membership:

    - ``joined``: sites in contact since their last Join. ``sessions`` counts each site's Joins, by name.
    - ``members`` (sorted): empty while joining is open. During the set-up, a maker of group keys that failed to deliver
      is removed, and a site that joins is added; afterwards members are fixed.
    - ``verified`` and ``key_holders``: members that have answered ROSTER and SECRET of ``setup_attempt``.
    - ``setup_complete``: True once the set-up is over.
    - ``groups``: a partition of the members, fixed once set, by the clustering or, with a common group, at the start.

    The current attempt:

    - ``participants`` (sorted): sites whose presence statements the attempt uses.
    - ``survivors``: the participants that answered each completed step.
    - ``answered``: sites that have answered the current stage.
    - ``quorums``: quorums of the attempt's steps; a step without a quorum needs everyone.
    - ``excluded_from_result`` (sorted): participants that get no result. ``last_result``: the last round with a result,
      or 0.
    - ``unmask_commitments``: UNMASK quorums of those attempts of this round that asked for masked values. Sites of a
      group refuse another attempt that has fewer of these sites than the quorum.

    Failures:

    - ``absent``: sites that missed a deadline or left, and that no stage waits for.
    - ``left``: sites that joined again and stated that they left the current attempt. They have erased its secrets, so
      only its result is sent to them.
    - ``benched``: sites that cost this round an attempt, or the previous round its result, and are not asked again in
      this round.
    - ``failures``: failed attempts since the last success. ``reason``: why the last attempt failed or the run stopped;
      empty after a success.
    - ``deadline``: in the unit and epoch of the ``now`` given to the machine.
    - ``empty_until``: time at which an empty run stops, unless a member calls before; None while a member is present.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    run: str
    stage: RoundStage
    deadline: float
    joined: frozenset[str] = frozenset()
    sessions: tuple[tuple[str, int], ...] = ()
    members: tuple[str, ...] = ()
    verified: frozenset[str] = frozenset()
    key_holders: Annotated[frozenset[str], Field(alias="keyed")] = frozenset()
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
    setup_complete: Annotated[bool, Field(alias="begun")] = False
    groups: Groups = ()
    quorums: tuple[Quorum, ...] = ()
    survivors: tuple[Survivors, ...] = ()
    excluded_from_result: Annotated[tuple[str, ...], Field(alias="without")] = ()
    unmask_commitments: Annotated[tuple[Quorum, ...], Field(alias="committed")] = ()
    last_result: int = 0
    empty_until: float | None = None

    def __post_init__(self) -> None:
        # Checked on every construction, so that a damaged store or a wrong transition stops here and asks no site.
        members = set(self.members)
        if list(self.members) != sorted(members) or list(self.participants) != sorted(set(self.participants)):
            raise ValueError("members and participants must be sorted and distinct")
        if not members >= self.verified >= self.key_holders:
            raise ValueError("verified sites must be members, and holders of keys must be verified")
        if not members >= self.answered | self.benched | self.left:
            raise ValueError("sites that answered, left or are benched must be members")
        if not members | self.joined >= self.absent:
            raise ValueError("absent sites must be members or have joined")
        if not self.verified.issuperset(self.participants):
            raise ValueError("a participant must have verified the roster")
        if not self.benched.isdisjoint(self.participants):
            raise ValueError("a benched site must not be a participant")
        if self.setup_attempt < 1 or self.round < 0 or self.attempt < 1 or self.failures < 0:
            raise ValueError("rounds and failures count from 0, attempts from 1")
        if not 0 <= self.last_result <= self.round:
            raise ValueError("last_result must be a round from 0 to the current one")
        self._check_groups()
        self._check_steps()

    def _check_groups(self) -> None:
        sites = [site for group in self.groups for site in group]
        if self.groups and sorted(sites) != list(self.members):
            raise ValueError("groups must be a partition of the members")
        if list(self.groups) != sorted(tuple(sorted(group)) for group in self.groups) or () in self.groups:
            raise ValueError("each group must be sorted, and groups ordered by their first names")

    def _check_steps(self) -> None:
        # A site that missed a step is not in the sum, and would sign or release for a set without itself.
        sites_of_steps = [self.participants, *(step.sites for step in self.survivors)]
        if any(not set(after) <= set(before) for before, after in pairwise(sites_of_steps)):
            raise ValueError("the survivors of a step must be survivors of the step before")
        if any(list(step.sites) != sorted(set(step.sites)) for step in self.survivors):
            raise ValueError("survivors must be sorted and distinct")
        participants = set(self.participants)
        if any(not quorum.sites <= participants for quorum in self.quorums):
            raise ValueError("the sites of a quorum must be participants")
        if any(not quorum.sites <= set(self.members) for quorum in self.unmask_commitments):
            raise ValueError("committed sites must be members")
        if list(self.excluded_from_result) != sorted(set(self.excluded_from_result) & set(self.participants)):
            raise ValueError("sites without a result must be participants, sorted and distinct")

    @property
    def step_sites(self) -> tuple[str, ...]:
        """Sites that the current step is asked of, once PRESENCE is over: those that answered the step before.

        MEANS is asked of the groups' leaders alone. RESULT is asked of all participants that get a result, including
        those that dropped out before it.
        """
        if self.stage is RoundStage.MEANS:
            return self.leaders
        if self.stage is RoundStage.RESULT:
            return tuple(site for site in self.participants if site not in self.excluded_from_result)
        if not self.survivors:
            return self.participants
        return self.survivors[-1].sites

    def session(self, site: str) -> int:
        """Return the number of the site's last Join, from 1; 0 before the first."""
        return dict(self.sessions).get(site, 0)

    @property
    def leaders(self) -> tuple[str, ...]:
        """First participant by name of each group that takes part; sorted."""
        # The first by name, so that nobody chooses who reads a group's sum.
        present = [set(group).intersection(self.participants) for group in self.groups]
        return tuple(sorted(min(sites) for sites in present if sites))

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
        return self.stage in (RoundStage.FINISHED, RoundStage.STOPPED)

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
        phase = PHASE_OF_STAGE.get(self.stage)
        return None if phase is None else self.key(phase)

    def to_json(self) -> str:
        """Return the state as text that :meth:`from_json` reads."""
        return _ADAPTER.dump_json(self, by_alias=True).decode()

    @classmethod
    def from_json(cls, text: str) -> State:
        """Read the text of :meth:`to_json`; raise ``ValueError`` for wrong types, unknown or missing fields."""
        return _ADAPTER.validate_json(text)


_ADAPTER = TypeAdapter(State)
