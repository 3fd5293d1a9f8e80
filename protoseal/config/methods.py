"""The methods' own settings."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from algorithms.pfpl import Weighting
from protoseal.config.numbers import Fraction, NotNegative, Positive
from protoseal.config.reading import Section
from protoseal.config.traits import Predicts

Sparsity = Annotated[float, Field(gt=0, le=1)]
Epochs = Annotated[int, Field(ge=1, le=10_000)]


class PfplSection(Section):
    """PFPL's own settings: equations 4 and 5 of the paper (docs/explanation/notation.md)."""

    weighting: Weighting = Weighting.COMPLEMENT
    squared: bool = True
    alpha: Fraction = 0.3
    alignment: NotNegative = Field(default=1.0, alias="lambda")
    literal_regulariser: bool = False

    @model_validator(mode="after")
    def _unsquared_is_distance(self) -> Self:
        if not self.squared and self.weighting is not Weighting.DISTANCE:
            raise ValueError(
                "squared = false is a form of weighting 'distance' alone; set that or remove squared"
            )
        return self


class FedpcSection(Section):
    """FedPC: equations 2 to 8 of the paper (docs/explanation/notation.md).

    ``groups`` is J, chosen by silhouette when it is not given; ``pca_dim`` is min(n − 1, 10) when it is not given.
    A group has ``min_holders`` sites or more, so fewer than 2·``min_holders`` sites are always one group, whatever
    ``groups`` says: then there is nothing to mix between groups (equations 5 to 8).

    ``alignment`` is γ of L = (1 − γ)·CE + γ·Σ_k ‖P_i^k − P_j^k‖, and 0.5 as printed. That is too much where the first
    round leaves the model far from trained: a sum of distances over up to K classes outweighs the cross-entropy, and
    features collapse onto targets that tell classes apart badly. Try 0.01 to 0.05 there (docs: notation).

    ``predicts``: with the model as the site trained it last, or with the extractor that it got back last and the
    classifier as it trained it, which has less of DP-SGD's noise. The paper does not say. The default is no part of
    the agreement's text and hash.
    """

    groups: Annotated[int, Field(ge=1, le=256)] | None = None
    pca_dim: Annotated[int, Field(ge=1, le=256)] | None = None
    alignment: Annotated[float, Field(ge=0, lt=1)] = 0.5
    literal_absent: bool = False
    predicts: Predicts = Predicts.TRAINED

    @model_serializer(mode="wrap")
    def _only_what_counts(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        table: dict[str, Any] = written(self)
        if self.predicts is Predicts.TRAINED:
            table.pop("predicts", None)
        return table


class FeddbpSection(Section):
    """FedDBP: equations 3 to 10 of the paper (docs/explanation/notation.md), with its values.

    ``decision_weight``, ``shared_alignment`` and ``decision_alignment`` are λ1, λ2 and λ3; ``temperature`` is τ.
    ``own`` is η: how much of a site's own prototype is in the ``top_channels`` K channels that matter most to it.
    ``share``, ``decision``, ``hard`` and ``personal`` switch parts of the method off for ablations; ``literal`` takes
    the losses as printed.
    """

    decision_weight: NotNegative = 1.0
    shared_alignment: NotNegative = 10.0
    decision_alignment: NotNegative = 1.0
    temperature: Positive = 0.07
    own: Fraction = 1.0
    top_channels: Annotated[int, Field(ge=0, le=1 << 20)] = 30
    share: bool = True
    decision: bool = True
    hard: bool = True
    personal: bool = True
    literal: bool = False

    @model_validator(mode="after")
    def _a_branch_is_left(self) -> Self:
        if not (self.share or self.decision):
            raise ValueError("share and decision are both false: nothing would be trained")
        return self


class FedplccSection(Section):
    """FedPLCC: equations 4 to 11 of the paper (docs/explanation/notation.md), with its values; λ1 is its DomainNet's.

    ``contrast`` and ``correlation`` are λ1 and λ2, ``nearest`` is φ, ``temperature`` τ, ``sparsity`` α.
    ``weighted`` = false takes all prototypes of a class alike. ``weighted_centres`` makes centres the means of samples
    instead of prototypes. ``literal_norms`` clusters vectors as they are instead of by their directions alone.
    ``most_prototypes`` bounds a site's local prototypes of a class, ``most_clusters`` the clusters of a class over all
    sites, also FPL's and FedPLVM's: under masks a coordinator that asks for many sums learns much (threat-model.md).
    """

    contrast: NotNegative = 1.0
    correlation: NotNegative = 10.0
    nearest: Sparsity = 0.5
    temperature: Positive = 0.07
    sparsity: Sparsity = 0.5
    weighted: bool = True
    weighted_centres: bool = False
    literal_norms: bool = False
    most_prototypes: Annotated[int, Field(ge=1, le=256)] = 64
    most_clusters: Annotated[int, Field(ge=1, le=256)] = 16


class BaselinesSection(Section):
    """What the four methods are compared with; each value is read by the method that it is named after, ``fedproto`` by
    ``fedproto-averaged`` too.

    ``fedprox`` μ, ``fedproto`` λ, ``ditto`` λ; ``fpl_temperature`` τ; of FedPLVM λ (of both its terms), τ and α, as in
    its authors' code. ``fedrep_head_epochs`` come before the extractor's: 1 as in PFLlib (``plocal_epochs``), for a
    budget near the others'; FedRep's authors train the head for more, about 10.
    """

    fedprox: NotNegative = 0.01
    fedproto: NotNegative = 1.0
    fedrep_head_epochs: Epochs = 1
    ditto: NotNegative = 0.1
    fpl_temperature: Positive = 0.02
    fedplvm: NotNegative = 100.0
    fedplvm_temperature: Positive = 0.07
    fedplvm_sparsity: Sparsity = 0.25
