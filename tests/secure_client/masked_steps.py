"""A masked sum of everyone, step by step."""

from __future__ import annotations

from protoseal_wire.messages import Phase, SurvivorSignature
from tests.support.grouped import EVERYONE
from tests.support.scripted_sums import ScriptedSums, SumAttempt

STEPS = (Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK)


def played_up_to(play: ScriptedSums, last: Phase) -> SumAttempt:
    """Play all steps to ``last``."""
    begun = play.attempt(*EVERYONE)
    signatures: list[SurvivorSignature] = []
    for phase in STEPS[: STEPS.index(last) + 1]:
        for name in EVERYONE:
            match phase:
                case Phase.SHARES:
                    begun.share(name)
                case Phase.VALUES:
                    begun.mask(name)
                case Phase.SURVIVORS:
                    signatures += begun.sign(EVERYONE, name)
                case _:
                    begun.released |= begun.release(EVERYONE, tuple(signatures), name)
    return begun
