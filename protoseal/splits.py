"""Dividing a data set among simulated sites: who gets which samples of which class and domain.

A split is a table of shares (sites, domains, classes): the samples of each domain and class are shuffled and
dealt out by it, so no sample is at two sites. Everything follows from a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protoseal.config import PreprocessingSection
from protoseal.config.reading import nearest
from secure_client.data import SiteData
from secure_client.data.arrays import Indices, Samples, TrainTest
from secure_client.data.preprocess import to_dataset
from secure_client.errors import DataError

Shares = NDArray[np.float64]
TRAIN_PART = 0.75
"""Of each class at a site, where the data set has no test part of its own."""

DRAWS = 100
"""Times that a random split is drawn before giving up on its minimum."""


@dataclass(frozen=True)
class SiteArrays:
    """One site's samples; their domains number ``domains``, the names of those that the site has."""

    name: str
    train: Samples
    test: Samples
    domains: tuple[str, ...]

    def to_data(self, agreed: PreprocessingSection | None) -> SiteData:
        """The data sets that the site trains and tests on, under the agreed preprocessing."""
        return SiteData(
            to_dataset(self.train, agreed, where=self.name), to_dataset(self.test, agreed, where=self.name)
        )


def iid(data: TrainTest, *, sites: int, seed: int) -> tuple[SiteArrays, ...]:
    """An equal part of every class and domain for every site."""
    shares = np.ones((sites, len(data.domains), len(data.classes)))
    return _divide(data, shares, seed=seed)


def by_domain(data: TrainTest, *, sites: int, seed: int) -> tuple[SiteArrays, ...]:
    """One domain a site, all its classes; with more sites than domains, several share one evenly."""
    shares = np.zeros((sites, len(data.domains), len(data.classes)))
    for site, domain in enumerate(_domain_of_each(data, sites)):
        shares[site, domain] = 1.0
    return _divide(data, shares, seed=seed)


def mixed(
    data: TrainTest, *, sites: int, n: float, max_per_class: int | None = None, seed: int
) -> tuple[SiteArrays, ...]:
    """PFPL's mixed heterogeneity: each site has one domain and some of its classes, n on average.

    Site i has domain i modulo their number. How many classes it has is drawn from the whole numbers within
    one of n (6.5: six or seven; 3: two to four), their mean over the sites being n up to rounding; which
    ones, uniformly. Some classes end up at few sites, which is what ``min_holders`` is for. A class at a
    site has at most ``max_per_class`` training samples; without a test part in the data the rest of them are
    its test samples.

    Raises :class:`DataError` when the domain of a site lacks that many classes, or sites cannot be filled.
    """
    rng = np.random.default_rng(seed)
    counts = _class_counts(n, sites, len(data.classes), rng)
    present = _present(data)
    shares = np.zeros((sites, *present.shape))
    for site, domain in enumerate(_domain_of_each(data, sites)):
        choice = np.flatnonzero(present[domain])
        _check_enough_classes(len(choice), counts[site], data.domains[domain])
        shares[site, domain, rng.choice(choice, counts[site], replace=False)] = 1.0
    return _divide(data, shares, max_per_class=max_per_class, seed=rng)


def shots(data: TrainTest, *, sites: int, n: int, k: int, seed: int) -> tuple[SiteArrays, ...]:
    """n classes a site, uniformly chosen, and exactly k training samples of each, over all domains.

    Raises :class:`DataError` when a class has too few samples for the sites that drew it.
    """
    rng = np.random.default_rng(seed)
    classes = len(data.classes)
    _check_enough_classes(classes, n, "the data set")
    shares = np.zeros((sites, len(data.domains), classes))
    for row in range(sites):
        shares[row, :, rng.choice(classes, n, replace=False)] = 1.0
    divided = _divide(data, shares, max_per_class=k, seed=rng)
    for site in divided:
        _check_shots(site, data.classes, k)
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
    """Each class divided among the sites in proportions drawn from Dirichlet(beta, …, beta).

    With ``own_test`` each site keeps that part of each of its classes to test on, whatever test part the data set
    has, so that it tests on the classes in the proportions in which it trains on them. With ``per_site`` only that
    many samples for each site are used, on average, drawn from the training part at random.

    Drawn again until every site has ``minimum`` training samples and some to test on; :class:`DataError`
    after 100 draws, and for a data set with too few samples.
    """
    rng = np.random.default_rng(seed)
    if per_site is not None:
        data = replace(data, train=_thinned(data.train, sites * per_site, rng))
    if own_test is not None:
        data = replace(data, test=None)
    train_part = TRAIN_PART if own_test is None else 1.0 - own_test
    for _ in range(DRAWS):
        proportions = rng.dirichlet(np.full(sites, beta), size=len(data.classes)).T
        shares = np.repeat(proportions[:, np.newaxis], len(data.domains), axis=1)
        trains, tests = _indices(data, shares, None, rng, train_part)
        testable = data.test is not None or all(map(len, tests))
        if testable and min(map(len, trains)) >= minimum:
            return _sites(data, trains, tests)
    raise DataError(
        f"dirichlet:{beta:g} left a site with fewer than {minimum} training samples, or none to test"
        f" on, in {DRAWS} draws; use fewer sites, a larger number after dirichlet:, or a smaller min="
    )


