"""A masked sum of everyone, step by step, of which one site may restart after each."""

from __future__ import annotations

from protoseal_wire.messages import Phase, SurvivorSignature
from tests.adversary.masked_play import Attempt, MaskedPlay
from tests.support.grouped import EVERYONE

A, B, C, D = EVERYONE
STEPS = (Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK)


def played_up_to(play: MaskedPlay, last: Phase, *, restart: bool = False) -> Attempt:
    """All steps to ``last``; with ``restart`` clinic-a ends after each of them, and is asked the same again."""
    begun = play.attempt(*EVERYONE)
    signatures: list[SurvivorSignature] = []
    for phase in STEPS[: STEPS.index(last) + 1]:
        for name in (B, C, D, A):  # clinic-a last, so that its request is the one to repeat
            match phase:
                case Phase.SHARES:
                    begun.share(name)
                case Phase.VALUES:
                    begun.mask(name)
                case Phase.SURVIVORS:
                    signatures += begun.sign(EVERYONE, name)
                case _:
                    begun.released |= begun.release(EVERYONE, tuple(signatures), name)
        if restart:
            assert_same_answer_after_a_restart(play)
    return begun


def assert_same_answer_after_a_restart(play: MaskedPlay) -> None:
    last = play.last
    assert last is not None
    answer = play.site(last.site).journal.stored_answer(last.key)
    play.restart(last.site)
    assert play.site(last.site).session.answer(last.key, last.content) == answer
