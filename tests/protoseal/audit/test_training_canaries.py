"""An audit of DP-SGD: its scores are those of the steps, and the command takes what is agreed."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor

from agreement import DpSgdSection
from privacy.accounting.events import DpSgd, Unit
from protoseal.audit.canary_audit import AuditVerdict, audit_mechanism, fair_coins, plan_audit
from protoseal.audit.training_canaries import AuditedTraining, hadamard
from protoseal.cli import main
from protoseal.commands import budget_audit
from secure_client.training.dp_sgd.mechanism import GradientGrid, SubjectUnits
from tests.support.audit_doubles import weaken_training
from tests.support.composed import epsilon
from tests.support.config_files import AGREEMENT, write

DELTA, LEVEL = 1e-5, 0.05
SAMPLED = AuditedTraining(DpSgdSection(noise_multiplier=5.0, clip=1.5, sampling_rate=0.75), epochs=6)
WHOLE = AuditedTraining(DpSgdSection(noise_multiplier=4.0, clip=0.3, sampling_rate=1.0), epochs=4)
SUBJECTS = replace(SAMPLED, unit=Unit.SUBJECT)
ALL = pytest.mark.parametrize("audited", [SAMPLED, WHOLE, SUBJECTS], ids=["sampled", "whole", "subjects"])


def test_hadamard_is_orthogonal_with_equal_coordinates() -> None:
    for rows, size in ((1, 1), (5, 8), (64, 64)):
        found = hadamard(rows)
        np.testing.assert_allclose(found @ found.T, np.eye(size), atol=1e-12)
        np.testing.assert_allclose(np.abs(found), 1 / math.sqrt(size))


@ALL
def test_audited_training_scores_count_sampled_steps(
    audited: AuditedTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of a step without noise are 0 or 1, and a canary's score is the number of its steps."""
    weaken_training(monkeypatch, "none")
    coins = fair_coins(1100)  # in three trainings
    off, on = audited.evidence(np.array([0.0, 1.0]))
    steps = (audited.scores(coins) - audited.steps * off) / (on - off)
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-3)
    assert not np.rint(steps[~coins]).any()
    mean, rate = np.rint(steps[coins]).mean(), audited.settings.sampling_rate
    error = math.sqrt(audited.steps * rate * (1 - rate) / coins.sum())
    assert mean == pytest.approx(audited.steps * rate, abs=6.5 * error + 1e-9)


@ALL
def test_audited_training_scores_are_distributed_as_simulated(audited: AuditedTraining) -> None:
    """Means and deviations, within 6.5 of their errors; their tails are about those of a normal distribution."""
    coins = fair_coins(6000)
    real, simulated = audited.scores(coins), audited.simulated_scores(coins)
    for some in (coins, ~coins):
        one, other = real[some], simulated[some]
        assert one.mean() - other.mean() == pytest.approx(0.0, abs=6.5 * other.std() * math.sqrt(2 / 2700))
        assert one.std() / other.std() == pytest.approx(1.0, abs=6.5 * math.sqrt(1 / 2700))


def test_evidence_is_log_likelihood_ratio() -> None:
    seen, sigma, rate = np.array([-3.0, 0.2, 1.0, 90.0]), 5.0, 0.75

    def density(mean: float) -> Any:
        return np.exp(-((seen - mean) ** 2) / (2 * sigma**2))

    ratio = (1 - rate) + rate * density(1.0) / density(0.0)
    np.testing.assert_allclose(SAMPLED.evidence(seen), np.log(ratio))
    np.testing.assert_allclose(WHOLE.evidence(seen), (seen - 0.5) / 16)
    assert np.isfinite(
        replace(SAMPLED, settings=DpSgdSection(noise_multiplier=0.01, clip=1.0, sampling_rate=0.5)).evidence(
            np.array([-1e4, 1e4])
        )
    ).all()


@pytest.mark.full
def test_evidence_of_single_steps_beats_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Likelihoods of single steps detect half the noise at a low sampling rate and ε = 5; their sum does not."""
    rare = AuditedTraining(DpSgdSection(noise_multiplier=0.85, clip=1.0, sampling_rate=0.05), epochs=5)
    assert plan_audit(rare, 100_000, LEVEL, 16_000).missed < LEVEL
    monkeypatch.setattr(AuditedTraining, "evidence", lambda _, seen: seen)
    assert plan_audit(rare, 100_000, LEVEL, 16_000).missed > LEVEL


def test_audited_training_clipping_by_coordinate_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_coordinates(grid: GradientGrid, rows: Tensor) -> Tensor:
        return rows.div_(grid.step).clamp_(-grid.radius, grid.radius).trunc_()

    monkeypatch.setattr(GradientGrid, "clip_", of_coordinates)
    assert audit_mechanism(WHOLE, plan_audit(WHOLE, 3000, LEVEL, 600)).verdict is AuditVerdict.REFUTED


@pytest.mark.full
def test_audit_subjects_clipped_record_by_record_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double that adds up the records of a subject after clipping: twice the sensitivity."""

    def each(_self: object, rows: Tensor) -> Tensor:
        return rows

    plan = plan_audit(SUBJECTS, 30_000, LEVEL, 3600)
    assert plan.missed < 1e-9
    monkeypatch.setattr(SubjectUnits, "combine", each)
    assert audit_mechanism(SUBJECTS, plan).verdict is AuditVerdict.REFUTED


