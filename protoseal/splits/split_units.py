"""Units of a split: what is at one site, and on one side of training and test, as a whole.

A subject's samples resemble each other. A model that trained on some of them is tested too kindly on the others, so a
split moves subjects where samples have them. Limit: a subject that goes by two names counts as two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from secure_client.data.samples import Indices, Labels, Samples


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

    def samples_of(self, units: Indices) -> Indices:
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


def units_of(samples: Samples) -> Units:
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
