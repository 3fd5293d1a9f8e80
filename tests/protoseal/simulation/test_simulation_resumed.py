"""A simulation that was killed resumes where it was, and comes to the same result, bit for bit.

Sites that train in one batch form a smaller batch when some have trained already; then the result is the same up to
rounding.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from agreement import Method
from agreement.errors import UserError
from privacy.errors import PrivacyError
from protoseal.reports.result_files import read_result
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import CompletedRound, EndedRun, Watcher, simulate
from protoseal.simulation.run_folder import CLAIM, STATE, OtherSimulation, RunFolder, SavedRun
from protoseal.simulation.run_log import RunLog
from protoseal.simulation.tensors.checkpoint import Checkpoints
from protoseal.simulation.tensors.sites import TensorSite
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.predictor import Predictor
from secure_client.errors import DataError, SiteError
from secure_client.output.site_files import MODEL
from secure_client.protocol.journal import Journal
from secure_client.training.learner import Learner
from secure_server.store import Store
from tests.support import killed_party
from tests.support.marks import full_but
from tests.support.processes import Running, own_nursery
from tests.support.simulations import DIGITS, Killed, config_in, fail_at

SITES, ROUNDS = 4, 3
FILE = f"""
method = "fedpc"
compare = ["self", "fedavg"]
engine = "sessions"
rounds = {ROUNDS}
{DIGITS}"""


def config_for(out: Path, text: str = FILE, **flags: Any) -> SimulationConfig:
    return config_in(text, out, **flags)


def left_by(out: Path) -> dict[str, str]:
    """Return digests of all files of models and prototypes; pytest would take hours to show how files differ."""
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*.safetensors"))
    }


def rounds_of(out: Path) -> dict[str, list[int]]:
    """Return the recorded rounds of each run that has ended."""
    return {
        path.stem: [each.round for each in SavedRun.read(path).outcome.rounds]
        for path in (out / "runs").iterdir()
    }


def check_same(out: Path, reference: Path) -> None:
    """Compare results, but for times and for bytes, which vary with the length of signatures, and all models."""
    got, expected = read_result(out), read_result(reference)
    times = {"rounds": {"__all__": {"seconds"}}, "sites": {"__all__": {"bytes_up", "bytes_down"}}}
    assert got.model_dump(exclude=times) == expected.model_dump(exclude=times)
    for one, other in zip(got.sites, expected.sites, strict=True):
        assert one.bytes_up == pytest.approx(other.bytes_up, abs=60)
        assert one.bytes_down == pytest.approx(other.bytes_down, abs=200)
    assert rounds_of(out) == rounds_of(reference)
    assert left_by(out) == left_by(reference)
    assert not (out / STATE).exists()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulate from beginning to end without an interruption."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    simulate(config_for(out))
    return out


@pytest.mark.full
def test_simulate_killed_process_is_resumed(undisturbed: Path, tmp_path: Path) -> None:
    """SIGKILL in the second round of FedPC, in the third of the control, then in FedAvg; each time in mid-round.

    The control runs on tensors, and repeats its third round from the checkpoint after the second.
    """
    out = tmp_path / "out"
    config_for(out)
    simulating = ("simulate", "--config", str(out.with_suffix(".toml")), "--out", str(out))
    rest_of_fedpc, rest_of_self = (3 + 4) + 4, 4 + 4  # rounds that are left, and the test at the end
    for count, ended in (
        (4 + 2, []),
        (rest_of_fedpc + 4 + 4 + 2, ["fedpc"]),
        (rest_of_self + 4 + 2, ["fedpc", "self-fedpc"]),
    ):
        process = Running(tmp_path, *simulating, own={killed_party.LOGGED: str(count)}, nursery=own_nursery())
        assert process.exit_code() == -signal.SIGKILL, process.log()
        assert sorted(path.stem for path in (out / "runs").glob("*.json")) == ended
        assert (out / STATE).exists()
    simulate(config_for(out))
    check_same(out, undisturbed)


POINTS = {
    "a site's result is logged": (RunLog, "put_site_round", 6),
    "a site's answer is recorded": (Journal, "record", 21),
    "a trained model is kept": (Journal, "put", 19),
    "the coordinator moves on": (Store, "save", 35),
    "the coordinator's round is logged": (RunLog, "put_round", 2),
    "a round of a control is logged": (RunLog, "put_round", ROUNDS + 2),
    "a site's files are written": (Predictor, "save", 2),
    "a round of a control is trained": (TensorSite, "finish", SITES + 2),
    "a run has ended": (RunFolder, "drop_state", 1),
}


@pytest.mark.parametrize("after", full_but([False, True], False))
@pytest.mark.parametrize(
    "point",
    full_but(
        POINTS, "a site's answer is recorded", "the coordinator moves on", "a round of a control is trained"
    ),
)
def test_simulate_killed_anywhere_resumes_to_same_result(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, after: bool
) -> None:
    out = tmp_path / "out"
    owner, name, count = POINTS[point]
    with monkeypatch.context() as patch:
        calls = fail_at(patch, owner, name, count, after=after)
        with pytest.raises(Killed):
            simulate(config_for(out))
        assert calls() == count
    simulate(config_for(out))
    check_same(out, undisturbed)


def test_simulate_resumed_without_journals_differs(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check above tells a run that forgot what its sites had learnt from one that did not."""
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        fail_at(patch, RunLog, "put_site_round", SITES + 2, after=False)
        with pytest.raises(Killed):
            simulate(config_for(out))
        patch.undo()
        patch.setattr(Learner, "load", lambda self, state: None)
        simulate(config_for(out))
    with pytest.raises(AssertionError):
        check_same(out, undisturbed)


