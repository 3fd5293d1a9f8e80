"""Prototypes at a site: class means, the public norm bound, targets, and the nearest prototype (torch)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from algorithms.gram_matrix import Bool, Float

__all__ = ["Clusters", "Targets"]

DTYPE = torch.float32
"""Type of targets and clusters, whatever torch's default type is: a site's own code may change the default."""


@dataclass(frozen=True)
class Targets:
    """Prototypes for some of the classes: ``rows`` (K, d) and ``present`` (K,) bool, on one device.

    The row of an absent class is never read.
    """

    rows: Tensor
    present: Tensor

    @classmethod
    def of(cls, rows: Float, present: Bool) -> Targets:
        """Convert to :data:`DTYPE` on the CPU.

        Raises ``ValueError`` for shapes that do not fit or a target not finite.
        """
        if rows.ndim != 2 or present.shape != rows.shape[:1] or present.dtype != np.bool_:
            raise ValueError(f"rows {rows.shape} and present {present.shape} do not fit together")
        if not np.isfinite(rows[present]).all():
            raise ValueError("a target is not finite")
        return cls(torch.tensor(rows, dtype=DTYPE), torch.tensor(present))

    def to(self, device: torch.device) -> Targets:
        """Return the same targets on ``device``."""
        return Targets(self.rows.to(device), self.present.to(device))


@dataclass(frozen=True)
class Clusters:
    """Several prototypes per class: ``rows`` (G, d), ``labels`` int64 (G,) and ``weights`` (G,), on one device.

    Weights are not negative and sum to 1 over each class's rows.
    """

    rows: Tensor
    labels: Tensor
    weights: Tensor

    @classmethod
    def of(cls, rows: Float, labels: NDArray[np.int64], weights: Float) -> Clusters:
        """Convert to :data:`DTYPE` on the CPU.

        Raises ``ValueError`` for shapes that do not fit, rows or weights that are not finite, or negative labels or
        weights.
        """
        if rows.ndim != 2 or labels.shape != rows.shape[:1] or weights.shape != rows.shape[:1]:
            raise ValueError(f"rows {rows.shape}, labels {labels.shape}, weights {weights.shape} do not fit")
        if not np.isfinite(rows).all() or not np.isfinite(weights).all():
            raise ValueError("a cluster's row or weight is not finite")
        if (labels < 0).any() or (weights < 0).any():
            raise ValueError("labels and weights of clusters must not be negative")
        return cls(
            torch.tensor(rows, dtype=DTYPE),
            torch.tensor(labels, dtype=torch.int64),
            torch.tensor(weights, dtype=DTYPE),
        )

    def to(self, device: torch.device) -> Clusters:
        """Return the same clusters on ``device``."""
        return Clusters(self.rows.to(device), self.labels.to(device), self.weights.to(device))


Guide = Targets | Clusters
"""Prototypes with which training aligns a site's features."""


def class_means(batches: Iterable[tuple[Tensor, Tensor]], classes: int, dim: int) -> tuple[Tensor, Tensor]:
    """Return C^k, the mean feature vector of each class (equations 1 and 2), over batches of (features, labels).

    Features are (B, d) on any device, labels int64 (B,) in [0, K). The result, on the CPU, is float64 means (K, d),
    zeros for a class without samples, and int64 counts (K,). Sums run in float64 and in one order, so that the same
    features give the same bits. The caller must set ``eval()`` mode and pass samples without augmentation.
    """
    sums = torch.zeros(classes, dim, dtype=torch.float64)
    counts = torch.zeros(classes, dtype=torch.int64)
    for features, labels in batches:
        members = torch.nn.functional.one_hot(labels.cpu(), classes)
        sums += members.double().T @ features.detach().cpu().double()
        counts += members.sum(dim=0)
    return sums / counts.clamp(min=1).unsqueeze(1), counts


def project_to_norm(rows: Float, bound: float) -> tuple[NDArray[np.float64], int]:
    """Shorten rows (K, d) to a Euclidean norm of at most ``bound``; return the rows and how many were shortened.

    A shortened row keeps its direction up to rounding, and rounding never leaves it beyond the bound. The bound is
    public and the same at all sites. A caller should report a count above 0, because a shortened row is no longer the
    class mean. Raises ``ValueError`` unless bound > 0.
    """
    if not bound > 0.0:
        raise ValueError(f"the norm bound must be above 0, not {bound}")
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    factors = np.where(norms > bound, bound / np.maximum(norms, bound), 1.0)
    within = np.asarray(rows * factors, dtype=np.float64)
    while (over := np.linalg.norm(within, axis=1) > bound).any():
        # Rounding may leave the norm above the bound by a digit or two, and a coordinator refuses such a row.
        within[over] *= 1.0 - np.finfo(np.float64).eps
    return within, int((norms > bound).sum())
