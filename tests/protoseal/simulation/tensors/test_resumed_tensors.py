"""A run of the tensor engine that was killed comes to the same files, bit for bit, also as one batched program."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from agreement import Method
from protoseal.reports.result_files import read_result
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import simulate
from protoseal.simulation.run_folder import STATE, SavedRun
from protoseal.simulation.run_log import RunLog
from protoseal.simulation.tensors import checkpoint
from protoseal.simulation.tensors.checkpoint import Checkpoints
from protoseal.simulation.tensors.federation import TensorFederation
from protoseal.simulation.tensors.models import ModelRows
from protoseal.simulation.tensors.sites import TensorSite
from protoseal_files import durable_files
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.checkpoints.predictor import Predictor
from tests.support import killed_party
from tests.support.marks import full_but
from tests.support.processes import Running, own_nursery
from tests.support.simulations import DIGITS, Killed, config_in, fail_at
from tests.support.small import small_agreement, small_data

SITES, ROUNDS = 4, 3
SMALL = DIGITS.replace("iid:per=40", "iid:per=60,val=0.2").replace("never", "always")
FILE = f"""
method = "fedpc"
compare = ["feddbp"]
engine = "tensors"
rounds = {ROUNDS}
min_holders = 2
early_stopping = 3
{SMALL.replace("small-cnn", "tests.support.tiny_models:build_normed")}"""


def config_for(out: Path, **flags: Any) -> SimulationConfig:
    return config_in(FILE, out, **flags)


def check_same(out: Path, reference: Path) -> None:
    """Compare results but for times, and models and prototypes bit for bit."""
    times = {"rounds": {"__all__": {"seconds"}}}
    assert read_result(out).model_dump(exclude=times) == read_result(reference).model_dump(exclude=times)
    files = [path.relative_to(reference) for path in sorted(reference.rglob("*.safetensors"))]
    for file in files:
        assert (out / file).read_bytes() == (reference / file).read_bytes(), file
    for path in (reference / "runs").iterdir():
        rounds = [SavedRun.read(folder / "runs" / path.name).outcome.rounds for folder in (out, reference)]
        assert len({len(done) for done in rounds}) == 1
    assert not (out / STATE).exists()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulate from beginning to end without an interruption."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    simulate(config_for(out))
    assert len([*out.rglob("*.safetensors")]) == 2 * SITES * 2
    assert len(SavedRun.read(out / "runs" / "fedpc.json").outcome.rounds[0].groups) > 1
    return out


POINTS = {
    "a site has trained": (TensorSite, "finish", SITES + 2),
    "a site's round is logged": (RunLog, "put_site_round", SITES + 2),
    "a round is logged": (RunLog, "put_round", 2),
    "the log is on the disk": (RunLog, "sync", 2),
    "a checkpoint is written": (Checkpoints, "save", ROUNDS + 2),
    "a site's files are written": (Predictor, "save", 2),
}


@pytest.mark.parametrize("point", full_but(POINTS, "a checkpoint is written"))
def test_simulate_tensors_killed_anywhere_resumes_to_same_files(
    undisturbed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    point: str,
) -> None:
    """A run that resumes from another torch's checkpoint says so."""
    out = tmp_path / "out"
    owner, name, count = POINTS[point]
    monkeypatch.setattr(Checkpoints, "is_due", True)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "__version__", "0.0")
        fail_at(patch, owner, name, count, after=True)
        with pytest.raises(Killed):
            simulate(config_for(out))
    has_checkpoint = any((out / STATE).rglob("checkpoint.safetensors"))
    simulate(config_for(out))
    assert ("'torch': '0.0'" in caplog.text) is has_checkpoint
    check_same(out, undisturbed)


STATES = {
    "clusters": ('method = "fedplcc"', DIGITS, ""),
    "rows that are repeated": ('method = "fedpc"', f"{DIGITS}frozen_extractor = true", ""),
    "a site's own model": ('method = "ditto"', DIGITS, ""),
    "Adam's means": ('method = "fedrep"', DIGITS.replace('"sgd"', '"adam"'), 'optimiser_state = "kept"'),
    "a site's own targets": ('method = "pfpl"\ncompare = ["self"]', DIGITS, ""),
    "several models": (
        'method = "pfpl"\nmodels = ["small-cnn", "tests.support.tiny_models:build_normed"]',
        DIGITS,
        "",
    ),
}
"""What a checkpoint holds: heads and ends of a configuration, and a schedule."""


