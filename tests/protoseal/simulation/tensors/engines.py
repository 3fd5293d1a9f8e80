"""One run by the tensor engine and by sessions, and what each came to."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from agreement import Agreement
from algorithms import prototypes
from protoseal.simulation import experiment
from protoseal.simulation.batched.training import Batching
from protoseal.simulation.config import load_simulation
from protoseal.simulation.experiment import load_scene
from protoseal.simulation.local_federation import LocalFederation, RunOutcome
from protoseal.simulation.site_pool import EVERY_ROUND, ONE_BY_ONE, SiteTesting, SiteTraining
from protoseal.simulation.tensors.federation import TensorFederation
from protoseal_wire.messages import Phase
from secure_client.checkpoints import learner_factory
from secure_client.data import SiteData
from secure_client.models.prototype_model import PrototypeModel
from secure_client.output.site_files import MODEL, PROTOTYPES
from secure_client.output.site_log import SiteRound

SETTINGS = {
    "split": "mixed:n=4,max=20",
    "sites": 4,
    "rounds": 3,
    "dim": 8,
    "norm_bound": 5.0,
    "device": "cpu",
    "batched": "never",
    "training.model": "tests.support.tiny_models:build_normed",
    "training.optimiser": "sgd",
    "training.lr": 0.02,
    "training.batch_size": 8,
    "training.local_epochs": 1,
}
"""A run of a moment, in which some prototypes are longer than the bound."""
_SIGNED = {(Phase.ROSTER, False), (Phase.PRESENCE, True), (Phase.VALUES, False)}
"""Messages with signatures, whose sizes differ by a byte or two from run to run."""
_ROUNDED = ("loss", "seconds", "accuracy", "pm_")


@dataclass(frozen=True)
class Run:
    """Outcome of one run, its payloads' sizes by (site, up, round, phase), and the tensors of the sites' files."""

    outcome: RunOutcome
    payloads: Mapping[tuple[str, bool, int, Phase], int]
    tensors: Mapping[str, Tensor]

    def figures(self, *, rounded: bool) -> dict[str, list[dict[str, Any]]]:
        """Return each site's rounds: the figures that rounding may change, or the others."""
        names = {name for name in SiteRound.model_fields if name.startswith(_ROUNDED) is rounded}
        return {
            site: [done.model_dump(include=names - {"seconds"}) for done in rounds]
            for site, rounds in self.outcome.site_rounds.items()
        }

    @property
    def coordinated(self) -> list[dict[str, Any]]:
        """Rounds of the coordinator, without times."""
        timed = {"aggregate_seconds", "total_seconds"}
        return [
            {name: value for name, value in vars(done).items() if name not in timed}
            for done in self.outcome.rounds
        ]


def run_both(
    agreement: Agreement,
    data: Mapping[str, SiteData],
    folder: Path,
    *,
    training: SiteTraining = ONE_BY_ONE,
    testing: SiteTesting = EVERY_ROUND,
    batching: Batching = Batching.NEVER,
) -> tuple[Run, Run]:
    """Run an agreement on tensors, with this batching, then by sessions, one site after the other."""
    rows = replace(training, batching=batching)
    tensors = run_engine(TensorFederation, agreement, data, folder, training=rows, testing=testing)
    return tensors, run_engine(LocalFederation, agreement, data, folder, training=training, testing=testing)


def run_engine(
    engine: type[TensorFederation | LocalFederation],
    agreement: Agreement,
    data: Mapping[str, SiteData],
    folder: Path,
    *,
    training: SiteTraining,
    testing: SiteTesting = EVERY_ROUND,
) -> Run:
    """Run an agreement by one engine, in a new folder below ``folder``."""
    work = Path(tempfile.mkdtemp(dir=folder))
    with engine(agreement, data, training=training, testing=testing, state=work) as federation:
        federation.run()
        outcome = federation.save(work / "out")
    return Run(outcome, read_payloads(work), read_tensors(work / "out"))


