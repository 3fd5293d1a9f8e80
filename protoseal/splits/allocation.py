"""Allocation of samples to sites: shuffles each domain and class and deals its samples out by given shares."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from protoseal.splits.site_samples import Pool, SharedSamples, SiteArrays, Units, units_of
from secure_client.data.samples import Indices, Labels, Samples, TrainTest
from secure_client.errors import DataError

Shares = NDArray[np.float64]
"""Shares (sites, domains, classes) by which the samples of a domain and class are distributed to sites."""

Caps = NDArray[np.int64]
"""Most training samples of a class at each site, (sites,), or of a domain and class at each site, (sites, domains)."""

TRAIN_PART = 0.75
"""Training share of each class at a site, where the data set has no test part of its own."""


@dataclass(frozen=True)
class Dealt:
    """Each site's training samples and, where the data have no test part, its test samples, by index.

    Indices are in the order of the data, so that a file of a site's samples does not reveal the draw.
    """

    trains: list[Indices]
    tests: list[Indices]


def divide(
    data: TrainTest,
    shares: Shares,
    *,
    caps: Caps | None = None,
    own_test: float | None = None,
    rng: np.random.Generator,
) -> tuple[SiteArrays, ...]:
    """Distribute the data and make the sites; the data's test part is dropped if sites keep their own."""
    data, train_part = keep_own_test(data, own_test)
    return make_sites(data, deal(data, shares, caps, train_part, rng))


def keep_own_test(data: TrainTest, own_test: float | None) -> tuple[TrainTest, float]:
    """Return the data to distribute and the training share of each site; ``own_test`` is the sites' test share."""
    if own_test is None:
        return data, TRAIN_PART
    return replace(data, test=None), 1.0 - own_test


def deal(
    data: TrainTest, shares: Shares, caps: Caps | None, train_part: float, rng: np.random.Generator
) -> Dealt:
    """Return indices of each site's samples.

    If the data have a test part, all distributed samples are for training, up to the cap; otherwise the site tests on
    the rest of each class, or of each domain and class where caps are by domain: the share 1 − ``train_part`` and the
    samples above the cap. Where samples have subjects, the shares are of subjects, and all samples of a subject are in
    one part of one site.
    """
    trains: list[list[Indices]] = [[] for _ in shares]
    tests: list[list[Indices]] = [[] for _ in shares]
    whole, units = data.test is not None, units_of(data.train)
    for label in range(len(data.classes)):
        for part, most in _parts(shares, caps):
            for site, members in enumerate(_deal_class(units, label, part[:, :, label], rng)):
                wanted = len(members) if whole else math.floor(train_part * len(members) + 0.5)
                kept = wanted if most is None else min(units.fitting(members, int(most[site])), wanted)
                trains[site].append(units.samples_of(members[:kept]))
                tests[site].append(units.samples_of(members[kept:]))
    return Dealt([_in_order(parts) for parts in trains], [_in_order(parts) for parts in tests])


def make_sites(data: TrainTest, dealt: Dealt) -> tuple[SiteArrays, ...]:
    """Return the sites, called site-1 and so on, with numbers of equal width.

    If the data have a test part, each site has the test samples of its training classes and domains, in memory once for
    all sites. Raises :class:`DataError` for a site without training or without test samples.
    """
    width = len(str(len(dealt.trains)))
    names = [f"site-{number:0{width}d}" for number in range(1, len(dealt.trains) + 1)]
    maker = _SiteMaker(data)
    return tuple(maker.site(*parts) for parts in zip(names, dealt.trains, dealt.tests, strict=True))


@dataclass(frozen=True)
class _SiteMaker:
    data: TrainTest
    pool: Pool | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pool", None if self.data.test is None else Pool(self.data.test))

    def site(self, name: str, train_indices: Indices, rest: Indices) -> SiteArrays:
        train = self.data.train.take(train_indices)
        test = self.data.train.take(rest) if self.pool is None else _like(self.pool, train)
        for part, kind in ((train, "training"), (test, "test")):
            if not len(part):
                raise DataError(
                    f"this split leaves {name} without {kind} samples; use fewer sites or more data"
                )
        here = np.union1d(train.domains, test.domains)
        train, test = (_renumbered(part, np.searchsorted(here, part.domains)) for part in (train, test))
        return SiteArrays(name, train, test, tuple(self.data.domains[domain] for domain in here))


def thinned(samples: Samples, wanted: int, rng: np.random.Generator) -> Samples:
    """Draw ``wanted`` samples at random; raise :class:`DataError` for too few samples."""
    if wanted > len(samples):
        raise DataError(
            f"the split needs {wanted} samples, but the data have {len(samples)}; use fewer sites or a smaller "
            "per="
        )
    return samples.take(np.sort(rng.choice(len(samples), wanted, replace=False)))


def _parts(shares: Shares, caps: Caps | None) -> list[tuple[Shares, Caps | None]]:
    """Return what is dealt out together, with its caps (sites,): each domain by itself where caps are by domain."""
    if caps is None or caps.ndim == 1:
        return [(shares, caps)]
    only = np.eye(shares.shape[1])
    return [(shares * only[domain][:, np.newaxis], caps[:, domain]) for domain in range(shares.shape[1])]


def _deal_class(units: Units, label: int, shares: Shares, rng: np.random.Generator) -> list[Indices]:
    """Return shuffled units of one class for each site, by shares (sites, domains)."""
    dealt: list[list[Indices]] = [[] for _ in shares]
    for domain in range(shares.shape[1]):
        members = rng.permutation(np.flatnonzero((units.labels == label) & (units.domains == domain)))
        total = shares[:, domain].sum()
        if total > 0:
            # The order of sites is random, so that the remainder of a division favours no particular site.
            order = rng.permutation(len(shares))
            ends = np.rint(shares[order, domain].cumsum() / total * len(members)).astype(np.int64)
            for site, part in zip(order, np.split(members, ends[:-1]), strict=True):
                dealt[site].append(part)
    return [rng.permutation(np.concatenate(parts)) if parts else np.empty(0, np.int64) for parts in dealt]


def _in_order(parts: list[Indices]) -> Indices:
    return np.sort(np.concatenate(parts))


def _like(pool: Pool, train: Samples) -> SharedSamples:
    """Return the test samples of the classes and domains that the training samples have."""
    test = pool.samples
    here = np.isin(test.labels, np.unique(train.labels)) & np.isin(test.domains, np.unique(train.domains))
    rows = np.flatnonzero(here)
    return SharedSamples(pool, rows, test.domains[rows])


def _renumbered(part: Samples, domains: Labels) -> Samples:
    if isinstance(part, SharedSamples):
        return SharedSamples(part.pool, part.rows, domains)
    return replace(part, domains=domains)
