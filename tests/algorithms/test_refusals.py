"""Arguments that the mathematics refuses: each row is a call, and the argument that its error names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from algorithms.averaging import active_classes, prototype_means, weighted_mean
from algorithms.feddbp import FeddbpLoss, fuse
from algorithms.fedpc import Groups, cluster, means_within_groups, silhouette
from algorithms.fedplcc import (
    Contribution,
    LocalClusters,
    assign,
    contribution,
    global_clusters,
    local_clusters,
)
from algorithms.finch import finch, finch_rows
from algorithms.gram_matrix import Float, combine, gram, principal_scores
from algorithms.inference import by_prototype, nearest_prototype
from algorithms.kmeans import kmeans
from algorithms.losses import Outputs
from algorithms.metrics import per_class, weighted_accuracy
from algorithms.pfpl import Weighting, peer_weights, personalise
from algorithms.prototypes import Clusters, Targets, project_to_norm

NAN = float("nan")
INF = float("inf")
ONE = np.array([[1.0]])
OWNER = np.array([0])
BOOLS = np.ones((2, 2), dtype=np.bool_)
PAIR = gram(np.array([[[0.0, 1.0]], [[1.0, 1.0]]]))
"""Inner products of two sites in one class."""
LOCAL = LocalClusters(np.array([[1.0], [2.0]]), np.array([0, 1]), np.array([1, 2]))
TOTAL = Contribution(ONE, np.array([1.0]), np.array([1.0]))
NOBODY = Targets.of(np.zeros((2, 2)), np.array([False, False]))
NO_CLUSTER = Clusters.of(np.zeros((0, 2)), np.zeros(0, dtype=np.int64), np.zeros(0))


def fused(**change: Any) -> object:
    """Fuse two classes of three channels, with some arguments changed."""
    square = np.ones((2, 3))
    arguments = {"own": square, "has_own": BOOLS[0], "scores": square, "mean": square, "has": BOOLS[0]}
    return fuse(**(arguments | {"eta": 0.5, "top": 1} | change))


def fedpc_means(holders: list[list[int]], members: list[int], min_holders: int) -> Groups:
    return means_within_groups(
        np.zeros((1, 1, 2)), np.array(holders), np.zeros((1, 4)), np.array(members), min_holders
    )


def accuracy(correct: list[int], counts: list[int], weights: list[float]) -> float | None:
    return weighted_accuracy(np.array(correct), np.array(counts), np.array(weights))


def distance_weights(holds: NDArray[np.bool_] = BOOLS[:, :1], tau: float = 1e-9) -> Float:
    return peer_weights(PAIR, holds, Weighting.DISTANCE, tau=tau)


REFUSALS: dict[str, tuple[Callable[[], object], str]] = {
    # averaging
    "weight of 0": (lambda: weighted_mean(np.ones(3), 0.0), "weight"),
    "weight below 0": (lambda: weighted_mean(np.ones(3), -1.0), "weight"),
    "weight nan": (lambda: weighted_mean(np.ones(3), NAN), "weight"),
    "weight infinite": (lambda: weighted_mean(np.ones(3), INF), "weight"),
    "weights of more groups": (lambda: weighted_mean(np.ones((2, 3)), np.ones(3)), "weights"),
    "holders of more classes": (
        lambda: prototype_means(np.ones((2, 3)), np.ones(3, dtype=np.int64), 1),
        "holders",
    ),
    "mean over nobody": (lambda: prototype_means(np.ones((2, 3)), np.array([1, 1]), 0), "min_holders"),
    "holders below 0": (lambda: prototype_means(np.ones((2, 3)), np.array([1, -1]), 1), "holders"),
    "active from 0": (lambda: active_classes(BOOLS, 0), "min_holders"),
    "active from -1": (lambda: active_classes(BOOLS, -1), "min_holders"),
    "presence in numbers": (lambda: active_classes(BOOLS.astype(np.int64), 3), "presence"),
    "presence of one site": (lambda: active_classes(BOOLS[0], 3), "presence"),
    # inner products
    "stack without classes": (lambda: gram(np.zeros((2, 3))), "stack"),
    "weights of another stack": (lambda: combine(np.zeros((3, 2, 2)), np.zeros((2, 4, 5))), "weights"),
    "dimension beyond the vectors": (lambda: principal_scores(np.eye(3), 4), "dimension"),
    "k-means of 0": (lambda: kmeans(np.zeros((3, 1)), 0, seed=0), "clusters"),
    "k-means of more than points": (lambda: kmeans(np.zeros((3, 1)), 4, seed=0), "clusters"),
    "finch of a rectangle": (lambda: finch(np.ones((2, 3))), "Gram"),
    "finch of nan": (lambda: finch(np.array([[1.0, NAN], [NAN, 1.0]])), "Gram"),
    "finch of an indefinite matrix": (lambda: finch(np.array([[1.0, 2.0], [2.0, 1.0]])), "Gram"),
    "finch of a lopsided matrix": (lambda: finch(np.array([[1.0, 0.5], [0.4, 1.0]])), "Gram"),
    "finch of one row": (lambda: finch_rows(np.ones(3)), "vectors"),
    "finch of infinite rows": (lambda: finch_rows(np.array([[1.0, INF]])), "vectors"),
    # prototypes and prediction
    "norm bound 0": (lambda: project_to_norm(ONE, 0.0), "bound"),
    "norm bound below 0": (lambda: project_to_norm(ONE, -1.0), "bound"),
    "norm bound nan": (lambda: project_to_norm(ONE, NAN), "bound"),
    "infinite target": (lambda: Targets.of(np.array([[INF]]), np.array([True])), "target"),
    "targets of more classes": (lambda: Targets.of(np.zeros((2, 3)), np.array([True])), "present"),
    "nearest of none": (lambda: nearest_prototype(torch.zeros(1, 2), NOBODY), "prototype"),
    "prediction by none": (
        lambda: by_prototype(Outputs(torch.ones(1, 2), torch.ones(1, 2)), NOBODY),
        "prototype",
    ),
    "decision by none": (
        lambda: by_prototype(Outputs(*[torch.ones(1, 2)] * 4), NOBODY),
        "prototype",
    ),
    "prediction by no cluster": (
        lambda: by_prototype(Outputs(torch.ones(1, 2), torch.ones(1, 2)), NO_CLUSTER),
        "prototype",
    ),
    # metrics
    "accuracy of other counts": (lambda: accuracy([1, 2], [1], [1.0]), "counts"),
    "accuracy of other weights": (lambda: accuracy([1], [1], [1.0, 1.0]), "weights"),
    "more correct than samples": (lambda: accuracy([2], [1], [1.0]), "correct"),
    "correct below 0": (lambda: accuracy([-1], [1], [1.0]), "correct"),
    "class weight below 0": (lambda: accuracy([1], [1], [-1.0]), "weight"),
    "class weight nan": (lambda: accuracy([1], [1], [NAN]), "weight"),
    "more labels than predictions": (lambda: per_class(OWNER, np.array([0, 1]), 2), "labels"),
    "label below 0": (lambda: per_class(OWNER, np.array([-1]), 2), "label"),
    "label beyond the classes": (lambda: per_class(OWNER, np.array([2]), 2), "label"),
    # PFPL
    "alpha below 0": (lambda: personalise(ONE, ONE, -0.1), "alpha"),
    "alpha above 1": (lambda: personalise(ONE, ONE, 1.1), "alpha"),
    "alpha nan": (lambda: personalise(ONE, ONE, NAN), "alpha"),
    "peers of other classes": (lambda: personalise(ONE, np.ones((2, 1)), 0.5), "peers"),
    "holds of more classes": (lambda: distance_weights(BOOLS), "classes"),
    "holds of one class": (lambda: distance_weights(BOOLS[0]), "holds"),
    "tau 0": (lambda: distance_weights(tau=0.0), "tau"),
    "tau below 0": (lambda: distance_weights(tau=-1.0), "tau"),
    "tau nan": (lambda: distance_weights(tau=NAN), "tau"),
    # FedPC
    "clustering for nobody": (lambda: cluster(np.eye(4), min_holders=0, groups=2, seed=0), "min_holders"),
    "clustering into none": (lambda: cluster(np.eye(4), min_holders=1, groups=0, seed=0), "groups"),
    "silhouette of one": (lambda: silhouette(np.ones((3, 1)), np.zeros(3, dtype=np.int64)), "clusters"),
    "group too small": (lambda: fedpc_means([[2]], [2], 3), "min_holders"),
    "group of nobody": (lambda: fedpc_means([[0]], [0], 1), "min_holders"),
    "more holders than members": (lambda: fedpc_means([[4]], [3], 3), "holders"),
    "holders of a group below 0": (lambda: fedpc_means([[-1]], [3], 3), "holders"),
    "group means over nobody": (lambda: fedpc_means([[3]], [3], 0), "min_holders"),
    "holders of more classes in a group": (lambda: fedpc_means([[3, 3]], [3], 3), "holders"),
    "members of more groups": (lambda: fedpc_means([[3]], [3, 3], 3), "members"),
    "has of fewer groups": (lambda: Groups(np.zeros((2, 2, 4)), BOOLS[:1], np.zeros((2, 1))), "has"),
    "has in numbers": (
        lambda: Groups(np.zeros((2, 2, 4)), BOOLS.astype(float), np.zeros((2, 1))),
        "has",
    ),
    "theta of fewer groups": (lambda: Groups(np.zeros((2, 2, 4)), BOOLS, np.zeros((1, 1))), "theta"),
    # FedDBP
    "scores below 0": (lambda: fused(scores=np.full((2, 3), -1.0)), "score"),
    "scores nan": (lambda: fused(scores=np.full((2, 3), NAN)), "score"),
    "scores of fewer channels": (lambda: fused(scores=np.ones((2, 2))), "scores"),
    "mean of fewer classes": (lambda: fused(mean=np.ones((1, 3))), "mean"),
    "own of one class": (lambda: fused(own=np.ones(3)), "own"),
    "eta below 0": (lambda: fused(eta=-0.1), "eta"),
    "eta above 1": (lambda: fused(eta=1.1), "eta"),
    "eta nan": (lambda: fused(eta=NAN), "eta"),
    "top below 0": (lambda: fused(top=-1), "top"),
    "has as numbers": (lambda: fused(has=np.ones(2)), "has"),
    "has_own of fewer classes": (lambda: fused(has_own=BOOLS[0, :1]), "has_own"),
    **{
        f"{field} {value}": ((lambda field=field, value=value: FeddbpLoss(**{field: value})), field)  # type: ignore[misc]
        for field in ("decision_weight", "alignment_weight", "contrast_weight", "temperature")
        for value in (-1.0, NAN, INF)
    },
    "feddbp's temperature 0": (lambda: FeddbpLoss(temperature=0.0), "temperature"),
    "neither branch": (lambda: FeddbpLoss(share=False, decision=False), "decision"),
    "no decision branch": (
        lambda: FeddbpLoss()(Outputs(torch.ones(1, 2), torch.ones(1, 2)), torch.tensor([0]), None),
        "decision",
    ),
    # FedPLCC
    "prototype of no sample": (lambda: replace(LOCAL, counts=np.array([1, 0])), "sample"),
    "prototypes out of order": (lambda: replace(LOCAL, labels=np.array([1, 0])), "class"),
    "prototype of class -1": (lambda: replace(LOCAL, labels=np.array([-1, 0])), "class"),
    "prototypes with fewer labels": (lambda: replace(LOCAL, labels=OWNER), "labels"),
    "prototype nan": (lambda: replace(LOCAL, rows=np.array([[1.0], [NAN]])), "prototype"),
    "features of a class beyond": (lambda: local_clusters(ONE, np.array([2]), 2), "labels"),
    "features with more labels": (lambda: local_clusters(ONE, np.array([0, 1]), 2), "labels"),
    "infinite features": (lambda: local_clusters(np.array([[INF], [1.0]]), np.array([0, 0]), 2), "finite"),
    "assigned for nobody": (lambda: assign([ONE], [OWNER], 0), "min_holders"),
    "assigned without sites": (lambda: assign([ONE], [], 1), "site"),
    "assigned with more sites": (lambda: assign([ONE], [np.array([0, 1])], 1), "prototypes"),
    "assigned from nan": (lambda: assign([np.array([[NAN]])], [OWNER], 1), "Gram"),
    "cluster beyond": (lambda: contribution(local_clusters(ONE, OWNER, 1), np.array([1]), 1), "clusters"),
    "cluster -2": (lambda: contribution(local_clusters(ONE, OWNER, 1), np.array([-2]), 1), "clusters"),
    "clusters of more rows": (
        lambda: contribution(local_clusters(ONE, OWNER, 1), np.array([0, 0]), 1),
        "clusters",
    ),
    "labels of more clusters": (lambda: global_clusters(TOTAL, np.array([0, 0])), "labels"),
    "cluster of class -1": (lambda: global_clusters(TOTAL, np.array([-1])), "class"),
    "cluster without members": (
        lambda: global_clusters(TOTAL._replace(members=np.zeros(1)), OWNER),
        "members",
    ),
    "cluster without samples": (
        lambda: global_clusters(TOTAL._replace(counts=np.zeros(1)), OWNER),
        "samples",
    ),
}


@pytest.mark.parametrize("row", REFUSALS)
def test_impossible_argument_is_refused_by_name(row: str) -> None:
    call, name = REFUSALS[row]
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        call()
