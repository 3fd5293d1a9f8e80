"""What is agreed on of differentially private releases, and what a site lets itself be asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from algorithms.grid import best_count_weight
from protoseal.config.numbers import Count, Positive
from protoseal.config.reading import LocalPath, Section

OpenShare = Annotated[float, Field(gt=0, lt=1)]
Rate = Annotated[float, Field(gt=0, le=1)]
_ABSENT_BY_DEFAULT = ("dp_sgd", "unit", "project_from")
"""Left out of the agreement's text where they are not given: it is then that of before there were any."""
Colluding = Annotated[int, Field(ge=0)]
USUAL_DEVIATIONS = 3.0
"""Of a noisy count: an empty class is taken for one with records once in 740 releases."""


class Extractor(StrEnum):
    """What is known of the features that prototypes are means of.

    ``FROZEN``: the initial model's, which no record has shaped; only the classifier trains. ``PRIVATE``: the site
    trains all of its model by DP-SGD. ``TRAINED``: it trains them on the same records without noise, so that a release
    has **no record-level guarantee**.
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
        """Of so many epochs, rounded up; what a float's last digit adds to a whole number of steps is none."""
        return math.ceil(epochs / self.sampling_rate * (1 - 1e-12))


class Unit(StrEnum):
    """What is added or removed: whose participation is protected.

    ``RECORD``: one record. ``SUBJECT``: all that a site has of one person, whatever the classes. ``SITE``: all that a
    site has.
    """

    RECORD = "record"
    SUBJECT = "subject"
    SITE = "site"


class Noise(StrEnum):
    """Whose noise covers a record.

    ``LOCAL``: its own site's, all of it. ``DISTRIBUTED``: that of the sites in a masked sum together, each adding a
    share. Then it holds against who sees the sum alone, and stands on the masks and on enough sites that add theirs.
    """

    LOCAL = "local"
    DISTRIBUTED = "distributed"


class Accounting(StrEnum):
    """The accountant of a ledger, which decides what may be chosen after earlier outputs were seen.

    ``PLD``: by privacy loss distributions; DP-SGD is refused beside entries of another agreement. ``PLANNED``: the same
    without that refusal, on the site's word that all agreements were fixed before the first of them released anything.
    ``RENYI``: by a Rényi filter, under which every agreement may follow from all earlier outputs.
    """

    PLD = "pld"
    PLANNED = "pld-planned"
    RENYI = "renyi-filter"


