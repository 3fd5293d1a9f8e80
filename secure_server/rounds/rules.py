"""Rules of a run: rounds, steps and least sizes from the agreement, attempts and deadlines from the caller."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from agreement import Agreement, MaskingSection
from agreement.derived.cohorts import first_round, has_common_group, min_group_size, steps_of
from protoseal_wire.messages import Phase
from secure_server.rounds.state import PHASE_OF_STAGE, RoundStage

_COMPUTING_FACTOR = 10
"""Factor between the time limits of computing and VALUES: a bound for workers that hang, not for slow ones."""


@dataclass(frozen=True)
class Rules:
    """Rules of a run. ``ValueError`` unless ``min_sites`` is from 2 to the roster's size.

    The other limits of these values are checked where the agreement and the coordinator's file are read.

    ``roster`` names the sites that may join. A round is computed over at least ``min_sites`` of them. The run stops
    after ``max_attempts`` failed attempts in a row. With ``needs_secret``, the first member by name makes group keys
    that each other member must receive. Times are in seconds. The set-up may take the time of ROSTER plus, with a group
    secret, the time of SECRET.

    ``first_round`` is 0 if sites are clustered before training; that round consists of ``clustering_steps`` and has no
    RESULT. All other rounds consist of ``round_steps``. With ``common_group`` all members are one group from the start.
    An attempt has either no members of a group, or at least ``min_group_size`` of them, a function of the number of the
    run's members. Once survivors are signed, a round is over for groups of more members than
    ``masking.complete_up_to``; without masks, ``masking`` is None and this does not apply.

    A run is empty if every member has left, or missed a deadline without calling since. An empty run stops after
    ``empty_seconds``, or never if that is infinite.
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
    min_group_size: Callable[[int], int] = lambda members: 1
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

    def seconds(self, stage: RoundStage) -> float:
        """Return the longest time of a stage, in seconds."""
        times = self.phase_seconds
        match stage:
            case RoundStage.JOINING:
                return self.join_seconds
            case RoundStage.SETUP:
                return times[Phase.ROSTER] + (times[Phase.SECRET] if self.needs_secret else 0.0)
            case RoundStage.PLANNING:
                return times[Phase.VALUES]
            case RoundStage.COMPUTING:
                # Not the operator's deadline for sites: only a worker that hangs should cost the attempt.
                return _COMPUTING_FACTOR * times[Phase.VALUES]
            case _:
                return times[PHASE_OF_STAGE[stage]]


def build_rules(
    agreement: Agreement,
    sites: Iterable[str],
    *,
    max_attempts: int,
    join_seconds: float,
    phase_seconds: Mapping[Phase, float],
    empty_seconds: float = math.inf,
) -> Rules:
    """Return the rules of a run under this agreement; attempts and times are the coordinator's own.

    Raises ``ValueError`` for fewer sites than the agreement's ``min_sites``.
    """
    return Rules(
        run=agreement.run,
        roster=tuple(sorted(sites)),
        min_sites=agreement.min_sites,
        rounds=agreement.rounds,
        max_attempts=max_attempts,
        needs_secret=agreement.needs_group_secret,
        join_seconds=join_seconds,
        phase_seconds=phase_seconds,
        first_round=first_round(agreement),
        clustering_steps=steps_of(agreement, 0),
        round_steps=steps_of(agreement, 1),
        common_group=has_common_group(agreement),
        min_group_size=partial(min_group_size, agreement),
        masking=agreement.masking if Phase.SHARES in steps_of(agreement, 1) else None,
        empty_seconds=empty_seconds,
    )
