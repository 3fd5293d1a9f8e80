"""Noise that is scaled to a budget, and what the runs of an evaluation come to."""

from __future__ import annotations

import base64
import math
from typing import Any

import pytest

from agreement import PrivacySection
from agreement.errors import UserError
from protoseal.audit.accuracy_report import (
    EXACT,
    AccuracyReport,
    RunAt,
    accuracy_over_epsilon,
    epsilon_text,
    group_by_epsilon,
    number_text,
    spread_text,
)
from protoseal.audit.budget_curve import PlanEpsilon, fit_noise, scale_noise
from protoseal.reports.pages import data_uri
from protoseal.reports.result_files import Accuracies

ALONE = PrivacySection(clip=1.0, noise_multiplier=5.0)
BESIDE = PrivacySection.model_validate(
    {
        "clip": 1.0,
        "noise_multiplier": 5.0,
        "extractor": "private",
        "dp_sgd": {"noise_multiplier": 2.0, "clip": 1.0, "sampling_rate": 0.1},
    },
    strict=False,
)


def inverse(privacy: PrivacySection) -> float:
    """Return a simple accountant: 10/noise, and 10/noise of training."""
    training = privacy.dp_sgd
    return 10 / privacy.noise_multiplier + (0.0 if training is None else 10 / training.noise_multiplier)


@pytest.mark.parametrize("epsilon", [0.001, 1.0, 1.9, 2.0, 2.1, 7.0, 2000.0])
@pytest.mark.parametrize("agreed", [ALONE, BESIDE], ids=["releases", "training too"])
def test_fit_noise_returns_least_noise_within_epsilon(agreed: PrivacySection, epsilon: float) -> None:
    found = fit_noise(agreed, epsilon, inverse)
    assert 0.9998 * epsilon < found.planned <= epsilon
    assert found.planned == inverse(found.privacy)
    assert found.privacy.noise_multiplier == pytest.approx(5.0 * found.factor, rel=1e-5)
    if agreed.dp_sgd is not None:
        training = found.privacy.dp_sgd
        assert training is not None
        assert training.noise_multiplier == pytest.approx(2.0 * found.factor, rel=1e-5)
        assert training.sampling_rate == 0.1


def test_fit_noise_passes_over_infinite_epsilon() -> None:
    found = fit_noise(
        ALONE, 800.0, lambda privacy: inverse(privacy) if privacy.noise_multiplier > 2 else math.inf
    )
    assert found.privacy.noise_multiplier == pytest.approx(2.0, rel=2e-4)


@pytest.mark.parametrize("planned", [lambda _: math.inf, lambda _: 0.5], ids=["too much", "always little"])
def test_fit_noise_impossible_epsilon_is_refused(planned: PlanEpsilon) -> None:
    with pytest.raises(UserError, match="ε = 1"):
        fit_noise(ALONE, 1.0, planned)


def test_scale_noise_changes_noise_alone() -> None:
    whole, none = scale_noise(BESIDE, 3.0).model_dump(), BESIDE.model_dump()
    assert whole.pop("noise_multiplier") == 15.0
    assert whole["dp_sgd"].pop("noise_multiplier") == 6.0
    none.pop("noise_multiplier")
    none["dp_sgd"].pop("noise_multiplier")
    assert whole == none


# What runs come to


def run(epsilon: float | None, noise: str, seed: int, accuracy: float | None, **changes: Any) -> RunAt:
    means = Accuracies(accuracy=accuracy, accuracy_classifier=accuracy)
    return RunAt(
        epsilon=epsilon,
        noise=noise,
        features="trained" if epsilon is None else "frozen",
        seed=seed,
        folder=f"runs/{epsilon}-{noise}-{seed}",
        factor=1.0,
        noise_multiplier=2.0,
        training_noise_multiplier=None,
        planned=epsilon,
        spent=epsilon,
        guaranteed=True,
        metrics={"pfpl": means, "local": Accuracies(accuracy=0.01)},
        sites=(),
        **changes,
    )


RUNS = (
    run(None, EXACT, 0, 0.9),
    run(None, EXACT, 1, 0.8),
    run(8.0, "local", 0, 0.7),
    run(8.0, "local", 1, 0.4),
    run(8.0, "distributed", 1, 0.75),
    run(1.0, "local", 2, None),
)


def test_group_by_epsilon_loss_pairs_seeds() -> None:
    levels = group_by_epsilon("pfpl", RUNS)
    assert [(each.epsilon, each.noise, each.seeds) for each in levels] == [
        (1.0, "local", (2,)),
        (8.0, "distributed", (1,)),
        (8.0, "local", (0, 1)),
        (None, EXACT, (0, 1)),
    ]
    untested, shared, own, exact = levels
    assert (untested.mean, untested.loss) == ({}, {})
    assert shared.loss["accuracy"].by_seed == pytest.approx({1: 0.05})
    assert shared.standard_deviation == {}
    assert own.loss["accuracy"].by_seed == pytest.approx({0: 0.2, 1: 0.4})
    assert own.loss["accuracy"].standard_error == pytest.approx(0.1)
    assert own.mean["accuracy_classifier"] == pytest.approx(0.55)
    assert "accuracy_prototype" not in own.mean
    assert exact.loss == {}
    assert [spread_text(each, "accuracy") for each in levels] == ["-", "75.0", "55.0 ± 21.2", "85.0 ± 7.1"]
    assert [epsilon_text(each) for each in levels] == ["1", "8", "8", "∞"]
    assert [number_text(each) for each in (None, 1.99999)] == ["-", "2"]


@pytest.mark.parametrize("runs", [RUNS, RUNS[:1], RUNS[-1:]], ids=["all", "exact alone", "untested alone"])
def test_accuracy_figure_has_line_for_each_noise(runs: tuple[RunAt, ...]) -> None:
    evaluation = AccuracyReport(
        method="pfpl",
        protection="masked",
        dataset="digits",
        delta=1e-5,
        unit="record",
        config={},
        runs=runs,
        levels=group_by_epsilon("pfpl", runs),
        complete=False,
    )
    drawn = accuracy_over_epsilon(evaluation)
    assert base64.b64decode(data_uri(drawn).partition(",")[2]).decode() == drawn
    for noise in {each.noise for each in runs if each.metrics["pfpl"].accuracy is not None} - {EXACT}:
        assert f"{noise} noise, by classifier" in drawn
    assert "by prototype" not in drawn
    assert ("∞" in drawn) == any(each.epsilon is None for each in runs)
