"""``protoseal budget evaluate``: as much noise as each ε asks for, runs that are there stay, and what they come to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from click.testing import CliRunner, Result
from matplotlib.figure import Figure

from privacy.accounting.events import GaussianRelease
from protoseal.audit import budget_curve as budget_runs
from protoseal.audit.accuracy_report import FREEZING, AccuracyReport, accuracy_over_epsilon
from protoseal.audit.budget_curve import request_runs
from protoseal.cli import main
from protoseal.commands.budget_evaluate import evaluate_command
from protoseal.commands.simulate import simulate as simulate_command
from protoseal.reports.privacy_statement import NO_GUARANTEE
from protoseal.reports.report import write_report
from protoseal.reports.result_files import read_result
from protoseal.simulation import experiment
from tests.support.composed import epsilon

FILE = """
method = "pfpl"
dataset = "digits"
split = "iid:per=200"
sites = 3
rounds = 3
dim = 8
device = "cpu"
compare = ["local"]
[training]
model = "small-cnn"
norm = "group"
optimiser = "sgd"
lr = 0.02
local_epochs = 1
[privacy]
clip = 2.0
min_count = 1.0
noise_multiplier = 5.0
release_every = 2
"""
COORDINATES = 10 * 9


def evaluate(folder: Path, *arguments: object, text: str = FILE) -> Result:
    file = folder / "private.toml"
    file.write_text(text, encoding="utf-8")
    out = ("--config", file, "--out", folder / "out")
    return CliRunner().invoke(main, ["budget", "evaluate", *map(str, (*out, *arguments))])


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("evaluate")
    done = evaluate(folder, "--epsilons", "inf,2,100", "--seeds", "0,4", "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads((folder / "out" / "evaluate.json").read_text(encoding="utf-8"))
    assert json.loads(done.stdout) == found
    return folder, found


Evaluated = tuple[Path, dict[str, Any]]


@pytest.mark.full
def test_evaluate_every_epsilon_gets_its_noise(evaluated: Evaluated) -> None:
    _, found = evaluated
    assert (found["complete"], found["delta"], found["unit"]) == (True, 1e-5, "record")
    noisy = [run for run in found["runs"] if run["epsilon"] is not None]
    assert [(run["epsilon"], run["noise"], run["seed"]) for run in noisy] == [
        *((100, "local", seed) for seed in (0, 4)),
        *((2, "local", seed) for seed in (0, 4)),
    ]
    for run in noisy:
        releases = [GaussianRelease(run["noise_multiplier"], COORDINATES)] * 2
        assert run["planned"] == pytest.approx(epsilon(releases, 1e-5), rel=1e-9)
        assert 0.999 * run["epsilon"] < run["planned"] <= run["epsilon"]
        assert run["noise_multiplier"] == pytest.approx(5.0 * run["factor"], rel=1e-5)
        assert run["spent"] == pytest.approx(run["planned"], rel=1e-9)  # two releases, both paid once
        assert run["guaranteed"]
        assert [site["epsilon"] for site in run["sites"]] == [run["spent"]] * 3


@pytest.mark.full
def test_evaluate_infinity_equals_a_run_without_privacy(evaluated: Evaluated) -> None:
    folder, found = evaluated
    exact = [run for run in found["runs"] if run["epsilon"] is None]
    assert [run["seed"] for run in exact] == [0, 4]
    for run in exact:
        assert (run["noise"], run["planned"], run["spent"], run["guaranteed"]) == ("exact", None, None, False)
        config = read_result(folder / "out" / run["folder"]).config
        assert config.get("privacy") is None
        assert (config["training"]["lr"], config["training"]["norm"]) == (0.02, "group")


@pytest.mark.full
def test_evaluate_levels_summarise_their_runs_metrics(evaluated: Evaluated) -> None:
    folder, found = evaluated
    assert [(level["epsilon"], level["noise"]) for level in found["levels"]] == [
        (2, "local"),
        (100, "local"),
        (None, "exact"),
    ]
    for level in found["levels"]:
        runs = [run for run in found["runs"] if run["epsilon"] == level["epsilon"]]
        for measure in ("accuracy", "accuracy_classifier", "accuracy_prototype"):
            values = [run["metrics"]["pfpl"][measure] for run in runs]
            assert level["mean"][measure] == pytest.approx(fmean(values))
            assert level["standard_deviation"][measure] == pytest.approx(stdev(values))
            assert values[0] == pytest.approx(fmean(site[measure] for site in runs[0]["sites"]))
    low, _, exact = found["levels"]
    loss = low["loss"]["accuracy_prototype"]
    assert loss["mean"] == pytest.approx(
        exact["mean"]["accuracy_prototype"] - low["mean"]["accuracy_prototype"]
    )
    assert set(loss["by_seed"]) == {"0", "4"}
    assert exact["loss"] == {}
    for run in found["runs"]:
        assert read_result(folder / "out" / run["folder"]).metrics["pfpl"].accuracy == pytest.approx(
            run["metrics"]["pfpl"]["accuracy"]
        )
        assert "local" in run["metrics"]


@pytest.mark.full
def test_evaluate_frozen_features_are_noted_on_page_and_table(
    evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, found = evaluated
    features = ["frozen", "frozen", "trained"]
    assert [level["features"] for level in found["levels"]] == features
    assert sorted(run["features"] for run in found["runs"]) == sorted(features * 2)
    page = (folder / "out" / "evaluate.html").read_text(encoding="utf-8")
    assert f"<strong>More than noise:</strong> {FREEZING}" in page
    assert page.count('<td class="text">frozen</td>') == 2 + 4
    monkeypatch.setenv("COLUMNS", "200")
    told = evaluate(folder, "--epsilons", "2,100,inf", "--seeds", "0,4").stdout
    rows = [line.split() for line in told.splitlines() if " local " in line or " exact " in line]
    assert [row[row.index("│", 3) + 1] for row in rows] == features
    assert FREEZING in " ".join(told.split())


@pytest.mark.full
@pytest.mark.parametrize(("features", "mixed"), [("frozen", True), ("private", False), ("trained", False)])
def test_evaluate_frozen_features_name_the_loss_as_freezing(
    evaluated: Evaluated, features: str, mixed: bool
) -> None:
    _, found = evaluated
    *noisy, exact = found["levels"]
    changed = [each | {"features": features} for each in noisy]
    assert AccuracyReport.model_validate(found | {"levels": [*changed, exact]}).freezes is mixed
    without_loss = [each | {"loss": {}} for each in changed]
    assert not AccuracyReport.model_validate(found | {"levels": without_loss}).freezes


@pytest.mark.full
def test_evaluate_page_loads_nothing(evaluated: Evaluated) -> None:
    folder, found = evaluated
    page = (folder / "out" / "evaluate.html").read_text(encoding="utf-8")
    assert "data:image/svg+xml;base64," in page
    assert "http" not in page.replace("http-equiv", "")
    assert "Incomplete" not in page
    assert "No record-level guarantee" not in page
    for run in found["runs"]:
        assert run["folder"] in page


@pytest.mark.full
@pytest.mark.parametrize("there", [slice(None), slice(2, 3), slice(0, 1)], ids=["all", "infinity", "one"])
def test_evaluate_plot_shows_every_level(
    evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch, there: slice
) -> None:
    """The first runs, those at ∞, have nothing else beside them in the plot."""
    shown: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: shown.append(figure))
    whole = AccuracyReport.model_validate(evaluated[1])
    accuracy_over_epsilon(whole.model_copy(update={"levels": whole.levels[there]}))
    axes = shown[0].axes[0]
    low, high = axes.get_xlim()
    assert all(1.2 * low < place < high / 1.2 for place in axes.get_xticks())
    assert len(axes.get_xticks()) == len(whole.levels[there])


@pytest.mark.full
def test_evaluate_page_has_the_reports_frame(evaluated: Evaluated) -> None:
    folder, found = evaluated
    own = folder / "out" / "evaluate.html"
    pages = [
        each.read_text(encoding="utf-8")
        for each in (own, write_report(folder / "out" / found["runs"][0]["folder"]))
    ]
    heads = [re.sub("<title>.*?</title>", "", page).partition("<body>")[0] for page in pages]
    assert heads[0] == heads[1]
    assert "Content-Security-Policy" in heads[0]
    titles = [re.findall("<title>(.*)</title>", page) for page in pages]
    assert titles == [["Accuracy against ε: pfpl on digits"], ["pfpl under plain on digits"]]


@pytest.mark.full
def test_evaluate_run_report_states_what_was_spent(evaluated: Evaluated) -> None:
    """Runs at ∞ have no guarantee; the others have ε and δ as the sites' ledgers have them."""
    folder, found = evaluated
    for run in found["runs"]:
        page = write_report(folder / "out" / run["folder"]).read_text(encoding="utf-8")
        privacy = page.partition("<h2>Privacy</h2>")[2].partition("<h2>")[0]
        if run["epsilon"] is None:
            assert NO_GUARANTEE in privacy
        else:
            assert f"ε = {run['spent']:.3g} at δ = 1e-05" in privacy
            assert "one record" in privacy
            assert NO_GUARANTEE not in privacy


