"""Figures of ``result.json`` from logs, and statistics over several seeds, against figures worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from agreement import Method
from protoseal.reports.result_files import Accuracies, RunResult, ViewLine
from protoseal.reports.run_results import mean, over_seeds, paired, run_result
from protoseal.reports.tables import differences_table, result_tables, sites_table, summary_table
from secure_client.diagnosis.diagnoses import Diagnosis, Symptom
from secure_client.output.site_log import SiteLog, SiteRound
from secure_server.round_log import CoordinatorRound
from tests.support.small import small_agreement


def site_round(number: int, accuracy: float | None, *, train: float = 1.0, attempt: int = 1) -> SiteRound:
    return SiteRound(
        round=number,
        attempt=attempt,
        sites=3,
        withheld=("2",),
        accuracy=accuracy,
        accuracy_classifier=accuracy,
        accuracy_prototype=None if accuracy is None else accuracy / 2,
        pm_v=None if accuracy is None else accuracy / 4,
        pm_l_global=None if accuracy is None else accuracy / 8,
        seconds={"train": train, "protect": train / 4},
    )


def log(name: str, *rounds: SiteRound) -> SiteLog:
    return SiteLog(
        name=name, model="small-cnn", train_samples=18, bytes_up=100, bytes_down=50, rounds=tuple(rounds)
    )


SITES = {
    "clinic-b": log("clinic-b", site_round(1, 0.4, train=3.0), site_round(2, 0.6)),
    "clinic-a": log("clinic-a", site_round(1, 0.2), site_round(2, 0.8, train=2.0)),
    "clinic-c": log("clinic-c", site_round(1, 0.5)),  # it missed round 2
    "clinic-d": log("clinic-d", site_round(1, None), site_round(2, None)),  # nothing to test on
}
ROUNDS = [
    CoordinatorRound(1, 1, tuple(sorted(SITES)), (), 0.5, 4.0),
    CoordinatorRound(2, 3, ("clinic-a", "clinic-b", "clinic-d"), ("2",), 0.25, 3.0),
]
CONTROLS: dict[str, Mapping[str, list[SiteRound]]] = {
    Method.LOCAL.value: {
        name: [site_round(1, 0.1), site_round(2, 0.3)] for name in ("clinic-a", "clinic-b", "clinic-c")
    }
    | {"clinic-d": [site_round(1, None), site_round(2, None)]},
}
VIEW = (ViewLine(what="sizes", seen=True, evidence="10 messages"),)
RESULT = run_result(small_agreement(), SITES, ROUNDS, CONTROLS, dataset="digits", seed=7, view=VIEW)


def test_run_result_sites_have_last_round() -> None:
    assert [each.name for each in RESULT.sites] == sorted(SITES)
    first, _, third, fourth = RESULT.sites
    assert (first.accuracy, first.accuracy_prototype, first.compared) == (0.8, 0.4, {"local": 0.3})
    assert third.accuracy == 0.5
    assert fourth.accuracy is None
    assert (first.bytes_up, first.bytes_down, first.train_samples, first.withheld) == (100, 50, 18, ("2",))


def test_run_result_means_skip_untested_sites() -> None:
    assert RESULT.mean_accuracy == pytest.approx((0.8 + 0.6 + 0.5) / 3)
    assert RESULT.compared == {"local": pytest.approx(0.3)}
    assert mean([None, 0.5]) == 0.5
    assert mean([None]) is None
    assert mean([]) is None


def test_run_result_rounds_have_slowest_site() -> None:
    first, second = RESULT.rounds
    assert first.mean_accuracy == pytest.approx((0.4 + 0.2 + 0.5) / 3)
    assert first.compared == {"local": pytest.approx(0.1)}
    assert (first.seconds.train, first.seconds.protect) == (3.0, 0.75)
    assert (first.seconds.aggregate, first.seconds.total) == (0.5, 4.0)
    assert second.accuracies == {"clinic-a": 0.8, "clinic-b": 0.6}
    assert second.seconds.train == 2.0


def test_run_result_compared_methods_by_site_and_round() -> None:
    average = {name: [site_round(1, 0.2), site_round(2, 0.4)] for name in SITES}
    beside = {**CONTROLS, "average": average}
    result = run_result(small_agreement(), SITES, ROUNDS, beside, dataset="digits", seed=7)
    assert result.compared == {"average": pytest.approx(0.4), "local": pytest.approx(0.3)}
    assert result.sites[0].compared == {"average": 0.4, "local": 0.3}
    assert result.sites[3].compared == {"average": 0.4}  # its control had nothing to test on
    assert result.rounds[0].compared == {"average": pytest.approx(0.2), "local": pytest.approx(0.1)}


def test_run_result_personalised_means_skip_missing() -> None:
    """Means are over sites of their last rounds; a figure that no site has is None."""
    assert (RESULT.sites[0].pm_v, RESULT.sites[0].pm_l_global) == (0.2, 0.1)
    own, local = RESULT.metrics["pfpl"], RESULT.metrics["local"]
    assert own.pm_v == pytest.approx((0.8 + 0.6 + 0.5) / 3 / 4)
    assert own.pm_l_global == pytest.approx((0.8 + 0.6 + 0.5) / 3 / 8)
    assert (own.pm_l, own.pm_v_global) == (None, None)
    assert local.pm_v == pytest.approx(0.3 / 4)


def test_run_result_groups_and_control_name() -> None:
    groups = (("clinic-a", "clinic-b"), ("clinic-c",))
    rounds = [ROUNDS[0], replace(ROUNDS[1], groups=groups)]
    result = run_result(small_agreement(), SITES, rounds, {}, dataset="digits", seed=7, method=Method.AVERAGE)
    assert result.groups == groups
    assert (result.method, list(result.metrics), result.config["method"]) == ("average", ["average"], "pfpl")
    assert RESULT.groups == ()


def test_run_result_figures_are_of_reported_round() -> None:
    """The reported round is the best one where training stopped early."""
    first, last = (("clinic-a", "clinic-b"), ("clinic-c",)), (("clinic-a",), ("clinic-b",))
    rounds = [replace(ROUNDS[0], groups=first), replace(ROUNDS[1], groups=last)]
    for best, withheld, groups, accuracy in (
        ({"pfpl": 1}, (), first, 0.2),
        ({"pfpl": 2}, ("2",), last, 0.8),
        ({}, ("2",), last, 0.8),
    ):
        result = run_result(small_agreement(), SITES, rounds, {}, dataset="digits", seed=7, best=best)
        assert (result.withheld, result.groups, result.sites[0].accuracy) == (withheld, groups, accuracy)


def test_run_result_keeps_agreement_and_arguments() -> None:
    agreement = small_agreement()
    assert (RESULT.method, RESULT.protection, RESULT.dataset, RESULT.seed) == ("pfpl", "plain", "digits", 7)
    assert RESULT.config == agreement.model_dump(mode="json", by_alias=True)
    assert RESULT.classes == agreement.classes
    assert RESULT.withheld == ("2",)
    assert RESULT.coordinator_view == VIEW


def test_run_result_without_completed_round() -> None:
    nothing = {"clinic-a": log("clinic-a")}
    result = run_result(small_agreement(), nothing, [], {}, dataset="digits", seed=0)
    assert result.rounds == ()
    assert result.mean_accuracy is None
    assert result.sites[0].accuracy is None


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
    with pytest.raises(ValueError, match="results"):
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