@pytest.mark.full
@pytest.mark.parametrize("state", STATES)
def test_simulate_tensors_killed_resumes_with_every_kind_of_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    head, end, schedule = STATES[state]
    takes_all = "frozen" in end  # rows are sent once, in round 1
    part = "" if takes_all else "participation = 0.5"
    reveals = "min_holders = 1\nallow_fewer_holders_reveals_peers = true"
    file = f"{head}\nrounds = {ROUNDS}\n{reveals}\n{end}\n[schedule]\n{part}\n{schedule}\n"
    whole, out = tmp_path / "whole", tmp_path / "out"
    simulate(config_in(file, whole))
    monkeypatch.setattr(Checkpoints, "is_due", True)
    with monkeypatch.context() as patch:
        fail_at(patch, Checkpoints, "save", 2, after=True)
        with pytest.raises(Killed):
            simulate(config_in(file, out))
    simulate(config_in(file, out))
    check_same(out, whole)


@pytest.mark.full
def test_simulate_tensors_resumed_counts_no_message_of_a_round_after_the_checkpoint(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds that are repeated on a GPU may have other messages than before."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        fail_at(patch, RunLog, "put_round", 2, after=True)
        with pytest.raises(Killed):
            simulate(config_for(out))
    (path,) = (out / STATE).rglob("log.sqlite")
    with RunLog(path) as log:
        (site, *_) = log.reporting_sites(1)
        log.put_payload(site, PhaseKey("run", 2, 9, Phase.VALUES), 10**6, up=True)
    simulate(config_for(out))
    check_same(out, undisturbed)


@pytest.mark.full
def test_simulate_tensors_killed_process_is_resumed(undisturbed: Path, tmp_path: Path) -> None:
    """SIGKILL in the second round of the second method."""
    out = tmp_path / "out"
    config_for(out)
    simulating = ("simulate", "--config", str(out.with_suffix(".toml")), "--out", str(out))
    # Sites are logged in each round of the first method, and once more when they are tested at its end.
    logged = {killed_party.LOGGED: str((ROUNDS + 1) * SITES + SITES + 2)}
    process = Running(tmp_path, *simulating, own=logged, nursery=own_nursery())
    assert process.exit_code() == -signal.SIGKILL, process.log()
    assert [path.stem for path in (out / "runs").iterdir()] == ["fedpc"]
    simulate(config_for(out))
    check_same(out, undisturbed)


def test_simulate_tensors_resumed_without_models_differs(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above tells a run that forgot what its sites had learnt from one that did not."""
    out = tmp_path / "out"
    monkeypatch.setattr(Checkpoints, "is_due", True)
    with monkeypatch.context() as patch:
        fail_at(patch, Checkpoints, "save", 2, after=True)
        with pytest.raises(Killed):
            simulate(config_for(out))
    monkeypatch.setattr(ModelRows, "paste", lambda self, site, rows: None)
    simulate(config_for(out))
    with pytest.raises(AssertionError):
        check_same(out, undisturbed)


class Clock:
    """Clock that stands still unless it is told otherwise."""

    now = 0.0

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return self.now


def test_rounds_end_in_a_checkpoint_after_ten_seconds_or_thirty_times_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round takes eight seconds, a checkpoint a tenth of a second, and the second one a whole second."""
    clock, durations, saved = Clock(), iter([0.1, 1.0, 0.1]), list[int]()
    write, save = durable_files.write, Checkpoints.save

    def write_slowly(path: Path, content: bytes) -> None:
        write(path, content)
        clock.now += next(durations)

    def note(checkpoints: Checkpoints, number: int) -> None:
        saved.append(number)
        save(checkpoints, number)

    def pass_round(run: TensorFederation, number: int) -> None:
        clock.now += 8.0

    monkeypatch.setattr(checkpoint, "time", clock)
    monkeypatch.setattr(durable_files, "write", write_slowly)
    monkeypatch.setattr(Checkpoints, "save", note)
    agreement = small_agreement(rounds=9)
    data = small_data(agreement)
    with TensorFederation(
        agreement, data, method=Method.LOCAL, state=tmp_path, on_completed=pass_round
    ) as federation:
        federation.run()
    # Checkpoints end at 16.1, 33.1 and 65.2 seconds, and the next ones are due at 26.1, 63.1 and 75.2.
    assert saved == [2, 4, 8]
    with TensorFederation(agreement, data, method=Method.LOCAL, state=tmp_path) as federation:
        assert federation.pool.completed == 8
