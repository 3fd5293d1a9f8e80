"""Candidates for the records behind rotated rows, judged by what a rotation keeps: lengths and inner products.

A rotation hides where a row points, and neither how long it is nor which angles it has with other sites' rows of the
class. A row C of n records with features f about N(μ, Σ) has the squared length |C|², whose distribution differs
between "the candidate is one of the n" and "it is not": the mean of C is μ + (f − μ)/n or μ, and its covariance
(n − 1)/n² · Σ or Σ/n. With M, the mean of the other sites' rows, C·M and M·M are quadratic forms of Gaussian vectors
as well. A score is the log likelihood ratio of what was observed, with the exact means and covariances of the forms,
taken as Gaussian. Where n = 1, C = f: **the length alone tells the record**. Scores of several rounds are added up.

An adversary with a list that has all records in question needs no distribution: a row of two records has the length of
one pair of the list, and two directions of one record each have the cosine of one pair of two lists. In a round 0 one
row has all classes of a site: two records, of one class or of two, have its length, and two rows that have one class in
common, of one record each, have those records' product, whatever else is in the rows.

These readings are the coordinator's: a site that helps it gives the rotations away.

Limits: the adversary has the numbers of records and, as everyone has where features are frozen and in a round 0, the
extractors. Else these are the sites' own models of each round, which a run of PFPL does not send. Other sites' rows
enter by their mean alone, and rows that become known where their records are identified are not used. Rows of FedPLCC
are taken as if they divided the records of their class evenly. **Pairs are the least of what a list of candidates
gives**: an exact length tells a set of n records apart from all others as long as the list has fewer sets of n than
some 10⁷, and no larger sets are searched: so not those behind two rows of a round 0 with several classes in common, nor
the one record left of a set whose others the adversary has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from sklearn.covariance import ledoit_wolf
from torch import Tensor

from agreement.registry.round_plan import PayloadKind
from crypto.plain import SCHEME as PLAIN
from protoseal.attacks.cases import divide_test_samples
from protoseal.attacks.readings import LENGTHS, Adversary
from protoseal.attacks.recorded_run import RecordedRun, Rows, cached_in_run, compute_features
from protoseal_wire.messages import Phase
from secure_client.privacy.releases import build_query

FEWEST = 8
"""Fewest public samples of a class whose mean and covariance count."""
PRODUCTS = "lengths and inner products of rows, which a rotation keeps"
COSINES = "cosines of directions, which a rotation keeps"
PAIRS = "pairs of listed records, by what a rotation keeps"
_ROUNDING = 1e-9
"""Least variance, as a share of the variance without the candidate: exact values differ by rounding."""


@dataclass(frozen=True)
class RotatedRow:
    """One rotated row (d,) with its class, or in FedPC's round 0 all classes' rows as one (K·d,)."""

    site: str
    classes: tuple[int, ...]
    values: Rows = field(repr=False)


@dataclass(frozen=True)
class Spread:
    """Gaussian vector: its mean (d,) and covariance (d, d)."""

    mean: Rows = field(repr=False)
    covariance: Rows = field(repr=False)


@dataclass(frozen=True)
class Moments:
    """Means (N, s) and covariances (N, s, s) of s = 3 forms C·C, C·M and M·M, for N candidates."""

    means: Rows
    covariances: Rows

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.means + other.means, self.covariances + other.covariances)

    def __sub__(self, other: Moments) -> Moments:
        return Moments(self.means - other.means, self.covariances - other.covariances)

    def lengths(self) -> Moments:
        """Return those of C·C alone."""
        return Moments(self.means[:, :1], self.covariances[:, :1, :1])

    def cosines(self) -> Moments:
        """Return those of C·M/√(C·C M·M), to first order."""
        squares, products, middles = self.means.T
        length = np.sqrt(squares * middles)
        cosine = products / length
        slopes = np.stack([-0.5 * cosine / squares, 1.0 / length, -0.5 * cosine / middles], axis=1)
        variance = np.einsum("ni,nij,nj->n", slopes, self.covariances, slopes)
        return Moments(cosine[:, None], variance[:, None, None])

    def density(self, observed: Rows, floor: Rows) -> Rows:
        """Return the log density (N,) of ``observed`` (s,), with at least the variances ``floor`` (s,)."""
        covariances = self.covariances + np.diag(floor)
        left = (observed - self.means)[:, :, None]
        distances = (left * np.linalg.solve(covariances, left)).sum(axis=(1, 2))
        return np.asarray(-0.5 * (distances + np.linalg.slogdet(covariances)[1]))


class RotatedRows:
    """Rotated rows of a run as the coordinator sees them, and candidates for what is behind a victim's rows."""

    def __init__(self, run: RecordedRun, victim: str, shown: Mapping[int, Sequence[RotatedRow]]) -> None:
        """Take the rows ``shown`` in each round."""
        self._run, self._victim, self._shown = run, victim, shown
        self._last, self.directions = shown[max(shown)], run.agreement.clusters
        self._spreads: dict[tuple[int, str], dict[int, Spread]] = {}
        self._auxiliary = divide_test_samples(run, victim)
        self._one_extractor = run.initial is not None or (
            run.config.extractor_is_frozen and not run.config.models
        )
        classes = len(run.agreement.classes)
        self._counts = {
            name: np.bincount(site.train.labels, minlength=classes) for name, site in run.sites.items()
        }

    @property
    def classes(self) -> set[int]:
        """Classes of the victim's rows in the last round, of which there are enough public samples."""
        sent = [row.classes for row in self._last if row.site == self._victim]
        return {k for classes in sent if all(map(self._is_public, classes)) for k in classes}

    @property
    def paired(self) -> set[int]:
        """Classes of which a pair of records explains something that is seen."""
        return {k for k in self.classes if all(self._partners(rows, k) for rows in self._shown.values())}

    def release(self, number: int) -> bytes:
        """Return the victim's rows with the class, which tell one release from another."""
        rows, _ = self._with_class(self._last, number)
        return b"".join(row.values.tobytes() for row in rows)

    def ratios(self, number: int, inputs: Tensor, *, products: bool) -> Rows:
        """Return the log likelihood ratio (N,) of each input being behind the victim's row of a class.

        By lengths alone, or with ``products`` by inner products as well; of directions by cosines. Of several rows of
        a round the best counts.
        """
        total = np.zeros(len(inputs))
        for at, rows in self._shown.items():
            features, (victim_rows, others) = (
                self._features(at, self._victim, inputs),
                self._with_class(rows, number),
            )
            ratios = [
                self._ratio(at, number, features, row, others, products=products) for row in victim_rows
            ]
            total += np.max(ratios, axis=0) if ratios else 0.0
        return total

    def matches(self, number: int, inputs: Tensor) -> Rows:
        """Return how well each input (N,) explains what is seen together with its best partner in a list.

        Where two records are behind a row, the partner is the other record, and the pair has the row's length. Where
        one record is behind a direction, the partner is behind another site's direction, and the pair has their cosine.
        So it is in round 0 with the product of two rows that have this class in common and no other.
        The list has the records of the partner's site, and its outsiders. The class is one of :attr:`paired`.
        """
        errors: dict[tuple[str, int], Rows] = {}
        for at, rows in self._shown.items():
            (row, *_), _ = self._with_class(rows, number)
            features = self._features(at, self._victim, inputs)
            for place, (partner, second) in enumerate(self._partners(rows, number)):
                listed = self._features(at, partner.site, self._listed(partner.site, second))
                if partner.site != self._victim:
                    expected = features @ listed.T
                elif second == number:
                    expected = np.square(features[:, None] + listed).sum(axis=2) / 4.0
                else:
                    expected = np.square(features).sum(axis=1)[:, None] + np.square(listed).sum(axis=1)
                seen = float(row.values @ partner.values)
                relative = np.abs(expected - seen) / abs(seen)
                key = (partner.site, place)
                errors[key] = errors.get(key, 0.0) + np.log(relative + _ROUNDING)
        return np.asarray(-np.min([pairs.min(axis=1) for pairs in errors.values()], axis=0))

    def _partners(self, rows: Sequence[RotatedRow], number: int) -> list[tuple[RotatedRow, int]]:
        """Return the rows whose product with the victim's row two records explain, and the second record's class."""
        victim_rows, others = self._with_class(rows, number)
        if not victim_rows:
            return []
        row, partners = victim_rows[0], []
        held = {k: self._records(row, k) for k in row.classes}
        if held[number] == 1 and (self.directions or self._run.initial is not None):
            alone = [other for other in others if {number} == held.keys() & other.classes]
            partners += [(other, number) for other in alone if self._records(other, number) == 1]
        if not self.directions and sum(held.values()) == 2:
            partners += [(row, k) for k in held if k != number or len(held) == 1]
        return partners

    def _listed(self, site: str, number: int) -> Tensor:
        """Return the adversary's list of candidates for a site's records of a class."""
        outsiders = divide_test_samples(self._run, site).outsiders
        return torch.cat([part.of_class(number).inputs for part in (self._run.sites[site].train, outsiders)])

    def _with_class(
        self, rows: Sequence[RotatedRow], number: int
    ) -> tuple[list[RotatedRow], list[RotatedRow]]:
        """Return the victim's rows of a class, and the other sites'."""
        rows = [row for row in rows if number in row.classes]
        victim_rows = [row for row in rows if row.site == self._victim]
        return victim_rows, [row for row in rows if row.site != self._victim]

    def _is_public(self, number: int) -> bool:
        return int((self._auxiliary.public.labels == number).sum()) >= FEWEST

    def _ratio(
        self,
        at: int,
        number: int,
        features: Rows,
        row: RotatedRow,
        others: Sequence[RotatedRow],
        *,
        products: bool,
    ) -> Rows:
        """Return the log likelihood ratios (N,) of candidates' features (N, d) from one row."""
        if self.directions and not others:
            return np.zeros(len(features))  # a direction tells nothing without another one to compare it with
        middle = np.mean([other.values for other in others], axis=0) if others else np.zeros_like(row.values)
        observed = np.array([row.values @ row.values, row.values @ middle, middle @ middle])
        without = Moments(np.zeros((1, 3)), np.zeros((1, 3, 3)))
        classes = {k for sent in (row, *others) for k in sent.classes if self._is_public(k)}
        for k in classes:  # one class, but in round 0
            without += self._forms(at, k, None, row, others)
        # Classes are independent, so that moments add up: the hypotheses differ in the candidate's class alone.
        within = without - self._forms(at, number, None, row, others)
        within += self._forms(at, number, features, row, others)
        if self.directions:
            within, without = within.cosines(), without.cosines()
            observed = observed[1:2] / np.sqrt(observed[:1] * observed[2:])
        elif not (products and others):
            within, without, observed = within.lengths(), without.lengths(), observed[:1]
        # One record has its exact length: without a floor for rounding, the density there would be infinite.
        floor = _ROUNDING * np.diagonal(without.covariances[0])
        return within.density(observed, floor) - without.density(observed, floor)

    def _forms(
        self, at: int, number: int, features: Rows | None, row: RotatedRow, others: Sequence[RotatedRow]
    ) -> Moments:
        """Return the moments of a class's part of the forms; without ``features`` those of no candidate."""
        middle = self._middle(at, number, others)
        if number not in row.classes:
            return form_moments(np.zeros((1, len(middle.mean))), np.zeros_like(middle.covariance), middle)
        spread, count = self._spread(at, self._victim)[number], self._records(row, number)
        public = int((self._auxiliary.public.labels == number).sum())
        noise = self._noise_variance() / count**2 * np.eye(len(spread.mean))
        if features is None:
            means, share = spread.mean[None], 1.0 / count + 1.0 / public
        else:
            left = (count - 1.0) / count
            means, share = spread.mean + (features - spread.mean) / count, left / count + left**2 / public
        return form_moments(means, share * spread.covariance + noise, middle)

    def _middle(self, at: int, number: int, others: Sequence[RotatedRow]) -> Spread:
        """Return the distribution of the mean of other sites' rows of a class."""
        dim, noise = self._run.agreement.dim, self._noise_variance()
        mean, covariance = np.zeros(dim), np.zeros((dim, dim))
        for other in others:
            if number in other.classes:
                spread, count = self._spread(at, other.site)[number], self._records(other, number)
                mean += spread.mean / len(others)
                covariance += (spread.covariance + noise / count * np.eye(dim)) / count / len(others) ** 2
        return Spread(mean, covariance)

    def _records(self, row: RotatedRow, number: int) -> float:
        """Return the number of records of a class behind a row: an even part, where a class has several rows."""
        rows = sum(sent.site == row.site and number in sent.classes for sent in self._last)
        return max(float(self._counts[row.site][number]) / max(rows, 1), 1.0)

    def _noise_variance(self) -> float:
        """Return the variance of the noise in a sum of features; 0 without."""
        privacy = self._run.agreement.privacy
        if privacy is None:
            return 0.0
        query = build_query(privacy, self._run.agreement.dim)
        return float((query.noise_multiplier * np.hypot(query.clip, query.count_weight)) ** 2)

    def _features(self, at: int, site: str, inputs: Tensor) -> Rows:
        """Return features as a site's rows of a round average them: clipped under noise, scaled for directions."""
        features, privacy = compute_features(self._run.models(site)[at], inputs), self._run.agreement.privacy
        lengths = np.linalg.norm(features, axis=1, keepdims=True).clip(1e-12)
        if self.directions:
            return np.asarray(features / lengths)
        return features if privacy is None else features * np.minimum(1.0, privacy.clip / lengths)

    def _spread(self, at: int, site: str) -> Mapping[int, Spread]:
        """Return the distribution of each class's features at a site, estimated from public samples."""
        site = self._victim if self._one_extractor else site
        if (at, site) not in self._spreads:
            public = self._auxiliary.public
            features = self._features(at, site, public.inputs)
            of_class = {int(k): features[public.labels == k] for k in np.unique(public.labels)}
            self._spreads[at, site] = {
                # Shrunk as Ledoit and Wolf (2004) do: public samples are fewer than features.
                k: Spread(rows.mean(axis=0), np.asarray(ledoit_wolf(rows)[0]))
                for k, rows in of_class.items()
                if self._is_public(k)
            }
        return self._spreads[at, site]


