"""Robust options against malicious sites that a protection permits: measured here, and no part of the protocol.

    python -m benchmarks.robust_options

prints the accuracy that honest sites lose in sums of prototypes, by the mean and by the median of groups.

- A tight norm bound needs nothing new: `protoseal attack poisoning --set norm_bound=2`.
- Peers weighed by their distance (:data:`MEDIAN_PEERS`) follow from the Gram matrix, which a rotation keeps.
- The median over the means of several groups (:func:`median_of_groups`) follows from sums under masks, one for each
  group.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from agreement import Family, Method, Traits
from agreement.recipe import BatchLoss
from algorithms.gram_matrix import Bool, Float, squared_distances
from algorithms.prototypes import project_to_norm
from protoseal.evaluation.attacks.poisoned_run import Poison, malicious_of
from protoseal.evaluation.attacks.poisoning import BOOST, multiplied, shifted
from protoseal.evaluation.attacks.recorded_run import Labels, RecordedRun, Rows, record_run
from protoseal.simulation.config import load_simulation

_OWN, _PULL = 0.3, 3.0  # α and λ of PFPL
_SITES, _GROUP, _ORDERS = (9, 15), 3, 20


def median_weights(gram: Float, holds: Bool) -> Float:
    """Return weights (K, n, n) of PFPL's form that leave out peers at over twice the median squared distance.

    The others get equal weights. A receiver that has no peer keeps its own prototype.
    """
    both, same = holds.T[:, :, None] & holds.T[:, None, :], np.eye(len(holds), dtype=np.bool_)
    peers, own = both & ~same, both & same
    distances = np.where(peers, squared_distances(gram), np.inf)
    middle = np.maximum(peers.sum(axis=-1, keepdims=True) - 1, 0) // 2
    near = peers & (distances <= 2.0 * np.take_along_axis(np.sort(distances), middle, axis=-1))
    count = near.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(count == 0, own, _OWN * own + (1.0 - _OWN) * near / np.maximum(count, 1)))


def _pulled(settings: Any) -> BatchLoss:  # noqa: ARG001 (the interface's argument)
    from algorithms.baselines.fedproto import Objective  # noqa: PLC0415 (a coordinator has no torch)

    return Objective(_PULL)


MEDIAN_PEERS = Method(
    name="median-peers",
    traits=Traits(Family.PEERS, prototypes=True),
    objective=_pulled,
    weights=lambda settings: median_weights,
)
"""PFPL with :func:`median_weights`. An entry point must register it before a run names it."""


def median_of_groups(rows: Rows, size: int) -> Rows:
    """Return the median (K, d), by coordinates, of the means that sums over groups of ``size`` of (n, K, d) open."""
    groups = np.array_split(rows, max(1, len(rows) // size))
    return np.asarray(np.median([group.mean(axis=0) for group in groups], axis=0))


def lost_in_sums(run: RecordedRun, poison: Poison, size: int, seed: int = 0) -> Mapping[str, float]:
    """Return the accuracy that honest sites lose when the last round's sum of prototypes is poisoned.

    The sites of a clean run, each of which has every class, predict by the nearest mean over all sites or by the
    nearest median of groups, drawn at random. Both are compared with the mean without poison.
    """
    names, bound = sorted(run.sites), run.agreement.norm_bound
    malicious = malicious_of(names)
    honest = [run.sites[name] for name in names if name not in malicious]
    clean = np.array([run.sites[name].rows for name in names])
    dirty = clean.copy()
    for i, name in enumerate(names):
        if name in malicious:
            dirty[i] = project_to_norm(poison.rows(clean[i], run.sites[name].labels, len(names)), bound)[0]
    order = np.random.default_rng(seed).permutation(len(names))
    tests = [(site.features(site.test.inputs), site.test.labels) for site in honest]

    def accuracy(rows: Rows) -> float:
        return float(np.mean([(_nearest(each, rows) == labels).mean() for each, labels in tests]))

    right = accuracy(clean.mean(axis=0))
    return {
        "mean": right - accuracy(dirty.mean(axis=0)),
        "median of groups": right - accuracy(median_of_groups(dirty[order], size)),
        "median of groups, no poison": right - accuracy(median_of_groups(clean[order], size)),
    }


def _nearest(features: Rows, rows: Rows) -> Labels:
    """Return the class (N,) of the nearest row of (K, d) to each of (N, d)."""
    return np.asarray(np.linalg.norm(features[:, None] - rows, axis=2).argmin(axis=1))


def rows() -> Iterator[tuple[int, str, Mapping[str, float]]]:
    """Yield the mean losses of FedProto on the bundled digits, for each number of sites and kind of poison."""
    for sites in _SITES:
        settings = {"method": "fedproto", "split": "iid", "sites": sites, "rounds": 2, "norm_bound": 10.0}
        run = record_run(load_simulation(None, settings), 0)
        for name, poison in (("scaled", multiplied(BOOST)), ("shift", Poison(rows=shifted))):
            lost = [lost_in_sums(run, poison, _GROUP, seed) for seed in range(_ORDERS)]
            yield sites, name, {key: float(np.mean([each[key] for each in lost])) for key in lost[0]}


if __name__ == "__main__":
    for count, kind, found in rows():
        words = ", ".join(f"{name} {value:+.3f}" for name, value in found.items())
        sys.stdout.write(f"{count} sites, {kind}: {words}\n")
