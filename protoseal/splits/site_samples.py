"""Samples of one simulated site, and the draws of its validation part and of subjects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from agreement import InputSection
from protoseal.splits.shared_samples import SharedSamples
from protoseal.splits.split_units import units_of
from secure_client.data import SiteData
from secure_client.data.preprocess import Preprocessing, to_dataset
from secure_client.data.samples import Samples
from secure_client.data.site_data import number_subjects
from secure_client.data.table_scale import fit_inputs
from secure_client.errors import DataError
from secure_client.table_format import TableScale

VALIDATION_STREAM, SUBJECT_STREAM = 1, 3
"""Second seeds, so that validation parts and subjects are drawn independently of the split."""


@dataclass(frozen=True)
class SiteArrays:
    """One site's samples; their domains index ``domains``, the names of the site's domains.

    ``validation``, if requested, is in neither ``train`` nor ``test``.
    """

    name: str
    train: Samples
    test: Samples
    domains: tuple[str, ...]
    validation: Samples | None = None

    @property
    def parts(self) -> dict[str, Samples]:
        """Return the samples by part: train, validation if any, test."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        return {kind: part for kind, part in parts.items() if part is not None}

    def to_data(self, inputs: InputSection | None) -> SiteData:
        """Return the data sets that the site trains and tests on, under the agreed preprocessing.

        Test samples of several sites are in memory once, as subsets of one data set, unless sites scale a table's
        features by their own training rows.
        """
        agreed = fit_inputs(inputs, self.train.inputs, where=self.name)
        return SiteData(
            self._dataset(self.train, agreed),
            self._dataset(self.test, agreed),
            None if self.validation is None else self._dataset(self.validation, agreed),
            number_subjects(self.train.subjects),
            agreed if isinstance(agreed, TableScale) else None,
        )

    def _dataset(self, part: Samples, agreed: Preprocessing | None) -> Dataset[Any]:
        if isinstance(part, SharedSamples):
            return part.subset(agreed, where=self.name)
        return to_dataset(part, agreed, where=self.name)


def with_validation(sites: Sequence[SiteArrays], part: float, seed: int) -> tuple[SiteArrays, ...]:
    """Return the sites with that share of their training samples, in (0, 1), as validation: by class, rounded half up.

    At least one sample of each class stays for training, and a subject's samples stay together: shares are of subjects
    where samples have them. The sites' other samples are unchanged, so that a split with
    and without validation differs in nothing else. Raises :class:`DataError` naming a site that has too few samples
    of every class.
    """
    rng = np.random.default_rng((seed, VALIDATION_STREAM))
    return tuple(_with_validation(site, part, rng) for site in sites)


def with_subjects(sites: Sequence[SiteArrays], records: int, seed: int) -> tuple[SiteArrays, ...]:
    """Return the sites with their training samples assigned to synthetic subjects of ``records`` samples each.

    Subjects are random, whatever the samples' classes; a site's last subject may have fewer samples. No subject is at
    two sites. Raises :class:`DataError` for samples that name their subjects.
    """
    named = [site.name for site in sites if site.train.subjects is not None]
    if named:
        raise DataError(
            f"subject= makes subjects up, and the samples of {named[0]} name theirs: leave subject= out"
        )
    rng = np.random.default_rng((seed, SUBJECT_STREAM))
    return tuple(_with_subjects(site, records, rng) for site in sites)


def _with_subjects(site: SiteArrays, records: int, rng: np.random.Generator) -> SiteArrays:
    numbers = rng.permutation(len(site.train)) // records
    subjects = np.char.add(f"{site.name}/", numbers.astype(np.str_))
    return replace(site, train=replace(site.train, subjects=subjects))


def _with_validation(site: SiteArrays, part: float, rng: np.random.Generator) -> SiteArrays:
    aside, units = np.zeros(len(site.train), dtype=np.bool_), units_of(site.train)
    for label in np.unique(units.labels):
        members = np.flatnonzero(units.labels == label)
        count = min(math.floor(part * len(members) + 0.5), len(members) - 1)
        aside[units.samples_of(rng.permutation(members)[:count])] = True
    if not aside.any():
        raise DataError(
            f"val={part:g} selects none of {site.name}'s {len(aside)} training samples; make val larger, or "
            "give sites more samples of a class"
        )
    kept, held = np.flatnonzero(~aside), np.flatnonzero(aside)
    return replace(site, train=site.train.take(kept), validation=site.train.take(held))
