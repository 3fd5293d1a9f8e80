"""Traits of methods, and the sections of the agreement with each method's settings.

Settings are loss weights, groups, clusters and temperatures. Traits say which values sites exchange, and how.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from agreement.toml_loading import Fraction, NotNegative, Positive, Section
from algorithms.pfpl import Weighting


class Family(StrEnum):
    """Family of methods whose rounds take the same course."""

    PEERS = "peers"
    """Each site gets an answer of its own, a combination of its peers' prototypes."""
    GROUPS = "groups"
    """Sites are grouped before training; values are summed within each group, and groups mixed by similarity."""
    SUMS = "sums"
    """Values are summed over all sites, and each site gets the mean."""
    CLUSTERS = "clusters"
    """Local prototypes of all sites are clustered, class by class, and models averaged."""
    ALONE = "alone"
    """No federation."""


class ModelPart(StrEnum):
    """Part of sites' models that is averaged."""

    NOTHING = "nothing"
    EXTRACTOR = "extractor"
    """Everything except the classifier."""
    NOT_NORMS = "not norms"
    """Everything except normalisation layers."""
    MODEL = "model"


class Predicts(StrEnum):
    """Model that a site predicts with."""

    TRAINED = "trained"
    """The model as the site trained it last."""
    AGGREGATED = "aggregated"
    """The last average, with the parts that are not averaged as the site trained them last."""


class Inference(StrEnum):
    """Kind of prediction with trained features. Both accuracies are reported; this is the method's own.

    With frozen features every method predicts by prototype: see ``RunSettings.inference``.
    """

    CLASSIFIER = "classifier"
    PROTOTYPE = "prototype"
    """Class of the nearest prototype; the classifier's class before there is any prototype."""


@dataclass(frozen=True)
class Traits:
    """Traits that distinguish one method's rounds from another's.

    ``averaged``: the part of the model that is exchanged, ``weighted`` by sample counts or not. ``prototypes``: class
    prototypes are exchanged, one for each class; the methods of ``CLUSTERS`` exchange several, or a ``single`` one.
    """

    family: Family
    averaged: ModelPart = ModelPart.NOTHING
    weighted: bool = False
    prototypes: bool = False
    predicts: Predicts = Predicts.TRAINED
    inference: Inference = Inference.CLASSIFIER
    single: bool = False


Sparsity = Annotated[float, Field(gt=0, le=1)]


