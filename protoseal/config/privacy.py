"""What is agreed on of differentially private releases, and what a site lets itself be asked for."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from protoseal.config.numbers import Count, Positive
from protoseal.config.reading import LocalPath, Section

OpenShare = Annotated[float, Field(gt=0, lt=1)]


class Extractor(StrEnum):
    """What is known of the features that prototypes are means of.

    ``FROZEN``: the initial model's, which no record has shaped; only the classifier trains. ``TRAINED``: the site
    trains them on the same records without noise, so that a release has **no record-level guarantee**.
    """

    FROZEN = "frozen"
    TRAINED = "trained"


class PrivacySection(Section):
    """What sites release: noisy class means of clipped features, the same in every round until the next release.

    Features are clipped to the norm ``clip``, and counts weigh ``count_weight`` (clip/d^¼ unless given), in one
    Gaussian query with noise of ``noise_multiplier`` times its sensitivity. A class whose noisy count is below
    ``min_count`` (three of its standard deviations unless given) is treated as absent. Unit: one record, added or
    removed.
    """

    clip: Positive
    noise_multiplier: Positive
    count_weight: Positive | None = None
    min_count: Positive | None = None
    release_every: Count = 1
    extractor: Extractor = Extractor.FROZEN

    def releases(self, rounds: int) -> int:
        """How many a run of so many rounds has at most."""
        return -(-rounds // self.release_every)


class BudgetSection(Section):
    """A site's own limits, whatever is agreed: ``epsilon`` at ``delta`` over all runs on the data set ``dataset``.

    ``ledger`` is the file in which each release is recorded before it leaves: one for a data set, for all runs. Less
    noise than ``least_noise_multiplier``, a larger clip than ``largest_clip`` or more rounds than ``most_rounds`` are
    refused. ``allow_no_guarantee``: what is agreed may lack a record-level guarantee, or all privacy.
    """

    dataset: Annotated[str, Field(min_length=1, max_length=200)]
    ledger: LocalPath
    epsilon: Positive
    delta: OpenShare = 1e-5
    least_noise_multiplier: Positive | None = None
    largest_clip: Positive | None = None
    most_rounds: Count | None = None
    allow_no_guarantee: bool = False

    def check(self, agreed: PrivacySection | None, rounds: int) -> None:
        """Raise ``ValueError`` for what this site does not let itself be asked for."""
        if agreed is None:
            self._check_guarantee("the agreement has no [privacy], and prototypes would be exact")
            return
        if agreed.extractor is Extractor.TRAINED:
            self._check_guarantee("extractor = 'trained' leaves no record-level guarantee")
        asked = (
            ("noise multiplier", agreed.noise_multiplier, "least", self.least_noise_multiplier),
            ("clip", agreed.clip, "largest", self.largest_clip),
            ("rounds", float(rounds), "most", self.most_rounds),
        )
        for what, value, kind, limit in asked:
            if limit is not None and (value < limit if kind == "least" else value > limit):
                raise ValueError(
                    f"the agreement asks for {what} {value:g}, and {kind} that this site allows is {limit:g}"
                )

    def _check_guarantee(self, why: str) -> None:
        if not self.allow_no_guarantee:
            raise ValueError(
                f"{why}; change the agreement, or say allow_no_guarantee = true in [privacy] of the site's file"
            )
