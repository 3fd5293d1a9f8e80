"""Training loss of PFPL: cross entropy plus alignment with the personalised prototypes (equation 5; torch)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from algorithms.baseline_losses import FedprotoLoss
from algorithms.losses import distance_of_means, mean_square
from algorithms.prototypes import Targets


@dataclass(frozen=True)
class PfplLoss(FedprotoLoss):
    """Loss CE + λ · ℓ_R (equation 5): FedProto's loss, with personalised prototypes as targets.

    ``alignment_weight`` is λ ≥ 0. ℓ_R is :func:`algorithms.losses.mean_square`; ``literal`` takes it as printed
    (equations 6 and 7, :func:`algorithms.losses.distance_of_means`). Raises ``ValueError`` for a negative or
    non-finite λ.
    """

    literal: bool = False

    def distance(self, features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
        """Return ℓ_R."""
        return (distance_of_means if self.literal else mean_square)(features, labels, targets)
