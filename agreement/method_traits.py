"""Traits of a method: its family, the values that sites exchange, and how a site predicts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
