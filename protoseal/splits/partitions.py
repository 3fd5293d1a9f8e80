"""Partitions: each split draws the shares (sites, domains, classes) by which samples are dealt out.

In all partitions ``own_test`` is the share of each class that a site keeps for its tests, whatever test part the data
set has, so that test and training samples have the same class proportions. Without ``own_test`` a site tests on the
data set's test samples of its classes and domains, or on a quarter of its samples if the data set has no test part or
the test part was pooled (:class:`protoseal.splits.split_options.Split`). Samples of a subject are never divided: shares
are of subjects where samples have them, and a site can then have some samples of classes that it did not draw.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from protoseal.splits.allocation import deal, divide, keep_own_test, make_sites, thinned
from protoseal.splits.site_samples import SiteArrays, units_of
from secure_client.data.samples import Samples, TrainTest
from secure_client.errors import DataError

DRAWS = 100
"""Number of draws of a random split before giving up on its minimum."""


def iid(
    data: TrainTest, *, sites: int, own_test: float | None = None, per_site: int | None = None, seed: int
) -> tuple[SiteArrays, ...]:
    """Give every site an equal part of every class and domain; ``per_site`` as for :func:`dirichlet`."""
    rng = np.random.default_rng(seed)
    if per_site is not None:
        data = replace(data, train=thinned(data.train, sites * per_site, rng))
    shares = np.ones((sites, len(data.domains), len(data.classes)))
    return divide(data, shares, own_test=own_test, rng=rng)


def by_domain(
    data: TrainTest, *, sites: int, own_test: float | None = None, per_site: int | None = None, seed: int
) -> tuple[SiteArrays, ...]:
    """Give each site one domain with all its classes; several sites share a domain evenly.

    With ``per_site`` a site has about that many samples of the training part, drawn from its domain at random, or all
    samples of a smaller domain: FedPLCC's setting, where each site also has all test samples of its domain. If the data
    have no test part, the site's test samples are drawn from these samples.
    """
    rng = np.random.default_rng(seed)
    homes = _domain_of_each(data, sites)
    if per_site is not None:
        wanted = per_site * np.bincount(homes, minlength=len(data.domains))
        data = replace(data, train=_thinned_domains(data.train, wanted, rng))
    shares = np.zeros((sites, len(data.domains), len(data.classes)))
    shares[np.arange(sites), homes] = 1.0
    return divide(data, shares, own_test=own_test, rng=rng)


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
    counts = _class_counts(n, sites, len(data.classes), rng)
    present = _present(data)
    shares = np.zeros((sites, *present.shape))
    for site, domain in enumerate(_domain_of_each(data, sites)):
        choice = np.flatnonzero(present[domain])
        _check_enough_classes(len(choice), counts[site], data.domains[domain])
        shares[site, domain, rng.choice(choice, counts[site], replace=False)] = 1.0
    caps = None if max_per_class is None else np.full(sites, max_per_class)
    return divide(data, shares, caps=caps, own_test=own_test, rng=rng)


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
    largest = units_of(data.train).largest
    if largest > 1:
        raise DataError(
            f"shots gives exactly k samples of a class, but a subject of the data has {largest} samples, which stay "
            "together: use dirichlet, mixed, domains or iid"
        )
    rng = np.random.default_rng(seed)
    classes = len(data.classes)
    _check_enough_classes(classes, n, "the data set")
    ways = np.minimum(_within(n, n_spread, sites, rng), classes)
    caps = _within(k, k_spread, sites, rng)
    everywhere = np.arange(len(data.domains))
    if domains is None:
        homes, present, most = np.tile(everywhere, (sites, 1)), np.ones_like(_present(data)), caps
    else:
        _check_domains(len(everywhere), domains, int(caps.min()))
        homes, present = _domains_of_each(data, sites, domains, rng), _present(data)
        most = _divided(caps, homes, len(everywhere))
    shares = np.zeros((sites, *present.shape))
    for row, here in enumerate(homes):
        choice = np.flatnonzero(present[here].all(axis=0))
        _check_enough_classes(len(choice), ways[row], " with ".join(data.domains[d] for d in here))
        shares[row][np.ix_(here, rng.choice(choice, ways[row], replace=False))] = 1.0
    divided = divide(data, shares, caps=most, own_test=own_test, rng=rng)
    for site, cap, share in zip(divided, caps, shares, strict=True):
        _check_shots(site, data.classes, int(cap), np.flatnonzero(share.any(axis=0)))
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
        data = replace(data, train=thinned(data.train, sites * per_site, rng))
    data, train_part = keep_own_test(data, own_test)
    for _ in range(DRAWS):
        proportions = rng.dirichlet(np.full(sites, beta), size=len(data.classes)).T
        shares = np.repeat(proportions[:, np.newaxis], len(data.domains), axis=1)
        dealt = deal(data, shares, None, train_part, rng)
        testable = data.test is not None or all(map(len, dealt.tests))
        if testable and min(map(len, dealt.trains)) >= minimum:
            return make_sites(data, dealt)
    raise DataError(
        f"dirichlet:{beta:g} left a site with fewer than {minimum} training samples, or none to test"
        f" on, in {DRAWS} draws; use fewer sites, a larger number after dirichlet:, or a smaller min="
    )


def _thinned_domains(samples: Samples, wanted: NDArray[np.int64], rng: np.random.Generator) -> Samples:
    """Draw ``wanted[domain]`` samples of each domain at random, or take all samples of a smaller domain."""
    drawn = []
    for domain, count in enumerate(wanted):
        members = np.flatnonzero(samples.domains == domain)
        drawn.append(rng.permutation(members)[:count])
    return samples.take(np.sort(np.concatenate(drawn)))


def _domain_of_each(data: TrainTest, sites: int) -> NDArray[np.int64]:
    return np.arange(sites, dtype=np.int64) % len(data.domains)


def _domains_of_each(
    data: TrainTest, sites: int, domains: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return the domains of each site, (sites, domains): the first by turns, the rest drawn."""
    rows = []
    for first in _domain_of_each(data, sites):
        others = np.delete(np.arange(len(data.domains)), first)
        rows.append([first, *rng.choice(others, domains - 1, replace=False)])
    return np.array(rows, dtype=np.int64)


