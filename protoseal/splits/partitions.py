"""Partitions: each split draws shares (sites, domains, classes), and the samples are shuffled and dealt out by them.

In all partitions ``own_test`` is the share of each class that a site keeps for its tests, whatever test part the data
set has, so that test and training samples have the same class proportions. Without ``own_test`` a site tests on the
data set's test samples of its classes and domains, or on a quarter of its samples if the data set has no test part or
the test part was pooled (:class:`protoseal.splits.split_options.Split`). Samples of a subject are never divided: shares
are of subjects where samples have them, and a site can then have some samples of classes that it did not draw.

A seed fixes a split to the last sample, so the order in which a function draws from its generator is part of the split.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from protoseal.splits.site_samples import SamplePool, SharedSamples, SiteArrays, Units, group_units
from secure_client.data.samples import Indices, Samples, TrainTest
from secure_client.errors import DataError

Shares = NDArray[np.float64]
"""Shares (sites, domains, classes) by which the samples of a domain and class are distributed to sites."""
Caps = NDArray[np.int64]
"""Most training samples of a class at each site, (sites,), or of a domain and class at each site, (sites, domains)."""

TRAIN_PART = 0.75
"""Training share of each class at a site, where the data set has no test part of its own."""
DRAWS = 100
"""Number of draws of a random split before giving up on its minimum."""


def iid(
    data: TrainTest, *, sites: int, own_test: float | None = None, per_site: int | None = None, seed: int
) -> tuple[SiteArrays, ...]:
    """Give every site an equal part of every class and domain; ``per_site`` as for :func:`dirichlet`."""
    rng = np.random.default_rng(seed)
    if per_site is not None:
        data = replace(data, train=_thin(data.train, sites * per_site, rng))
    shares = np.ones((sites, len(data.domains), len(data.classes)))
    return _divide(data, shares, own_test=own_test, rng=rng)


def by_domain(
    data: TrainTest, *, sites: int, own_test: float | None = None, per_site: int | None = None, seed: int
) -> tuple[SiteArrays, ...]:
    """Give each site one domain with all its classes; several sites share a domain evenly.

    With ``per_site`` a site has about that many samples of the training part, drawn from its domain at random, or all
    samples of a smaller domain: FedPLCC's setting, where each site also has all test samples of its domain. If the data
    have no test part, the site's test samples are drawn from these samples.
    """
    rng = np.random.default_rng(seed)
    homes = _home_domains(data, sites)
    if per_site is not None:
        wanted = per_site * np.bincount(homes, minlength=len(data.domains))
        data = replace(data, train=_thin_domains(data.train, wanted, rng))
    shares = np.zeros((sites, len(data.domains), len(data.classes)))
    shares[np.arange(sites), homes] = 1.0
    return _divide(data, shares, own_test=own_test, rng=rng)


def mixed(
    data: TrainTest,
    *,
    sites: int,
    n: float,
    max_per_class: int | None = None,
    own_test: float | None = None,
    seed: int,
) -> tuple[SiteArrays, ...]:
    """Split by PFPL's mixed heterogeneity: each site has one domain and some of its classes, n on average.

    Site i has domain i modulo their number. The number of its classes is drawn from the whole numbers within one of n
    (6.5: six or seven; 3: two to four), with mean n over the sites up to rounding; the classes are drawn uniformly.
    Some classes end up at few sites; ``min_holders`` covers this case. A class at a site has at most ``max_per_class``
    training samples; without a test part in the data the rest of them are its test samples.

    Raises :class:`DataError` if a site's domain has too few classes, or sites cannot be filled.
    """
    rng = np.random.default_rng(seed)
    counts = _draw_class_counts(n, sites, len(data.classes), rng)
    present = _class_presence(data)
    shares = np.zeros((sites, *present.shape))
    for site, domain in enumerate(_home_domains(data, sites)):
        choice = np.flatnonzero(present[domain])
        _check_enough_classes(len(choice), counts[site], data.domains[domain])
        shares[site, domain, rng.choice(choice, counts[site], replace=False)] = 1.0
    caps = None if max_per_class is None else np.full(sites, max_per_class)
    return _divide(data, shares, caps=caps, own_test=own_test, rng=rng)


def shots(
    data: TrainTest,
    *,
    sites: int,
    n: int,
    k: int,
    n_spread: int = 0,
    k_spread: int = 0,
    domains: int | None = None,
    own_test: float | None = None,
    seed: int,
) -> tuple[SiteArrays, ...]:
    """Give each site n classes, uniformly chosen, and exactly k training samples of each, over all domains.

    Spreads give each site an n and a k of its own, drawn uniformly from the whole numbers within ``n_spread`` of n
    and ``k_spread`` of k, but at least 1 and, for n, at most the number of classes (FedProto, whose code also draws its
    "standard deviations" uniformly).

    Each site has ``domains`` domains, if given, among which the k samples of each class are divided evenly: site
    i has domain i modulo their number, and its other domains are drawn uniformly. Its classes are drawn from those
    that all of its domains have. This is mixed heterogeneity, as :func:`mixed`, at sites of several domains.

    Raises :class:`DataError` when a class has too few samples for the sites that drew it, when the data have fewer
    domains than ``domains`` or a site's domains too few classes, when k is below ``domains``, and for subjects
    of several samples, which exactly k samples could tear apart.
    """
    largest = group_units(data.train).largest
    if largest > 1:
        raise DataError(
            f"shots gives exactly k samples of a class, but a subject of the data has {largest} samples, which stay "
            "together: use dirichlet, mixed, domains or iid"
        )
    rng = np.random.default_rng(seed)
    classes = len(data.classes)
    _check_enough_classes(classes, n, "the data set")
    ways = np.minimum(_draw_within(n, n_spread, sites, rng), classes)
    caps = _draw_within(k, k_spread, sites, rng)
    present = _class_presence(data)
    if domains is None:
        homes, part_caps = np.tile(np.arange(len(data.domains)), (sites, 1)), caps
        # The k samples are drawn over all domains, so that no single one needs a class.
        present = np.ones_like(present)
    else:
        _check_domains(len(data.domains), domains, int(caps.min()))
        homes = _draw_domains(data, sites, domains, rng)
        part_caps = _divide_caps(caps, homes, len(data.domains))
    shares = np.zeros((sites, *present.shape))
    for site, site_homes in enumerate(homes):
        choice = np.flatnonzero(present[site_homes].all(axis=0))
        _check_enough_classes(len(choice), ways[site], " with ".join(data.domains[d] for d in site_homes))
        shares[site][np.ix_(site_homes, rng.choice(choice, ways[site], replace=False))] = 1.0
    divided = _divide(data, shares, caps=part_caps, own_test=own_test, rng=rng)
    for arrays, cap, share in zip(divided, caps, shares, strict=True):
        _check_shots(arrays, data.classes, int(cap), np.flatnonzero(share.any(axis=0)))
    return divided


def dirichlet(
    data: TrainTest,
    *,
    sites: int,
    beta: float,
    minimum: int = 10,
    own_test: float | None = None,
    per_site: int | None = None,
    seed: int,
) -> tuple[SiteArrays, ...]:
    """Divide each class among the sites in proportions drawn from Dirichlet(beta, …, beta).

    With ``per_site`` only that many samples a site are used on average, drawn from the training part at random.

    The draw is repeated until every site has ``minimum`` training samples and some test samples. Raises
    :class:`DataError` after 100 draws, and for a data set with too few samples.
    """
    rng = np.random.default_rng(seed)
    if per_site is not None:
        data = replace(data, train=_thin(data.train, sites * per_site, rng))
    data, train_part = _keep_own_test(data, own_test)
    for _ in range(DRAWS):
        proportions = rng.dirichlet(np.full(sites, beta), size=len(data.classes)).T
        shares = np.repeat(proportions[:, np.newaxis], len(data.domains), axis=1)
        trains, tests = _deal(data, shares, None, train_part, rng)
        testable = data.test is not None or all(map(len, tests))
        if testable and min(map(len, trains)) >= minimum:
            return _make_sites(data, trains, tests)
    raise DataError(
        f"dirichlet:{beta:g} left a site with fewer than {minimum} training samples, or none to test"
        f" on, in {DRAWS} draws; use fewer sites, a larger number after dirichlet:, or a smaller min="
    )


# Draws


def _thin(samples: Samples, wanted: int, rng: np.random.Generator) -> Samples:
    if wanted > len(samples):
        raise DataError(
            f"the split needs {wanted} samples, but the data have {len(samples)}; use fewer sites or a smaller "
            "per="
        )
    return samples.take(np.sort(rng.choice(len(samples), wanted, replace=False)))


def _thin_domains(samples: Samples, wanted: NDArray[np.int64], rng: np.random.Generator) -> Samples:
    """Draw ``wanted[domain]`` samples of each domain at random, or take all samples of a smaller domain."""
    drawn = [
        rng.permutation(np.flatnonzero(samples.domains == domain))[:count]
        for domain, count in enumerate(wanted)
    ]
    return samples.take(np.sort(np.concatenate(drawn)))


def _home_domains(data: TrainTest, sites: int) -> NDArray[np.int64]:
    return np.arange(sites, dtype=np.int64) % len(data.domains)


def _draw_domains(data: TrainTest, sites: int, domains: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the domains of each site, (sites, domains): the first by turns, the rest drawn."""
    rows = []
    for first in _home_domains(data, sites):
        others = np.delete(np.arange(len(data.domains)), first)
        rows.append([first, *rng.choice(others, domains - 1, replace=False)])
    return np.array(rows, dtype=np.int64)


