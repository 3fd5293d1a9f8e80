"""``protoseal demo``: what a user sees, what lies in the folder afterwards, and how it ends when a party fails."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import numpy as np
import pytest
from click.testing import CliRunner, Result

from protoseal.cli import main
from protoseal.demo import Progress, demo_agreement, demo_sites, run_demo
from protoseal.reports.result_files import RunResult, read_result
from protoseal.simulation.config import load_simulation
from protoseal.splits import parse_split
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.data.published import make_digit_domains
from secure_client.output.site_log import read_site_log
from secure_client.training.averaged_parameters import AveragedPart
from secure_server.app import ROUNDS_LOG, read_rounds
from tests.support.forked_processes import Child, Nursery
from tests.support.processes import Running, environment, own_nursery

SITES = tuple(f"site-{number}" for number in range(1, 6))
EXPERIMENT = Path(__file__).parents[2] / "experiments" / "digits.toml"
OF_A_DEPLOYMENT = {"federation", "run", "protection", "max_sites", "timing"}
"""Fields of the demo's agreement that a simulation of it has otherwise."""
Started = list[Child]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """Have the demo's processes forked off the nursery, and return them as they are started."""
    return start_parties(monkeypatch, lambda _: None)


def start_parties(monkeypatch: pytest.MonkeyPatch, before: Callable[[Path], None]) -> Started:
    """Start parties as the fixture does; ``before`` is called with the party's folder before each start."""
    children: Started = []

    def start(
        command: Sequence[str], *, cwd: Path, stdout: IO[bytes], stderr: IO[bytes], env: Mapping[str, str]
    ) -> Child:
        assert command[:3] == [sys.executable, "-m", "protoseal"]
        assert stdout is stderr
        before(cwd)
        own = {"OMP_NUM_THREADS": env["OMP_NUM_THREADS"]}
        children.append(own_nursery().start(cwd, command[3:], Path(stdout.name), own))
        return children[-1]

    replaced = SimpleNamespace(Popen=start, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr("protoseal.demo.subprocess", replaced)
    return children


def demo(out: Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(main, ["demo", "--out", str(out), "--rounds", "1"])


def check_left(out: Path) -> RunResult:
    """Check that every party's folder is that of a complete run of one round, and return the run's result."""
    assert [each.round for each in read_rounds(out / "coordinator" / "state" / ROUNDS_LOG)] == [1]
    for site in SITES:
        assert [each.sites for each in read_site_log(out / "sites" / site).rounds] == [5]
        assert "The run is complete" in (out / "sites" / site / "log.txt").read_text(encoding="utf-8")
    assert "site-5" in (out / "report.html").read_text(encoding="utf-8")
    result = read_result(out)
    assert (result.method, result.protection, len(result.rounds)) == ("fedpc", "ckks", 1)
    assert [site.name for site in result.sites] == list(SITES)
    assert set(result.compared) == {"local", "self"}
    return result


def test_demo_prints_a_row_for_each_site_and_keeps_folders(tmp_path: Path, started: Started) -> None:
    shown = demo(tmp_path / "out")
    assert shown.exit_code == 0, shown.output
    assert [child.returncode for child in started] == [0] * (1 + len(SITES))
    result = check_left(tmp_path / "out")
    for site in result.sites:
        assert site.accuracy is not None
        accuracies = [site.accuracy, *site.compared.values()]
        assert len(accuracies) == 3
        shares = " ".join(f"{100 * each:.1f}" for each in accuracies)
        rows = [" ".join(re.findall(r"[\w.-]+", line)) for line in shown.stdout.splitlines()]
        assert any(row.startswith(f"{site.name} {shares} ") for row in rows), shown.stdout
        assert f"{site.name}: round 1" in shown.stderr
    assert str(tmp_path / "out" / "report.html") in shown.stdout.replace("\n", "")
    assert "norm_bound" not in shown.output
    said = " ".join(shown.stdout.split())  # sentences are wrapped
    assert "did better than under both controls" in said
    assert "no prototype or model in clear" in said
    assert "found no prototype of a site" in said


def test_demo_agreement_equals_its_experiment() -> None:
    config = load_simulation(EXPERIMENT, {})
    agreed = demo_agreement(seed=3)
    simulated = config.agreement(
        method=config.method,
        seed=3,
        classes=agreed.classes,
        preprocessing=agreed.preprocessing,
        averaged=(agreed.averaging.parameters, 0),
    )
    ours, theirs = (each.model_dump(exclude=OF_A_DEPLOYMENT) for each in (agreed, simulated))
    assert ours == theirs
    model = build_agreed_model(agreed, agreed.training.model)
    assert AveragedPart(model, agreed.method.traits.averaged).sizes == (agreed.averaging.parameters, 0)
    split = parse_split(config.split)(make_digit_domains(3), sites=config.sites, seed=3)
    for mine, other in zip(demo_sites(3), split, strict=True):
        assert mine.name == other.name
        np.testing.assert_array_equal(mine.train.labels, other.train.labels)
        np.testing.assert_array_equal(mine.test.inputs, other.test.inputs)


@pytest.mark.full
def test_demo_interrupted_leaves_no_process_and_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children = start_parties(monkeypatch, lambda _: None)

    def interrupt(progress: Progress) -> None:
        if progress.sites:
            raise KeyboardInterrupt

    for start in (1, 2):  # into one folder
        with pytest.raises(KeyboardInterrupt):
            run_demo(tmp_path / "out", rounds=50, on_progress=interrupt)
        assert len(children) == start * (1 + len(SITES))
        assert all(child.poll() is not None for child in children)


def test_demo_with_a_failing_party_ends_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_data(folder: Path) -> None:
        if folder.name == "site-2":
            (folder / "data.npz").unlink()

    children = start_parties(monkeypatch, lose_data)
    shown = demo(tmp_path / "out")
    assert shown.exit_code == 1
    (said,) = [line for line in shown.stderr.splitlines() if line.startswith("Error: ")]
    assert "site-2 failed: exit code 1" in said
    assert "data.npz" in said
    assert all(child.poll() is not None for child in children)


def test_demo_overwrites_only_an_earlier_demo(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    shown = demo(tmp_path)
    assert shown.exit_code == 1
    assert "not empty and was not written by a demo" in shown.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def descendants(pid: int) -> set[int]:
    """Return the processes that a process started, and theirs."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    return {int(each) for each in found}.union(*(descendants(int(each)) for each in found))


def is_running(pid: int) -> bool:
    """Return True unless the process has ended; one that waits for its parent has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("whole_group", "number"),
    [(True, signal.SIGINT), (False, signal.SIGINT), (False, signal.SIGTERM)],
    ids=["terminal", "demo alone", "SIGTERM"],
)
def test_demo_command_interrupted_ends_every_process(
    tmp_path: Path, nursery: Nursery, whole_group: bool, number: signal.Signals
) -> None:
    """Ctrl-C in a terminal interrupts the whole group; `kill` the demo alone."""
    arguments = ("demo", "--out", "out", "--rounds", "100")
    running = Running(tmp_path, *arguments, nursery=nursery, module="tests.e2e.forked_demo")
    running.wait_for_log("round 1")
    parties = descendants(running.pid)
    assert len(parties) >= 1 + len(SITES)
    if whole_group:
        os.killpg(running.pid, number)
    else:
        running.send(number)
    assert running.exit_code() == 1
    assert "Traceback" not in running.log()
    assert not [party for party in parties if is_running(party)]


@pytest.mark.full
def test_demo_command_starts_all_parties_by_itself(tmp_path: Path, started: Started) -> None:
    """It runs into the folder of an earlier demo, and clears what that one left."""
    assert demo(tmp_path / "out").exit_code == 0
    (tmp_path / "out" / "sites" / "left-over").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "protoseal", "demo", "--out", "out", "--rounds", "1", "--json"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert RunResult.model_validate(json.loads(done.stdout)) == check_left(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out" / "sites").iterdir()) == list(SITES)
