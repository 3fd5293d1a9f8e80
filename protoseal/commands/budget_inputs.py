"""Inputs of the ``budget plan`` and ``budget audit`` commands from files: agreed settings, and records by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agreement.schema.agreement import Agreement, load_agreement
from agreement.schema.run_settings import InputSection, RunSettings
from agreement.sections.privacy import DpSgdSection, Extractor, PrivacySection
from agreement.sections.training import PreprocessingSection
from agreement.toml_loading import parse_toml
from crypto.pairwise.attempt import fewest_against, threshold
from privacy.accounting.events import Unit
from protoseal.simulation.config import SimulationConfig, load_simulation

if TYPE_CHECKING:
    from privacy.accounting.events import DpSgd

NO_GUARANTEE = (
    "NO GUARANTEE: features are trained on the records without noise, so that no ε holds for a record; the "
    "figures below are of the noise in releases alone"
)


_ANY = PreprocessingSection(image_size=32, channels=1, mean=(0.5,), std=(0.5,))
"""Placeholder for settings that a simulation takes from its data and no plan depends on."""
_ALWAYS = "what else leaves a site, and whether a site leaves or refuses"
_BOTH = "releases and DP-SGD together: each is audited by itself"
OF_RELEASES = ("how features come from records: model, training and data", _ALWAYS)
"""Parts that an audit of releases does not play, with or without an agreement."""
OF_TRAINING = (
    "the agreed model, loss, optimiser and data: a linear layer and plain SGD stand for them",
    _ALWAYS,
)
"""Parts that an audit of training does not play."""


@dataclass(frozen=True)
class Agreed:
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

        each = training_event(self.agreement, self.privacy)
        if each is None:
            return None
        return DpSgd(each.noise_multiplier, each.sampling_rate, each.steps * self.agreement.rounds)

    @property
    def fewest_releases(self) -> int:
        """Return the releases of one round of a run and of its clustering, whatever ``release_every`` is."""
        return 1 + self._beside

    def release_every(self, releases: int) -> int:
        """Return the least ``release_every`` with at most so many releases in a run, at least ``fewest_releases``."""
        return -(-self.agreement.rounds // (releases - self._beside))

    @property
    def most_releases(self) -> int:
        """Return the releases of a run with one in each round, and of its clustering."""
        return self.agreement.rounds + self._beside

    def averaged(self, releases: int, *, counted: bool) -> int:
        """Return how many of so many releases a site averages in a run, 1 where no query is asked again.

        ``counted`` is true if the number was computed, so that :meth:`release_every` follows from it.
        """
        if not self.agreement.has_fixed_query or releases < 1:
            return 1
        every = self.release_every(releases) if counted else self.agreement.release_every
        return min(releases, -(-self.agreement.rounds // every))

    @property
    def parts(self) -> int:
        """Return the most parts of a class in one release."""
        return self.agreement.most_cells // len(self.agreement.classes)

    @property
    def _beside(self) -> int:
        return self.agreement.releases - -(-self.agreement.rounds // self.agreement.release_every)

    def facts(self) -> dict[str, object]:
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

    def warnings(self) -> list[str]:
        """Return warnings about the limits of a plan for this agreement."""
        found = [NO_GUARANTEE] if self.privacy.extractor is Extractor.TRAINED else []
        if self.parts > 1:
            found.append(f"a class is released in up to {self.parts} parts: give --records of a part")
        if self.privacy.distributed:
            found.append(
                "sites share the noise: errors are of a sum over the fewest sites with which it opens; give "
                "--records as the total of these sites"
            )
        return found


def read_agreed(path: Path, classes: int) -> Agreed:
    """Read an agreement's file, or a simulation's, which may leave the number of ``classes`` to the data.

    Raises :class:`agreement.ConfigError`, and ``click.UsageError`` where there is no ``[privacy]``.
    """
    if "federation" in parse_toml(path):
        agreement = load_agreement(path)
        said: RunSettings = agreement
        names: tuple[str, ...] | None = agreement.classes
    else:
        config = load_simulation(path, {})
        agreement, said, names = _of_simulation(config, classes), config, config.classes
    if agreement.privacy is None:
        raise click.UsageError(
            f"{path} has no [privacy] section, so it has no noise: add the section, or name another file"
        )
    return Agreed(agreement, agreement.privacy, names, said.inputs)


def _of_simulation(config: SimulationConfig, classes: int) -> Agreement:
    return config.agreement(
        method=config.method,
        seed=config.seeds[0],
        classes=config.classes or [str(number) for number in range(classes)],
        preprocessing=config.inputs or _ANY,
        averaged=(1, 0) if config.method.averages else None,
    )


@dataclass(frozen=True)
class Counted:
    """Numbers of records or subjects of a data source: ``of_class`` by the class's name, and ``units`` in all.

    ``classes_of_one``: the most classes in which one subject has records; None where records are counted, or nothing.
    """

    of_class: Mapping[str, int]
    units: int = 0
    classes_of_one: int | None = None


def counts_of(spec: str, agreed: Agreed | None, unit: str) -> Counted:
    """Count a data source's training records, which stay in this process.

    Raises a :class:`secure_client.errors.SiteError`, and ``click.UsageError`` for a unit that it cannot count.
    """
    import numpy as np

    from secure_client.data.sources import join_sources, read_sources, suggest_preprocessing

    fitted = None if agreed is None else agreed.preprocessing
    classes = None if agreed is None else agreed.classes
    sources = read_sources(spec, data_root=None, agreed=fitted, classes=classes)
    data = join_sources(sources, fitted or suggest_preprocessing(sources), classes)
    labels, subjects = data.train.labels, data.train.subjects
    if unit == Unit.SITE:
        raise click.UsageError(
            "--counts-of counts one site's data, but the unit is a site: give the number of sites of a class "
            "by --records"
        )
    of_one = None
    if unit == Unit.SUBJECT:
        if subjects is None:
            raise click.UsageError(f"{spec} has no subjects, which the unit needs: add them to the data")
        owners = np.unique(subjects, return_inverse=True)[1]
        owned = np.unique(np.stack([owners, labels]), axis=1)
        of_one, labels = int(np.bincount(owned[0]).max()), owned[1]
    counts = np.bincount(labels, minlength=len(data.classes))
    units = len(labels) if subjects is None or of_one is None else len(np.unique(subjects))
    return Counted(dict(zip(data.classes, counts.tolist(), strict=True)), units, of_one)


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
