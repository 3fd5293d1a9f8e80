"""Simulations with participation and schedules: beside a plain loop of FedAvg, resumed, and for each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import TensorDataset

from agreement import CONTROLS, METHODS, Method
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import load_scene, simulate
from protoseal.simulation.run_folder import SavedRun
from protoseal.simulation.schedules import RunSchedule, augmentation_for
from protoseal.simulation.tensors.checkpoint import Checkpoints
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.models.prototype_model import compute_outputs
from secure_client.output.site_files import MODEL, read_prototypes
from secure_client.output.site_log import SiteLog
from secure_client.training.batches import split_batches
from secure_client.training.job import Job, training_seed
from tests.support.simulations import DIGITS, Killed, config_in, fail_at

ROUNDS, DECAY, LR, SITES = 4, 0.5, 0.02, 4
SCHEDULE = f"""
[schedule]
participation = 0.5
lr_decay = {DECAY}
crop = 1
flip = true
optimiser_state = "kept"
"""


def config_for(
    out: Path, method: str = "fedavg", *, rounds: int = ROUNDS, schedule: str = SCHEDULE
) -> SimulationConfig:
    head = f"""
method = "{method}"
rounds = {rounds}
min_holders = 1
allow_fewer_holders_reveals_peers = true
{DIGITS}"""
    return config_in(head + schedule, out)


def logs_of(out: Path, method: str = "fedavg") -> tuple[list[frozenset[str]], Mapping[str, SiteLog]]:
    """Return the participants of each round, and the sites' logs."""
    outcome = SavedRun.read(out / "runs" / f"{method}.json").outcome
    return [frozenset(done.sites) for done in outcome.rounds], outcome.sites


def saved_model(out: Path, site: str) -> dict[str, Tensor]:
    return safetensors.torch.load_file(out / "sites" / site / MODEL)


def train_plainly(config: SimulationConfig) -> dict[str, Tensor]:
    """Return FedAvg's model by a script: one optimiser of torch for each site, over all rounds that the site is in."""
    scene = load_scene(config, 0)
    agreement = scene.agreement(Method.FEDAVG)
    schedule = RunSchedule(config.schedule, agreement)
    augmentation = augmentation_for(config.schedule, scene.divided.preprocessing)
    assert augmentation is not None
    models = {name: build_agreed_model(agreement, agreement.training.model) for name in sorted(scene.data)}
    optimisers = {
        name: torch.optim.SGD(
            model.parameters(), LR, config.training.momentum, weight_decay=config.training.weight_decay
        )
        for name, model in models.items()
    }
    average = next(iter(models.values())).state_dict()
    for number in range(1, ROUNDS + 1):
        total = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in average.items()}
        drawn, samples = schedule.participants([list(models)], number), 0
        for name in sorted(drawn):
            model, optimiser, train = models[name], optimisers[name], scene.data[name].train
            assert isinstance(train, TensorDataset)
            inputs, labels = train.tensors
            model.load_state_dict(average)
            model.train()
            optimiser.param_groups[0]["lr"] = LR * DECAY ** (number - 1)
            seed = training_seed(0, name, number, 0)
            order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
            draws = augmentation.draw(len(labels), augmentation.generator(seed))
            images = augmentation.apply(inputs[order], draws)
            for batch in split_batches(range(len(labels)), config.training.batch_size):
                optimiser.zero_grad()
                logits = compute_outputs(model, images[batch]).logits
                torch.autograd.backward(functional.cross_entropy(logits, labels[order][batch].long()))
                optimiser.step()
            samples += len(labels)
            for key, value in model.state_dict().items():
                total[key] += len(labels) * value.double()
        average = {key: (value / samples).float() for key, value in total.items()}
    return average