def _divided(counts: NDArray[np.int64], homes: NDArray[np.int64], domains: int) -> NDArray[np.int64]:
    """Divide each site's count evenly among its homes, (sites, domains); the first homes get the remainder."""
    share, left = np.divmod(counts[:, np.newaxis], homes.shape[1])
    divided = np.zeros((len(counts), domains), dtype=np.int64)
    np.put_along_axis(divided, homes, share + (np.arange(homes.shape[1]) < left), axis=1)
    return divided


def _present(data: TrainTest) -> NDArray[np.bool_]:
    """Return the classes of each domain, (domains, classes)."""
    present = np.zeros((len(data.domains), len(data.classes)), dtype=np.bool_)
    present[data.train.domains, data.train.labels] = True
    return present


def _class_counts(n: float, sites: int, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw the number of classes at each site: whole, within one of n and in [1, classes], of mean n up to rounding."""
    low, high = max(1, math.ceil(n - 1.0)), min(classes, math.floor(n + 1.0))
    if not 1.0 <= n <= classes:
        raise DataError(f"n = {n:g} classes a site is outside 1 to {classes}, the number of classes")
    counts = rng.integers(low, high, size=sites, endpoint=True)
    missing = math.floor(n * sites + 0.5) - int(counts.sum())
    while missing:
        step = 1 if missing > 0 else -1
        movable = np.flatnonzero(counts < high if step > 0 else counts > low)
        counts[rng.choice(movable)] += step
        missing -= step
    return counts


def _within(middle: int, spread: int, sites: int, rng: np.random.Generator) -> NDArray[np.int64]:
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
