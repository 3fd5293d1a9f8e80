"""Inputs of ``protoseal budget audit``: settings from an agreement, and the parts that no audit covers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from agreement.sections.privacy import DpSgdSection, Extractor
from crypto.pairwise.attempt_binding import fewest_against, threshold
from privacy.units import Unit
from protoseal.commands.budget_plan_inputs import NO_GUARANTEE, Agreed, read_agreed

_ALWAYS = "what else leaves a site, and whether a site leaves or refuses"
_BOTH = "releases and DP-SGD together: each is audited by itself"
OF_RELEASES = ("how features come from records: model, training and data", _ALWAYS)
"""Not played by an audit of releases, with or without an agreement."""
OF_TRAINING = (
    "the agreed model, loss, optimiser and data: a linear layer and plain SGD stand for them",
    _ALWAYS,
)
"""Not played by an audit of training."""


@dataclass(frozen=True)
class Releasing:
    """Releases to be audited: noise and clip in units of a feature; ``count_weight`` is the clip if None.

    ``colluding`` is the number of colluding sites where sites share the noise, else None.
    """

    noise_multiplier: float
    releases: int
    clip: float
    count_weight: float | None = None
    unit: Unit = Unit.RECORD
    colluding: int | None = None
    not_played: tuple[str, ...] = OF_RELEASES

    @property
    def shares(self) -> int:
        """The number of shares whose sum is the agreed noise, for the shortest list of sites that is allowed."""
        return 1 if self.colluding is None else threshold(fewest_against(self.colluding)) - self.colluding

    def but(self, **given: Any) -> Releasing:
        """Return these with the fields that are given, unless as None."""
        return replace(self, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True)
class Training:
    """DP-SGD to be audited."""

    settings: DpSgdSection
    epochs: int
    rounds: int
    unit: Unit = Unit.RECORD
    not_played: tuple[str, ...] = OF_TRAINING


def releasing_of(path: Path, dim: int) -> Releasing:
    """Return the releases of a file's agreement, played with features of length ``dim``.

    Errors as of :func:`read_agreed`.
    """
    agreed = read_agreed(path, 2)
    privacy, agreement = agreed.privacy, agreed.agreement
    return Releasing(
        noise_multiplier=privacy.noise_multiplier,
        releases=agreement.releases,
        clip=privacy.clip,
        count_weight=privacy.weight(agreement.dim),
        unit=privacy.unit,
        colluding=privacy.colluding if privacy.distributed else None,
        not_played=(*_not_played_of_releases(agreed, dim), *OF_RELEASES),
    )


def training_of(path: Path) -> Training:
    """Return the DP-SGD of a file's agreement.

    Errors as of :func:`read_agreed`; ``click.UsageError`` where nothing trains by DP-SGD.
    """
    agreed = read_agreed(path, 2)
    privacy, agreement = agreed.privacy, agreed.agreement
    if privacy.dp_sgd is None:
        raise click.UsageError(
            f"[privacy] of {path} has extractor = {privacy.extractor.value!r}, which does not train by DP-SGD:"
            " `protoseal budget audit prototypes` audits its releases"
        )
    return Training(
        privacy.dp_sgd,
        agreement.training.local_epochs,
        agreement.rounds,
        privacy.unit,
        (_BOTH, *OF_TRAINING),
    )


def _not_played_of_releases(agreed: Agreed, dim: int) -> list[str]:
    privacy, agreement = agreed.privacy, agreed.agreement
    parts = {
        f"{agreement.dim} features: canaries have {dim}": agreement.dim != dim,
        "the cells of FedPLCC, and which of them a record is in": agreement.clusters,
        "the public projection of features": privacy.project_from is not None,
        "masks: who sees single shares of the noise sees less noise": privacy.distributed,
        "a whole site: canaries are subjects with records of two classes": privacy.unit is Unit.SITE,
        _BOTH: privacy.extractor is Extractor.PRIVATE,
        NO_GUARANTEE: privacy.extractor is Extractor.TRAINED,
    }
    return [part for part, is_so in parts.items() if is_so]