class Split(Protocol):
    """A way to divide a data set that only wants the number of sites and a seed."""

    def __call__(self, data: TrainTest, *, sites: int, seed: int) -> tuple[SiteArrays, ...]:
        """Each site's samples; raises :class:`DataError` where the data do not suffice."""
        ...


def parse_split(spec: str) -> Split:
    """The split that ``spec`` names.

    ``iid``, ``domains``, ``mixed:n=6.5[,max=25]``, ``shots:n=3,k=100`` or
    ``dirichlet:0.3[,min=10][,test=0.25][,per=300]``. Raises :class:`DataError` naming the nearest known name or
    option.
    """
    kind, _, text = spec.partition(":")
    if kind not in SPLITS:
        raise DataError(f"no split is called {kind!r}{nearest(kind, SPLITS)}")
    form = SPLITS[kind]
    values = dict(_option(spec, form, item) for item in text.split(",") if item)
    for name in form.options:
        if name not in values and name not in form.optional:
            raise DataError(f"split {spec!r} lacks {name}; write {form.example}")
    return partial(form.divide, **{form.options[name].keyword: value for name, value in values.items()})


@dataclass(frozen=True)
class _Option:
    keyword: str
    convert: Callable[[str], float]
    below: float = math.inf


@dataclass(frozen=True)
class _Form:
    """A split's function, and how its options are written; ``unnamed`` may stand without a name."""

    divide: Callable[..., tuple[SiteArrays, ...]]
    example: str
    options: Mapping[str, _Option] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    unnamed: str = ""


SPLITS = {
    "iid": _Form(iid, "iid"),
    "domains": _Form(by_domain, "domains"),
    "mixed": _Form(
        mixed,
        "mixed:n=6.5,max=25",
        {"n": _Option("n", float), "max": _Option("max_per_class", int)},
        optional=frozenset({"max"}),
    ),
    "shots": _Form(shots, "shots:n=3,k=100", {"n": _Option("n", int), "k": _Option("k", int)}),
    "dirichlet": _Form(
        dirichlet,
        "dirichlet:0.3,min=10",
        {
            "beta": _Option("beta", float),
            "min": _Option("minimum", int),
            "test": _Option("own_test", float, below=1.0),
            "per": _Option("per_site", int),
        },
        optional=frozenset({"min", "test", "per"}),
        unnamed="beta",
    ),
}


def _option(spec: str, form: _Form, item: str) -> tuple[str, float]:
    name, separator, text = item.partition("=")
    if not separator:
        name, text = form.unnamed, item
    if name not in form.options:
        raise DataError(f"split {spec!r}: {item!r} is not one of its options; write {form.example}")
    option = form.options[name]
    try:
        value = option.convert(text)
    except ValueError as error:
        raise DataError(f"split {spec!r}: {text!r} is not a number as in {form.example}") from error
    if not 0 < value < option.below:
        between = "above 0" if option.below == math.inf else f"above 0 and below {option.below:g}"
        raise DataError(f"split {spec!r}: {text} is not {between}; write {form.example}")
    return name, value


def _divide(
    data: TrainTest,
    shares: Shares,
    *,
    max_per_class: int | None = None,
    seed: int | np.random.Generator,
) -> tuple[SiteArrays, ...]:
    trains, tests = _indices(data, shares, max_per_class, np.random.default_rng(seed))
    return _sites(data, trains, tests)


def _indices(
    data: TrainTest,
    shares: Shares,
    cap: int | None,
    rng: np.random.Generator,
    train_part: float = TRAIN_PART,
) -> tuple[list[Indices], list[Indices]]:
    """Each site's training samples and, for data without a test part, its test samples, by index."""
    trains: list[list[Indices]] = [[] for _ in shares]
    tests: list[list[Indices]] = [[] for _ in shares]
    for label in range(len(data.classes)):
        for site, members in enumerate(_deal_class(data.train, label, shares[:, :, label], rng)):
            wanted = len(members) if data.test is not None else math.floor(train_part * len(members) + 0.5)
            kept = wanted if cap is None else min(cap, wanted)
            trains[site].append(members[:kept])
            tests[site].append(members[kept:])
    return [_in_order(parts) for parts in trains], [_in_order(parts) for parts in tests]