@pytest.mark.full
def test_evaluate_second_start_repeats_no_run(evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, found = evaluated
    monkeypatch.setattr(experiment, "LocalFederation", None)
    again = evaluate(folder, "--epsilons", "2,inf", "--seeds", "0,4", "--json")
    assert again.exit_code == 0, again.output
    kept = [run for run in found["runs"] if run["epsilon"] != 100]
    assert json.loads(again.stdout)["runs"] == kept
    fewer = evaluate(folder, "--epsilons", "2", "--seeds", "4")
    assert fewer.exit_code == 0, fewer.output
    assert "pfpl under plain" in fewer.stdout
    with pytest.raises(TypeError):  # a run that is not there would be run
        CliRunner().invoke(
            main,
            ["budget", "evaluate", "--config", str(folder / "private.toml"), "--out", str(folder / "out")],
            catch_exceptions=False,
        )


def test_evaluate_runs_largest_epsilon_first_and_infinity_once() -> None:
    asked = request_runs((1.0, float("inf"), 3.0, 1.0), ("local", "distributed"), (7,))
    assert [each.folder for each in asked] == [
        "runs/epsilon-inf/seed-7",
        "runs/epsilon-3-local/seed-7",
        "runs/epsilon-3-distributed/seed-7",
        "runs/epsilon-1-local/seed-7",
        "runs/epsilon-1-distributed/seed-7",
    ]


def test_evaluate_has_the_options_of_simulate() -> None:
    own = {each.name: each for each in evaluate_command.params}
    shared = [each for each in simulate_command.params if own.get(each.name) is each]
    left_out = {each.name for each in simulate_command.params} - {each.name for each in shared}
    assert left_out == {
        *("early_stopping", "tensorboard", "fresh", "as_json"),
        *("sweeps", "address", "cpus_per_run", "gpus_per_run"),
    }


@pytest.mark.parametrize(
    ("arguments", "text", "told"),
    [
        (("--epsilons", "1,x"), FILE, "not a list of numbers"),
        (("--epsilons", "0"), FILE, "above 0"),
        (("--epsilons", "nan"), FILE, "above 0"),
        (("--noise", "loud"), FILE, "not local, distributed or both"),
        ((), FILE.partition("[privacy]")[0], "has no [privacy]"),
        (("--method", "self"), FILE, "releases nothing"),
    ],
)
def test_evaluate_refuses_impossible_arguments_without_a_run(
    tmp_path: Path, arguments: tuple[object, ...], text: str, told: str
) -> None:
    done = evaluate(tmp_path, *arguments, text=text)
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit)
    assert told in " ".join(done.output.split())
    assert not (tmp_path / "out" / budget_runs.RUNS).exists()


