"""Samples of simulated sites: the units that stay together, samples that several sites share, and one site's own.

A unit is a subject, or a single sample where subjects are unknown. A subject's samples resemble each other, so a model
that trained on some of them would be tested too kindly on the others. Limit: a subject that goes by two names counts as
two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset, TensorDataset

from agreement import InputSection
from secure_client.data import SiteData
from secure_client.data.preprocess import Preprocessing, to_dataset
from secure_client.data.samples import Indices, Inputs, Labels, Samples
from secure_client.data.site_data import number_subjects
from secure_client.data.table_scale import fit_inputs
from secure_client.errors import DataError
from secure_client.table_format import TableScale


@dataclass(frozen=True)
class Units:
    """Subjects, or single samples where subjects are unknown, each with a class and a domain by which it is dealt out.

    A subject with samples of several classes or domains counts for the pair that most of its samples have, and for the
    lowest of several such pairs. The samples of unit i are ``samples[first[i] : first[i + 1]]``.
    """

    labels: Labels
    domains: Labels
    samples: Indices
    first: Indices

    def samples_in(self, units: Indices) -> Indices:
        """Return the samples of these units, in the order of the units."""
        parts = [self.samples[self.first[unit] : self.first[unit + 1]] for unit in units]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def fitting(self, units: Indices, samples: int) -> int:
        """Return how many of the units, from the start, have at most that many samples together."""
        sizes = self.first[units + 1] - self.first[units]
        return int(np.searchsorted(np.cumsum(sizes), samples, side="right"))

    @property
    def largest(self) -> int:
        """Return the largest number of samples of a unit."""
        return int(np.diff(self.first).max(initial=0))


def group_units(samples: Samples) -> Units:
    """Return the samples' subjects, in the order of their names, or the samples themselves."""
    if samples.subjects is None:
        every = np.arange(len(samples) + 1, dtype=np.int64)
        return Units(samples.labels, samples.domains, every[:-1], every)
    numbers = np.unique(samples.subjects, return_inverse=True)[1]
    triples = np.stack([numbers, samples.labels, samples.domains])
    kinds, counts = np.unique(triples, axis=1, return_counts=True)  # by subject, then class, then domain
    by_count = np.lexsort((-counts, kinds[0]))  # stable: the lowest pair leads among equal counts
    leaders = by_count[np.unique(kinds[0][by_count], return_index=True)[1]]
    first = np.concatenate([[0], np.cumsum(np.bincount(numbers))]).astype(np.int64)
    return Units(kinds[1][leaders], kinds[2][leaders], np.argsort(numbers, kind="stable"), first)


@dataclass(frozen=True)
class SamplePool:
    """Samples of which each site has some rows, preprocessed once for all sites with the same agreed preprocessing."""

    samples: Samples
    _made: dict[Preprocessing | None, TensorDataset] = field(default_factory=dict, repr=False)

    def dataset(self, agreed: Preprocessing | None, *, where: str) -> TensorDataset:
        """Return all samples under the agreed preprocessing: the same object each time."""
        # Preprocessed once: a hundred sites test on rows of one data set, which a copy each would not fit.
        if agreed not in self._made:
            self._made[agreed] = to_dataset(self.samples, agreed, where=where)
        return self._made[agreed]


class SharedSamples(Samples):
    """Some rows of a :class:`SamplePool`; each access to ``inputs`` copies them.

    ``domains`` may index other names than the pool's. The samples are for tests and have no subjects.
    """

    pool: SamplePool
    rows: Indices

    def __init__(self, pool: SamplePool, rows: Indices, domains: Labels) -> None:
        for name, value in (("pool", pool), ("rows", rows), ("domains", domains)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "labels", pool.samples.labels[rows])

    @property
    def inputs(self) -> Inputs:
        """Copy of the inputs, with the pool's shape and dtype."""
        return self.pool.samples.inputs[self.rows]

    @property
    def is_images(self) -> bool:
        """True if the pool's inputs are images."""
        return self.pool.samples.is_images

    def take(self, indices: Indices) -> Samples:
        """Return the samples at ``indices``, still of the pool."""
        return SharedSamples(self.pool, self.rows[indices], self.domains[indices])

    def subset(self, agreed: Preprocessing | None, *, where: str) -> Dataset[Any]:
        """Return these rows of the pool's data set."""
        return Subset(self.pool.dataset(agreed, where=where), self.rows.tolist())


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
    assigned = []
    for site in sites:
        numbers = rng.permutation(len(site.train)) // records
        subjects = np.char.add(f"{site.name}/", numbers.astype(np.str_))
        assigned.append(replace(site, train=replace(site.train, subjects=subjects)))
    return tuple(assigned)


def _with_validation(site: SiteArrays, part: float, rng: np.random.Generator) -> SiteArrays:
    aside, units = np.zeros(len(site.train), dtype=np.bool_), group_units(site.train)
    for label in np.unique(units.labels):
        members = np.flatnonzero(units.labels == label)
        # One stays for training: a class without a training sample could not be predicted.
        count = min(math.floor(part * len(members) + 0.5), len(members) - 1)
        aside[units.samples_in(rng.permutation(members)[:count])] = True
    if not aside.any():
        raise DataError(
            f"val={part:g} selects none of {site.name}'s {len(aside)} training samples; make val larger, or "
            "give sites more samples of a class"
        )
    train, validation = (site.train.take(np.flatnonzero(chosen)) for chosen in (~aside, aside))
    return replace(site, train=train, validation=validation)
