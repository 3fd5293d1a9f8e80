"""Schedules of a simulation: participation, learning-rate decay, augmentation, and optimiser state between rounds.

A simulation alone has these settings, and no agreement: a coordinator that chose the participants could choose two
cohorts that differ in one site, and subtract their sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agreement import Agreement, ConfigError, InputSection
from agreement.sections.training import PreprocessingSection
from protoseal.simulation.config import ScheduleSection
from secure_client.training.augmentation import Augmentation
from secure_client.training.job import Job, OptimiserState


class RunSchedule:
    """Schedule of one run under an agreement, whose seed it draws from."""

    def __init__(self, settings: ScheduleSection, agreement: Agreement) -> None:
        """Raise :class:`ConfigError` for an augmentation that the agreement's inputs do not allow."""
        self._settings = settings
        self._agreement = agreement
        self._augmentation = augmentation_for(settings, agreement.preprocessing)

    @property
    def leaves_sites_out(self) -> bool:
        """True if some sites may take no part in a round."""
        return self._settings.participation < 1

    def participants(self, groups: Sequence[Sequence[str]], round_number: int) -> frozenset[str]:
        """Draw the sites that take part in a round, from each group, by the run's seed and the round alone.

        The number of a group's participants is the share of the group, rounded up, and at least ``min_sites`` of a
        single group, ``min_holders`` of each of several. The draw is a call of ``choice`` without replacement for each
        group, of NumPy's default generator seeded by ``SeedSequence(init_seed, spawn_key=(round,))``.
        """
        agreement = self._agreement
        seed = np.random.SeedSequence(agreement.training.init_seed, spawn_key=(round_number,))
        generator = np.random.default_rng(seed)
        least = agreement.min_sites if len(groups) == 1 else agreement.min_holders
        drawn: set[str] = set()
        for group in groups:
            # 0.1 · 30 is 3.0000000000000004 in floating point, which is three sites.
            share = math.ceil(round(self._settings.participation * len(group), 9))
            count = min(max(least, share), len(group))
            drawn.update(generator.choice(sorted(group), size=count, replace=False).tolist())
        return frozenset(drawn)

    def adapt(
        self, jobs: Sequence[Job], round_number: int, states: Sequence[OptimiserState] = ()
    ) -> list[Job]:
        """Return a site's jobs with the round's learning rate and the augmentation.

        If the settings keep optimiser states, each job continues from a copy of its own in ``states``, which are those
        of the site's last jobs, or () before the first.
        """
        decay = self._settings.lr_decay ** (round_number - 1)
        copies: list[OptimiserState | None] = [None] * len(jobs)
        if self._settings.optimiser_state == "kept":
            # Training that fails in a later stage is undone, and so leaves the states that earlier stages began with.
            copies = [dict(state) for state in states] or [{} for _ in jobs]
        return [
            replace(
                job,
                schedule=replace(job.schedule, lr=job.schedule.lr * decay),
                augmentation=self._augmentation,
                optimiser_state=state,
            )
            for job, state in zip(jobs, copies, strict=True)
        ]


def augmentation_for(settings: ScheduleSection, inputs: InputSection | None) -> Augmentation | None:
    """Return the augmentation of inputs with this preprocessing, or None.

    Raises :class:`ConfigError` for inputs that are no images, and for a crop as wide as the image or wider.
    """
    if not settings.crop and not settings.flip:
        return None
    if not isinstance(inputs, PreprocessingSection):
        raise ConfigError("schedule", ["crop and flip are for images, and the inputs here are none"])
    if settings.crop >= inputs.image_size:
        raise ConfigError(
            "schedule", [f"crop = {settings.crop} must be below the image's size, {inputs.image_size}"]
        )
    black = (-mean / std for mean, std in zip(inputs.mean, inputs.std, strict=True))
    return Augmentation(settings.crop, settings.flip, tuple(black))
