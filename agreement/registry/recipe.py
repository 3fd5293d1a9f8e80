"""Recipe of a method at a site, as data: its loss, which parts train when, and what is exchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

from agreement.sections.methods import ModelPart, Predicts
from agreement.sections.privacy import DpSgdSection

if TYPE_CHECKING:  # the coordinator has no torch
    from torch import Tensor

    from algorithms.losses import Outputs, Terms

__all__ = ["BatchLoss", "ClusteredPrototypes", "Recipe", "Stage", "Trains"]

BatchLoss: TypeAlias = "Callable[[Outputs, Tensor, Any], Terms]"
"""Function from outputs, labels (B,), and the received targets or None to the batch's loss and its parts.

The targets are of the method's own kind: ``Targets`` or ``Clusters`` of :mod:`algorithms.prototypes`.
"""


class Trains(StrEnum):
    """Part of a model whose parameters a stage of local training changes; those of the rest stay fixed.

    The statistics of batch normalisation change with every batch, in whichever part they are.
    """

    ALL = "all"
    CLASSIFIER = "classifier"
    EXTRACTOR = "extractor"


@dataclass(frozen=True)
class Stage:
    """Epochs of local training; None takes the schedule's number. Raises ``ValueError`` for fewer than one."""

    trains: Trains = Trains.ALL
    epochs: int | None = None

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"epochs of a stage must be at least 1, not {self.epochs}")


@dataclass(frozen=True)
class ClusteredPrototypes:
    """Clustering of a class's features into local prototypes: a ``single`` one, or one for each cluster.

    ``literal`` clusters features as they are, else their directions. More than ``most`` clusters become a single one.
    """

    single: bool = False
    literal: bool = False
    most: int | None = None


@dataclass(frozen=True)
class Recipe:
    """Recipe of a method at a site. Raises ``ValueError`` for numbers out of range.

    ``stages`` follow each other in each round, each with a fresh optimiser. ``proximal`` is FedProx's μ: μ/2·‖w −
    w_t‖² is added to the loss, w_t being the model at the start of the round. With ``personal``, Ditto's λ, the site
    has a second model beside the averaged one. The second model trains afterwards with λ/2·‖v − w_t‖², and the site
    predicts with it. ``averages`` is the part of the model that is exchanged, ``predicts`` the model that the site
    predicts with. With ``scores``, FedDBP's Fisher scores are taken with the prototypes; with ``clustered``, local
    prototypes are. Without ``prototypes`` none are exchanged, so that they are computed only on demand. With
    ``initial_features`` prototypes are of the model before any training, whatever trains. With ``dp_sgd`` the whole
    model trains by DP-SGD, which excludes ``proximal``, a ``personal`` model, and training by parts.
    """

    objective: BatchLoss
    stages: tuple[Stage, ...] = (Stage(),)
    proximal: float = 0.0
    personal: float | None = None
    averages: ModelPart = ModelPart.EXTRACTOR
    predicts: Predicts = Predicts.TRAINED
    prototypes: bool = True
    scores: bool = False
    clustered: ClusteredPrototypes | None = None
    initial_features: bool = False
    dp_sgd: DpSgdSection | None = None

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("stages is empty: a round of training needs at least one stage")
        for name, weight in (("proximal", self.proximal), ("personal", self.personal or 0.0)):
            if not 0.0 <= weight < float("inf"):
                raise ValueError(f"{name} must be a number of at least 0, not {weight}")
        whole = len(self.stages) == 1 and self.stages[0] == Stage()
        if self.dp_sgd is not None and (self.proximal or self.personal is not None or not whole):
            raise ValueError(
                "dp_sgd trains one whole model: remove the proximal term, the personal model and stages of parts"
            )