def _thinned(samples: Samples, wanted: int, rng: np.random.Generator) -> Samples:
    if wanted > len(samples):
        raise DataError(
            f"{wanted} samples are wanted, of {len(samples)} that there are; use fewer sites or a smaller per="
        )
    return samples.take(np.sort(rng.choice(len(samples), wanted, replace=False)))


def _deal_class(samples: Samples, label: int, shares: Shares, rng: np.random.Generator) -> list[Indices]:
    """Shuffled indices of one class for each site, by shares (sites, domains)."""
    dealt: list[list[Indices]] = [[] for _ in shares]
    for domain in range(shares.shape[1]):
        members = rng.permutation(np.flatnonzero((samples.labels == label) & (samples.domains == domain)))
        total = shares[:, domain].sum()
        if total > 0:
            # A random order of the sites, so that the remainder of a division falls to no site in particular.
            order = rng.permutation(len(shares))
            ends = np.rint(shares[order, domain].cumsum() / total * len(members)).astype(np.int64)
            for site, part in zip(order, np.split(members, ends[:-1]), strict=True):
                dealt[site].append(part)
    return [rng.permutation(np.concatenate(parts)) if parts else np.empty(0, np.int64) for parts in dealt]


def _in_order(parts: list[Indices]) -> Indices:
    return np.sort(np.concatenate(parts))


def _sites(data: TrainTest, trains: list[Indices], tests: list[Indices]) -> tuple[SiteArrays, ...]:
    width = len(str(len(trains)))
    names = [f"site-{number:0{width}d}" for number in range(1, len(trains) + 1)]
    return tuple(_site(data, *parts) for parts in zip(names, trains, tests, strict=True))


def _site(data: TrainTest, name: str, train_indices: Indices, rest: Indices) -> SiteArrays:
    train = data.train.take(train_indices)
    test = data.train.take(rest) if data.test is None else _like(data.test, train)
    for part, kind in ((train, "training"), (test, "test")):
        if not len(part):
            raise DataError(f"this split leaves {name} without {kind} samples; use fewer sites or more data")
    here = np.union1d(train.domains, test.domains)
    train, test = (replace(part, domains=np.searchsorted(here, part.domains)) for part in (train, test))
    return SiteArrays(name, train, test, tuple(data.domains[domain] for domain in here))


def _like(test: Samples, train: Samples) -> Samples:
    """The test samples of the classes and domains that the training samples have."""
    here = np.isin(test.labels, np.unique(train.labels)) & np.isin(test.domains, np.unique(train.domains))
    return test.take(np.flatnonzero(here))


def _domain_of_each(data: TrainTest, sites: int) -> list[int]:
    return [site % len(data.domains) for site in range(sites)]


def _present(data: TrainTest) -> NDArray[np.bool_]:
    """Which domain has which class, (domains, classes)."""
    present = np.zeros((len(data.domains), len(data.classes)), dtype=np.bool_)
    present[data.train.domains, data.train.labels] = True
    return present


def _class_counts(n: float, sites: int, classes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Classes at each site: whole numbers within one of n and in [1, classes], of mean n up to rounding."""
    low, high = max(1, math.ceil(n - 1.0)), min(classes, math.floor(n + 1.0))
    if not 1.0 <= n <= classes:
        raise DataError(f"n = {n:g} classes a site is outside 1 to {classes}, the classes there are")
    counts = rng.integers(low, high, size=sites, endpoint=True)
    missing = math.floor(n * sites + 0.5) - int(counts.sum())
    while missing:
        step = 1 if missing > 0 else -1
        movable = np.flatnonzero(counts < high if step > 0 else counts > low)
        counts[rng.choice(movable)] += step
        missing -= step
    return counts


def _check_enough_classes(available: int, wanted: int, where: str) -> None:
    if wanted > available:
        raise DataError(f"{wanted} classes are wanted of {where}, which has {available}; make n smaller")


def _check_shots(site: SiteArrays, classes: tuple[str, ...], k: int) -> None:
    labels, counts = np.unique(site.train.labels, return_counts=True)
    for label, count in zip(labels, counts, strict=True):
        if count < k:
            raise DataError(
                f"class {classes[label]!r} gives {site.name} {count} training samples, not k = {k}; make k"
                " or n smaller, use fewer sites or another seed"
            )