def form_moments(means: Rows, covariance: Rows, others: Spread) -> Moments:
    """Return the moments of C·C, C·M and M·M for independent Gaussian C, of N ``means`` (N, d), and M (``others``)."""
    weighed, crossed = means @ covariance, means @ others.covariance
    ones = np.ones(len(means))
    firsts = (
        (means * means).sum(axis=1) + np.trace(covariance),
        means @ others.mean,
        ones * (others.mean @ others.mean + np.trace(others.covariance)),
    )
    seconds = np.zeros((len(means), 3, 3))
    seconds[:, 0, 0] = 4.0 * (weighed * means).sum(axis=1) + 2.0 * np.square(covariance).sum()
    seconds[:, 1, 1] = (
        others.mean @ covariance @ others.mean
        + (crossed * means).sum(axis=1)
        + (covariance * others.covariance).sum()
    )
    seconds[:, 2, 2] = (
        4.0 * others.mean @ others.covariance @ others.mean + 2.0 * np.square(others.covariance).sum()
    )
    seconds[:, 0, 1] = seconds[:, 1, 0] = 2.0 * weighed @ others.mean
    seconds[:, 1, 2] = seconds[:, 2, 1] = 2.0 * crossed @ others.mean
    return Moments(np.stack(firsts, axis=1), seconds)


