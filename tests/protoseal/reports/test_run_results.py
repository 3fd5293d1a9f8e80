"""Figures of ``result.json`` from logs, each checked against a figure worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from agreement import Method
from protoseal.reports.result_files import ViewLine
from protoseal.reports.run_results import mean, run_result
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