def scene_of(folder: Path, *, double: bool = False, **changes: object) -> dict[str, Any]:
    """Return the arguments of :func:`run_both` for :data:`SETTINGS` with changes; ``double`` data are float64."""
    settings = {**SETTINGS, **{name.replace("__", "."): value for name, value in changes.items()}}
    text = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    config = load_simulation(None, {"out": str(folder / "out")}, text)
    scene = load_scene(config, 0)
    data = dict(scene.data)
    if double:
        data = double_data(data)
    return {
        "agreement": scene.agreement(config.method),
        "data": data,
        "folder": folder,
        "training": scene.training,
    }


def check_equal(tensors: Run, sessions: Run, tolerance: float) -> None:
    """Check that two runs came to the same: models, prototypes and losses within the tolerance, all else exactly."""
    assert tensors.figures(rounded=False) == sessions.figures(rounded=False)
    assert tensors.coordinated == sessions.coordinated
    check_payloads(tensors.payloads, sessions.payloads)
    for site, rounds in tensors.figures(rounded=True).items():
        for got, expected in zip(rounds, sessions.figures(rounded=True)[site], strict=True):
            assert got.keys() == expected.keys()
            for name, value in got.items():
                other = expected[name]
                assert value == (other if other is None else pytest.approx(other, abs=tolerance)), name
    assert tensors.tensors.keys() == sessions.tensors.keys()
    for name, value in tensors.tensors.items():
        torch.testing.assert_close(value, sessions.tensors[name], rtol=tolerance, atol=tolerance)


def check_payloads(
    got: Mapping[tuple[str, bool, int, Phase], int], expected: Mapping[tuple[str, bool, int, Phase], int]
) -> None:
    """Check sizes, exactly where a message has no signature, else up to the lengths of signatures and certificates."""
    assert got.keys() == expected.keys()
    sites = len({site for site, *_ in got})
    for key, size in got.items():
        _, up, _, phase = key
        # A signature, also the certificate's, has 71 bytes give or take 2; a certificate's number one less at times.
        lists = sites * (5 if phase is Phase.ROSTER else 2) if not up else 2
        assert abs(size - expected[key]) <= (lists if (phase, up) in _SIGNED else 0), key


def read_payloads(state: Path) -> dict[tuple[str, bool, int, Phase], int]:
    """Return the sizes of all messages of a run."""
    with closing(sqlite3.connect(state / "log.sqlite")) as log:
        rows = log.execute("SELECT site, up, round, phase, size FROM payloads").fetchall()
    return {(site, bool(up), number, Phase(phase)): size for site, up, number, phase, size in rows}


def read_tensors(out: Path) -> dict[str, Tensor]:
    """Return the tensors of all models and prototypes by site and name."""
    return {
        f"{path.parent.name} {name}": value
        for path in sorted([*out.rglob(MODEL), *out.rglob(PROTOTYPES)])
        for name, value in safetensors.torch.load_file(path).items()
    }


@contextmanager
def in_float64() -> Iterator[None]:
    """Train models in float64, which were drawn in float32, and convert losses and targets to it."""
    build = learner_factory.build_agreed_model

    def doubled(*arguments: Any) -> PrototypeModel:
        torch.set_default_dtype(torch.float32)
        try:
            return build(*arguments).double()
        finally:
            torch.set_default_dtype(torch.float64)

    with pytest.MonkeyPatch.context() as patch:
        for module in (learner_factory, experiment):
            patch.setattr(module, "build_agreed_model", doubled)
        patch.setattr(prototypes, "DTYPE", torch.float64)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)


def spoil(data: Mapping[str, SiteData], site: str) -> dict[str, SiteData]:
    """Return data of which one site's training diverges."""
    train: Any = data[site].train
    inputs, labels = train.tensors
    spoilt = torch.full_like(inputs, torch.nan)
    spoilt[0] = inputs[0]  # a model without any finite feature is refused at the start
    return {**data, site: replace(data[site], train=TensorDataset(spoilt, labels))}


def double_data(data: Mapping[str, SiteData]) -> dict[str, SiteData]:
    """Return sites' data in float64."""
    doubled = {}
    for name, site in data.items():
        test = None if site.test is None else _double(site.test)
        doubled[name] = replace(site, train=_double(site.train), test=test)
    return doubled


def _double(part: Dataset[Any]) -> TensorDataset:
    assert isinstance(part, TensorDataset)
    inputs, labels = part.tensors
    return TensorDataset(inputs.double(), labels)
