"""The agreement's ``[privacy]`` section: noisy releases and DP-SGD."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from agreement.toml_loading import Count, Positive, Section
from privacy.accounting.events import Unit
from privacy.mechanisms.grid import best_count_weight

Colluding = Annotated[int, Field(ge=0)]
USUAL_DEVIATIONS = 3.0
"""Deviations of a noisy count: an empty class is taken for one with records once in 740 releases."""


class Extractor(StrEnum):
    """Training of the features that prototypes are means of.

    ``FROZEN``: the initial model's features, which no record has shaped; only the classifier trains. ``PRIVATE``: the
    site trains the whole model by DP-SGD. ``TRAINED``: the site trains the features on the same records without
    noise, so that a release has **no record-level guarantee**.
    """

    FROZEN = "frozen"
    PRIVATE = "private"
    TRAINED = "trained"


class DpSgdSection(Section):
    """Local training by DP-SGD: in each step every record takes part with probability ``sampling_rate``.

    Gradients of single records are clipped to the norm ``clip``, and their sum gets Gaussian noise with a standard
    deviation of ``noise_multiplier`` times that. An epoch is 1/``sampling_rate`` steps.
    """

    noise_multiplier: Annotated[float, Field(ge=0.01, le=1000)]
    """Standard deviation of a step's noise, in units of `clip`."""
    clip: Positive
    """Largest norm of one record's gradient; longer gradients are shortened."""
    sampling_rate: Annotated[float, Field(ge=1e-6, le=1)]
    """Probability with which a record takes part in a step."""

    def steps(self, epochs: int) -> int:
        """Return the steps of so many epochs, rounded up, except where a float's last digit exceeds a whole number."""
        return math.ceil(epochs / self.sampling_rate * (1 - 1e-12))


class Noise(StrEnum):
    """Source of the noise that covers a record.

    ``LOCAL``: the site's own noise, all of it. ``DISTRIBUTED``: the noise of all sites in a masked sum, each adding a
    share. It then holds against parties that see the sum alone, and depends on the masks and on enough sites that add
    theirs.
    """

    LOCAL = "local"
    DISTRIBUTED = "distributed"


class PrivacySection(Section):
    """Noisy releases of sites: class means of clipped features, the same in every round until the next release.

    Features are clipped to the norm ``clip``, and counts weigh ``count_weight`` (clip/d^¼ unless given), in one
    Gaussian query with noise of ``noise_multiplier`` times its sensitivity. A class whose noisy count is below
    ``min_count`` (three of its standard deviations unless given) is treated as absent. Neighbours differ by adding or
    removing one ``unit``. With ``project_from`` the model has so many features, which a public random projection
    reduces to the agreed ``dim`` of prototypes; the classifier takes the features as they are. ``dp_sgd`` is for
    private features, and for no others.

    With ``noise`` distributed the multiplier is that of the noise in a sum without the shares of ``colluding`` sites,
    which know theirs. **A site that looks at the result is one of them**: with 0 the guarantee is against the
    coordinator and outsiders alone. ``min_holders`` does not count then: a class that one site has is released if its
    noisy count reaches ``min_count``.
    """

    clip: Positive
    """Largest norm of one record's features; longer ones are shortened."""
    noise_multiplier: Positive
    """Standard deviation of a release's noise, in units of what one record changes."""
    count_weight: Positive | None = None
    """Weight of a record's count beside its features; by default `clip`/d^¼."""
    min_count: Positive | None = None
    """Noisy count below which a class counts as absent; by default three deviations of its noise."""
    release_every: Count | None = None
    """Rounds that one noisy release serves; by default all where features are frozen and noise is local, else 1."""
    extractor: Extractor = Extractor.FROZEN
    """Training of the features: not at all, by DP-SGD, or without any guarantee."""
    dp_sgd: DpSgdSection | None = None
    """Settings of DP-SGD, for `extractor = 'private'` alone."""
    unit: Unit = Unit.RECORD
    """Unit of protection: one record, one subject, or one site."""
    project_from: Annotated[int, Field(ge=2, le=1 << 16)] | None = None
    """Features of the model, of which a public random projection makes `dim`."""
    noise: Noise = Noise.LOCAL
    """Noise of each site's own, or noise that the sites of a masked sum share."""
    colluding: Colluding = 1
    """Colluding sites that shared noise holds off."""

    @model_validator(mode="after")
    def _trains_as_it_says(self) -> Self:
        if self.extractor is Extractor.PRIVATE and self.dp_sgd is None:
            raise ValueError(
                "extractor = 'private' needs a table [privacy.dp_sgd] with noise_multiplier, clip and"
                " sampling_rate"
            )
        if self.extractor is not Extractor.PRIVATE and self.dp_sgd is not None:
            raise ValueError(
                f"[privacy.dp_sgd] needs extractor = 'private', not {self.extractor.value!r}: remove "
                "the table, or change extractor"
            )
        if self.extractor is Extractor.PRIVATE and self.unit is Unit.SITE:
            raise ValueError(
                "extractor = 'private' protects records or subjects, but unit is 'site': choose "
                "extractor = 'frozen', or another unit"
            )
        return self

    @model_validator(mode="after")
    def _each_sum_is_a_release(self) -> Self:
        if self.distributed and self.release_every not in (None, 1):
            raise ValueError(
                "distributed noise must be fresh in each sum, because the difference of two sums "
                "with the same noise has hardly any: set release_every = 1, and fewer rounds"
            )
        return self

    @property
    def distributed(self) -> bool:
        """True if sites share the noise of a sum."""
        return self.noise is Noise.DISTRIBUTED

    def weight(self, dim: int) -> float:
        """Return the weight of a record's count beside its features (d,)."""
        return best_count_weight(self.clip, dim) if self.count_weight is None else self.count_weight

    def check_projected(self, dim: int) -> None:
        """Raise ``ValueError`` unless the projection, if there is one, leaves fewer features than there were."""
        if self.project_from is not None and self.project_from <= dim:
            raise ValueError(
                f"project_from = {self.project_from} in [privacy] must be above dim = {dim}: raise "
                "project_from to the model's number of features, or lower dim"
            )
