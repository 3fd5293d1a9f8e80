"""An audit of DP-SGD: it stays below the claim, and refutes it where noise is halved or left out."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from protoseal.cli import main
from protoseal.config import DpSgdSection
from protoseal.evaluation.audit import fair_coins
from protoseal.evaluation.audited import audit, expected
from protoseal.evaluation.audited_training import TrainingUnderAudit
from secure_client.privacy import dp_sgd
from secure_client.privacy.accounting import epsilon
from secure_client.privacy.events import DpSgd
from tests.support.audits import FALSE_ALARM, margin

DELTA, LEVEL = 1e-5, 0.05
SAMPLED = TrainingUnderAudit(DpSgdSection(noise_multiplier=5.0, clip=1.5, sampling_rate=0.75), epochs=6)
WHOLE = TrainingUnderAudit(DpSgdSection(noise_multiplier=4.0, clip=0.3, sampling_rate=1.0), epochs=4)
BOTH = pytest.mark.parametrize("audited", [SAMPLED, WHOLE], ids=["sampled", "whole"])
draw_noise = dp_sgd.draw_noise


def weaken(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """So much of the noise, where the software draws it."""
    monkeypatch.setattr(dp_sgd, "draw_noise", lambda count: factor * draw_noise(count))


@BOTH
def test_training_keeps_its_claim(audited: TrainingUnderAudit) -> None:
    done = audit(audited, 20_000, DELTA, LEVEL)
    assert margin(done, audited.separation()) > FALSE_ALARM
    assert not done.refuted
    assert 0.5 < done.bound < done.claimed
    assert done.bound == pytest.approx(expected(audited, done, 1.0), abs=0.4)


@pytest.mark.parametrize(("audited", "guesses"), [(SAMPLED, 3000), (WHOLE, 8000)], ids=["sampled", "whole"])
def test_half_the_noise_refutes_the_claim(
    audited: TrainingUnderAudit, guesses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken(monkeypatch, 0.5)
    done = audit(audited, 100_000, DELTA, LEVEL, guesses)
    assert margin(done, audited.separation(0.5)) > FALSE_ALARM
    assert done.refuted
    assert done.bound > done.claimed
    assert done.p_value < LEVEL


@BOTH
def test_without_noise_the_claim_is_refuted_by_few_canaries(
    audited: TrainingUnderAudit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A canary that took part in no step, one in 4^8 where they are sampled, may be taken for one that is out.

    More than three of them among the lowest scores: a probability below 1e-9.
    """
    weaken(monkeypatch, 0.0)
    done = audit(audited, 3000, DELTA, LEVEL, 600)
    assert done.refuted
    assert done.guesses.made - done.guesses.right <= 3


def test_scores_are_the_steps_that_a_canary_took_part_in(monkeypatch: pytest.MonkeyPatch) -> None:
    weaken(monkeypatch, 0.0)
    coins = fair_coins(1500)  # in two trainings
    assert WHOLE.scores(coins) == pytest.approx(coins * 4.0, abs=1e-4)
    scores = SAMPLED.scores(coins)
    assert scores == pytest.approx(np.rint(scores), abs=1e-3)
    assert not np.rint(scores[~coins]).any()
    steps = np.rint(scores[coins])
    assert len(np.unique(steps)) > 1
    assert steps.mean() == pytest.approx(6.0, abs=6.5 * 1.3 / math.sqrt(steps.size))


@BOTH
def test_scores_are_as_far_apart_as_is_said(audited: TrainingUnderAudit) -> None:
    """Both deviations and the shift, within 6.5 of their errors."""
    coins = fair_coins(6000)
    said = audited.separation()
    scores = audited.scores(coins) / (audited.settings.noise_multiplier * math.sqrt(audited.steps))
    inside, outside = scores[coins], scores[~coins]
    error = 6.5 / math.sqrt(6000)
    assert inside.mean() - outside.mean() == pytest.approx(said.shift, abs=2.1 * error)
    assert outside.std() == pytest.approx(1.0, abs=error)
    assert inside.std() == pytest.approx(said.spread, abs=1.1 * error)


def test_the_claim_is_the_accountants() -> None:
    assert SAMPLED.steps == 8
    assert SAMPLED.claimed(7, DELTA) == epsilon([DpSgd(5.0, 0.75, 8)], DELTA)


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("budget", "audit", "training", "--canaries", "1000", "--epochs", "2", "--json")
    done = CliRunner().invoke(main, few)
    found = json.loads(done.output)
    assert (done.exit_code, found["refuted"], found["mechanism"]) == (0, False, "training")
    assert found["epsilon_claimed"] == pytest.approx(epsilon([DpSgd(5.0, 0.75, 3)], 1e-5))
    weaken(monkeypatch, 0.0)
    assert CliRunner().invoke(main, few).exit_code == 1
    refused = CliRunner().invoke(main, [*few, "--noise-multiplier", "1e9"])
    assert refused.exit_code == 1
    assert "noise_multiplier" in refused.output
