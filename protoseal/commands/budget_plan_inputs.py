"""Inputs of ``protoseal budget plan`` from files: the agreed settings, and a site's records of each class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agreement.agreement import Agreement, load_agreement
from agreement.run_settings import RunSettings
from agreement.sections.privacy import Extractor, PrivacySection
from agreement.sections.training import PreprocessingSection
from agreement.toml_loading import parse_toml
from privacy.units import Unit
from protoseal.simulation.config import SimulationConfig, load_simulation

if TYPE_CHECKING:
    from privacy.accounting.events import DpSgd

NO_GUARANTEE = (
    "NO GUARANTEE: features are trained on the records without noise, so that no ε holds for a record; the "
    "figures below are of the noise in releases alone"
)


_ANY = PreprocessingSection(image_size=32, channels=1, mean=(0.5,), std=(0.5,))
"""Placeholder for settings that a simulation takes from its data and no plan depends on."""


@dataclass(frozen=True)
class Agreed:
    """An agreement with ``[privacy]``, and that section. The last two are None where a file leaves them to data."""

    agreement: Agreement
    privacy: PrivacySection
    classes: tuple[str, ...] | None
    preprocessing: PreprocessingSection | None

    @property
    def training(self) -> DpSgd | None:
        """All DP-SGD steps of a run."""
        from privacy.accounting.events import DpSgd
        from secure_client.privacy.run_cost import training_of

        each = training_of(self.agreement, self.privacy)
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
    def _beside(self) -> int:
        return self.agreement.releases - self.privacy.releases(self.agreement.rounds)

    def facts(self) -> dict[str, object]:
        """Return the settings taken from the file, beside those that every plan has."""
        agreement = self.agreement
        return {
            "method": agreement.method.value,
            "protection": agreement.protection.value,
            "rounds": agreement.rounds,
            "release_every": self.privacy.release_every,
            "extractor": self.privacy.extractor.value,
            "classes": len(agreement.classes),
        }

    def warnings(self) -> list[str]:
        """Return warnings about the limits of a plan for this agreement."""
        found = [NO_GUARANTEE] if self.privacy.extractor is Extractor.TRAINED else []
        parts = self.agreement.most_cells // len(self.agreement.classes)
        if parts > 1:
            found.append(f"a class is released in up to {parts} parts: give --records of a part")
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
    return Agreed(agreement, agreement.privacy, names, said.preprocessing)


def _of_simulation(config: SimulationConfig, classes: int) -> Agreement:
    return config.agreement(
        method=config.method,
        seed=config.seeds[0],
        classes=config.classes or [str(number) for number in range(classes)],
        preprocessing=config.preprocessing or _ANY,
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


def counts_of(spec: str, data_root: Path | None, agreed: Agreed | None, unit: str) -> Counted:
    """Count a data source's training records, which stay in this process.

    Raises a :class:`secure_client.errors.SiteError`, and ``click.UsageError`` for a unit that it cannot count.
    """
    import numpy as np

    from secure_client.data.sources import join, read, suggest_preprocessing

    fitted = None if agreed is None else agreed.preprocessing
    sources = read(spec, data_root=data_root, agreed=fitted)
    data = join(sources, fitted or suggest_preprocessing(sources), None if agreed is None else agreed.classes)
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
