"""Robust options against malicious sites that a protection permits, measured.

    python -m benchmarks.robust_options

prints the accuracy that honest sites lose on the bundled digits, with one malicious site in five:

- by the agreed norm bound, in sums of prototypes of FedProto, of which each row is checked (``plain``);
- by PFPL's weights, which follow from the Gram matrix that a rotation keeps: ``complement``, the default, gives far
  peers little weight, ``distance``, as printed in the paper, most; ``uniform`` runs as a masked sum, in which the mean
  alone is held to the norm bound;
- by the median over the means of groups (:func:`median_of_groups`), which follows from sums under masks, one for each
  group. The median is no part of the protocol, and every row is taken to keep the norm bound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from algorithms.prototypes import project_to_norm
from protoseal.attacks.poisoning import (
    BOOST,
    HONEST,
    Poison,
    add_triggers,
    choose_malicious,
    run_poisoned,
    scale_upload,
    shift_rows,
)
from protoseal.attacks.recorded_run import Labels, RecordedRun, Rows, record_run
from protoseal.simulation.config import load_simulation

SCALED, SHIFT = scale_upload(BOOST), Poison(rows=shift_rows)
_BOUNDS, _WEIGHTINGS = (50.0, 10.0, 2.0), ("distance", "uniform", "complement")
_SEEDS, _SITES, _GROUP, _ORDERS = 2, (9, 15), 3, 20


def lost_in_runs(seeds: int, **settings: Any) -> float:
    """Return the mean accuracy that honest sites lose to a scaled upload, over so many seeds of a configuration."""
    usual = {"split": "iid", "sites": 10, "rounds": 5, "protection": "masked"}
    config = load_simulation(None, {**usual, **settings})
    lost = []
    for seed in range(seeds):
        clean, dirty = (
            run_poisoned(config, seed, poison, add_triggers).accuracy for poison in (HONEST, SCALED)
        )
        lost.append(np.mean([clean[name] - dirty[name] for name in clean]))
    return float(np.mean(lost))


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
    malicious = choose_malicious(names)
    honest = [run.sites[name] for name in names if name not in malicious]
    clean = np.array([run.sites[name].rows for name in names])
    dirty = clean.copy()
    for i, name in enumerate(names):
        if name in malicious:
            dirty[i] = project_to_norm(poison.rows(clean[i], run.sites[name].labels, len(names)), bound)[0]
    order = np.random.default_rng(seed).permutation(len(names))
    tests = [(site.features(site.test.inputs), site.test.labels) for site in honest]

    def accuracy(rows: Rows) -> float:
        return float(np.mean([(_nearest(features, rows) == labels).mean() for features, labels in tests]))

    right = accuracy(clean.mean(axis=0))
    return {
        "mean": right - accuracy(dirty.mean(axis=0)),
        "median of groups": right - accuracy(median_of_groups(dirty[order], size)),
        "median of groups, no poison": right - accuracy(median_of_groups(clean[order], size)),
    }


def _nearest(features: Rows, rows: Rows) -> Labels:
    """Return the class (N,) of the nearest row of (K, d) to each of (N, d)."""
    return np.asarray(np.linalg.norm(features[:, None] - rows, axis=2).argmin(axis=1))


def lines() -> Iterator[str]:
    """Yield a line for each option."""
    for bound in _BOUNDS:
        lost = lost_in_runs(_SEEDS, method="fedproto", protection="plain", norm_bound=bound)
        yield f"fedproto, norm bound {bound:g}: {lost:+.3f}"
    for weighting in _WEIGHTINGS:
        lost = lost_in_runs(_SEEDS, method="pfpl", pfpl={"weighting": weighting})
        yield f"pfpl, weighting {weighting}: {lost:+.3f}"
    for sites in _SITES:
        settings = {"method": "fedproto", "split": "iid", "sites": sites, "rounds": 2, "norm_bound": 10.0}
        run = record_run(load_simulation(None, settings), 0)
        for name, poison in (("scaled", SCALED), ("shift", SHIFT)):
            losses = [lost_in_sums(run, poison, _GROUP, seed) for seed in range(_ORDERS)]
            words = [f"{key} {np.mean([loss[key] for loss in losses]):+.3f}" for key in losses[0]]
            yield f"{sites} sites, {name}: {', '.join(words)}"


if __name__ == "__main__":
    for line in lines():
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
