"""The commands as a user meets them: what they print, their exit codes, and one line for each failure."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from PIL import Image
from rich.console import Console
from torch.utils.data import TensorDataset

from agreement import PROTECTIONS, Protection, method_named
from protoseal.cli import COMMANDS, main
from protoseal.commands import simulation_progress
from protoseal.commands.terminal_output import one_line_errors
from protoseal.demo import demo_agreement, demo_sites
from protoseal.prediction import Basis, choose_basis, load_trained, predict
from protoseal.reports.result_files import read_result
from protoseal.simulation.site_datasets import read_sites
from secure_client.data.sources import NAMES
from secure_client.errors import DataError, ModelError
from tests.support.processes import Federation

EXPERIMENT = Path(__file__).parents[3] / "experiments" / "digits.toml"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def output_of(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def failure(*arguments: object) -> str:
    """Return the one line that a failing command prints, without a traceback."""
    result = invoke(*arguments)
    assert result.exit_code != 0
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert len(lines) == 1, result.stderr
    assert result.stderr.splitlines()[-1] == lines[0]
    return lines[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulate a run of two seeds, a round each, and return its folder."""
    out = tmp_path_factory.mktemp("simulation") / "run"
    output_of("simulate", "--config", EXPERIMENT, "--rounds", 1, "--seeds", "0-1", "--out", out)
    return out


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Write certificates and configuration files; nothing runs."""
    root = tmp_path_factory.mktemp("federation")
    with Federation(root / "net", demo_agreement(seed=0, rounds=1), demo_sites(0), gated=False) as federation:
        yield federation


def test_help_lists_every_command_with_its_purpose() -> None:
    text = output_of("--help")
    assert all(name in text for name in COMMANDS)
    assert {
        "attack",
        "budget",
        "demo",
        "pki",
        "server",
        "client",
        "predict",
        "simulate",
        "report",
    } == set(COMMANDS)
    for name in COMMANDS:
        assert output_of(name, "--help")


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    """Yield each command and group, with the words that call it."""
    yield context.command_path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, click.Context(below, info_name=name, parent=context))


EVERY = dict(commands(main, click.Context(main, info_name="protoseal")))


@pytest.mark.parametrize("path", EVERY)
def test_help_every_command_has_options_and_an_example_that_parses(path: str) -> None:
    command = EVERY[path]
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert all(each.help and not each.help.startswith("[") for each in options)
    words = shlex.split((command.epilog or "").rpartition("Example:")[2])
    assert words[: len(path.split())] == path.split()
    called = max((each for each in EVERY if words[: len(each.split())] == each.split()), key=len)
    assert not isinstance(EVERY[called], click.Group)
    parser = EVERY[called].make_parser(click.Context(EVERY[called]))
    _, left, _ = parser.parse_args(words[len(called.split()) :])
    assert not left


@pytest.mark.parametrize("path", ["protoseal simulate", "protoseal budget evaluate"])
def test_help_lists_every_protection_and_data_set(path: str) -> None:
    texts = {each.name: each.help for each in EVERY[path].params if isinstance(each, click.Option)}
    for protection in PROTECTIONS.values():
        assert protection.summary
        assert f"{protection.name} ({protection.summary})" in (texts["protection"] or "")
    assert "nothing" in Protection.PLAIN.summary
    assert set(NAMES) <= set(re.findall(r"[a-z0-9-]+", texts["dataset"] or ""))


def test_installed_command_has_the_same_help() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "protoseal", "--version"], capture_output=True, text=True, check=True
    )
    assert "version" in done.stdout


def test_mistyped_command_exits_2() -> None:
    assert "No such command 'simulat'" in failure("simulat")


# simulate and report


def test_simulate_writes_results_logs_and_report(run: Path) -> None:
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert result["schema"] == 1
    assert {"method", "protection", "dataset", "seed", "sites", "rounds", "mean_accuracy", "config"} <= set(
        result
    )
    assert {"name", "train_samples", "accuracy", "epsilon", "bytes_up", "bytes_down"} <= set(
        result["sites"][0]
    )
    assert set(result["rounds"][0]["seconds"]) == {"train", "protect", "aggregate", "total"}
    assert [each["seed"] for each in result["seeds"]] == [0, 1]
    assert set(result["compared"]) == {"local", "self"}
    for seed in (0, 1):
        folder = run / f"seed-{seed}" / "sites" / "site-1"
        assert {path.name for path in folder.iterdir()} == {
            *("agreement.json", "model.safetensors", "prototypes.safetensors", "site.json"),
        }


def test_simulate_prints_json_on_request(tmp_path: Path) -> None:
    text = output_of(
        "simulate",
        "--config",
        EXPERIMENT,
        "--rounds",
        1,
        "--compare",
        "self",
        "--json",
        "--out",
        tmp_path / "run",
    )
    assert json.loads(text)["compared"].keys() == {"self"}


def test_simulate_on_a_terminal_shows_a_bar_of_all_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = StringIO()
    terminal = Console(file=shown, force_terminal=True, width=120)
    monkeypatch.setattr(simulation_progress, "Console", lambda stderr: terminal)
    asked = ("--method", "local", "--compare", "", "--rounds", 2, "--per-class", "--out", tmp_path / "run")
    text = output_of("simulate", "--config", EXPERIMENT, *asked)
    assert "2/2" in shown.getvalue()
    assert "local by class, %" in text
    for site in read_result(tmp_path / "run").sites:
        assert site.per_class


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--dataset", "diggits"], "did you mean 'digits'"),
        (["--dataset", "mnist"], "data_root"),
        (["--split", "mixd:n=3"], "did you mean 'mixed'"),
        (["--method", "fedbdp"], "did you mean 'feddbp'"),
        (["--method", "fedavg", "--compare", "self"], "fedavg has several or none"),
        (["--models", "small-cnn,resnet10", "--compare", "fedper,local"], "fedper would average models"),
        (["--early-stopping", 2], "add val=0.1"),
        (["--batched", "sometimes"], "'auto', 'always' or 'never'"),
        (["--protection", "rotation"], "unknown protection 'rotation'"),
        (["--precision", "bf16", "--batched", "never"], "leave batched out"),
        (["--seeds", "0,x"], "'x' is not a number"),
        (["--seeds", "4-1"], "has no seed"),
        (["--device", "cuda:99"], "use one of them, or auto"),
        (["--config", "none.toml"], "none.toml"),
    ],
)
def test_simulate_refuses_impossible_arguments_in_one_line(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    line = failure("simulate", "--rounds", 1, "--out", tmp_path, *arguments)
    assert said.replace("_", "").replace("-", "") in line.replace("_", "").replace("-", "")


def test_simulate_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = failure("simulate", "--config", EXPERIMENT, "--out", tmp_path / "file" / "run")
    assert said.startswith(f"Error: {tmp_path / 'file'}")
    assert f"{tmp_path / 'file'} is a file" in said


def test_report_page_loads_nothing(run: Path) -> None:
    path = Path(output_of("report", run / "seed-0").strip())
    page = path.read_text(encoding="utf-8")
    for outside in ('src="http', "src='http", 'href="http', "@import", "<script src", "<link"):
        assert outside not in page
    for part in (
        "Accuracy over rounds",
        "Prototypes of class",
        "Traffic",
        "withheld",
        "site-1",
        "&#34;alpha&#34;",
    ):
        assert part in page, part


def test_report_name_with_markup_is_escaped(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run / "seed-0", tmp_path / "run")
    result = read_result(copy)
    hostile = result.model_copy(update={"dataset": "<script>alert(1)</script>"})
    (copy / "result.json").write_text(hostile.model_dump_json(by_alias=True), encoding="utf-8")
    page = Path(output_of("report", copy).strip()).read_text(encoding="utf-8")
    assert "<script>alert(1)</script>" not in page
    assert "&lt;script&gt;" in page


def test_report_damaged_result_is_named(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text('{"x', encoding="utf-8")
    message = failure("report", tmp_path)
    assert "result.json is damaged (Invalid JSON" in message
    (tmp_path / "result.json").write_text("{}", encoding="utf-8")
    assert "is not of this version (method" in failure("report", tmp_path)


def test_report_folder_of_no_run_is_one_line(tmp_path: Path) -> None:
    assert "give the folder that a run wrote to" in failure("report", tmp_path)


# predict


@pytest.mark.parametrize("by", ["classifier", "prototype"])
def test_predict_gives_classes_and_accuracy(run: Path, federation: Federation, by: str) -> None:
    data = federation.folder("site-1") / "data.npz"
    text = output_of(
        "predict", "--run", run / "seed-0" / "sites" / "site-1", "--data", f"npz:{data}", "--by", by, "--json"
    )
    result = json.loads(text)
    assert 0.0 < result["accuracy"] <= 1.0
    assert {each["class"] for each in result["predictions"]} <= {str(digit) for digit in range(10)}


@pytest.mark.parametrize(("method", "by"), [("pfpl", "classifier"), ("feddbp", "prototype")])
def test_predict_basis_is_the_methods_unless_given(run: Path, tmp_path: Path, method: str, by: str) -> None:
    trained = load_trained(run / "seed-0" / "sites" / "site-1")
    agreement = trained.agreement.model_copy(update={"method": method_named(method)})
    assert choose_basis(replace(trained, agreement=agreement)) is Basis(by)
    # Nothing to be near to, as after noisy counts that are all too small.
    had = trained.prototypes
    none = replace(had, has_personal=np.zeros_like(had.has_personal), counts=np.zeros_like(had.counts))
    assert choose_basis(replace(trained, agreement=agreement, prototypes=none)) is Basis.CLASSIFIER
    data = tmp_path / "data.npz"
    shades = np.arange(128, dtype=np.uint8).reshape(2, 8, 8)
    np.savez(data, x_train=shades, y_train=np.zeros(2, dtype=np.int64))
    text = output_of(
        "predict", "--run", run / "seed-0" / "sites" / "site-1", "--data", f"npz:{data}", "--json"
    )
    assert json.loads(text)["by"] == "classifier"


def test_predict_reads_images_of_any_size(run: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "grey.png", tmp_path / "colour.png"]
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(paths[0])
    Image.fromarray(np.arange(3600, dtype=np.uint8).reshape(40, 30, 3)).save(paths[1])
    folder = run / "seed-0" / "sites" / "site-1"
    images = ("--image", paths[0], "--image", paths[1])
    assert str(paths[1]) in failure("predict", "--run", folder, *images)
    lines = output_of("predict", "--run", folder, *images, "--convert-channels").splitlines()
    assert [Path(line.split("\t")[0]).name for line in lines] == ["grey.png", "colour.png"]


def test_predict_impossible_input_names_the_reason(run: Path, tmp_path: Path) -> None:
    folder = run / "seed-0" / "sites" / "site-1"
    assert "give either --data or" in failure("predict", "--run", folder)
    assert "agreement.json" in failure("predict", "--run", tmp_path, "--data", "digits")
    assert "file does not exist" in failure("predict", "--run", folder, "--data", f"npz:{tmp_path}/none.npz")
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, x_train=np.zeros((4, 30)), y_train=np.zeros(4, dtype=np.int64))
    assert str(wrong) in failure("predict", "--run", folder, "--data", f"npz:{wrong}")
    small = TensorDataset(torch.zeros(2, 1, 3, 3), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ModelError):
        predict(load_trained(folder), small, Basis.CLASSIFIER, device="cpu")
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"no model")
    assert "does not fit the model" in failure("predict", "--run", broken, "--data", "digits")


# client and server


def check(site_file: Path) -> dict[str, dict[str, Any]]:
    findings = json.loads(invoke("client", "check", "--config", site_file, "--json").stdout)
    return {each["what"]: each for each in findings}


def test_client_check_lists_every_check_and_exits_1_unless_ready(federation: Federation) -> None:
    site_file = federation.folder("site-1") / "site.toml"
    findings = check(site_file)
    assert {what for what, each in findings.items() if each["ok"]} == {
        "agreement",
        "privacy",
        "model",
        "data and model",
        "folders",
        "certificate",
        "state",
    }
    for term in ("fedpc under ckks (", "1 rounds, min_holders 3, min_sites 3", "hash"):
        assert term in findings["agreement"]["detail"]
    assert "more days" in findings["certificate"]["detail"]
    assert "no samples of" in findings["data and model"]["detail"]
    assert "cannot be reached" in findings["coordinator"]["detail"]
    assert "not ready: coordinator, listed, same agreement, run" in failure(
        "client", "check", "--config", site_file
    )


def broken_site(federation: Federation, tmp_path: Path, old: str, new: str) -> Path:
    folder = shutil.copytree(federation.folder("site-1"), tmp_path / "site")
    shutil.copy(federation.folder("site-1").parents[1] / "agreement.toml", tmp_path / "agreement.toml")
    path = folder / "site.toml"
    text = path.read_text(encoding="utf-8").replace("../../agreement.toml", "../agreement.toml")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "what", "said"),
    [
        ('name = "site-1"', 'name = "site-2"', "certificate", 'name = "site-2"'),
        ("npz:data.npz", "npz:none.npz", "data and model", "file does not exist"),
        ("npz:data.npz", "mine:load", "data and model", "there is no module 'mine'"),
    ],
)
def test_client_check_broken_part_fails_by_name(
    federation: Federation, tmp_path: Path, old: str, new: str, what: str, said: str
) -> None:
    finding = check(broken_site(federation, tmp_path, old, new))[what]
    assert not finding["ok"]
    assert said in finding["detail"]


def test_client_check_other_federation_fails_the_agreement(federation: Federation, tmp_path: Path) -> None:
    site_file = broken_site(federation, tmp_path, 'name = "site-1"', 'name = "site-1"')
    path = tmp_path / "agreement.toml"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines = ['federation = "mistyped"' if line.startswith("federation =") else line for line in lines]
    path.write_text("\n".join(lines), encoding="utf-8")
    finding = check(site_file)["certificate"]
    assert not finding["ok"]
    for named in ("certificate.pem", 'federation = "mistyped"', "agreement"):
        assert named in finding["detail"]


def test_client_check_wrong_parameters_states_the_models(federation: Federation, tmp_path: Path) -> None:
    """8×8 images: 1 → 32 → 64 channels of 3×3, then 4·64 → 64: 35,264 parameters.

    As whoever drafts the agreement finds it out: without a key, a certificate, a passphrase or a coordinator.
    """
    site_file = broken_site(federation, tmp_path, 'name = "site-1"', 'name = "site-1"')
    for name in ("passphrase", "key.pem", "certificate.pem", "ca.pem"):
        (site_file.parent / name).unlink(missing_ok=True)
    agreement = tmp_path / "agreement.toml"
    text = agreement.read_text(encoding="utf-8").partition("[fedpc]")[0]
    text = text.replace('method = "pfpl"', 'method = "fedpc"').replace(
        'protection = "ckks"', 'protection = "masked"'
    )
    agreement.write_text(text, encoding="utf-8")
    told = failure("client", "check", "--config", site_file)
    advised = told.partition("or to ")[2].partition(",")[0]
    assert "`protoseal client check` prints the right number" in told
    agreement.write_text(f"{text}\n[averaging]\nparameters = {advised}\n", encoding="utf-8")
    findings = check(site_file)
    assert not findings["model"]["ok"]
    told = findings["model"]["detail"]
    assert "35,264 parameters and 0 buffers: set parameters = 35264 in [averaging]" in told
    assert findings["data"]["ok"]
    setting = told.partition("set ")[2].partition(" in ")[0]
    agreement.write_text(f"{text}\n[averaging]\n{setting}\n", encoding="utf-8")
    findings = check(site_file)
    assert {what for what, each in findings.items() if each["ok"]} == {
        *("agreement", "model", "data and model", "folders", "privacy")
    }
    assert "35,264 parameters and 0 buffers of it are averaged" in findings["model"]["detail"]
    assert "passphrase" in findings["certificate"]["detail"]


@pytest.mark.parametrize("side", ["client", "server"])
def test_run_missing_file_is_one_line(federation: Federation, tmp_path: Path, side: str) -> None:
    assert "cannot be read" in failure(side, "run", "--config", tmp_path / "none.toml")


def test_run_wrong_passphrase_or_missing_certificate_is_one_line(
    federation: Federation, tmp_path: Path
) -> None:
    path = broken_site(federation, tmp_path, 'name = "site-1"', 'name = "site-1"')
    passphrase, certificate = path.parent / "passphrase", path.parent / "certificate.pem"
    certificate.rename(path.parent / "elsewhere.pem")
    assert "certificate.pem" in failure("client", "run", "--config", path)
    (path.parent / "elsewhere.pem").rename(certificate)
    passphrase.write_bytes(b"another")
    assert "passphrase" in failure("client", "run", "--config", path)
    passphrase.chmod(0o644)
    assert "chmod 600" in failure("client", "run", "--config", path)


def test_command_without_the_site_extra_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("protoseal.reports.report", "protoseal.reports.pages", "jinja2"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in (
        "protoseal.reports.report",
        "protoseal.reports.pages",
    ):  # as if neither had been imported
        monkeypatch.delitem(sys.modules, name)
    assert "pip install 'protoseal[site]'" in failure("report", tmp_path)


@pytest.mark.parametrize("folder", ["notes.txt", "notes.txt/state"])
def test_command_file_in_place_of_a_folder_is_named(folder: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()

    @one_line_errors
    def command() -> None:
        (tmp_path / folder).mkdir()

    with pytest.raises(click.ClickException) as refused:
        command()
    assert f"{tmp_path / 'notes.txt'} is a file" in refused.value.message


def test_simulate_missing_folder_of_sites_names_the_likely_one(tmp_path: Path) -> None:
    (tmp_path / "Sites").mkdir()
    with pytest.raises(DataError) as refused:
        read_sites(tmp_path / "sites")
    for named in (str(tmp_path / "sites"), "'Sites'"):
        assert named in str(refused.value)
