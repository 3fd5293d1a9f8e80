"""``protoseal budget plan`` by options alone: what it finds, says and refuses."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

import secure_client.privacy
from agreement.sections.privacy import DpSgdSection
from privacy.accounting.events import DpSgd, Event, GaussianRelease
from tests.protoseal.commands.budget_plans import plan, planned, refusal
from tests.support.composed import delta_of, epsilon

NORMAL = NormalDist()
DP_SGD = ("--dp-sgd", 0.05, 2, 100)


@pytest.mark.parametrize(("count", "guide"), [(1, 1.39), (20, 6.2), (100, 13.9)])
def test_plan_solves_for_the_noise(count: int, guide: float) -> None:
    found = planned("--epsilon", 3, "--releases", count, "--records", "50,500,5000")
    assert found["noise_multiplier"] == pytest.approx(guide, abs=0.05)
    assert found["spent"] <= 3
    assert (found["solved_for"], found["unit"], found["neighbours"]) == (
        "noise_multiplier",
        "record",
        "add or remove one",
    )
    assert [error["records"] for error in found["errors"]] == [50, 500, 5000]
    first, second, _ = found["errors"]
    assert first["relative"] == pytest.approx(10 * second["relative"])


def test_plan_solves_for_the_releases_and_their_cost() -> None:
    noise = planned("--epsilon", 3, "--releases", 40)["noise_multiplier"]
    found = planned("--epsilon", 3, "--noise-multiplier", noise)
    assert (found["releases"], found["solved_for"]) == (40, "releases")
    cost = planned("--releases", 40, "--noise-multiplier", noise)
    assert cost["solved_for"] == "epsilon"
    assert cost["epsilon"] == cost["spent"] == pytest.approx(3.0, abs=1e-3)
    assert cost["epsilon"] == epsilon([GaussianRelease(noise, 5130)] * 40, 1e-5)


def test_plan_dp_sgd_is_composed_with_releases() -> None:
    found = planned("--releases", 10, "--noise-multiplier", 8, *DP_SGD)
    training = DpSgd(2.0, 0.05, 100)
    assert found["dp_sgd"] == {"noise_multiplier": 2.0, "sampling_rate": 0.05, "steps": 100}
    assert found["epsilon"] == epsilon([training, *[GaussianRelease(8.0, 5130)] * 10], 1e-5)
    assert "100 steps of DP-SGD" in plan("--releases", 10, "--noise-multiplier", 8, *DP_SGD).stdout
    assert "DP-SGD alone costs" in refusal("--epsilon", 0.5, "--releases", 10, *DP_SGD)


def test_plan_dim_decides_coordinates_and_count_weight() -> None:
    arguments = ("--epsilon", 3, "--releases", 10, "--records", 300)
    found = planned(*arguments, "--dim", 64)
    assert (found["clip"], found["coordinates"]) == (1, 10 * 65)
    assert planned(*arguments, "--dim", 16)["count_weight"] == pytest.approx(0.5)


def test_plan_prints_budget_noise_and_errors() -> None:
    done = plan("--epsilon", 3, "--releases", 100, "--records", "50,5000")
    assert "ε = 3 at δ = 1e-05" in done.stdout
    assert "100 releases, noise multiplier 13.906" in done.stdout
    assert "6.57" in done.stdout
    assert "over a third of 50 records" in done.stderr
    assert "give --records" not in done.stderr
    assert "give --records" in plan("--epsilon", 3, "--releases", 1).stderr


def test_plan_first_sentence_states_unit_recognition_and_cost() -> None:
    found = planned("--epsilon", 3, "--releases", 20, "--records", "50,500")
    power = NORMAL.cdf(math.sqrt(20) / found["noise_multiplier"] - NORMAL.inv_cdf(0.99))
    assert found["recognised"] == pytest.approx(power, rel=1e-4)
    assert found["statement"] in plan("--epsilon", 3, "--releases", 20, "--records", "50,500").stdout
    assert found["statement"].startswith(
        "If the planned noise is really added and the initial model has not seen these records, then whether any one"
        " record is in the data set is protected from anyone who sees"
    )
    assert f"picks out at most {math.ceil(1000 * power) / 10:g} in 100 records" in found["statement"]
    assert (
        f"costs ε = {found['spent']:.4g} at δ = 1e-05, and an error of 2.9 of the clip" in found["statement"]
    )
    assert "in the mean of 50 records" in found["statement"]
    people = planned("--epsilon", 3, "--releases", 20, "--unit", "subject", "--delta", 1e-6)["statement"]
    assert "whether any one person has records in the data set" in people
    assert ("single records" in found["statement"], "single records" in people) == (True, False)
    assert "at δ = 1e-06" in people
    assert planned("--epsilon", 3, "--releases", 20, *DP_SGD)["recognised"] > 0.04


def test_plan_values_not_given_are_listed_as_assumed() -> None:
    silent = planned("--epsilon", 3, "--releases", 1)
    weight = silent["count_weight"]
    assert silent["assumed"] == {
        "delta": 1e-5,
        "clip": 1.0,
        "count_weight": weight,
        "dim": 512,
        "classes": 10,
        "unit": "record",
    }
    assert "assumed, since not given: delta 1e-05, clip 1," in plan("--epsilon", 3, "--releases", 1).stdout
    given = ("--delta", 1e-5, "--dim", 512, "--unit", "record")
    always = {"clip": 1.0, "count_weight": weight, "classes": 10}
    assert planned("--epsilon", 3, "--releases", 1, *given)["assumed"] == always
    by_site = planned("--epsilon", 3, "--releases", 1, *given[:-1], "site")["assumed"]
    assert by_site == always | {"classes_of_one": 10}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", silent["made"])
    assert f"planned on {silent['made']}" in plan("--epsilon", 3, "--releases", 1).stdout


def test_plan_delta_beyond_one_record_is_refused() -> None:
    told = refusal("--epsilon", 3, "--releases", 1, "--delta", 0.02, "--records", "50,5000")
    assert "one of 50 records" in told
    found = planned("--epsilon", 3, "--releases", 1, "--delta", 0.001, "--records", "50,5000")
    assert "50000 records, 10 times 5000, or more" in found["warnings"][0]


@pytest.mark.parametrize(
    ("unit", "whole"),
    [((), 1000), (("--unit", "subject", "--classes-of-one", 5), 200), (("--unit", "site"), None)],
)
def test_plan_delta_is_compared_with_all_classes_of_a_site(
    unit: tuple[object, ...], whole: int | None
) -> None:
    """Records and subjects are of one class; sites have all of them."""
    found = planned("--epsilon", 3, "--releases", 1, "--delta", 0.006, "--records", 100, *unit)
    assert any("is no guarantee for" in each for each in found["warnings"]) is (whole is not None)
    if whole is not None:
        assert f"for a data set with {whole} " in found["warnings"][0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--epsilon", 3), "all but one of"),
        (("--epsilon", 3, "--releases", 1, "--noise-multiplier", 2), "all but one of"),
        (("--epsilon", 3, "--releases", 1, "--dp-sgd", 0.1, 2), "requires 3 arguments"),
        (("--epsilon", 3, "--releases", 1, "--unit", "site", *DP_SGD), "no ε for one site"),
        (("--epsilon", "nan", "--releases", 1), "number"),
        (("--epsilon", "inf", "--releases", 1), "number"),
        (("--epsilon", -1, "--releases", 1), "range"),
        (("--epsilon", 3, "--releases", 1, "--delta", 1), "range"),
        (("--noise-multiplier", 0.001, "--releases", 5), "more than any ε"),
        (("--epsilon", 3, "--releases", 1, "--delta", "1e-14"), "no noise keeps"),
    ],
)
def test_plan_refuses_impossible_arguments_in_one_line(arguments: tuple[object, ...], told: str) -> None:
    assert told in refusal(*arguments)


@pytest.mark.parametrize("more", [(), ("--json",), ("--records", 50)])
@pytest.mark.parametrize("noise", [1, 0.001])
def test_plan_no_release_within_the_budget_is_refused(more: tuple[object, ...], noise: float) -> None:
    done = plan("--epsilon", 0.1, "--noise-multiplier", noise, *more)
    assert (done.exit_code, done.stdout) == (1, "")
    [told] = done.stderr.splitlines()
    one = epsilon([GaussianRelease(1.0, 5130)], 1e-5)
    cost = f"ε = {one:.4g}" if noise == 1 else "more than any ε"
    assert f"1 release with noise multiplier {noise} would cost {cost} at δ = 1e-05, and 0.1 is" in told
    assert planned("--epsilon", 0.1, "--releases", 1)["spent"] <= 0.1  # what it says to give


def test_plan_no_release_beside_training_states_both_costs() -> None:
    alone, both = (
        epsilon([DpSgd(2.0, 0.05, 100), *releases], 1e-5) for releases in ([], [GaussianRelease(1.0, 5130)])
    )
    told = refusal("--epsilon", alone + 0.01, "--noise-multiplier", 1, *DP_SGD)
    assert f"multiplier 1 and DP-SGD would cost ε = {both:.4g}" in told


def test_plan_without_the_site_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] == "dp_accounting" or name.startswith("secure_client.privacy"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(secure_client, "privacy", secure_client.privacy)  # put back what is imported anew
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert "pip install 'protoseal[site]'" in refusal("--epsilon", 3, "--releases", 1)


@pytest.mark.parametrize(("unit", "of_one"), [("subject", 1), ("site", 10)])
def test_plan_unit_of_more_classes_counts_less(unit: str, of_one: int) -> None:
    arguments = ("--epsilon", 3, "--releases", 20, "--records", 500, "--dim", 64)
    by_record, found = planned(*arguments), planned(*arguments, "--unit", unit)
    assert (found["unit"], found["classes_of_one"]) == (unit, of_one)
    assert (found["noise_multiplier"], found["spent"]) == (by_record["noise_multiplier"], by_record["spent"])
    times = of_one**0.5
    for name in ("absolute", "relative", "count"):
        assert found["errors"][0][name] == pytest.approx(times * by_record["errors"][0][name])
    four = planned(*arguments, "--unit", unit, "--classes-of-one", 4)
    assert four["errors"][0]["relative"] == pytest.approx(2 * by_record["errors"][0]["relative"])
    told = plan(*arguments, "--unit", unit)
    assert f"{unit}s of a class" in told.stdout


def test_plan_delta_and_warnings_name_the_unit() -> None:
    arguments = ("--epsilon", 3, "--releases", 1, "--unit", "subject")
    assert "one over the subjects of the smallest data set" in plan(*arguments).stderr
    assert "sites of a run" in plan(*arguments[:-1], "site").stderr
    assert "one of 50 subjects" in refusal(*arguments, "--delta", 0.02, "--records", 50)
    assert "over a third of 5 subjects" in plan(*arguments, "--records", 5).stderr


@pytest.mark.parametrize(("unit", "of_one"), [("record", 2), ("subject", 11), ("site", 11)])
def test_plan_unit_of_more_classes_than_agreed_is_refused(unit: str, of_one: int) -> None:
    told = refusal("--epsilon", 3, "--releases", 1, "--unit", unit, "--classes-of-one", of_one)
    assert f"one {unit} has records of" in told


def test_plan_counts_of_counts_subjects_by_class(tmp_path: Path) -> None:
    """Ann has records of both classes, Bob of one, Carl of the other; each has several."""
    file = tmp_path / "own.npz"
    subjects, labels = (
        np.array(["ann"] * 4 + ["bob"] * 3 + ["carl"] * 2),
        np.array([0, 0, 1, 1, 1, 1, 1, 0, 0]),
    )
    np.savez(
        file, x_train=np.zeros((9, 4)), y_train=labels, subjects=subjects, class_names=np.array(["a", "b"])
    )
    arguments = ("--epsilon", 3, "--releases", 1, "--counts-of", f"npz:{file}")
    found = planned(*arguments, "--unit", "subject")
    assert [(each["class"], each["records"]) for each in found["errors"]] == [("a", 2), ("b", 2)]
    assert found["classes_of_one"] == 2
    assert [each["records"] for each in planned(*arguments)["errors"]] == [4, 5]
    assert "one of 3 subjects" in refusal(*arguments, "--unit", "subject", "--delta", 0.34)
    assert "one of 9 records" in refusal(*arguments, "--delta", 0.12)
    assert "one site's data" in refusal(*arguments, "--unit", "site")
    np.savez(file, x_train=np.zeros((9, 4)), y_train=labels)
    assert "has no subjects" in refusal(*arguments, "--unit", "subject")


def test_plan_unit_is_the_agreements_unless_given(tmp_path: Path) -> None:
    file = tmp_path / "agreed.toml"
    text = (Path(__file__).parents[3] / "deploy" / "samples" / "agreement-private.toml").read_text("utf-8")
    file.write_text(text.replace("\n[privacy]", '\n[privacy]\nunit = "site"'), "utf-8")
    found = planned("--agreement", file, "--records", 100)
    assert (found["unit"], found["classes_of_one"]) == ("site", 10)
    assert planned("--agreement", file, "--records", 100, "--unit", "record")["unit"] == "record"


USUAL = ("--releases", 20, "--records", 500)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((*USUAL, "--noise-multiplier", 1e-300), "more than any ε"),
        ((*USUAL, "--epsilon", 1, "--dim", 10**10), "not in the range"),
        (("--epsilon", 1, "--releases", 10**10), "not in the range"),
        (("--epsilon", 1, "--releases", 1, "--records", 10**10), "each number must be from 1"),
        (("--epsilon", 1, "--noise-multiplier", 1e-300), "none fits"),
        (("--epsilon", 1e300, "--noise-multiplier", 1e300), "the budget allows over"),
        ((*USUAL, "--noise-multiplier", 6, "--dp-sgd", 0.1, 1e-5, 3), "more than any ε"),
    ],
)
def test_plan_numbers_beyond_any_float_are_refused(options: tuple[object, ...], reason: str) -> None:
    assert reason in refusal(*options)


def test_plan_epsilon_beyond_any_use_is_planned() -> None:
    assert planned(*USUAL, "--epsilon", 1e300)["noise_multiplier"] == pytest.approx(0.1166, abs=1e-4)


@pytest.mark.parametrize(
    ("event", "least", "most"),
    [
        (GaussianRelease(1e-300, 650), np.inf, np.inf),
        (GaussianRelease(1e300, 650), 0.0, 1e-6),
        (GaussianRelease(5.0, 1 << 60), np.inf, np.inf),
        (DpSgd(1e-300, 0.1, 3), np.inf, np.inf),
        (DpSgd(1e300, 0.1, 3), 0.0, 1e-6),
        (DpSgd(1.0, 0.1, 1 << 62), np.inf, np.inf),
        (DpSgd(1.0, 1e-200, 3), 0.0, 1e-3),
    ],
)
def test_epsilon_extreme_event_has_an_answer(event: Event, least: float, most: float) -> None:
    assert least <= epsilon([event, event], 1e-5) <= most
    assert delta_of([event, event], 1.0) <= (1.0 if least else 1e-5)
    assert (delta_of([event, event], 1.0) == 1.0) is bool(least)


def test_dp_sgd_section_most_steps_make_an_event() -> None:
    with pytest.raises(ValueError, match="sampling_rate"):
        DpSgdSection(noise_multiplier=1.0, clip=1.0, sampling_rate=1e-7)
    most = DpSgdSection(noise_multiplier=1.0, clip=1.0, sampling_rate=1e-6).steps(10**6)
    assert DpSgd(1.0, 1e-6, most * 100_000).steps == most * 100_000


def test_plan_counts_of_labels_beyond_classes_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "ids.npz"
    np.savez(file, x_train=np.zeros((2, 3), np.float32), y_train=np.array([0, 9_000_000_000]))
    assert "has label 9000000000; number the classes" in refusal(
        "--epsilon", 3, "--releases", 4, "--counts-of", f"npz:{file}"
    )