def _divide_caps(caps: NDArray[np.int64], homes: NDArray[np.int64], domains: int) -> NDArray[np.int64]:
    """Divide each site's cap evenly among its homes, (sites, domains); the first homes get the remainder."""
    share, left = np.divmod(caps[:, np.newaxis], homes.shape[1])
    divided = np.zeros((len(caps), domains), dtype=np.int64)
    np.put_along_axis(divided, homes, share + (np.arange(homes.shape[1]) < left), axis=1)
    return divided


def _class_presence(data: TrainTest) -> NDArray[np.bool_]:
    present = np.zeros((len(data.domains), len(data.classes)), dtype=np.bool_)
    present[data.train.domains, data.train.labels] = True
    return present


def _draw_class_counts(n: float, sites: int, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw the number of classes at each site: whole, within one of n and in [1, classes], of mean n up to rounding."""
    low, high = max(1, math.ceil(n - 1.0)), min(classes, math.floor(n + 1.0))
    if not 1.0 <= n <= classes:
        raise DataError(f"n = {n:g} classes a site is outside 1 to {classes}, the number of classes")
    counts = rng.integers(low, high, size=sites, endpoint=True)
    # Independent draws miss the mean n: one class is added or taken at random sites until the total fits.
    missing = math.floor(n * sites + 0.5) - int(counts.sum())
    while missing:
        step = 1 if missing > 0 else -1
        movable = np.flatnonzero(counts < high if step > 0 else counts > low)
        counts[rng.choice(movable)] += step
        missing -= step
    return counts


def _draw_within(middle: int, spread: int, sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a whole number for each site, within ``spread`` of ``middle``, at least 1; nothing is drawn for 0."""
    if spread == 0:
        return np.full(sites, middle, dtype=np.int64)
    return rng.integers(max(1, middle - spread), middle + spread, size=sites, endpoint=True)


def _check_enough_classes(available: int, wanted: int, where: str) -> None:
    if wanted > available:
        raise DataError(f"the split needs {wanted} classes of {where}, which has {available}; make n smaller")


def _check_domains(available: int, wanted: int, k: int) -> None:
    if wanted > available:
        raise DataError(
            f"the split needs {wanted} domains a site of the data set, which has {available}; make domains"
            " smaller"
        )
    if k < wanted:
        raise DataError(f"k = {k} samples of a class cannot be from {wanted} domains; make k larger")


def _check_shots(site: SiteArrays, classes: tuple[str, ...], k: int, drawn: NDArray[np.int64]) -> None:
    counts = np.bincount(site.train.labels, minlength=len(classes))
    for label in drawn:
        if counts[label] < k:
            raise DataError(
                f"class {classes[label]!r} gives {site.name} {counts[label]} training samples, not k = {k}; make"
                " k or n smaller, use fewer sites or another seed"
            )


# Dealing out


def _divide(
    data: TrainTest,
    shares: Shares,
    *,
    caps: Caps | None = None,
    own_test: float | None = None,
    rng: np.random.Generator,
) -> tuple[SiteArrays, ...]:
    """Distribute the data and make the sites; the data's test part is dropped if sites keep their own."""
    data, train_part = _keep_own_test(data, own_test)
    return _make_sites(data, *_deal(data, shares, caps, train_part, rng))


def _keep_own_test(data: TrainTest, own_test: float | None) -> tuple[TrainTest, float]:
    """Return the data to distribute and the training share of each site; ``own_test`` is the sites' test share."""
    if own_test is None:
        return data, TRAIN_PART
    return replace(data, test=None), 1.0 - own_test


def _deal(
    data: TrainTest, shares: Shares, caps: Caps | None, train_part: float, rng: np.random.Generator
) -> tuple[list[Indices], list[Indices]]:
    """Return the indices of each site's training samples, and of its test samples.

    If the data have a test part, all distributed samples are for training, up to the cap; otherwise the site tests on
    the rest of each class, or of each domain and class where caps are by domain: the share 1 − ``train_part`` and the
    samples above the cap. Where samples have subjects, the shares are of subjects, and all samples of a subject are in
    one part of one site.
    """
    trains: list[list[Indices]] = [[] for _ in shares]
    tests: list[list[Indices]] = [[] for _ in shares]
    units = group_units(data.train)
    if caps is None or caps.ndim == 1:
        parts = [(shares, caps)]
    else:  # caps by domain: each domain is dealt out by itself
        only = np.eye(shares.shape[1])
        parts = [(shares * only[domain][:, np.newaxis], caps[:, domain]) for domain in range(len(only))]
    for label in range(len(data.classes)):
        for part_shares, part_caps in parts:
            dealt = _deal_class(units, label, part_shares[:, :, label], rng)
            for site, members in enumerate(dealt):
                count = len(members) if data.test is not None else math.floor(train_part * len(members) + 0.5)
                if part_caps is not None:
                    count = min(units.fitting(members, int(part_caps[site])), count)
                trains[site].append(units.samples_in(members[:count]))
                tests[site].append(units.samples_in(members[count:]))
    # Indices go back to the order of the data, so that a file of a site's samples does not reveal the draw.
    in_order = [[np.sort(np.concatenate(indices)) for indices in sites] for sites in (trains, tests)]
    return in_order[0], in_order[1]


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


def _make_sites(data: TrainTest, trains: list[Indices], tests: list[Indices]) -> tuple[SiteArrays, ...]:
    """Return the sites, called site-1 and so on, with numbers of equal width.

    If the data have a test part, each site has the test samples of its training classes and domains, in memory once for
    all sites. Raises :class:`DataError` for a site without training or without test samples.
    """
    width, sites = len(str(len(trains))), []
    pool = None if data.test is None else SamplePool(data.test)
    for number, (train_indices, test_indices) in enumerate(zip(trains, tests, strict=True), 1):
        name = f"site-{number:0{width}d}"
        train = data.train.take(train_indices)
        test = data.train.take(test_indices) if pool is None else _matching_tests(pool, train)
        for part, kind in ((train, "training"), (test, "test")):
            if not len(part):
                raise DataError(
                    f"this split leaves {name} without {kind} samples; use fewer sites or more data"
                )
        # A site's domains are numbered by its own list, which names no domain that it has no sample of.
        domains = np.union1d(train.domains, test.domains)
        train, test = (
            _number_domains(part, np.searchsorted(domains, part.domains)) for part in (train, test)
        )
        sites.append(SiteArrays(name, train, test, tuple(data.domains[domain] for domain in domains)))
    return tuple(sites)


def _matching_tests(pool: SamplePool, train: Samples) -> SharedSamples:
    test = pool.samples
    matching = np.isin(test.labels, np.unique(train.labels)) & np.isin(test.domains, np.unique(train.domains))
    rows = np.flatnonzero(matching)
    return SharedSamples(pool, rows, test.domains[rows])


def _number_domains(part: Samples, domains: NDArray[np.int64]) -> Samples:
    if isinstance(part, SharedSamples):
        return SharedSamples(part.pool, part.rows, domains)
    return replace(part, domains=domains)