def test_audited_training_claim_is_the_accountants() -> None:
    assert SAMPLED.steps == 8
    assert SAMPLED.epsilon(7, DELTA) == epsilon([DpSgd(5.0, 0.75, 8)], DELTA)
    assert SAMPLED.epsilon(7, DELTA, 0.5) == epsilon([DpSgd(2.5, 0.75, 8)], DELTA)


def test_audited_training_plays_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has whole steps of its own: three rounds of an epoch at 0.75 are six, three epochs at once are four."""
    rounds = replace(SAMPLED, epochs=1, rounds=3)
    assert (rounds.steps, replace(SAMPLED, epochs=3).steps) == (6, 4)
    weaken_training(monkeypatch, "none")
    off, on = rounds.evidence(np.array([0.0, 1.0]))
    steps = np.rint((rounds.scores(np.ones(1000, dtype=bool)) - 6 * off) / (on - off))
    assert steps.max() == 6  # one in six takes part in all
    assert steps.mean() == pytest.approx(6 * 0.75, abs=6.5 * math.sqrt(6 * 0.75 * 0.25 / 1000))


def test_audited_training_leaves_no_optimiser_hook() -> None:
    """Nothing of an audit stays behind that other optimisers would see."""
    WHOLE.scores(fair_coins(10))
    weights = torch.zeros(1, requires_grad=True)
    assert not torch.optim.SGD([weights], lr=1.0)._optimizer_step_post_hooks


# The command


def found(*arguments: object) -> dict[str, Any]:
    few = ("budget", "audit", "training", "--canaries", "400", "--guesses", "40", "--json")
    done = CliRunner().invoke(main, [*few, *map(str, arguments)])
    assert done.exit_code in (0, 4), done.output  # a right claim is refuted far less often than once in 10^9
    told: dict[str, Any] = json.loads(done.output)
    return told


def agreed(folder: Path, **privacy: Any) -> Path:
    training = {"norm": "group", "local_epochs": 2}
    section = {"clip": 2.0, "noise_multiplier": 4.0} | privacy
    table = AGREEMENT | {"protection": "plain", "rounds": 3, "training": training, "privacy": section}
    return write(folder / "agreement.toml", table)


def with_dp_sgd(folder: Path, **privacy: Any) -> Path:
    """Write an agreement of three rounds of two epochs at 0.6: four steps each."""
    file = agreed(folder, extractor="private", **privacy)
    dp_sgd = "\n[privacy.dp_sgd]\nnoise_multiplier = 3.5\nclip = 0.5\nsampling_rate = 0.6\n"
    file.write_text(file.read_text("utf-8") + dp_sgd, "utf-8")
    return file


@pytest.mark.full
def test_audit_command_training_without_noise_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("budget", "audit", "training", "--canaries", "3000", "--epochs", "2", "--guesses", "400", "--json")
    weaken_training(monkeypatch, "none")
    done = CliRunner().invoke(main, few)
    told = json.loads(done.output)
    assert (done.exit_code, told["verdict"], told["mechanism"]) == (3, "refuted", "training")
    assert told["epsilon_claimed"] == pytest.approx(epsilon([DpSgd(5.0, 0.75, 3)], 1e-5))


def test_audit_command_training_impossible_noise_refused() -> None:
    refused = CliRunner().invoke(main, ["budget", "audit", "training", "--noise-multiplier", "1e9"])
    assert refused.exit_code == 1
    assert "noise_multiplier" in refused.output


@pytest.mark.full
def test_audit_command_training_takes_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = with_dp_sgd(tmp_path, unit="subject")
    assert found("--agreement", file)["epsilon_claimed"] == epsilon([DpSgd(3.5, 0.6, 12)], DELTA)
    seen: list[AuditedTraining] = []
    monkeypatch.setattr(
        budget_audit, "audit_with_canaries", lambda _, audited, *__, **___: seen.append(audited)
    )
    given = {"--noise-multiplier": 5, "--sampling-rate": 1, "--epochs": 1, "--rounds": 4, "--clip": 0.25}
    for more in ((), itertools.chain(*given.items())):
        few = ("budget", "audit", "training", "--agreement", file, *more)
        assert CliRunner().invoke(main, [*map(str, few)]).exit_code == 0
    agreed_on = DpSgdSection(noise_multiplier=3.5, clip=0.5, sampling_rate=0.6)
    other = DpSgdSection(noise_multiplier=5.0, clip=0.25, sampling_rate=1.0)
    unit = Unit.SUBJECT
    assert seen == [AuditedTraining(agreed_on, 2, 3, unit), AuditedTraining(other, 1, 4, unit)]


@pytest.mark.full
def test_audit_command_training_takes_simulation_file(tmp_path: Path) -> None:
    file = tmp_path / "sim.toml"
    text = with_dp_sgd(tmp_path).read_text("utf-8").partition("[training]")
    file.write_text('method = "pfpl"\ndataset = "digits"\nrounds = 2\ndim = 8\n' + "".join(text[1:]), "utf-8")
    told = found("--agreement", file)
    assert told["epsilon_claimed"] == epsilon([DpSgd(3.5, 0.6, 8)], DELTA)
    assert "releases and DP-SGD together: each is audited by itself" in told["not_played"]


def test_audit_command_training_without_dp_sgd_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["budget", "audit", "training", "--agreement", str(agreed(tmp_path))])
    assert refused.exit_code == 2
    assert "extractor = 'frozen', which does not train by DP-SGD" in " ".join(refused.output.split())