@pytest.mark.full
def test_evaluate_at_inf_changes_infinity_alone(tmp_path: Path) -> None:
    """Settings for infinity apply to its runs and to no others, and the output names them."""
    done = evaluate(
        tmp_path, "--epsilons", "inf,50", "--at-inf", "training.lr=0.05", "--seeds", "1", "--json"
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    rates = {
        run["epsilon"]: json.loads((tmp_path / "out" / run["folder"] / "simulation.json").read_text())[
            "config"
        ]["training"]["lr"]
        for run in found["runs"]
    }
    assert rates == {None: 0.05, 50: 0.02}
    assert (found["config"]["training"]["lr"], found["config_at_inf"]["training"]["lr"]) == (0.02, 0.05)
    page = (tmp_path / "out" / "evaluate.html").read_text(encoding="utf-8")
    assert "Different settings at ∞" in page
    assert page.partition("Different settings at ∞")[2].count("&#34;training&#34;") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--epsilons", "2", "--at-inf", "training.lr=0.05"], "add inf to --epsilons"),
        (["--epsilons", "inf", "--at-inf", "method=fedproto"], "another method has no meaning"),
        (["--epsilons", "inf", "--at-inf", "split=iid"], "another split has no meaning"),
        (["--epsilons", "inf", "--at-inf", "privacy.clip=3"], "privacy.clip cannot differ at ∞"),
        (["--epsilons", "inf", "--at-inf", "seeds=[7]"], "seeds cannot differ at ∞"),
        (
            ["--epsilons", "inf", "--at-inf", "nonsense"],
            "'--at-inf': 'nonsense' is not of the form SECTION.KEY=VALUE",
        ),
    ],
)
def test_evaluate_at_inf_other_records_are_refused(tmp_path: Path, arguments: list[str], told: str) -> None:
    done = evaluate(tmp_path, *arguments)
    assert done.exit_code != 0
    assert told in " ".join(done.output.split())
    assert not (tmp_path / "out").exists()
