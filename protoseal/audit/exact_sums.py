"""Exact sums of a site's clipped features, computed again from its records and a model, for an audit at the site.

The code is apart from the mechanism that it audits (:mod:`privacy.mechanisms`): what one does wrong, the other shows.
**What it returns is exact and secret**, and no part of it leaves the audit but statistics of the noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from agreement import Agreement
from agreement.sections.privacy import USUAL_DEVIATIONS
from privacy.mechanisms.cell_query import Cells
from secure_client.error_containment import run_or_fallback
from secure_client.models.prototype_model import PrototypeModel, compute_outputs
from secure_client.training.batches import batch_in_order, open_source

Float = NDArray[np.float64]
Ints = NDArray[np.int64]
_BATCH = 256
_STEPS = 2.0**20
"""Standard deviation of the noise, in steps of the grid to which records are rounded."""


@dataclass(frozen=True)
class Claim:
    """Claim of an agreement about a release: ``deviation`` is that of the noise on a sum of features."""

    clip: float
    weight: float
    multiplier: float
    deviation: float
    min_count: float

    @classmethod
    def of(cls, agreement: Agreement, draws: int = 1) -> Claim:
        """Return the claim of an agreement with noise; ``ValueError`` without. ``min_count`` is for a mean of draws."""
        agreed = agreement.privacy
        if agreed is None:
            raise ValueError("an agreement without [privacy] claims nothing")
        weight = agreed.count_weight or agreed.clip / agreement.dim**0.25
        deviation = agreed.noise_multiplier * float(np.hypot(agreed.clip, weight))
        least = agreed.min_count or USUAL_DEVIATIONS * deviation / weight / np.sqrt(draws)
        return cls(agreed.clip, weight, agreed.noise_multiplier, deviation, least)


@dataclass(frozen=True)
class Records:
    """A site's records under one model: ``features`` (N, d), ``labels`` (N,), and ``owners`` (N,) of other units."""

    features: Float = field(repr=False)
    labels: Ints = field(repr=False)
    owners: Ints | None = field(repr=False)


@dataclass(frozen=True)
class ExactSums:
    """Exact ``sums`` (M, d) and ``counts`` (M,) by class or cell.

    ``unclipped`` (M, d) are the sums without any clipping, ``one_by_one`` (M, d) those of records that are clipped one
    by one, whatever the unit, and ``of_means`` (M, d) those without clipping whose means are clipped.
    """

    sums: Float = field(repr=False)
    counts: Float = field(repr=False)
    unclipped: Float = field(repr=False)
    one_by_one: Float = field(repr=False)
    of_means: Float = field(repr=False)


def embed(model: PrototypeModel, dataset: Dataset[object], dim: int) -> tuple[Float, Ints]:
    """Return features (N, d) and labels (N,) of all records; zeros for a record on which the model fails."""
    source, features, labels = open_source(dataset, torch.device("cpu")), [], []
    model.eval()
    for inputs, classes in source.batches(batch_in_order(len(source), _BATCH)):
        rows = _features(model, inputs)
        if rows is None:
            # The mechanism gives zeros to the record that failed and not to its batch, so each is tried by itself.
            alone = [_features(model, inputs[pair_of : pair_of + 1]) for pair_of in range(len(inputs))]
            rows = torch.cat([torch.zeros(1, dim) if row is None else row for row in alone])
        features.append(torch.where(rows.isfinite().all(dim=1, keepdim=True), rows, 0.0).double().numpy())
        labels.append(classes.numpy().astype(np.int64))
    return np.concatenate(features), np.concatenate(labels)


def _features(model: PrototypeModel, inputs: Tensor) -> Tensor | None:
    with torch.no_grad():
        return run_or_fallback(
            lambda: compute_outputs(model, inputs).features, lambda: None, "features for the audit"
        )


