"""An audit of DP-SGD: it stays below the claim, and refutes it where noise is halved or left out."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from protoseal.cli import main
from protoseal.commands import budget_audit
from protoseal.config import DpSgdSection
from protoseal.evaluation.audit import fair_coins
from protoseal.evaluation.audited import audit, expected
from protoseal.evaluation.audited_training import TrainingUnderAudit
from secure_client.privacy import dp_sgd
from secure_client.privacy.accounting import epsilon
from secure_client.privacy.events import DpSgd
from tests.support.audits import FALSE_ALARM, margin
from tests.support.config_files import AGREEMENT, write

DELTA, LEVEL = 1e-5, 0.05
SAMPLED = TrainingUnderAudit(DpSgdSection(noise_multiplier=5.0, clip=1.5, sampling_rate=0.75), epochs=6)
WHOLE = TrainingUnderAudit(DpSgdSection(noise_multiplier=4.0, clip=0.3, sampling_rate=1.0), epochs=4)
BOTH = pytest.mark.parametrize("audited", [SAMPLED, WHOLE], ids=["sampled", "whole"])
draw_noise = dp_sgd.draw_noise


def weaken(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """So much of the noise, where the software draws it."""
    monkeypatch.setattr(dp_sgd, "draw_noise", lambda count: factor * draw_noise(count))


@pytest.mark.parametrize(("audited", "guesses"), [(SAMPLED, 2400), (WHOLE, 1600)], ids=["sampled", "whole"])
def test_training_keeps_its_claim(audited: TrainingUnderAudit, guesses: int) -> None:
    """Of so many guesses that the bound is less than 0.5, or 0.4 from what is expected, with a probability of 8e-11."""
    done = audit(audited, 20_000, DELTA, LEVEL, guesses)
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


def test_every_round_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has whole steps of its own: three rounds of an epoch at 0.75 are six, three epochs at once are four."""
    weaken(monkeypatch, 0.0)
    rounds = replace(SAMPLED, epochs=1, rounds=3)
    assert (rounds.steps, replace(SAMPLED, epochs=3).steps) == (6, 4)
    steps = np.rint(rounds.scores(np.ones(1000, dtype=bool)))
    assert steps.max() == 6  # one in six takes part in all
    assert steps.mean() == pytest.approx(6 * 0.75, abs=6.5 * math.sqrt(6 * 0.75 * 0.25 / 1000))


def found(*arguments: object) -> dict[str, Any]:
    few = ("budget", "audit", "training", "--canaries", "400", "--json")
    done = CliRunner().invoke(main, [*few, *map(str, arguments)])
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.output)
    return told


def agreed(folder: Path, **privacy: Any) -> Path:
    training = {"norm": "group", "local_epochs": 2}
    section = {"clip": 2.0, "noise_multiplier": 4.0} | privacy
    table = AGREEMENT | {"protection": "plain", "rounds": 3, "training": training, "privacy": section}
    return write(folder / "agreement.toml", table)


def with_dp_sgd(folder: Path) -> Path:
    """Three rounds of two epochs at 0.6: four steps each."""
    file = agreed(folder, extractor="private")
    dp_sgd = "\n[privacy.dp_sgd]\nnoise_multiplier = 3.5\nclip = 0.5\nsampling_rate = 0.6\n"
    file.write_text(file.read_text("utf-8") + dp_sgd, "utf-8")
    return file


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A right claim is asked with such a confidence that it is refuted once in a thousand million times, at most."""
    few = ("budget", "audit", "training", "--canaries", "1000", "--epochs", "2", "--guesses", "200", "--json")
    done = CliRunner().invoke(main, (*few, "--confidence", "0.999999999"))
    found = json.loads(done.output)
    assert (done.exit_code, found["refuted"], found["mechanism"]) == (0, False, "training")
    assert found["epsilon_claimed"] == pytest.approx(epsilon([DpSgd(5.0, 0.75, 3)], 1e-5))
    weaken(monkeypatch, 0.0)
    assert CliRunner().invoke(main, few).exit_code == 1
    refused = CliRunner().invoke(main, [*few, "--noise-multiplier", "1e9"])
    assert refused.exit_code == 1
    assert "noise_multiplier" in refused.output


def test_the_command_takes_what_is_agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = with_dp_sgd(tmp_path)
    assert found("--agreement", file)["epsilon_claimed"] == epsilon([DpSgd(3.5, 0.6, 12)], DELTA)
    seen: list[TrainingUnderAudit] = []
    monkeypatch.setattr(budget_audit, "_run", lambda _, audited, *__: seen.append(audited))
    given = {"--noise-multiplier": 5, "--sampling-rate": 1, "--epochs": 1, "--rounds": 4, "--clip": 0.25}
    for more in ((), itertools.chain(*given.items())):
        few = ("budget", "audit", "training", "--agreement", file, *more)
        assert CliRunner().invoke(main, [*map(str, few)]).exit_code == 0
    agreed_on = DpSgdSection(noise_multiplier=3.5, clip=0.5, sampling_rate=0.6)
    other = DpSgdSection(noise_multiplier=5.0, clip=0.25, sampling_rate=1.0)
    assert seen == [TrainingUnderAudit(agreed_on, 2, 3), TrainingUnderAudit(other, 1, 4)]


def test_a_simulations_file_has_what_it_trains_by(tmp_path: Path) -> None:
    file = tmp_path / "sim.toml"
    text = with_dp_sgd(tmp_path).read_text("utf-8").partition("[training]")
    file.write_text('method = "pfpl"\ndataset = "digits"\nrounds = 2\ndim = 8\n' + "".join(text[1:]), "utf-8")
    assert found("--agreement", file)["epsilon_claimed"] == epsilon([DpSgd(3.5, 0.6, 8)], DELTA)


def test_an_agreement_that_trains_by_no_dp_sgd_is_none_to_audit_by(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["budget", "audit", "training", "--agreement", str(agreed(tmp_path))])
    assert refused.exit_code == 2
    assert "extractor = 'frozen', which does not train by DP-SGD" in " ".join(refused.output.split())
