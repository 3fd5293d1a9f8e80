"""What a method's rounds are made of: what tells one from another, built in or added."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Family(StrEnum):
    """Which course a method's rounds take."""

    PEERS = "peers"
    """An answer of its own for every site, combined of its peers' prototypes."""
    GROUPS = "groups"
    """Sites are grouped before training; sums within each group, groups mixed by how alike they are."""
    SUMS = "sums"
    """One sum over all sites, and its mean for each of them."""
    CLUSTERS = "clusters"
    """Local prototypes of all sites are clustered, class by class, and models averaged."""
    ALONE = "alone"
    """No federation."""


class Part(StrEnum):
    """Which part of sites' models is averaged."""

    NOTHING = "nothing"
    EXTRACTOR = "extractor"
    """All but the classifier."""
    NOT_NORMS = "not norms"
    """All but the layers that normalise."""
    MODEL = "model"


class Predicts(StrEnum):
    """Which model a site predicts with."""

    TRAINED = "trained"
    """The one that it trained last."""
    AGGREGATED = "aggregated"
    """What sites averaged last, with the parts that are not averaged as it trained them last."""


class Inference(StrEnum):
    """How a site predicts. Both accuracies are reported; this one is the method's own."""

    CLASSIFIER = "classifier"
    PROTOTYPE = "prototype"
    """By the nearest prototype; by the classifier as long as there is none."""


@dataclass(frozen=True)
class Traits:
    """What tells one method's rounds from another's.

    ``averaged``: the part of the model that is exchanged, ``weighted`` by sample counts or not. ``prototypes``: whether
    class prototypes are exchanged, as one for each class; the methods of ``CLUSTERS`` exchange several.
    """

    family: Family
    averaged: Part = Part.NOTHING
    weighted: bool = False
    prototypes: bool = False
    predicts: Predicts = Predicts.TRAINED
    inference: Inference = Inference.CLASSIFIER
