"""``protoseal attack``: the quick suite on a user's configuration, its files, and a second start."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from protoseal.attacks import grid as grid_module
from protoseal.attacks import model_membership, prototype_inversion, update_inversion
from protoseal.attacks import report as report_module
from protoseal.attacks.cases import Case, Measurement, Picture
from protoseal.attacks.grid import list_suites, make_cases
from protoseal.attacks.image_gallery import to_png
from protoseal.attacks.poisoning import poisoning_cases
from protoseal.attacks.protected_values import EXACT
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import RecordedRun
from protoseal.attacks.records import AttackReport, list_notices
from protoseal.cli import main
from protoseal.commands.attack import SUITE_NAMES

MEMBERSHIP, INVERSION = "membership inference on prototypes", "prototype inversion by a decoder, 1 sample"
FILE = """
method = "pfpl"
protection = "masked"
dataset = "digits"
split = "iid:per=300"
sites = 3
rounds = 1
device = "cpu"
"""


def attack(folder: Path, *arguments: object, text: str = FILE, suite: str = "quick") -> Result:
    file = folder / "federation.toml"
    file.write_text(text, encoding="utf-8")
    out = ("--config", file, "--out", folder / "out")
    return CliRunner().invoke(main, ["attack", suite, *map(str, (*out, *arguments))])


def draw_once(patch: pytest.MonkeyPatch) -> None:
    """Have figures drawn at the end alone, and not after each run as well."""
    draw = report_module.write_report

    def draw_if_complete(folder: Path, report: AttackReport) -> Path:
        return draw(folder, report) if report.complete else folder

    patch.setattr(report_module, "write_report", draw_if_complete)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("attacked")
    with pytest.MonkeyPatch.context() as patch:
        draw_once(patch)
        return folder, attack(folder, "--json")


@pytest.fixture(scope="module")
def report(attacked: tuple[Path, Result]) -> dict[str, Any]:
    folder, done = attacked
    assert done.exit_code == 0, done.output
    loaded: dict[str, Any] = json.loads((folder / "out" / "attacks.json").read_text(encoding="utf-8"))
    return loaded


def verdicts(report: dict[str, Any], attack: str, protection: str) -> dict[str, set[str]]:
    """Return the verdicts of an attack on a protection, by adversary."""
    found: dict[str, set[str]] = {}
    for case in report["cases"]:
        if case["attack"] == attack and case["protection"] == protection:
            found.setdefault(case["adversary"], set()).add(case["verdict"])
    return found


def test_attacks_json_has_the_agreed_fields(report: dict[str, Any]) -> None:
    """The fields are those of the design; the rest is for the report."""
    assert report["schema"] == 1
    assert report["complete"]
    fields = {"attack", "protection", "epsilon", "metric", "value", "undefended", "chance", "defended"}
    assert all(fields <= set(case) for case in report["cases"])
    assert all(case["low"] <= case["value"] <= case["high"] for case in report["cases"])


def test_attack_json_prints_the_file(attacked: tuple[Path, Result], report: dict[str, Any]) -> None:
    assert json.loads(attacked[1].stdout) == report


def test_attack_rotation_defends_but_not_one_record(
    report: dict[str, Any],
) -> None:
    for name, many in ((MEMBERSHIP, True), (f"{MEMBERSHIP}, 1 sample", False), (INVERSION, False)):
        assert verdicts(report, name, "plain")[Adversary.COORDINATOR] == {"not defended"}
        assert ("not defended" not in verdicts(report, name, "masked")[Adversary.COORDINATOR]) is many


def test_attack_colluding_site_undoes_rotations(report: dict[str, Any]) -> None:
    for adversary in (Adversary.COLLUSION, Adversary.PEERS):
        assert verdicts(report, MEMBERSHIP, "masked")[adversary] == {"not defended"}


def test_attack_readings_name_rounds_and_errors(report: dict[str, Any]) -> None:
    assert all("round" in case["reading"] for case in report["cases"])
    questions = {case["question"] for case in report["cases"] if case["attack"] == "reading protected values"}
    assert questions
    assert all(f"{EXACT:g}".replace("e-05", "e-5") in each for each in questions)


def test_attack_report_loads_nothing(attacked: tuple[Path, Result], report: dict[str, Any]) -> None:
    page = (attacked[0] / "out" / "report.html").read_text(encoding="utf-8")
    assert report["cases"][0]["question"] in page
    assert "data:image/svg+xml" in page
    assert 'src="http' not in page


def test_attack_second_start_repeats_no_run(
    attacked: tuple[Path, Result], report: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a finished run was repeated")

    monkeypatch.setattr(grid_module, "record_run", fail)
    monkeypatch.setattr(report_module, "write_report", lambda folder, report: folder)  # drawn once is enough
    again = attack(attacked[0], "--json")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["cases"] == report["cases"]


def test_attack_other_configuration_is_refused(attacked: tuple[Path, Result]) -> None:
    refused = attack(attacked[0], "--set", "training.lr=0.5")
    assert refused.exit_code == 1
    assert "--out" in refused.output


class Drawn(Case):
    """Case that gives a picture of each site's first training image."""

    attack, metric, chance, margin = "drawing", "share drawn", 0.0, 0.5
    question, ability, not_covered = "Is it drawn?", "draw", "Others."
    adversaries = (Adversary.COORDINATOR,)

    def measure(self, run: RecordedRun, adversary: Adversary) -> list[Measurement]:  # noqa: ARG002 (the interface's)
        images = {name: to_png(site.train.inputs[0]) for name, site in run.sites.items()}
        picture = Picture(title="first images", images=images)
        return [Measurement(value=1.0, low=0.9, high=1.0, trials=9, pictures=(picture,))]


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        (None, "not defended"),
        ("", "noisy values alone"),
        ('extractor = "trained"', "not defended"),
        ('noise = "distributed"', "not defended"),
    ],
)
def test_attack_values_are_covered_by_a_sites_own_noise_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str | None, verdict: str
) -> None:
    """Exact values are a break, and so are values of features without a guarantee, or with a share of the noise."""
    noisy = SimpleNamespace(sites={}, epsilon=None if settings is None else 3.0)
    monkeypatch.setattr(grid_module, "record_run", lambda *_, **__: noisy)
    monkeypatch.setattr(Drawn, "reads_values", True)
    monkeypatch.setitem(grid_module.SUITES, "membership", lambda: [Drawn()])
    privacy = "" if settings is None else f"[privacy]\nclip = 2.0\nnoise_multiplier = 2.0\n{settings}\n"
    summed = ("--method", "feddbp", "--set", "feddbp.decision=false", "--set", "feddbp.personal=false")
    done = attack(tmp_path, "--json", *summed, text=FILE + privacy, suite="membership")
    assert done.exit_code == 0, done.output
    cases = json.loads(done.stdout)["cases"]
    assert [case["verdict"] for case in cases if case["protection"] == "masked"] == [verdict]


