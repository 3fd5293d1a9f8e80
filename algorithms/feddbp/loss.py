"""Training loss of FedDBP: cross entropy on both branches, alignment on one, contrast on the other (equation 7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from algorithms.losses import Outputs, Terms, mean_square, units
from algorithms.prototypes import Targets


@dataclass(frozen=True)
class FeddbpLoss:
    """Loss L = CE_s + λ1 · CE_d + λ2 · L_s + λ3 · L_d (equation 7), each a batch mean.

    ``decision_weight`` is λ1, ``alignment_weight`` λ2, ``contrast_weight`` λ3, all at least 0; ``temperature`` is
    τ > 0. L_s is :func:`algorithms.losses.mean_square` on the shared branch, L_d :func:`contrast` on the
    decision branch. ``literal`` takes both as printed: L_s without its 1/d, L_d without its logarithm and with the
    printed boundary term M.
    Ablations: ``share=False`` leaves out CE_s and L_s, ``decision=False`` CE_d and L_d (for a model without a decision
    branch), ``hard=False`` the boundary term M.

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
                raise ValueError(f"{name} must be at least 0 and finite, not {getattr(self, name)}")
        if not 0.0 < self.temperature < float("inf"):
            raise ValueError(f"temperature must be above 0 and finite, not {self.temperature}")
        if not (self.share or self.decision):
            raise ValueError(
                "share and decision are both False, so nothing would train: set one of them to True"
            )

    def __call__(self, outputs: Outputs, labels: Tensor, targets: Targets | None) -> Terms:
        """Return the terms for a batch with labels (B,), each part with its weights; without targets alignment is 0.

        Raises ``ValueError`` if the model has no decision branch and ``decision`` is True.
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
        """Return L_s (equation 3)."""
        channels = features.shape[1] if self.literal else 1
        return channels * mean_square(features, labels, targets)

    def _contrast(self, features: Tensor, labels: Tensor, targets: Targets) -> Tensor:
        """Return L_d (equations 4 to 6)."""
        return contrast(
            features,
            labels,
            targets,
            temperature=self.temperature,
            hard=self.hard,
            literal=self.literal,
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
    """Return L_d: z^d's distance from its class's prototype against those from the others (equations 4 to 6), a scalar.

    Features are (B, d), labels (B,); the result is 0 if no sample has a target. d_{i,c} is the distance of z_i^d from
    class c's prototype, both scaled to norm 1. Over the batch's samples and the classes c with a target:

        −mean_i log[ e^{−d_{i,y}/τ} / (Σ_c e^{−d_{i,c}/τ} + M_i) ]      M_i = Σ_{c≠y, d_{i,c}<m} e^{(m − d_{i,c})/τ}

    m is halfway between the batch's mean d_{i,y} and its mean d_{i,c≠y}, and gets no gradient. Hard negatives are other
    classes' prototypes nearer than m. M grows as they come nearer, so that the gradient drives the two apart, and jumps
    by 1 where d_{i,c} crosses m. ``literal`` drops the logarithm and takes the printed
    M_i = Σ_{c≠y} e^{−max(0, m−d_{i,c})/τ}: a term that falls as a hard negative comes nearer, and is 1 for an easy one.
    Without ``hard``, M = 0.
    """
    classes = torch.arange(len(targets.present), device=labels.device)
    rows = torch.where(targets.present.unsqueeze(1), targets.rows, 0.0).to(features.dtype)
    distances = _distances(units(features), units(rows))
    own_class = labels.unsqueeze(1) == classes
    chosen = targets.present[labels]
    others = targets.present & ~own_class
    scores = torch.where(others | own_class, -distances / temperature, -torch.inf)
    if hard:
        # Equation 6. m has no gradient: a boundary that moves with what it bounds would be pushed by the very samples
        # that it judges.
        beyond = (_boundary(distances.detach(), own_class, others, chosen) - distances).clamp(min=0.0)
        # Print sums over all other classes, so that each easy negative adds a 1, which drowns Σ_c e^{−d/τ}.
        counted = others if literal else others & (beyond > 0.0)
        penalties = (-beyond if literal else beyond) / temperature
        scores = torch.cat([scores, torch.where(counted, penalties, -torch.inf)], dim=1)
    # Equations 4 and 5 on logarithms, as in a softmax: e^{−d/τ} underflows in float32 for τ = 0.07.
    log_shares = -_own_distances(distances, own_class) / temperature - scores.logsumexp(dim=1)
    losses = -log_shares.exp() if literal else -log_shares
    return _mean(losses, chosen)


def _decision_of(outputs: Outputs) -> tuple[Tensor, Tensor]:
    if outputs.decision is None or outputs.decision_logits is None:
        raise ValueError("the model has no decision branch: use a model with one, or set decision to False")
    return outputs.decision, outputs.decision_logits


def _distances(features: Tensor, rows: Tensor) -> Tensor:
    """Return ‖·‖₂ of all differences, (B, K), with gradient 0 at 0; inner products would round small ones away."""
    return torch.cdist(features, rows, compute_mode="donot_use_mm_for_euclid_dist")


def _boundary(distances: Tensor, own: Tensor, others: Tensor, chosen: Tensor) -> Tensor:
    """Return m = (d̄⁺ + d̄⁻)/2 over the chosen samples; a mean over no distance is 0, and is then not used."""
    counted = others & chosen.unsqueeze(1)
    return (_mean(_own_distances(distances, own), chosen) + _mean(distances, counted)) / 2.0


def _own_distances(distances: Tensor, own: Tensor) -> Tensor:
    """Return d_{i,y}, (B,)."""
    return torch.where(own, distances, 0.0).sum(dim=1)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """Return the mean of the counted values; 0 if none is counted."""
    return torch.where(counted, values, 0.0).sum() / counted.sum().clamp(min=1)
