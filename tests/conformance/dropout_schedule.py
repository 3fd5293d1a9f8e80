"""A schedule in which two of nine sites are lost in every phase of a round in turn, and return in the next round."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from agreement import Protection
from protoseal_wire.messages import Phase
from tests.conformance.stepped_federation import Loss

PHASES = (Phase.PRESENCE, Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK, Phase.RESULT)
LOST = ("site-1", "site-2")
EVERYONE = tuple(f"site-{i}" for i in range(1, 10))
AFTER = len(PHASES) + 1
"""The round after all losses."""

_UNDER_PLAIN: Mapping[Phase, Phase] = {
    Phase.SHARES: Phase.VALUES,
    Phase.SURVIVORS: Phase.RESULT,
    Phase.UNMASK: Phase.RESULT,
}

each_phase = pytest.mark.parametrize(
    ("number", "phase"), [pytest.param(i, each, id=each.name) for i, each in enumerate(PHASES, start=1)]
)


def two_lost(protection: Protection) -> list[Loss]:
    """Return losses of two sites a round; `plain`, which has fewer phases, gets those with the same survivors."""
    instead = _UNDER_PLAIN if protection is Protection.PLAIN else {}
    return [
        Loss(site, number, instead.get(phase, phase))
        for number, phase in enumerate(PHASES, start=1)
        for site in LOST
    ]


def staying(phase: Phase) -> tuple[str, ...]:
    """Return the sites whose values are in a round's sums."""
    heard = phase in (Phase.SURVIVORS, Phase.UNMASK, Phase.RESULT)
    return EVERYONE if heard else tuple(site for site in EVERYONE if site not in LOST)
