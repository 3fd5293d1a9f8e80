"""Federations in this process of any number of sites, classes and features, and what each site got out of a round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor

from agreement import Agreement, Protection
from algorithms.alignment_loss import units
from algorithms.inference import by_prototype
from algorithms.model_outputs import Outputs
from algorithms.pfpl import Weighting
from algorithms.prototypes import Clusters, Guide
from protoseal.simulation.local_federation import LocalFederation
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.checkpoints.predictor import inference_guide
from secure_client.data import SiteData
from secure_client.data.preprocess import to_dataset
from secure_client.data.samples import Samples
from secure_client.models.prototype_model import compute_outputs
from secure_client.output.site_files import MODEL, SitePrototypes, read_prototypes
from secure_client.output.site_log import SiteRound
from secure_client.protocol.journal import Journal
from tests.support.small import small_agreement

Bool = NDArray[np.bool_]

_TRAIN, _TEST = 6, 4


@dataclass(frozen=True)
class Taken:
    """A site after the result of a round, and what it predicts for its own N test samples.

    ``targets`` (K, d) are the prototypes that it trains towards before they are rounded to float32 for training.
    ``predictions`` are (2, N), by classifier and by nearest prototype; ``margins`` are by how much logit or
    distance the first choice is ahead of the second.
    """

    prototypes: SitePrototypes
    targets: NDArray[np.float64]
    predictions: NDArray[np.int64]
    margins: NDArray[np.float64]


Record = dict[tuple[int, str], Taken]
"""Files of a site, by round and site."""


def agreement_for(
    protection: Protection, weighting: Weighting, *, classes: int, dim: int, rounds: int = 2, **settings: Any
) -> Agreement:
    """Return the small federation's agreement with other classes and dimension, and any further ``settings``."""
    names = tuple(str(k) for k in range(classes))
    changed = {"classes": names, "dim": dim, "norm_bound": dim**0.5, **settings}
    return Agreement.model_validate(
        {**dict(small_agreement(protection, weighting, rounds=rounds)), **changed}
    )


def holdings(sites: int, classes: int) -> Bool:
    """Different and missing classes, (n, K): two that all sites hold, and one that is at two sites only."""
    holds = np.random.default_rng(sites * classes).random((sites, classes)) < 0.75
    holds[:, :2] = True
    holds[:, -1] = np.arange(sites) < 2
    return holds


def data_for(agreement: Agreement, holds: Bool) -> dict[str, SiteData]:
    """Real scans of the classes that each site holds, site-1 and so on; no scan is at two sites."""
    return {f"site-{i + 1}": _site_data(agreement, i, np.flatnonzero(row)) for i, row in enumerate(holds)}


@cache
def _scans() -> Any:
    return load_digits()


def _site_data(agreement: Agreement, position: int, classes: NDArray[np.int64]) -> SiteData:
    scans = _scans()
    pile = _TRAIN + _TEST
    of_class = [np.flatnonzero(scans.target == k)[position * pile : (position + 1) * pile] for k in classes]

    def part(chosen: slice) -> Any:
        indices = np.concatenate([each[chosen] for each in of_class])
        labels = scans.target[indices].astype(np.int64)
        pixels = (scans.images[indices] / 16.0).astype(np.float32)[..., np.newaxis]
        return to_dataset(
            Samples(pixels, labels, np.zeros_like(labels)), agreement.preprocessing, where="scans"
        )

    return SiteData(part(slice(0, _TRAIN)), part(slice(_TRAIN, None)))


def run(agreement: Agreement, data: Mapping[str, SiteData], folder: Path) -> Record:
    """Run it from beginning to end and return what every site had after every round."""
    record: Record = {}
    with recording_federation(agreement, data, folder, record) as federation:
        federation.run()
    return record


def recording_federation(
    agreement: Agreement, data: Mapping[str, SiteData], folder: Path, record: Record, *, keep: bool = False
) -> LocalFederation:
    """Return a federation that fills ``record`` as it goes; with ``keep`` it also keeps every message."""

    def take(name: str, figures: SiteRound) -> None:
        site = next(each for each in federation.sites if each.name == name)
        site.trainee.save(folder)
        record[figures.round, name] = taken_from(
            folder, agreement, data[name], site.trainee._checkpoints.journal
        )

    federation = LocalFederation(agreement, data, record=keep, on_round=take)
    return federation


def taken_from(folder: Path, agreement: Agreement, data: SiteData, journal: Journal) -> Taken:
    """Read a site's files, and predict on its own test samples."""
    prototypes = read_prototypes(folder)
    model = build_agreed_model(agreement, agreement.training.model)
    model.load_state_dict(safetensors.torch.load_file(folder / MODEL))
    model.eval()
    dataset: Any = data.test
    inputs = torch.stack([dataset[i][0] for i in range(len(dataset))])
    guide = inference_guide(prototypes)
    with torch.no_grad():
        outputs = compute_outputs(model, inputs)
        near = by_prototype(outputs, guide)
    margins = torch.stack([_gap(outputs.logits), _gap(_nearness(outputs, guide))])
    predictions = torch.stack([outputs.logits.argmax(dim=1), near])
    return Taken(prototypes, _targets(journal, prototypes), predictions.numpy(), margins.double().numpy())


def _nearness(outputs: Outputs, guide: Guide) -> Tensor:
    """Score each sample against each class that has prototypes: the negative distance, or the largest cosine."""
    if isinstance(guide, Clusters):
        cosines = units(outputs.features) @ units(guide.rows).T
        classes = sorted(set(guide.labels.tolist()))
        return torch.stack([cosines[:, guide.labels == k].max(dim=1).values for k in classes], 1)
    compared, rows = outputs.features, guide.rows[guide.present]
    if outputs.decision is not None:
        compared, rows = units(outputs.decision), units(rows)
    return -torch.cdist(compared, rows)


def _targets(journal: Journal, prototypes: SitePrototypes) -> NDArray[np.float64]:
    """Return the stored part of a site's last result, (K, d): PFPL's answer, or the base of a sum."""
    for kept in ("targets", "base"):
        stored = journal.get(kept)
        if stored is not None:
            return safetensors.numpy.load(stored[1])["rows"]
    return prototypes.personal


def _gap(scores: Tensor) -> Tensor:
    """Return how far the best score of each row is ahead of the next, (N,); infinite for a single score."""
    if scores.shape[1] == 1:
        return torch.full_like(scores[:, 0], torch.inf)
    best = scores.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]