# Rows as the coordinator received them


@dataclass(frozen=True)
class RotatedReading:
    """One reading of a victim's rotated rows.

    ``ratios`` maps a class and inputs to scores (N,), ``release`` a class to the rows that tell its release apart.
    """

    reading: str
    classes: set[int]
    release: Callable[[int], bytes] = field(repr=False)
    ratios: Callable[[int, Tensor], Rows] = field(repr=False)


@cached_in_run
def rotated_readings(run: RecordedRun, adversary: Adversary, victim: str) -> tuple[RotatedReading, ...]:
    """Return the adversary's readings of the victim's rotated rows; none if it sees none."""
    if adversary is not Adversary.COORDINATOR:
        return ()
    shown = list_shown_rows(run, victim)
    if not shown:
        return ()
    rows = RotatedRows(run, victim, shown)
    lengths, products = (partial(rows.ratios, products=flag) for flag in (False, True))
    ratios_of = {COSINES: products} if rows.directions else {LENGTHS: lengths, PRODUCTS: products}
    where = ", in round 0" if run.initial is not None else f", of {len(shown)} rounds" * (len(shown) > 1)
    scores = [
        RotatedReading(words + where, rows.classes, rows.release, ratios)
        for words, ratios in ratios_of.items()
    ]
    return (*scores, RotatedReading(PAIRS + where, rows.paired, rows.release, rows.matches))