def test_fedavg_with_every_schedule_equals_a_plain_loop(tmp_path: Path) -> None:
    config = config_for(tmp_path / "run")
    assert simulate(config).config["schedule"] == config.schedule.model_dump()
    expected = train_plainly(config)
    for site in sorted((tmp_path / "run" / "sites").iterdir()):
        # Means are rounded from float64 here and there, so that only their last bit may differ in each round.
        torch.testing.assert_close(saved_model(tmp_path / "run", site.name), expected, rtol=1e-5, atol=1e-6)


def test_sites_that_are_not_drawn_send_nothing_and_are_tested(tmp_path: Path) -> None:
    simulate(config_for(tmp_path / "run", "pfpl"))
    rounds, logs = logs_of(tmp_path / "run", "pfpl")
    assert all(len(drawn) == SITES // 2 for drawn in rounds)
    assert len(set(rounds)) > 1
    for name, log in logs.items():
        assert [done.round for done in log.rounds] == list(range(1, ROUNDS + 1))
        for done, drawn in zip(log.rounds, rounds, strict=True):
            assert done.accuracy is not None
            assert done.trained
            assert (done.loss is not None) == (name in drawn)
            assert done.sites == SITES // 2
            assert name in drawn or not done.withheld
    took_part = {name: sum(name in drawn for drawn in rounds) for name in logs}
    sent = {name: log.bytes_up for name, log in logs.items()}
    # Uploads of PFPL are as long in each round, and a site that takes part in none sends its set-up alone.
    assert sorted(sent, key=lambda name: sent[name]) == sorted(
        sent, key=lambda name: (took_part[name], sent[name])
    )


@pytest.mark.parametrize(
    ("method", "shared"), [("fedproto", True), ("fedplcc", True), ("feddbp", False), ("pfpl", False)]
)
def test_results_in_common_reach_all_sites_and_own_results_the_participants(
    tmp_path: Path, method: str, shared: bool
) -> None:
    out = tmp_path / "run"
    simulate(config_for(out, method, rounds=1))
    (drawn,), logs = logs_of(out, method)
    for name in logs:
        assert read_prototypes(out / "sites" / name).has_personal.any() == (shared or name in drawn)


FEDERATED = sorted(name for name, method in METHODS.items() if method not in CONTROLS)


@pytest.mark.full
@pytest.mark.parametrize("method", FEDERATED)
def test_participation_serves_each_method_and_the_controls(tmp_path: Path, method: str) -> None:
    config = config_for(tmp_path / "run", method, rounds=3)
    compare = (Method.LOCAL, Method.SELF) if METHODS[method].traits.prototypes else (Method.LOCAL,)
    result = simulate(config.model_copy(update={"compare": compare}))
    assert result.complete
    runs = [path.stem for path in (tmp_path / "run" / "runs").iterdir()]
    assert len(runs) == 1 + len(compare)
    # FedPC's groups have draws of their own.
    draws = {tuple(logs_of(tmp_path / "run", run)[0]) for run in runs if run != "fedpc"}
    assert len(draws) == 1


# Resumed


def run_killed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate until the checkpoint of the second round, and resume."""
    config = config_for(out, "fedpc")
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "is_due", True)
        fail_at(patch, Checkpoints, "save", 2, after=True)
        with pytest.raises(Killed):
            simulate(config)
    simulate(config)


def files_of(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*.safetensors"))}


def test_killed_simulation_with_schedules_resumes_to_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(config_for(tmp_path / "whole", "fedpc"))
    run_killed(tmp_path / "killed", monkeypatch)
    assert files_of(tmp_path / "killed") == files_of(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(RunSchedule, "adapt", forget_states(RunSchedule.adapt))
        run_killed(tmp_path / "forgetful", patch)
    assert files_of(tmp_path / "forgetful") != files_of(tmp_path / "whole")


def forget_states(adapt: Callable[..., list[Job]]) -> Callable[..., list[Job]]:
    """Forget optimiser states when a run begins its third round, as a checkpoint without them would."""
    return lambda schedule, jobs, number, states=(): adapt(
        schedule, jobs, number, () if number == 3 else states
    )