class PrivacySection(Section):
    """What sites release: noisy class means of clipped features, the same in every round until the next release.

    Features are clipped to the norm ``clip``, and counts weigh ``count_weight`` (clip/d^¼ unless given), in one
    Gaussian query with noise of ``noise_multiplier`` times its sensitivity. A class whose noisy count is below
    ``min_count`` (three of its standard deviations unless given) is treated as absent. Neighbours are by adding or
    removing one ``unit``. With ``project_from`` the model has so many features, of which a public random projection
    makes the agreed ``dim`` that prototypes have; the classifier takes them as they are. ``dp_sgd`` is for private
    features, and for no others.

    With ``noise`` distributed the multiplier is that of the noise in a sum without the shares of ``colluding`` sites,
    which know theirs. **A site that looks at the result is one of them**: with 0 the guarantee is against the
    coordinator and outsiders alone.
    """

    clip: Positive
    """Largest norm of one record's features; longer ones are shortened."""
    noise_multiplier: Positive
    """Standard deviation of a release's noise, in units of what one record changes."""
    count_weight: Positive | None = None
    """Weight of a record's count beside its features; by default `clip`/d^¼."""
    min_count: Positive | None = None
    """Noisy count below which a class counts as absent; by default three deviations of its noise."""
    release_every: Count = 1
    """Rounds that one noisy release serves."""
    extractor: Extractor = Extractor.FROZEN
    """Training of the features: not at all, by DP-SGD, or without any guarantee."""
    dp_sgd: DpSgdSection | None = None
    """Settings of DP-SGD, for `extractor = 'private'` alone."""
    unit: Unit = Unit.RECORD
    """Whose participation is protected: one record, one subject, or one site."""
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
                "extractor = 'private' trains by DP-SGD: say how in [privacy.dp_sgd] (noise_multiplier, clip,"
                " sampling_rate)"
            )
        if self.extractor is not Extractor.PRIVATE and self.dp_sgd is not None:
            raise ValueError(
                f"[privacy.dp_sgd] is of extractor = 'private', not {self.extractor.value!r}: remove it, or change that"
            )
        if self.extractor is Extractor.PRIVATE and self.unit is Unit.SITE:
            raise ValueError(
                "extractor = 'private' samples a site's records or subjects, and unit = 'site' is agreed on: choose"
                " extractor = 'frozen'"
            )
        return self

    @model_serializer(mode="wrap")
    def _only_what_was_there(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        table: dict[str, Any] = written(self)
        fields = type(self).model_fields
        return {
            name: value
            for name, value in table.items()
            if name not in self._absent_by_default or value != fields[name].default
        }

    @property
    def _absent_by_default(self) -> tuple[str, ...]:
        return _ABSENT_BY_DEFAULT if self.distributed else (*_ABSENT_BY_DEFAULT, "noise", "colluding")

    @model_validator(mode="after")
    def _each_sum_is_a_release(self) -> Self:
        if self.distributed and self.release_every > 1:
            raise ValueError(
                "distributed noise is drawn for each sum, since what two sums with the same noise differ by has hardly"
                " any: set release_every = 1, and fewer rounds"
            )
        return self

    @property
    def distributed(self) -> bool:
        """Whether sites share the noise of a sum."""
        return self.noise is Noise.DISTRIBUTED

    def weight(self, dim: int) -> float:
        """Of a record's count beside its features (d,)."""
        return best_count_weight(self.clip, dim) if self.count_weight is None else self.count_weight

    def check_projected(self, dim: int) -> None:
        """Raise ``ValueError`` unless the projection, if there is one, leaves fewer features than there were."""
        if self.project_from is not None and self.project_from <= dim:
            raise ValueError(
                f"project_from = {self.project_from} in [privacy] are the model's features, and dim = {dim} of them are"
                " left: agree on more of the one, or fewer of the other"
            )

    def releases(self, rounds: int) -> int:
        """How many so many rounds have at most, counted from 1: a clustering before them has its own."""
        return -(-rounds // self.release_every)


class BudgetSection(Section):
    """A site's own limits, whatever is agreed: ``epsilon`` at ``delta`` over all runs on the data set ``dataset``.

    ``ledger`` is the file in which each release is recorded before it leaves: one for a data set, for all runs. They
    are for one ``unit`` added or removed, which has to be what the agreement's releases are for. Less
    noise than ``least_noise_multiplier``, a larger clip than ``largest_clip`` or more rounds than ``most_rounds`` are
    refused; and of DP-SGD less noise than ``least_training_noise``, or a larger rate than ``largest_sampling_rate``.
    ``allow_no_guarantee``: what is agreed may lack a record-level guarantee, or all privacy. ``ledger_lost``: where the
    ledger lacks what the site has shown of it, it goes on all the same, without a guarantee from then on. Noise that is
    distributed is refused without ``least_colluding``, the fewest colluding sites that it has to hold off.
    ``accountant`` is the ledger's (:class:`Accounting`).
    """

    dataset: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the data set whose budget this is, over all runs."""
    ledger: LocalPath
    """File in which each release is recorded before it leaves."""
    epsilon: Positive
    """Largest ε that may be spent on the data set."""
    delta: OpenShare = 1e-5
    """δ at which ε is counted; well below one over the number of records."""
    unit: Unit = Unit.RECORD
    """Whose participation the ledger protects; the agreement's unit has to be the same."""
    least_noise_multiplier: Positive | None = None
    """Least noise of a release that this site accepts."""
    largest_clip: Positive | None = None
    """Largest clip that this site accepts."""
    most_rounds: Count | None = None
    """Most rounds that this site accepts."""
    least_training_noise: Positive | None = None
    """Least noise of DP-SGD that this site accepts."""
    largest_sampling_rate: Rate | None = None
    """Largest sampling rate of DP-SGD that this site accepts."""
    allow_no_guarantee: bool = False
    """Take part in runs without a record-level guarantee, or without noise."""
    ledger_lost: bool = False
    """Resume although the ledger is lost; NO GUARANTEE from then on."""
    accountant: Accounting = Accounting.PLD
    """Accountant of the ledger, which decides what may follow from earlier results."""
    least_colluding: Colluding | None = None
    """Fewest colluding sites that shared noise has to hold off; shared noise is refused without it."""

    def check(self, agreed: PrivacySection | None, rounds: int) -> None:
        """Raise ``ValueError`` for what this site does not let itself be asked for."""
        if agreed is None:
            self._check_guarantee("the agreement has no [privacy], and prototypes would be exact")
            return
        if agreed.unit is not self.unit:
            raise ValueError(
                f"the agreement's releases are for one {agreed.unit}, and this site's budget is for one {self.unit}: a"
                " data set's ledger has one unit; change the agreement, or keep a ledger for that unit"
            )
        if agreed.extractor is Extractor.TRAINED:
            self._check_guarantee("extractor = 'trained' leaves no record-level guarantee")
        if agreed.distributed:
            self._check_colluding(agreed.colluding)
        for what, value, kind, limit in self._asked(agreed, rounds):
            if limit is not None and (value < limit if kind == "least" else value > limit):
                raise ValueError(
                    f"the agreement asks for {what} {value:g}, and {kind} that this site allows is {limit:g}"
                )

    def _asked(self, agreed: PrivacySection, rounds: int) -> Iterator[tuple[str, float, str, float | None]]:
        """What the agreement asks for, its value, whether the site's limit is the least or the most, and that limit."""
        yield "noise multiplier", agreed.noise_multiplier, "least", self.least_noise_multiplier
        yield "clip", agreed.clip, "largest", self.largest_clip
        yield "rounds", rounds, "most", self.most_rounds
        training = agreed.dp_sgd
        if training is not None:
            noise = self.least_training_noise
            yield "noise multiplier in training", training.noise_multiplier, "least", noise
            yield "sampling rate", training.sampling_rate, "largest", self.largest_sampling_rate

    def _check_guarantee(self, why: str) -> None:
        if not self.allow_no_guarantee:
            raise ValueError(
                f"{why}; change the agreement, or say allow_no_guarantee = true in [privacy] of the site's file"
            )

    def _check_colluding(self, colluding: int) -> None:
        if self.least_colluding is None:
            raise ValueError(
                "noise = 'distributed' covers this site's records by other sites' noise too; agree on local noise, or"
                " say how many sites that collude it has to hold off: least_colluding in [privacy] of the site's file"
            )
        if colluding < self.least_colluding:
            raise ValueError(
                f"the agreement's distributed noise holds off {colluding} colluding sites, and this site wants"
                f" {self.least_colluding} held off"
            )