def files_with_pictures(out: Path) -> set[str]:
    """Return the files that hold a PNG, by its first bytes in base64."""
    return {
        str(path.relative_to(out).parts[0])
        for path in out.rglob("*")
        if path.is_file() and "iVBORw0KGgo" in path.read_text(encoding="utf-8")
    }


def test_attack_pictures_are_kept_only_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first screen says whose records the results show, and that they hold pictures or none."""
    monkeypatch.setitem(grid_module.SUITES, "membership", lambda: [Drawn()])
    data, rng = tmp_path / "data", np.random.default_rng(0)
    data.mkdir()
    for number in range(4):
        images = rng.integers(0, 255, size=(40, 8, 8), dtype=np.uint8)
        np.savez(data / f"site-{number}.npz", x_train=images, y_train=np.arange(40) % 2)
    text = f'method = "pfpl"\nprotection = "masked"\ndataset = "sites:{data}"\nrounds = 1\ndevice = "cpu"\n'
    for arguments, pictured in (((), False), (("--pictures",), True), ((), False)):
        done = attack(tmp_path, *arguments, text=text, suite="membership")
        assert done.exit_code == 0, done.output
        report = json.loads((tmp_path / "out" / "attacks.json").read_text(encoding="utf-8"))
        page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
        notices = list_notices(report["dataset"], pictures=pictured)
        assert (report["public_records"], report["pictures"], report["sites"]) == (False, pictured, 4)
        assert all(each in " ".join(done.stderr.split()) for each in notices)
        assert all(page.index(each) < page.index("In short") for each in notices)
        assert any(case["pictures"] for case in report["cases"]) == pictured
        pictures = {"attacks.json", "report.html"} if pictured else set()
        assert files_with_pictures(tmp_path / "out") - {"runs-with-pictures"} == pictures
    assert "delete that folder" in done.stderr

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    attack(tmp_path, "--pictures", text=text, suite="membership")
    with monkeypatch.context() as patched:
        patched.setattr(grid_module.AttackGrid, "run", interrupt)
        stopped = attack(tmp_path, text=text, suite="membership")
    assert stopped.stderr.count("was removed") == 2
    assert files_with_pictures(tmp_path / "out") == {"runs-with-pictures"}


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("--epsilons", "3"), "[privacy]"), (("--epsilons", "x"), "inf"), (("--protections", "none"), "none")],
)
def test_attack_wrong_option_names_its_remedy(tmp_path: Path, arguments: tuple[str, ...], word: str) -> None:
    refused = attack(tmp_path, *arguments)
    assert refused.exit_code != 0
    assert refused.exception is None or isinstance(refused.exception, SystemExit)
    assert word in refused.output


def test_make_cases_every_suite_is_listed() -> None:
    assert set(SUITE_NAMES) == set(list_suites())
    for name in SUITE_NAMES:
        cases = [case for every in make_cases(name).values() for case in every]
        assert len({case.attack for case in cases}) == len(cases) > 0
        assert all(case.question.endswith("?") and case.margin > 0 for case in cases)


@pytest.mark.full
def test_attack_all_suites_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attack is made short here, and its strength is tested elsewhere."""
    draw_once(monkeypatch)
    monkeypatch.setattr(prototype_inversion, "_STEPS", 5)
    monkeypatch.setattr(prototype_inversion, "_DECODER_STEPS", 10)
    monkeypatch.setattr(update_inversion, "REPEATS", 1)
    monkeypatch.setattr(update_inversion, "_STEPS", 5)
    monkeypatch.setattr(model_membership, "SHADOWS", 2)
    monkeypatch.setitem(grid_module.SUITES, "poisoning", lambda: poisoning_cases(repeats=1)[-2:])
    settings = ("--method", "fedplcc", "--split", "dirichlet:0.5", "--set", "dim=8")
    done = attack(tmp_path, *settings, suite="all")
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "out" / "attacks.json").read_text(encoding="utf-8"))
    suites = {case["suite"] for case in report["cases"]}
    assert suites == set(make_cases("all")) - {"audit"}  # without noise there is none to audit
