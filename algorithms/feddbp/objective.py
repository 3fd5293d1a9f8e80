"""The site's half of FedDBP: cross entropy on both branches, alignment of one, contrast on the other (equation 7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.alignment import mean_square, units
from algorithms.prototypes import Targets
from algorithms.terms import Outputs, Terms


@dataclass(frozen=True)
class Objective:
    """L = CE_s + λ1 · CE_d + λ2 · L_s + λ3 · L_d (equation 7), a batch mean each.

    ``decision_weight`` is λ1, ``alignment_weight`` λ2, ``contrast_weight`` λ3, all from 0 up; ``temperature`` is
    τ > 0. L_s is :func:`algorithms.alignment.mean_square` on the shared branch, L_d :func:`contrast` on the decision
    branch; ``literal`` takes both as printed: L_s without its 1/d, L_d without its logarithm and with the boundary
    term of the other sign. Ablations: ``share`` False leaves out CE_s and L_s, ``decision`` False CE_d and L_d (a
    model without that branch, then), ``hard`` False the boundary term M of L_d.

    Raises ``ValueError`` for weights out of range, or with both branches left out.
    """

    decision_weight: float = 1.0
    alignment_weight: float = 10.0
    contrast_weight: float = 1.0
    temperature: float = 0.07
    literal: bool = False
    share: bool = True
    decision: bool = True
    hard: bool = True

    def __post_init__(self) -> None:
        for name in ("decision_weight", "alignment_weight", "contrast_weight"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is a number from 0 up, not {getattr(self, name)}")
        if not 0.0 < self.temperature < float("inf"):
            raise ValueError(f"temperature is above 0, not {self.temperature}")
        if not (self.share or self.decision):
            raise ValueError("share and decision cannot both be left out: nothing would be trained")

    def __call__(self, outputs: Outputs, labels: Tensor, targets: Targets | None) -> Terms:
        """Terms for a batch with labels (B,), each part with its weights; without targets the alignment is 0.

        Raises ``ValueError`` when the model has no decision branch and the ablation was not asked for.
        """
        classification = torch.zeros_like(outputs.logits[0, 0])
        alignment = torch.zeros_like(classification)
        if self.share:
            classification = classification + functional.cross_entropy(outputs.logits, labels)
            if targets is not None:
                alignment = alignment + self.alignment_weight * self._shared(
                    outputs.features, labels, targets
                )
        if self.decision:
            features, logits = _decision_of(outputs)
            classification = classification + self.decision_weight * functional.cross_entropy(logits, labels)
            if targets is not None:
                alignment = alignment + self.contrast_weight * self._contrast(features, labels, targets)
        return Terms(classification + alignment, classification, alignment)

    def _shared(self, features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
        """L_s (equation 3)."""
        channels = features.shape[1] if self.literal else 1
        return channels * mean_square(features, labels, targets)

    def _contrast(self, features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
        """L_d (equations 4 to 6)."""
        return contrast(
            features, labels, targets, temperature=self.temperature, hard=self.hard, literal=self.literal
        )


def contrast(
    features: Tensor,
    labels: Tensor,
    targets: Targets,
    *,
    temperature: float,
    hard: bool = True,
    literal: bool = False,
) -> Tensor:
    """L_d: how far z^d is from its class's prototype, against how far from the others' (equations 4 to 6), a scalar.

    Features are (B, d), labels (B,). With d_{i,c} the distance of the two when both have norm 1, over the batch's
    samples whose class has a target and the classes c that have one:

        −mean_i log[ e^{−d_{i,y}/τ} / (Σ_c e^{−d_{i,c}/τ} + M_i) ]      M_i = Σ_{c≠y} e^{max(0, m − d_{i,c})/τ}

    m is halfway between the batch's mean d_{i,y} and its mean d_{i,c≠y}, and gets no gradient. M grows as another
    class's prototype comes nearer than m, so that the gradient drives the two apart. Printed (``literal``): no
    logarithm, and e^{−max(0, …)/τ}, which grows with the distance. Without ``hard``, M = 0. 0 when no sample
    has a target.
    """
    classes = torch.arange(len(targets.present), device=labels.device)
    rows = torch.where(targets.present.unsqueeze(1), targets.rows, 0.0).to(features.dtype)
    distances = _distances(units(features), units(rows))
    own = labels.unsqueeze(1) == classes
    chosen = targets.present[labels]
    others = targets.present & ~own
    scores = torch.where(others | own, -distances / temperature, -torch.inf)
    if hard:
        beyond = (_boundary(distances.detach(), own, others, chosen) - distances).clamp(min=0.0)
        penalties = (-beyond if literal else beyond) / temperature
        scores = torch.cat([scores, torch.where(others, penalties, -torch.inf)], dim=1)
    log_shares = -_of_own(distances, own) / temperature - scores.logsumexp(dim=1)
    losses = -log_shares.exp() if literal else -log_shares
    return _mean(losses, chosen)


def _decision_of(outputs: Outputs) -> tuple[Tensor, Tensor]:
    if outputs.decision is None or outputs.decision_logits is None:
        raise ValueError("the model has no decision branch, which the loss needs unless decision is False")
    return outputs.decision, outputs.decision_logits


def _distances(features: Tensor, rows: Tensor) -> Tensor:
    """‖·‖₂ of all differences, (B, K), not by inner products, which round small ones away; gradient 0 at 0."""
    return torch.cdist(features, rows, compute_mode="donot_use_mm_for_euclid_dist")


def _boundary(distances: Tensor, own: Tensor, others: Tensor, chosen: Tensor) -> Tensor:
    """m = (d̄⁺ + d̄⁻)/2 over the chosen samples; a mean over none counts as 0, and is then compared with nothing."""
    counted = others & chosen.unsqueeze(1)
    return (_mean(_of_own(distances, own), chosen) + _mean(distances, counted)) / 2.0


def _of_own(distances: Tensor, own: Tensor) -> Tensor:
    """d_{i,y}, (B,)."""
    return torch.where(own, distances, 0.0).sum(dim=1)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """Over the values that count; 0 when none does."""
    return torch.where(counted, values, 0.0).sum() / counted.sum().clamp(min=1)
