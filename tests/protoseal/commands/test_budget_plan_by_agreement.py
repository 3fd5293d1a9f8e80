"""``budget plan`` by an agreement, a simulation's file, and a site's own data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from agreement import load_agreement
from privacy.accounting.budget_plan import count_error, mean_error
from privacy.accounting.events import DpSgd, Event, GaussianRelease
from protoseal.cli import main
from protoseal.commands.budget_inputs import NO_GUARANTEE
from secure_client.privacy.cost import planned_epsilon
from tests.protoseal.commands.budget_plans import plan, planned, refusal
from tests.support.composed import epsilon
from tests.support.config_files import AGREEMENT, FEDPC, write

PRIVACY: dict[str, Any] = {"clip": 2.0, "noise_multiplier": 4.0, "release_every": 3}
PRIVATE: dict[str, Any] = AGREEMENT | {"rounds": 10, "protection": "plain", "training": {"norm": "group"}}
SIMULATION = """
method = "pfpl"
dataset = "digits"
rounds = 6
dim = 8
[training]
norm = "group"
local_epochs = 2
[privacy]
clip = 1.5
count_weight = 0.5
noise_multiplier = 5.0
extractor = "private"
[privacy.dp_sgd]
noise_multiplier = 2.0
clip = 1.0
sampling_rate = 0.1
"""


def agreement(folder: Path, **changes: Any) -> Path:
    return write(folder / "agreement.toml", PRIVATE | {"privacy": PRIVACY} | changes)


def test_plan_agreement_without_release_every_has_one_release(tmp_path: Path) -> None:
    file = agreement(tmp_path, privacy={"clip": 2.0, "noise_multiplier": 4.0})
    found = planned("--agreement", file)
    assert (found["releases"], found["agreement"]["release_every"]) == (1, 10)
    assert found["epsilon"] == epsilon([GaussianRelease(4.0, 18)], 1e-5)


@pytest.mark.parametrize(
    ("every", "other", "line"),
    [
        (10, 10, "one release serves the run; 10 releases would need a noise multiplier of"),
        (3, 1, "1 release would need a noise multiplier of"),
    ],
)
def test_plan_frozen_features_compares_one_release_with_more(
    tmp_path: Path, every: int, other: int, line: str
) -> None:
    file = agreement(tmp_path, privacy=PRIVACY | {"release_every": every})
    found = planned("--agreement", file)
    compared = found["other_releases"]
    assert compared["releases"] == other
    asked = ("--epsilon", found["epsilon"], "--solve", "noise-multiplier", "--releases", other)
    assert compared["noise_multiplier"] == planned("--agreement", file, *asked)["noise_multiplier"]
    assert line in plan("--agreement", file).stdout


def test_plan_agreement_gives_releases_noise_and_query(tmp_path: Path) -> None:
    file = agreement(tmp_path)
    found = planned("--agreement", file, "--records", 100)
    agreed = load_agreement(file)
    assert agreed.privacy is not None
    assert found["epsilon"] == planned_epsilon(agreed, agreed.privacy, 1e-5)
    assert (found["releases"], found["noise_multiplier"], found["solved_for"]) == (4, 4.0, "epsilon")
    assert (found["clip"], found["dim"], found["classes"], found["coordinates"]) == (2.0, 8, 2, 18)
    assert found["count_weight"] == pytest.approx(2 / 8**0.25)
    assert found["agreement"] == {
        "method": "pfpl",
        "protection": "plain",
        "rounds": 10,
        "release_every": 3,
        "extractor": "frozen",
        "classes": 2,
    }
    assert "pfpl under plain, 10 rounds: release_every = 3" in plan("--agreement", file).stdout


def test_plan_by_agreement_solves_for_noise_or_releases(tmp_path: Path) -> None:
    file = agreement(tmp_path)
    noise = planned("--agreement", file, "--epsilon", 1, "--solve", "noise-multiplier")
    assert noise["releases"] == 4
    assert 0.999 < noise["spent"] <= 1
    few = planned("--agreement", file, "--epsilon", 2, "--solve", "releases")
    assert few["noise_multiplier"] == 4.0
    assert few["spent"] <= 2 < epsilon([GaussianRelease(4.0, 18)] * (few["releases"] + 1), 1e-5)
    assert few["agreement"]["release_every"] == -(-10 // few["releases"])


def test_plan_agreement_whose_releases_do_not_fit_is_refused(tmp_path: Path) -> None:
    """FedPC with trained features has one before its rounds: that alone is no run."""
    trained = {"privacy": PRIVACY | {"extractor": "trained"}}
    for least, changes in ((1, {}), (2, FEDPC | trained)):
        file = agreement(tmp_path, **changes)
        cost = epsilon([GaussianRelease(4.0, 18)] * least, 1e-5)
        little = plan("--agreement", file, "--epsilon", cost * 0.999, "--solve", "releases", "--records", 9)
        assert (little.exit_code, little.stdout) == (1, "")
        [told] = little.stderr.splitlines()
        assert f"{least} release" in told
        assert f"a run of {'fedpc' if changes else 'pfpl'}," in told
        assert f"ε = {cost:.4g}" in told
        enough = planned("--agreement", file, "--epsilon", cost * 1.001, "--solve", "releases")
        assert (enough["releases"], enough["agreement"]["release_every"]) == (least, 10)


def test_plan_fedpc_counts_its_clustering_as_a_release(tmp_path: Path) -> None:
    assert planned("--agreement", agreement(tmp_path, **FEDPC))["releases"] == 4
    file = agreement(tmp_path, **FEDPC, privacy=PRIVACY | {"extractor": "trained"})
    assert planned("--agreement", file)["releases"] == 5
    assert planned("--agreement", file, "--epsilon", 3, "--releases", 1)["solved_for"] == "noise_multiplier"
    found = planned("--agreement", file, "--epsilon", 3, "--solve", "releases")
    releases, every = found["releases"], found["agreement"]["release_every"]
    assert 1 + -(-10 // every) <= releases < 1 + -(-10 // max(1, every - 1))


def test_plan_options_override_the_agreement(tmp_path: Path) -> None:
    file = agreement(tmp_path)
    found = planned("--agreement", file, "--noise-multiplier", 9, "--dim", 5)
    assert (found["noise_multiplier"], found["clip"], found["dim"], found["classes"]) == (9, 2, 5, 2)
    assert found["epsilon"] == epsilon([GaussianRelease(9.0, 2 * 6)] * 4, 1e-5)
    found = planned("--agreement", file, "--epsilon", 2, "--releases", 7)
    assert (found["solved_for"], found["releases"]) == ("noise_multiplier", 7)


def test_plan_simulation_file_gives_dp_sgd(tmp_path: Path) -> None:
    file = tmp_path / "sim.toml"
    file.write_text(SIMULATION, encoding="utf-8")
    found = planned("--agreement", file)
    assert found["dp_sgd"] == {"noise_multiplier": 2.0, "sampling_rate": 0.1, "steps": 6 * 20}
    assert (found["classes"], found["clip"], found["count_weight"]) == (10, 1.5, 0.5)
    history: list[Event] = [DpSgd(2.0, 0.1, 120), *[GaussianRelease(5.0, 10 * 9)] * 6]
    assert found["epsilon"] == epsilon(history, 1e-5)


def test_plan_trained_features_begin_with_no_guarantee(tmp_path: Path) -> None:
    """A plan, and an audit of its releases whatever the verdict, begin by saying that there is no guarantee."""
    file = agreement(tmp_path, privacy=PRIVACY | {"extractor": "trained"})
    assert NO_GUARANTEE in planned("--agreement", file)["warnings"]
    assert planned("--agreement", file)["recognised"] is None
    few = ("--canaries", "100", "--guesses", "10")
    for arguments in (("plan",), ("audit", "prototypes", *few)):
        done = CliRunner().invoke(main, ["budget", *arguments, "--agreement", str(file)])
        assert done.stdout.startswith("NO GUARANTEE")
        assert "NO GUARANTEE" not in done.stderr


def test_plan_shared_noise_names_the_colluding_sites(tmp_path: Path) -> None:
    shared = agreement(
        tmp_path, **FEDPC, privacy={"clip": 2.0, "noise_multiplier": 4.0, "noise": "distributed"}
    )
    assert "with up to one site that helps them" in planned("--agreement", shared)["statement"]
    assert planned("--agreement", shared)["assumed"] == {"delta": 1e-5}
    file = tmp_path / "sim.toml"
    file.write_text(SIMULATION, encoding="utf-8")
    assert planned("--agreement", file)["assumed"] == {"delta": 1e-5, "classes": 10}


def test_plan_releases_other_than_the_runs_are_not_averaged(tmp_path: Path) -> None:
    file = agreement(tmp_path, privacy={"clip": 2.0, "noise_multiplier": 4.0})
    found = planned("--agreement", file, "--releases", 12, "--records", 100)
    assert any("makes 1 release, and the plan has 12" in warning for warning in found["warnings"])
    assert found["errors"][0]["absolute"] == pytest.approx(mean_error(4.0, 2.0, 2 / 8**0.25, 100, 8))
    assert "averaged" not in found["statement"]
    every = planned("--agreement", agreement(tmp_path), "--releases", 1)
    assert any("makes 4 releases, and the plan has 1" in warning for warning in every["warnings"])
    many = planned("--agreement", file, "--epsilon", 20, "--solve", "releases")
    assert any("makes 10 releases at most" in warning for warning in many["warnings"])


def test_plan_shared_noise_compares_at_most_the_runs_releases(tmp_path: Path) -> None:
    shared = agreement(
        tmp_path, **FEDPC, privacy={"clip": 2.0, "noise_multiplier": 4.0, "noise": "distributed"}
    )
    assert planned("--agreement", shared)["other_releases"] is None
    assert planned("--agreement", shared, "--releases", 2)["other_releases"]["releases"] == 11


def test_plan_fedplcc_query_has_parts_of_the_assumed_classes(tmp_path: Path) -> None:
    file = tmp_path / "sim.toml"
    file.write_text(SIMULATION.replace('"pfpl"', '"fedplcc"'), encoding="utf-8")
    found = planned("--agreement", file)
    assert (found["assumed"]["classes"], found["classes"]) == (10, 160)


# A site's own counts


def npz(folder: Path, labels: list[int], **more: Any) -> str:
    path = folder / "site.npz"
    count = len(labels)
    np.savez(path, x_train=np.zeros((count, 6, 6, 1), np.uint8), y_train=np.array(labels), **more)
    return f"npz:{path}"


def test_plan_counts_of_has_an_error_for_each_class(tmp_path: Path) -> None:
    source = npz(tmp_path, [0] * 20 + [1] * 300)
    found = planned("--agreement", agreement(tmp_path), "--counts-of", source)
    weight = 2 / 8**0.25
    assert [(each["class"], each["records"]) for each in found["errors"]] == [("a", 20), ("b", 300)]
    for each in found["errors"]:
        assert each["absolute"] == pytest.approx(mean_error(2.0, 2.0, weight, each["records"], 8))
        assert each["count"] == pytest.approx(count_error(2.0, 2.0, weight))
    assert "once the 4 releases of a run are averaged" in found["statement"]
    assert any("over a third of 20 records" in each for each in found["warnings"])
    shown = plan("--agreement", agreement(tmp_path), "--counts-of", source).stdout
    assert [line.split()[0] for line in shown.splitlines() if " 20 " in line or " 300 " in line] == ["a", "b"]


def test_plan_counts_of_class_without_records_has_no_error(tmp_path: Path) -> None:
    found = planned("--epsilon", 3, "--releases", 2, "--counts-of", npz(tmp_path, [0] * 20 + [2] * 50))
    assert [each["class"] for each in found["errors"]] == ["0", "2"]


def test_plan_delta_is_compared_with_all_records_of_a_site(tmp_path: Path) -> None:
    source = npz(tmp_path, [0] * 60 + [1] * 60)
    refused = plan("--epsilon", 3, "--releases", 1, "--delta", 0.01, "--counts-of", source)
    assert refused.exit_code == 2
    assert "one of 120 records" in refused.output
    assert planned("--epsilon", 3, "--releases", 1, "--counts-of", source)["warnings"] == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--epsilon", 3), "compute by --solve"),
        (("--solve", "epsilon", "--epsilon", 3), "--epsilon is both given and the target of --solve"),
        (("--solve", "releases"), "compute by --solve"),
        (("--records", "50", "--counts-of", "digits"), "give only one"),
        (("--counts-of", "npz:missing.npz"), "missing.npz"),
        (("--counts-of", "digits"), "class"),
    ],
)
def test_plan_by_agreement_refuses_impossible_arguments_in_one_line(
    tmp_path: Path, arguments: tuple[object, ...], told: str
) -> None:
    assert told in refusal("--agreement", agreement(tmp_path), *arguments)


def test_plan_agreement_without_privacy_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "agreement.toml", PRIVATE)
    done = plan("--agreement", file)
    assert done.exit_code == 2
    assert "has no [privacy]" in done.output
