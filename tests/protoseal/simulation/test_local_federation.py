"""A federation in one process: what it leaves on disk, what it counts, how it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.utils.data import TensorDataset

from agreement import ConfigError, Method
from algorithms.prototypes import Targets
from crypto.errors import MalformedError
from protoseal.reports.result_files import site_folder
from protoseal.simulation.batched.training import Batching
from protoseal.simulation.config import ScheduleSection
from protoseal.simulation.local_federation import LocalFederation
from protoseal.simulation.site_pool import SiteTraining
from protoseal.simulation.tensors.federation import TensorFederation, run_control
from protoseal_wire.messages import PhaseKey
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.data import SiteData
from secure_client.errors import RunStopped
from secure_client.output.site_files import MODEL, read_agreement, read_prototypes
from secure_client.output.site_log import SiteRound, read_site_log
from secure_server.aggregator import Aggregator
from tests.support.grouped import grouped_agreement
from tests.support.simulations import run_federation
from tests.support.small import HOLDINGS, short_training, small_agreement, small_data


def figures(rounds: tuple[SiteRound, ...] | list[SiteRound]) -> list[dict[str, object]]:
    """Return the figures without times, which differ from run to run."""
    return [each.model_dump(exclude={"seconds"}) for each in rounds]


def test_local_federation_save_writes_each_sites_files(tmp_path: Path) -> None:
    agreement = small_agreement()
    outcome = run_federation(agreement, small_data(agreement), tmp_path)
    assert list(outcome.sites) == list(HOLDINGS)
    assert [(each.round, each.attempt, each.sites) for each in outcome.rounds] == [
        (1, 1, tuple(HOLDINGS)),
        (2, 1, tuple(HOLDINGS)),
    ]
    for site, classes in HOLDINGS.items():
        folder = site_folder(tmp_path, site)
        assert read_site_log(folder) == outcome.sites[site]
        assert read_agreement(folder) == agreement
        prototypes = read_prototypes(folder)
        assert tuple(np.flatnonzero(prototypes.has_personal)) == classes
        assert prototypes.counts.tolist() == [6 if k in classes else 0 for k in range(3)]
        assert [each.round for each in outcome.sites[site].rounds] == [1, 2]
        assert outcome.sites[site].train_samples == 6 * len(classes)


def test_local_federation_with_a_schedule_is_refused() -> None:
    agreement = small_agreement()
    training = SiteTraining(schedule=ScheduleSection(participation=0.5))
    with pytest.raises(ConfigError, match="schedule"):
        LocalFederation(agreement, small_data(agreement), training=training)


def test_local_federation_repeated_run_is_equal(tmp_path: Path) -> None:
    agreement = small_agreement()
    for name in ("first", "second"):
        run_federation(agreement, small_data(agreement), tmp_path / name)
    for site in HOLDINGS:
        first, second = (site_folder(tmp_path / name, site) for name in ("first", "second"))
        assert figures(read_site_log(first).rounds) == figures(read_site_log(second).rounds)
        for name in ("model.safetensors", "prototypes.safetensors"):
            assert (first / name).read_bytes() == (second / name).read_bytes()


def test_local_federation_counts_all_payload_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreement = small_agreement()
    up: Counter[str] = Counter()
    down: Counter[str] = Counter()
    with LocalFederation(agreement, small_data(agreement), record=True) as federation:
        for site in federation.sites:
            monkeypatch.setattr(site.session, "answer", counting(site.name, site.session.answer, up, down))
        federation.run()
        outcome = federation.save(tmp_path)
    assert {name: log.bytes_up for name, log in outcome.sites.items()} == dict(up)
    assert {name: log.bytes_down for name, log in outcome.sites.items()} == dict(down)
    recorded: Counter[str] = Counter()
    for each in outcome.received:
        if each.key is not None:
            recorded[each.site] += len(each.content)
    assert recorded == up


def counting(
    site: str, answer: Callable[[PhaseKey, bytes], bytes], up: Counter[str], down: Counter[str]
) -> Callable[[PhaseKey, bytes], bytes]:
    def counted(key: PhaseKey, request: bytes) -> bytes:
        given = answer(key, request)
        up[site] += len(given)
        down[site] += len(request)
        return given

    return counted


def test_local_federation_failed_aggregation_stops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise MalformedError("the payloads cannot be combined")

    monkeypatch.setattr(Aggregator, "combine", fail)
    agreement = small_agreement()
    with (
        LocalFederation(agreement, small_data(agreement)) as federation,
        pytest.raises(RunStopped, match="aggregation"),
    ):
        federation.run()
    assert "the payloads cannot be combined" in caplog.text


@pytest.mark.parametrize("method", [Method.FEDPC, Method.PFPL])
def test_control_self_targets_obey_bounds(method: Method) -> None:
    """The model ends in tanh, so some components are negative: FedPC's sites set these to 0."""
    seen, classes = [], []

    def note(run: TensorFederation, number: int) -> None:
        for site in run.sites:
            assert isinstance(site.received.guide, Targets)
            seen.append(site.received.guide.rows.numpy())
            classes.append((site.received.guide.present.tolist(), site.values.held_classes().tolist()))

    training = short_training("tests.support.tiny_models:build_tanh")
    agreement = grouped_agreement(training=training, method=method, norm_bound=0.5)
    run_control(agreement, Method.SELF, small_data(agreement), on_completed=note)
    assert all(present == held for present, held in classes), (
        "targets for all that a site holds, and no others"
    )
    assert len({tuple(present) for present, _ in classes}) > 1
    assert bool((np.stack(seen) < 0).any()) is (method is Method.PFPL)
    norms = np.linalg.norm(np.stack(seen), axis=-1)
    assert norms.max() == pytest.approx(0.5, rel=1e-6)


def test_run_control_method_is_refused() -> None:
    agreement = small_agreement()
    with pytest.raises(ValueError, match="fedavg"):
        run_control(agreement, Method.FEDAVG, small_data(agreement))


@pytest.mark.parametrize("batching", [Batching.ALWAYS, Batching.NEVER])
def test_local_federation_diverging_site_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, batching: Batching
) -> None:
    """The other sites train as if each were alone, also where all sites train as one program."""
    agreement = small_agreement()
    data = small_data(agreement)
    train: Any = data["clinic-b"].train
    inputs, labels = train.tensors
    first_alone = torch.full_like(inputs, torch.nan)
    first_alone[0] = inputs[0]  # a model without any finite feature is refused at the start
    spoilt = SiteData(TensorDataset(first_alone, labels), None)
    outcome = run_federation(
        agreement, {**data, "clinic-b": spoilt}, tmp_path, training=SiteTraining(batching=batching)
    )
    trained = {name: [each.trained for each in log.rounds] for name, log in outcome.sites.items()}
    assert trained == {name: [name != "clinic-b"] * 2 for name in HOLDINGS}
    assert [each.loss is None for each in outcome.sites["clinic-b"].rounds] == [True, True]
    assert "training failed in 2 of 8 rounds" in caplog.text
    initial = build_agreed_model(agreement, agreement.training.model).state_dict()
    kept = safetensors.torch.load_file(site_folder(tmp_path, "clinic-b") / MODEL)
    assert all(torch.equal(initial[name], value) for name, value in kept.items())
    moved = safetensors.torch.load_file(site_folder(tmp_path, "clinic-a") / MODEL)
    assert not any(torch.equal(initial[name], value) for name, value in moved.items())
