"""Rules of simulated runs, chosen at random, and how a violated invariant is told."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from agreement.registry.round_plan import CLUSTERED_SUM, ENCRYPTED_CLUSTERS, ENCRYPTED_GROUPS, MASKED_SUM
from protoseal_wire.messages import Phase, PhaseKey
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import STEPS, State

SECONDS: Mapping[Phase, float] = {
    Phase.ROSTER: 10.0,
    Phase.SECRET: 10.0,
    Phase.PRESENCE: 60.0,
    **dict.fromkeys(STEPS, 20.0),
    Phase.RESULT: 20.0,
}
ONE = (Phase.VALUES,)
NEED_EVERYONE = (ONE, ENCRYPTED_CLUSTERS, ENCRYPTED_GROUPS)
"""Steps that nobody may miss."""


def random_rules(rng: random.Random) -> Rules:
    """Rules of a small run: one step in a round, groups with one, or groups, or all in one, with many."""
    sites = rng.randint(3, 7)
    first_round, steps, common = rng.choice(
        (
            *((1, ONE, False), (0, ONE, False), (0, MASKED_SUM, False), (0, MASKED_SUM, False)),
            *((1, MASKED_SUM, True), (0, CLUSTERED_SUM, False), (1, CLUSTERED_SUM, True)),
            *((0, ENCRYPTED_GROUPS, False), (0, ENCRYPTED_GROUPS, False), (1, ENCRYPTED_CLUSTERS, True)),
        )
    )
    return Rules(
        first_round=first_round,
        common_group=common,
        round_steps=steps,
        smallest_group=2,
        run="sim",
        roster=tuple(f"s{number}" for number in range(sites)),
        min_sites=rng.randint(2, sites if steps in NEED_EVERYONE else sites // 2 + 1),
        rounds=rng.randint(1, 3),
        max_attempts=rng.randint(1, 4),
        needs_secret=rng.random() < 0.7,
        join_seconds=100.0,
        phase_seconds=SECONDS,
        empty_seconds=rng.choice((math.inf, 10.0)),
    )


class InvariantError(Exception):
    """An invariant does not hold."""


def require(condition: bool, what: str) -> None:
    """:class:`InvariantError` unless the condition holds."""
    if not condition:
        raise InvariantError(what)


def content_of(state: State, key: PhaseKey, site: str) -> object:
    """Return the part of the state from which a request is made, besides the uploads."""
    if key.phase in (Phase.ROSTER, Phase.SECRET):
        return state.members
    if key.phase is Phase.PRESENCE:
        return state.groups
    group = next((group for group in state.groups if site in group), state.members)
    over = [(each.phase, sorted(set(each.sites) & set(group))) for each in state.survivors]
    return state.participants, over