def load_model(model: PrototypeModel, state: Mapping[str, Tensor]) -> PrototypeModel:
    """Load a kept state into a model of a site; raise ``ValueError`` for another model's."""
    try:
        model.load_state_dict(dict(state))
    except RuntimeError as error:
        raise ValueError("a kept model does not fit the configured one") from error
    return model


@dataclass(frozen=True)
class AddedParts:
    """Parts that N records add to the sums: ``clipped`` (N, d) and ``shares`` (N,), in classes or cells ``parts`` (N,).

    ``unclipped`` (N, d) is the same without clipping, ``one_by_one`` (N, d) that of records whatever the unit.
    """

    parts: Ints = field(repr=False)
    shares: Float = field(repr=False)
    clipped: Float = field(repr=False)
    unclipped: Float = field(repr=False)
    one_by_one: Float = field(repr=False)


def added_parts(records: Records, claim: Claim, cells: Cells | None) -> AddedParts:
    """Return what records add to the sums over classes, or over cells around public centres."""
    parts = records.labels if cells is None else _assign_cells(records, cells)
    norms = np.linalg.norm(records.features, axis=1, keepdims=True)
    # The mechanism rounds the clip down, and each record towards zero, to a grid; over many records that adds up.
    step = claim.deviation / _STEPS
    clip = np.floor(claim.clip / step) * step
    clipped = records.features * np.minimum(1.0, clip / np.maximum(norms, 1e-300))
    clipped = np.trunc(clipped / step) * step
    shares = _shares(records, parts)
    return AddedParts(parts, shares, clipped * shares[:, None], records.features * shares[:, None], clipped)


def exact_sums(records: Records, claim: Claim, classes: int, cells: Cells | None) -> ExactSums:
    """Return the exact sums over classes, or over cells around public centres."""
    number = classes if cells is None else len(cells)
    added = added_parts(records, claim, cells)
    counts = np.bincount(added.parts, weights=added.shares, minlength=number).astype(np.float64)
    sums_of_unclipped = _sum_by_part(added.unclipped, added.parts, number)
    lengths = np.linalg.norm(sums_of_unclipped, axis=1)
    return ExactSums(
        _sum_by_part(added.clipped, added.parts, number),
        counts,
        _sum_by_part(records.features, added.parts, number),
        _sum_by_part(added.one_by_one, added.parts, number),
        sums_of_unclipped * np.minimum(1.0, claim.clip * counts / np.maximum(lengths, 1e-300))[:, None],
    )


def _shares(records: Records, parts: Ints) -> Float:
    """Return the factor (N,) of each record: 1/(n·√k) for an owner's n records in one of its k parts, 1 for records."""
    if records.owners is None:
        return np.ones(len(parts))
    _, owners = np.unique(records.owners, return_inverse=True)
    number = int(parts.max(initial=0)) + 1
    # Joint clipping bounds an owner as a whole: each of its k parts gets a mean of records, and 1/√k of the bound.
    pairs, pair_of, records_in_pair = np.unique(
        owners * number + parts, return_inverse=True, return_counts=True
    )
    # √k, since the norm of k parts that each have length c/√k is c.
    kinds = np.bincount(pairs // number)
    return np.asarray(1.0 / (records_in_pair[pair_of] * np.sqrt(kinds[owners])))


def _assign_cells(records: Records, cells: Cells) -> Ints:
    """Return the cell (N,) of each record: of its class, with the largest cosine of its centre; the first on a tie."""
    lengths = np.linalg.norm(cells.centres, axis=1, keepdims=True)
    products = records.features @ (cells.centres / np.where(lengths > 0, lengths, 1.0)).T
    products[cells.classes[None, :] != records.labels[:, None]] = -np.inf
    return np.asarray(products.argmax(axis=1), dtype=np.int64)


def _sum_by_part(rows: Float, parts: Ints, number: int) -> Float:
    total = np.zeros((number, rows.shape[1]))
    np.add.at(total, parts, rows)
    return total
