"""A site whose program forgets its noisy releases sends nothing under ``[privacy]``, not even its classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agreement import Agreement, Extractor, PrivacySection, Protection
from algorithms.pfpl import Weighting
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.errors import Unprotected
from tests.support.scripted_coordinator import Cast, ScriptedCoordinator
from tests.support.small import small_agreement

A, B, C = "clinic-a", "clinic-b", "clinic-c"
NOISE = PrivacySection(clip=1.0, noise_multiplier=5.0, extractor=Extractor.FROZEN)


def _forget_in_values(learner: CheckpointedLearner) -> None:
    learner.values._noisy = None


def _forget_everywhere(learner: CheckpointedLearner) -> None:
    learner._noisy = learner.values._noisy = None


FORGOTTEN: dict[str, Callable[[CheckpointedLearner], None]] = {
    "in the exchanged values": _forget_in_values,
    "everywhere": _forget_everywhere,
}


@pytest.fixture
def play(tmp_path: Path, cast: Cast) -> ScriptedCoordinator:
    plain = small_agreement(Protection.PLAIN, Weighting.COMPLEMENT)
    return ScriptedCoordinator(tmp_path, Agreement.model_validate({**dict(plain), "privacy": NOISE}), cast)


def stored(play: ScriptedCoordinator, phase: Phase, attempt: int = 1) -> bytes | None:
    return play.site(A).journal.stored_answer(PhaseKey(play.agreement.run, 1, attempt, phase))


@pytest.mark.parametrize("case", FORGOTTEN)
def test_exact_values_under_noise_are_refused_before_presence(play: ScriptedCoordinator, case: str) -> None:
    with play:
        play.set_up(A, B, C)
        FORGOTTEN[case](play.site(A).learner)
        with pytest.raises(Unprotected):
            play.presence(A)
        assert stored(play, Phase.PRESENCE) is None
        play.restart(A)  # the undamaged program takes no exact values from the journal
        assert play.presence(A).anchor is not None


def test_exact_values_after_an_honest_presence_are_refused(play: ScriptedCoordinator) -> None:
    """A release that is lost between the phases, as by a journal of another version."""
    with play:
        play.set_up(A, B, C)
        active = play.begin(A, B, C)
        learner = play.site(A).learner
        _forget_everywhere(learner)
        learner.begin(1)
        learner.finish(1, learner.run(1))
        with pytest.raises(Unprotected):
            play.values(A, active)
        assert stored(play, Phase.VALUES) is None


def test_a_stored_release_suffices_after_a_restart(play: ScriptedCoordinator) -> None:
    with play:
        play.set_up(A, B, C)
        active = play.begin(A, B, C)
        play.restart(A)
        play.values(A, active)
        play.presence(A, attempt=2)
        assert play.site(A).learner.values.require_last().released == 1