def list_shown_rows(run: RecordedRun, victim: str) -> dict[int, list[RotatedRow]]:
    """Return every site's rotated rows by round, for the recorded rounds with a row of the victim."""
    by_round = {number: list(_list_rows_of_round(run, number)) for number in run.models(victim)}
    return {number: rows for number, rows in by_round.items() if any(row.site == victim for row in rows)}


def _list_rows_of_round(run: RecordedRun, number: int) -> Iterator[RotatedRow]:
    """Yield every site's rotated rows of a round, in feature units; directions have length 1."""
    agreement = run.agreement
    directions = Phase.DIRECTIONS in agreement.plan.phases
    if number and not (directions or agreement.plan.values is PayloadKind.ROWS):
        return
    for name in run.sites:
        upload = run.upload(name, Phase.DIRECTIONS if directions else Phase.VALUES, number)
        payload = run.read(upload)
        if payload.scheme == PLAIN:
            return
        rows = payload.arrays[0]
        if directions:
            classes: Sequence[tuple[int, ...]] = [(int(k),) for k in payload.arrays[1]]
        elif number:
            classes, rows = [(k,) for k in range(len(rows))], rows * agreement.norm_bound
        else:
            held = tuple(np.unique(run.sites[name].train.labels).tolist())
            classes, rows = [held], rows * agreement.norm_bound * np.sqrt(len(agreement.classes))
        for k, row in zip(classes, rows, strict=True):
            if row.any():  # a class that is not sent is a row of zeros
                yield RotatedRow(name, k, np.asarray(row))
