"""Statistics over several seeds, against numbers worked out by hand."""

from __future__ import annotations

from statistics import fmean, stdev

import pytest

from protoseal.reports.result_files import Accuracies, RunResult
from protoseal.reports.seed_statistics import over_seeds, paired
from protoseal.reports.tables import differences_table, result_tables, sites_table, summary_table
from secure_client.diagnosis.diagnoses import Diagnosis, Symptom
from tests.protoseal.reports.test_run_results import RESULT

ACCURACY = {0: 0.50, 1: 0.60, 5: 0.75}
OTHER = {0: 0.40, 1: 0.56, 5: 0.60}
"""Differences 0.10, 0.04 and 0.15: mean 0.29/3, and by hand s = 0.055076, s/√3 = 0.031798."""


def result(seed: int, *, other: str = "fedavg") -> RunResult:
    metrics = {
        "pfpl": Accuracies(
            accuracy=ACCURACY[seed], accuracy_classifier=ACCURACY[seed], pm_v=ACCURACY[seed] / 2
        ),
        other: Accuracies(accuracy=OTHER[seed], accuracy_classifier=OTHER[seed]),
    }
    update = {
        "seed": seed,
        "mean_accuracy": ACCURACY[seed],
        "metrics": metrics,
        "compared": {other: OTHER[seed]},
    }
    return RESULT.model_copy(update=update)


def test_over_seeds_mean_and_spread_of_every_figure() -> None:
    over = over_seeds({seed: result(seed) for seed in ACCURACY})
    assert set(over.summary) == {"pfpl", "fedavg"}
    for name, values in (("pfpl", ACCURACY), ("fedavg", OTHER)):
        for metric in ("accuracy", "accuracy_classifier"):
            spread = over.summary[name][metric]
            assert spread.mean == pytest.approx(fmean(values.values()))
            assert spread.standard_deviation == pytest.approx(stdev(values.values()))
    assert over.summary["pfpl"]["pm_v"].mean == pytest.approx(fmean(ACCURACY.values()) / 2)
    assert "pm_v" not in over.summary["fedavg"]  # nobody knows
    assert over.spread == over.summary["pfpl"]["accuracy"]
    assert [each.seed for each in over.seeds] == [0, 1, 5]


def test_over_seeds_differences_are_paired() -> None:
    over = over_seeds({seed: result(seed) for seed in ACCURACY})
    pair = over.differences["fedavg"]["accuracy"]
    assert pair.by_seed == pytest.approx({0: 0.10, 1: 0.04, 5: 0.15})
    assert pair.mean == pytest.approx(0.29 / 3)
    assert pair.standard_error == pytest.approx(0.031798, abs=1e-6)
    assert set(over.differences["fedavg"]) == {"accuracy", "accuracy_classifier"}
    assert "pfpl" not in over.differences


def test_over_seeds_missing_figure_uses_other_seeds() -> None:
    assert paired({0: 0.5, 1: 0.7}, {1: 0.6, 2: 0.1}) == paired({1: 0.7}, {1: 0.6})
    alone = paired({1: 0.75}, {1: 0.5})
    assert alone is not None
    assert (alone.mean, alone.standard_error) == (0.25, None)
    assert paired({0: 0.5}, {1: 0.5}) is None
    with pytest.raises(ValueError, match="no seed"):
        over_seeds({})


def test_over_seeds_one_seed_has_no_spread() -> None:
    over = over_seeds({0: result(0)})
    assert (over.spread, over.summary["pfpl"], over.differences["fedavg"]["accuracy"].standard_error) == (
        None,
        {},
        None,
    )


def test_over_seeds_symptom_lists_its_seeds() -> None:
    chance = Diagnosis(method="pfpl", symptom=Symptom.CHANCE, figures="figures", remedy="a remedy")
    bound = chance.model_copy(update={"symptom": Symptom.NORM_BOUND})
    found = {0: (chance,), 1: (), 5: (bound, chance.model_copy(update={"figures": "others"}))}
    results = {
        seed: result(seed).model_copy(update={"diagnoses": diagnoses}) for seed, diagnoses in found.items()
    }
    first, second = over_seeds(results).diagnoses
    assert first == chance.model_copy(update={"seeds": (0, 5)})
    assert second == bound.model_copy(update={"seeds": (5,)})
    assert over_seeds({0: results[0]}).diagnoses == (chance,)


def test_over_seeds_different_remedies_stay_apart() -> None:
    low = Diagnosis(method="pfpl", symptom=Symptom.NOT_FALLING, figures="figures", remedy="raise lr")
    high = low.model_copy(update={"remedy": "lower lr"})
    found = {0: low, 1: high, 5: low}
    results = {seed: result(seed).model_copy(update={"diagnoses": (each,)}) for seed, each in found.items()}
    assert over_seeds(results).diagnoses == (
        low.model_copy(update={"seeds": (0, 5)}),
        high.model_copy(update={"seeds": (1,)}),
    )


def test_tables_name_their_seed() -> None:
    over = over_seeds({seed: result(seed) for seed in ACCURACY})
    titles = [str(table.title) for table in result_tables(over)]
    assert all("seed 0 of 3 seeds" in title for title in titles[:3])
    assert titles[-2:] == [
        "mean ± standard deviation over seeds 0, 1, 5, %",
        "pfpl less each other, paired by seed, points",
    ]
    assert "seeds" not in str(sites_table(result(0)).title)
    cells = list(differences_table(over).columns[-1].cells)
    assert cells[0] == "+9.7 ± 3.2"
    assert next(iter(summary_table(over).columns[1].cells)) == "61.7 ± 12.6"