class Runs(Watcher):
    """Record of runs that end, runs that had ended before, and the number of sites in each completed round."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, str, bool]] = []
        self.reports: list[tuple[str, int, int]] = []

    def on_completed(self, completed: CompletedRound) -> None:
        """Record the completed round."""
        self.reports.append((completed.method.value, completed.round, len(completed.reports)))

    def on_run(self, ended: EndedRun) -> None:
        """Record the run."""
        self.seen.append((ended.seed, ended.method.value, ended.anew))


@pytest.mark.parametrize(
    ("method", "call", "count"),
    [
        ("fedavg", "put_site_round", SITES + 2),
        ("local", "put_site_round", SITES + 2),
        ("local", "put_round", 2),
    ],
)
def test_simulate_killed_in_round_reports_all_sites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, call: str, count: int
) -> None:
    out, runs = tmp_path / "out", Runs()
    monkeypatch.setattr(Checkpoints, "is_due", True)
    with monkeypatch.context() as patch:
        fail_at(patch, RunLog, call, count, after=call == "put_site_round")
        with pytest.raises(Killed):
            simulate(config_for(out, method=method, compare=()))
    simulate(config_for(out, method=method, compare=()), runs)
    assert runs.reports == [(method, number, SITES) for number in (2, 3)]


@pytest.mark.full
def test_simulate_again_reuses_finished_runs(tmp_path: Path) -> None:
    """Repeating the same command runs nothing; a further seed or method runs what is new."""
    out, first, again, more = tmp_path / "out", Runs(), Runs(), Runs()
    small: dict[str, Any] = {"method": "pfpl", "rounds": 1}
    result = simulate(config_for(out, seeds=(0, 1), compare=("local",), **small), first)
    assert first.seen == [(seed, name, True) for seed in (0, 1) for name in ("pfpl", "local")]
    assert simulate(config_for(out, seeds=(0, 1), compare=("local",), **small), again) == result
    assert [anew for *_, anew in again.seen] == [False] * 4
    extended = simulate(config_for(out, seeds=(0, 1, 2), compare=("local", "fedavg"), **small), more)
    assert [each for each in more.seen if each[2]] == [
        *((0, "fedavg", True), (1, "fedavg", True)),
        *((2, name, True) for name in ("pfpl", "local", "fedavg")),
    ]
    assert extended.seeds[:1][0].metrics["pfpl"] == result.seeds[0].metrics["pfpl"]
    assert not (out / STATE).exists()


def test_simulate_other_configuration_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    small: dict[str, Any] = {"method": "local", "compare": (), "rounds": 1}
    first = simulate(config_for(out, **small))
    with pytest.raises(OtherSimulation, match=r"training\.lr"):
        simulate(config_for(out, FILE.replace("lr = 0.02", "lr = 0.05"), **small))
    with pytest.raises(OtherSimulation, match="seed"):
        simulate(config_for(out, seeds=(1,), **small))
    assert read_result(out) == first
    second = simulate(config_for(out, seeds=(1,), **small), fresh=True)
    assert second.seed == 1
    assert second.sites != first.sites


def test_simulate_other_data_are_refused(tmp_path: Path) -> None:
    """A further method and a further seed are refused alike; ended runs are read whatever became of the data."""
    rng, labels = np.random.default_rng(0), np.arange(160) % 4
    one, other = rng.integers(0, 256, (2, 160, 8, 8), dtype=np.uint8)
    small: dict[str, Any] = {"method": "local", "compare": (), "rounds": 1, "dataset": "npz:DATA_ROOT/a.npz"}
    small |= {"data_root": str(tmp_path), "seeds": (0, 1)}
    np.savez(tmp_path / "a.npz", x_train=one, y_train=labels)
    out = tmp_path / "out"
    first = simulate(config_for(out, **small))
    np.savez(tmp_path / "a.npz", x_train=other, y_train=labels)
    more = [small | {"compare": ("fedavg",)}, small | {"seeds": (0, 1, 2)}]
    for flags in more:
        with pytest.raises(OtherSimulation, match="--fresh"):
            simulate(config_for(out, **flags))
    assert simulate(config_for(out, **small)) == first
    np.savez(tmp_path / "a.npz", x_train=one, y_train=labels)
    for flags in more:
        assert simulate(config_for(out, **flags)).seeds[0].metrics["local"] == first.metrics["local"]


@pytest.mark.parametrize("data", [None, {}, {"seed": "0", "sha256": "5eed"}, "5eed"])
def test_simulate_claim_without_data_is_refused(tmp_path: Path, data: object) -> None:
    out = tmp_path / "out"
    small: dict[str, Any] = {"method": "local", "compare": (), "rounds": 1}
    simulate(config_for(out, **small))
    claim = json.loads((out / CLAIM).read_text(encoding="utf-8"))
    (out / CLAIM).write_text(json.dumps(claim | {"data": data}), encoding="utf-8")
    with pytest.raises(OtherSimulation, match="--fresh"):
        simulate(config_for(out, **small | {"compare": ("fedavg",)}))


def test_simulate_fresh_keeps_other_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(OtherSimulation, match="--out"):
        simulate(config_for(out), fresh=True)
    assert (out / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        pytest.param(FILE, {"split": "dirichelt:0.3"}, id="split"),
        pytest.param(FILE, {"dataset": "npz:not-there.npz"}, id="data"),
        pytest.param(FILE.replace("small-cnn", "nothing:here"), {}, id="model"),
    ],
)
def test_simulate_fresh_refused_configuration_deletes_nothing(
    text: str, flags: dict[str, str], undisturbed: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(undisturbed, out)
    with pytest.raises((UserError, PrivacyError, SiteError)):
        simulate(config_in(text, out, **flags), fresh=True)
    check_same(out, undisturbed)


def test_simulate_fresh_foreign_folder_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    others = [out / "runs" / "other" / "precious", out / "sites" / "data.npz", out / "seed-bank" / "wheat"]
    for each in others:
        each.parent.mkdir(parents=True)
        each.write_text("years of work", encoding="utf-8")
    with pytest.raises(OtherSimulation, match="--out"):
        simulate(config_for(out), fresh=True)
    (out / CLAIM).write_text("{}", encoding="utf-8")
    small: dict[str, Any] = {"method": "pfpl", "compare": (), "rounds": 1}
    simulate(config_for(out, **small), fresh=True)
    simulate(config_for(out, **small, seeds=(1,)), fresh=True)
    assert [each.read_text(encoding="utf-8") for each in others] == ["years of work"] * len(others)
    assert read_result(out).seed == 1


def test_simulate_refused_start_leaves_folder_unclaimed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    small: dict[str, Any] = {"method": "local", "compare": (), "rounds": 1}
    with pytest.raises(DataError, match="val="):
        simulate(config_for(out, **small, early_stopping=2))
    assert not (out / CLAIM).exists()
    assert not (out / STATE).exists()
    simulate(config_for(out, **small))


def test_simulate_self_beside_other_method_runs_again(tmp_path: Path) -> None:
    folders = [
        RunFolder(config_for(tmp_path, method=method, compare=("self",), protection="plain"))
        for method in ("pfpl", "feddbp")
    ]
    assert len({folder.record(0, Method.SELF) for folder in folders}) == 2
    assert len({folder.record(0, Method.LOCAL) for folder in folders}) == 1


def test_simulate_impossible_configuration_claims_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Exception, match="11"):
        simulate(config_for(out, split="mixed:n=11"))
    assert not (out / CLAIM).exists()
    assert not (out / STATE).exists()


def test_simulate_two_processes_are_refused(tmp_path: Path) -> None:
    folder = RunFolder(config_for(tmp_path / "out"))
    with folder.claim(), pytest.raises(OtherSimulation, match="--out"):
        simulate(config_for(tmp_path / "out"))


def test_simulate_damaged_claim_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / CLAIM).write_text("{", encoding="utf-8")
    with pytest.raises(OtherSimulation, match=CLAIM):
        simulate(config_for(out))


def models(out: Path) -> dict[str, torch.Tensor]:
    return {
        f"{path.parent.name}.{name}": each
        for path in sorted(out.glob(f"sites/*/{MODEL}"))
        for name, each in safetensors.torch.load_file(path).items()
    }


@pytest.mark.parametrize("batched", full_but(["always", "never"], "always"))
def test_simulate_killed_in_round_resumes_to_same_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batched: str
) -> None:
    """Up to rounding as a smaller program, bit for bit one by one; ended with one of the four sites to go."""
    smooth = DIGITS.replace(
        "small-cnn", "tests.support.tiny_models:build_tanh"
    )  # no ReLU at a tie, which rounding would decide
    reference, out = tmp_path / "reference", tmp_path / "out"
    flags = {"method": "fedavg", "rounds": 2, "batched": batched, "engine": "sessions"}
    simulate(config_in(smooth, reference, **flags))
    with monkeypatch.context() as patch:
        fail_at(patch, CheckpointedLearner, "finish", 3, after=True)
        with pytest.raises(Killed):
            simulate(config_in(smooth, out, **flags))
    simulate(config_in(smooth, out, **flags))
    wanted, got = models(reference), models(out)
    assert wanted.keys() == got.keys()
    for name, each in got.items():
        if batched == "never":
            assert torch.equal(each, wanted[name])
        else:
            torch.testing.assert_close(each, wanted[name], rtol=1e-3, atol=1e-4)
    assert [each.round for each in read_result(out).rounds] == [1, 2]
