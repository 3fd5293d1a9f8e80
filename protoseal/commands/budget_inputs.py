"""Inputs of the ``budget plan`` and ``budget audit`` commands from files: agreed settings, and records by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agreement.schema.agreement import Agreement, load_agreement
from agreement.schema.run_settings import InputSection, RunSettings
from agreement.sections.privacy import DpSgdSection, Extractor, PrivacySection
from agreement.sections.training import PreprocessingSection
from agreement.toml_loading import parse_toml
from crypto.pairwise.attempt import fewest_against, threshold
from privacy.accounting.events import Unit
from protoseal.simulation.config import load_simulation

if TYPE_CHECKING:
    from privacy.accounting.events import DpSgd

NO_GUARANTEE = (
    "NO GUARANTEE: features are trained on the records without noise, so that no ε holds for a record; the "
    "figures below are of the noise in releases alone"
)
_NO_PREPROCESSING = PreprocessingSection(image_size=32, channels=1, mean=(0.5,), std=(0.5,))
"""Placeholder for settings that a simulation takes from its data and no plan depends on."""
_ELSEWHERE = "what else leaves a site, and whether a site leaves or refuses"
_TOGETHER = "releases and DP-SGD together: each is audited by itself"
RELEASES_NOT_PLAYED = ("how features come from records: model, training and data", _ELSEWHERE)
"""Parts that an audit of releases does not play, with or without an agreement."""
TRAINING_NOT_PLAYED = (
    "the agreed model, loss, optimiser and data: a linear layer and plain SGD stand for them",
    _ELSEWHERE,
)
"""Parts that an audit of training does not play."""


@dataclass(frozen=True)
class PrivateAgreement:
    """An agreement with ``[privacy]``, and that section. The last two are None where a file leaves them to data."""

    agreement: Agreement
    privacy: PrivacySection
    classes: tuple[str, ...] | None
    preprocessing: InputSection | None

    @property
    def training(self) -> DpSgd | None:
        """All DP-SGD steps of a run."""
        from privacy.accounting.events import DpSgd
        from secure_client.privacy.cost import training_event

        one_round = training_event(self.agreement, self.privacy)
        if one_round is None:
            return None
        steps = one_round.steps * self.agreement.rounds
        return DpSgd(one_round.noise_multiplier, one_round.sampling_rate, steps)

    @property
    def fewest_releases(self) -> int:
        """Number of releases of one round of a run and of its clustering, whatever ``release_every`` is."""
        return 1 + self._clustering_releases

    def choose_release_every(self, releases: int) -> int:
        """Return the least ``release_every`` with at most so many releases in a run, at least ``fewest_releases``."""
        return ceil_div(self.agreement.rounds, releases - self._clustering_releases)

    @property
    def most_releases(self) -> int:
        """Number of releases of a run with one in each round, and of its clustering."""
        return self.agreement.rounds + self._clustering_releases

    def count_averaged(self, releases: int, *, solved: bool) -> int:
        """Return how many of so many releases a site averages in a run, 1 where no query is asked again.

        ``solved`` is true if the number was computed, so that ``release_every`` follows from it.
        """
        if not self.agreement.has_fixed_query or releases < 1:
            return 1
        every = self.choose_release_every(releases) if solved else self.agreement.release_every
        return min(releases, ceil_div(self.agreement.rounds, every))

    @property
    def parts(self) -> int:
        """Largest number of parts of a class in one release."""
        return self.agreement.most_cells // len(self.agreement.classes)

    @property
    def _clustering_releases(self) -> int:
        return self.agreement.releases - ceil_div(self.agreement.rounds, self.agreement.release_every)

    def to_json(self) -> dict[str, object]:
        """Return the settings taken from the file, beside those that every plan has."""
        agreement = self.agreement
        return {
            "method": agreement.method.value,
            "protection": agreement.protection.value,
            "rounds": agreement.rounds,
            "release_every": self.agreement.release_every,
            "extractor": self.privacy.extractor.value,
            "classes": len(agreement.classes),
        }

    def list_warnings(self) -> list[str]:
        """Return warnings about the limits of a plan for this agreement."""
        warnings = [NO_GUARANTEE] if self.privacy.extractor is Extractor.TRAINED else []
        if self.parts > 1:
            warnings.append(f"a class is released in up to {self.parts} parts: give --records of a part")
        if self.privacy.distributed:
            warnings.append(
                "sites share the noise: errors are of a sum over the fewest sites with which it opens; give "
                "--records as the total of these sites"
            )
        return warnings


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient, rounded up."""
    return -(-dividend // divisor)


def read_private_agreement(path: Path, classes: int) -> PrivateAgreement:
    """Read an agreement's file, or a simulation's, which may leave the number of ``classes`` to the data.

    Raises :class:`agreement.ConfigError`, and ``click.UsageError`` where there is no ``[privacy]``.
    """
    # Only an agreement names its federation.
    if "federation" in parse_toml(path):
        agreement = load_agreement(path)
        settings: RunSettings = agreement
        names: tuple[str, ...] | None = agreement.classes
    else:
        config = load_simulation(path, {})
        agreement = config.agreement(
            method=config.method,
            seed=config.seeds[0],
            classes=config.classes or [str(number) for number in range(classes)],
            preprocessing=config.inputs or _NO_PREPROCESSING,
            averaged=(1, 0) if config.method.averages else None,  # no plan depends on a model's size
        )
        settings = config
        names = config.classes
    if agreement.privacy is None:
        raise click.UsageError(
            f"{path} has no [privacy] section, so it has no noise: add the section, or name another file"
        )
    return PrivateAgreement(agreement, agreement.privacy, names, settings.inputs)


@dataclass(frozen=True)
class UnitCounts:
    """Numbers of records or subjects of a data source: ``by_class`` by the class's name, and ``units`` in all.

    ``classes_of_one``: the most classes in which one subject has records; None where records are counted, or nothing.
    """

    by_class: Mapping[str, int]
    units: int = 0
    classes_of_one: int | None = None


def count_units(spec: str, agreed: PrivateAgreement | None, unit: str) -> UnitCounts:
    """Count a data source's training records, which stay in this process.

    Raises a :class:`secure_client.errors.SiteError`, and ``click.UsageError`` for a unit that it cannot count.
    """
    import numpy as np

    from secure_client.data.sources import join_sources, read_sources, suggest_preprocessing

    preprocessing = None if agreed is None else agreed.preprocessing
    classes = None if agreed is None else agreed.classes
    sources = read_sources(spec, data_root=None, agreed=preprocessing, classes=classes)
    data = join_sources(sources, preprocessing or suggest_preprocessing(sources), classes)
    labels, subjects = data.train.labels, data.train.subjects
    if unit == Unit.SITE:
        raise click.UsageError(
            "--counts-of counts one site's data, but the unit is a site: give the number of sites of a class "
            "by --records"
        )
    units = len(labels)
    classes_of_one = None
    if unit == Unit.SUBJECT:
        if subjects is None:
            raise click.UsageError(f"{spec} has no subjects, which the unit needs: add them to the data")
        # A subject counts once in each class in which it has records, however many.
        names, numbers = np.unique(subjects, return_inverse=True)
        subject_of_pair, labels = np.unique(np.stack([numbers, labels]), axis=1)
        classes_of_one = int(np.bincount(subject_of_pair).max())
        units = len(names)
    counts = np.bincount(labels, minlength=len(data.classes))
    return UnitCounts(dict(zip(data.classes, counts.tolist(), strict=True)), units, classes_of_one)


@dataclass(frozen=True)
class ReleaseSettings:
    """Settings of releases to be audited: noise and clip in units of a feature; ``count_weight`` is the clip if None.

    ``colluding`` is the number of colluding sites where sites share the noise, else None.
    """

    noise_multiplier: float
    releases: int
    clip: float
    count_weight: float | None = None
    unit: Unit = Unit.RECORD
    colluding: int | None = None
    not_played: tuple[str, ...] = RELEASES_NOT_PLAYED

    @property
    def shares(self) -> int:
        """Number of shares whose sum is the agreed noise, for the shortest list of sites that is allowed."""
        return 1 if self.colluding is None else threshold(fewest_against(self.colluding)) - self.colluding


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of DP-SGD to be audited."""

    dp_sgd: DpSgdSection
    epochs: int
    rounds: int
    unit: Unit = Unit.RECORD
    not_played: tuple[str, ...] = TRAINING_NOT_PLAYED


def read_release_settings(path: Path, dim: int) -> ReleaseSettings:
    """Return the releases of a file's agreement, played with features of length ``dim``.

    Raises the errors of :func:`read_private_agreement`.
    """
    agreed = read_private_agreement(path, 2)
    privacy, agreement = agreed.privacy, agreed.agreement
    return ReleaseSettings(
        noise_multiplier=privacy.noise_multiplier,
        releases=agreement.releases,
        clip=privacy.clip,
        count_weight=privacy.weight(agreement.dim),
        unit=privacy.unit,
        colluding=privacy.colluding if privacy.distributed else None,
        not_played=(*_list_not_played(agreed, dim), *RELEASES_NOT_PLAYED),
    )


def read_training_settings(path: Path) -> TrainingSettings:
    """Return the DP-SGD of a file's agreement.

    Raises the errors of :func:`read_private_agreement`; ``click.UsageError`` where nothing trains by DP-SGD.
    """
    agreed = read_private_agreement(path, 2)
    privacy, agreement = agreed.privacy, agreed.agreement
    if privacy.dp_sgd is None:
        raise click.UsageError(
            f"[privacy] of {path} has extractor = {privacy.extractor.value!r}, which does not train by DP-SGD:"
            " `protoseal budget audit prototypes` audits its releases"
        )
    return TrainingSettings(
        privacy.dp_sgd,
        agreement.training.local_epochs,
        agreement.rounds,
        privacy.unit,
        (_TOGETHER, *TRAINING_NOT_PLAYED),
    )


def _list_not_played(agreed: PrivateAgreement, dim: int) -> list[str]:
    privacy = agreed.privacy
    agreement = agreed.agreement
    parts = {
        f"{agreement.dim} features: canaries have {dim}": agreement.dim != dim,
        "the cells of FedPLCC, and which of them a record is in": agreement.clusters,
        "the public projection of features": privacy.project_from is not None,
        "masks: who sees single shares of the noise sees less noise": privacy.distributed,
        "a whole site: canaries are subjects with records of two classes": privacy.unit is Unit.SITE,
        _TOGETHER: privacy.extractor is Extractor.PRIVATE,
        NO_GUARANTEE: privacy.extractor is Extractor.TRAINED,
    }
    return [part for part, is_left_out in parts.items() if is_left_out]