class PfplSection(Section):
    """PFPL's settings: equations 4 and 5 of the paper (docs/explanation/notation.md).

    ``lambda`` weighs a mean square over samples and channels, which has one scale for every feature dimension, batch
    and number of classes. ``literal`` takes ℓ_R as printed, Σ_k ‖C̄^k − mean z^k‖₂ over the batch's classes.
    Its pull is the same at every distance and grows with the classes of a batch, so ``lambda`` has another default
    then, and features can collapse from 0.3 on. ``lambda`` has another default under DP-SGD too, whose clip limits
    cross entropy and alignment together. A record's ℓ_R is there that of a batch of this record alone, ‖C̄ − z‖₂ as
    printed; both forms have the same guarantee.
    """

    weighting: Weighting = Weighting.COMPLEMENT
    """Weights of peers by distance; `inverse` is not served under `ckks`."""
    alpha: Fraction = 0.3
    """α: share of a site's own prototype in its target."""
    alignment: NotNegative = Field(default=3.0, alias="lambda")
    """λ: weight of the alignment loss; with `literal` or DP-SGD, 0.1 unless given."""
    literal: bool = False
    """Take the alignment loss as printed."""

    @model_validator(mode="before")
    @classmethod
    def _printed_form_has_its_own_lambda(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("literal") is True:
            return {"lambda": 0.1, **given}
        return given


class FedpcSection(Section):
    """FedPC's settings: equations 2 to 8 of the paper (docs/explanation/notation.md).

    ``groups`` is J, chosen by silhouette when it is not given. A group has ``min_holders`` sites or more, so fewer than
    2·``min_holders`` sites are always one group, whatever ``groups`` says: then there is nothing to mix between groups
    (equations 5 to 8).

    ``alignment`` is γ of L = (1 − γ)·CE + γ·L_p, 0.5 as printed. L_p is a mean square over samples and channels, as
    PFPL's. ``literal`` takes L_p as printed, Σ_k ‖P_i^k − P_j^k‖₂ over batch means: at γ = 0.5 this outweighs the
    cross-entropy, and features collapse onto targets that hardly separate classes (docs: notation). ``literal`` also
    lets a group without a class count with zeros in a mixture of groups, as equation 7 does.

    ``predicts`` selects the model as the site trained it last, or the last averaged extractor with the classifier as
    the site trained it, which has less of DP-SGD's noise. The paper leaves this open.
    """

    groups: Annotated[int, Field(ge=1, le=256)] | None = None
    """J: number of groups; chosen by silhouette unless given."""
    alignment: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """γ: weight of the alignment loss; the cross-entropy has 1 − γ."""
    literal: bool = False
    """Take the printed formulas of the alignment loss and of mixtures of groups."""
    predicts: Predicts = Predicts.TRAINED
    """Predict with the extractor as trained last, or as averaged last."""


class FeddbpSection(Section):
    """FedDBP's settings: equations 3 to 10 of the paper (docs/explanation/notation.md), with its values.

    ``decision_weight``, ``shared_alignment`` and ``decision_alignment`` are λ1, λ2 and λ3; ``temperature`` is τ.
    ``own`` is η: the share of a site's own prototype in the ``top_channels`` K channels that matter most to it.
    ``share``, ``decision``, ``hard`` and ``personal`` switch parts of the method off for ablations.
    """

    decision_weight: NotNegative = 1.0
    """λ1: weight of the decision branch's cross-entropy."""
    shared_alignment: NotNegative = 10.0
    """λ2: weight of the shared branch's alignment."""
    decision_alignment: NotNegative = 1.0
    """λ3: weight of the decision branch's separation."""
    temperature: Positive = 0.07
    """τ: temperature of the separation."""
    own: Fraction = 1.0
    """η: share of a site's own prototype in its top channels."""
    top_channels: Annotated[int, Field(ge=0, le=1 << 20)] = 30
    """K: channels in which a site keeps its own values."""
    share: bool = True
    """Train the shared branch's alignment (ablation)."""
    decision: bool = True
    """Train the decision branch (ablation)."""
    hard: bool = True
    """Add the margin for hard negatives (ablation)."""
    personal: bool = True
    """Fuse own and mean prototypes; `false` takes the mean (ablation)."""
    literal: bool = False
    """Take the printed formulas: L_s summed over channels, L_d without its logarithm, the printed margin."""

    @model_validator(mode="after")
    def _a_branch_is_left(self) -> Self:
        if not (self.share or self.decision):
            raise ValueError(
                "share and decision are both false, so nothing would train: set one of them to true"
            )
        return self


class FedplccSection(Section):
    """FedPLCC's settings: equations 4 to 11 of the paper (docs/explanation/notation.md); λ1 is its DomainNet's.

    ``contrast`` and ``correlation`` are λ1 and λ2, ``nearest`` is φ, ``temperature`` τ, ``sparsity`` α. ``weighted``
    = false gives all prototypes of a class equal weights. ``literal`` clusters vectors as they are instead of by
    their directions alone.
    ``most_prototypes`` bounds a site's local prototypes of a class, ``most_clusters`` the clusters of a class over
    all sites, also FPL's and FedPLVM's: under masks a coordinator that asks for many sums learns much
    (threat-model.md). ``predicts`` selects the model as the site trained it last, or the last average, which is the
    paper's: one model for all sites, which does not suit a site with classes or images of its own (ADR 24).
    """

    contrast: NotNegative = 1.0
    """λ1: weight of the contrastive loss."""
    correlation: NotNegative = 10.0
    """λ2: weight of the correlation loss."""
    nearest: Sparsity = 0.5
    """φ: share of a class's clusters in the correlation loss."""
    temperature: Positive = 0.07
    """τ: temperature of the contrastive loss."""
    sparsity: Sparsity = 0.5
    """α: exponent of the cosine."""
    weighted: bool = True
    """Weigh clusters by samples; `false` weighs all alike."""
    literal: bool = False
    """Cluster vectors as they are instead of their directions; `plain` alone."""
    most_prototypes: Annotated[int, Field(ge=1, le=256)] = 64
    """Most local prototypes that a site has of a class."""
    most_clusters: Annotated[int, Field(ge=1, le=256)] = 16
    """Most clusters of a class over all sites."""
    predicts: Predicts = Predicts.TRAINED
    """Predict with the model as trained last, or as averaged last."""


class BaselinesSection(Section):
    """Settings of the methods to compare with, each named after its method.

    ``fedproto-averaged`` reads ``fedproto`` too. Their other numbers are their authors' (notation.md), and FedRep's one
    epoch of the head is PFLlib's, for a budget near the others'.
    """

    fedprox: NotNegative = 0.01
    """FedProx: μ of the proximal term."""
    fedproto: NotNegative = 1.0
    """FedProto: λ of the alignment."""
    ditto: NotNegative = 0.1
    """Ditto: λ of the personal model's proximal term."""
    fedplvm: NotNegative = 1.0
    """FedPLVM: λ of both terms; its authors' code has 100."""
