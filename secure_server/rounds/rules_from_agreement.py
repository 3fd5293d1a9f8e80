"""Rules of a run: rounds, steps and least sizes from the agreement, attempts and deadlines from the caller."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from agreement import Agreement
from agreement.derived.cohorts import first_round, has_common_group, min_group_size, steps_of
from protoseal_wire.messages import Phase
from secure_server.rounds.state import Rules


def agreed_rules(
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
        smallest_group=min_group_size(agreement, 0),
        masking=agreement.masking if Phase.SHARES in steps_of(agreement, 1) else None,
        empty_seconds=empty_seconds,
    )
