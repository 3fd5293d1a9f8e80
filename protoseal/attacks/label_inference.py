"""Inference of classes, class frequencies and domains: facts about a site's data set as a whole, not about one record.

- Presence: sites state their classes in the clear, in every protection, because the coordinator counts holders.
- Class frequencies: counts that are sent in the clear; the numbers of local prototypes of a class; the biases of an
  uploaded classifier, since training raises those of frequent classes; and the lengths of prototypes, since training
  lengthens those of frequent classes, and noise those of rare ones. A rotation keeps lengths.
- Domains: of two sites' prototypes of a class, the one nearer to public samples of a domain is said to be from it.

An extractor shows by itself on which domain it was trained, and so would any vector that is read under it. Two sites'
vectors are therefore compared under one extractor: if what is read does not depend on the site, half of the answers
are right. Limit: the adversary has the extractor of one of the two sites, which a run of PFPL does not send.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata  # type: ignore[import-untyped]  # it ships no types
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from agreement import ModelPart
from agreement.derived.payload_shapes import limits_of
from agreement.registry.round_plan import PayloadKind
from protoseal.attacks.cases import Case, Measurement, measure_over_clusters, share_interval
from protoseal.attacks.opened_sums import read_active_list
from protoseal.attacks.readings import (
    Adversary,
    LearnedRows,
    add_length_readings,
    group_by_reading,
    readings,
)
from protoseal.attacks.recorded_run import Labels, RecordedRun, Rows
from protoseal.simulation.experiment import load_scene
from protoseal.splits import SiteArrays
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.training.averaged_parameters import AveragedPart

Bools = NDArray[np.bool_]

FEWEST_CLASSES = 4
"""Fewest classes of a site whose frequencies can be ranked."""
FEWEST_PUBLIC = 4
"""Fewest public samples of a class and domain whose mean the adversary takes."""
MOSTLY = 0.8
"""Share of a site's samples of a class that are of one domain, if the class is said to have that domain."""
_SAME = 1e-9
"""Relative difference below which lengths are equal but for rounding."""
_NEAR_ONE = 0.999
"""Largest rank correlation that Fisher's transformation is given."""


class Presence(Case):
    """Case of presence inference: the classes that a site has."""

    attack = "presence of classes"
    metric = "balanced accuracy over sites and classes"
    chance, margin = 0.5, 0.2
    question = "Can the adversary tell which classes a site has records of?"
    ability = "tell which classes a site has records of"
    not_covered = "Classes of which a site has few records, and records that leave or join between rounds."
    by_design = True
    adversaries = (Adversary.COORDINATOR, Adversary.PEER)

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:
        """Compare the stated classes with those of the training samples; no result if every site has all classes."""
        stated = _read_stated_classes(run, adversary)
        truth = np.array([_count_records(run, site) > 0 for site in stated]).ravel()
        right = truth == np.array(list(stated.values())).ravel()
        if truth.all() or not truth.any():
            return []
        # Balanced, since a guess of "present" alone would be right for most sites and classes.
        ends = np.mean([share_interval(right[part]) for part in (truth, ~truth)], axis=0)
        value, low, high = (float(end) for end in ends)
        reading = "the sites' statements of their classes"
        return [Measurement(value=value, low=low, high=high, trials=len(truth), reading=reading)]


def _read_stated_classes(run: RecordedRun, adversary: Adversary) -> Mapping[str, Bools]:
    """Return the classes in the sites' last statements, as the coordinator has them, or another site's active list."""
    if adversary is Adversary.COORDINATOR:
        statements = {site: run.upload(site, Phase.PRESENCE).content for site in run.sites}
        return {
            site: codec.decode_presence(content, limits_of(run.agreement)).holds
            for site, content in statements.items()
        }
    first = min(run.sites)
    listed = read_active_list(run).statements
    return {statement.site: statement.holds for statement in listed if statement.site != first}


class ClassFrequencies(Case):
    """Case of label-distribution inference: the order of a site's classes by their numbers of records."""

    attack = "class frequencies"
    metric = "rank correlation with a site's true counts, over its classes"
    chance, margin = 0.0, 0.3
    question = "Can the adversary tell which classes are frequent at a site, and which are rare?"
    ability = "tell which classes are frequent at a site, and which are rare"
    not_covered = "Attacks that simulate sites with known counts, and changes of counts between rounds."
    adversaries = (Adversary.COORDINATOR, Adversary.COLLUSION)

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:
        """Rank each site's classes by each estimate; no result if counts are equal."""
        estimates = [*_estimates_from_prototypes(run, adversary), *_estimates_from_other_parts(run)]
        results = (_measure_ranks(run, estimate) for estimate in estimates)
        return [result for result in results if result is not None]


@dataclass(frozen=True)
class Estimate:
    """Estimated frequencies (K,) of each site's classes, in any unit, NaN where there is no estimate."""

    reading: str
    by_site: Mapping[str, NDArray[Any]]


def _measure_ranks(run: RecordedRun, estimate: Estimate) -> Measurement | None:
    """Return the mean rank correlation by Fisher's transformation, with the variance of Fieller et al. (1957)."""
    by_site = (
        _rank_correlation(_count_records(run, site), frequencies)
        for site, frequencies in estimate.by_site.items()
    )
    correlations = np.array([pair for pair in by_site if pair is not None]).reshape(-1, 2)
    if not len(correlations):
        return None
    # The inverse hyperbolic tangent of a rank correlation over n classes has a variance near 1.06 / (n - 3).
    weights = correlations[:, 1] - 3.0
    mean = float(np.arctanh(correlations[:, 0].clip(-_NEAR_ONE, _NEAR_ONE)) @ weights / weights.sum())
    reach = 1.96 * np.sqrt(1.06 / weights.sum())
    value, low, high = (float(np.tanh(number)) for number in (mean, mean - reach, mean + reach))
    trials = int(correlations[:, 1].sum())
    return Measurement(value=value, low=low, high=high, trials=trials, reading=estimate.reading)


def _rank_correlation(counts: Labels, estimate: NDArray[Any]) -> tuple[float, int] | None:
    """Return Spearman's correlation over the classes held, and their number; None where the counts give no order."""
    ranked = (counts > 0) & np.isfinite(estimate)
    if ranked.sum() < FEWEST_CLASSES or np.ptp(counts[ranked]) == 0:
        return None
    # An estimate that is alike for all classes ranks none of them before another.
    guessed = np.ptp(estimate[ranked]) > _SAME * np.abs(estimate[ranked]).max()
    correlation = np.corrcoef(rankdata(counts[ranked]), rankdata(estimate[ranked]))[0, 1] if guessed else 0.0
    return float(correlation), int(ranked.sum())


def _estimates_from_prototypes(run: RecordedRun, adversary: Adversary) -> Iterator[Estimate]:
    """Yield, for each reading, how much longer a site's prototype of a class is than the sites' mean."""
    learned = {site: readings(run, adversary, site) for site in run.sites}
    for reading, by_site in group_by_reading(learned).items():
        lengths = np.array(
            [_mean_lengths(learned, len(run.agreement.classes)) for learned in by_site.values()]
        )
        held = np.isfinite(lengths)
        mean = np.where(held, lengths, 0.0).sum(axis=0) / np.maximum(held.sum(axis=0), 1)
        # Classes differ in length at all sites alike; what a site's frequency changes is the difference to the others.
        own = lengths - mean
        excess = own if np.nanmax(np.abs(own), initial=0.0) > _SAME * np.nanmax(lengths) else lengths
        if run.agreement.privacy is not None:
            excess = -excess  # noise lengthens the means of rare classes, which divide it by fewer records
        yield Estimate(f"lengths of {reading}", dict(zip(by_site, excess, strict=True)))


def _mean_lengths(learned: LearnedRows, classes: int) -> Rows:
    """Return the mean length of each class's rows, (K,), NaN for none."""
    lengths = np.linalg.norm(learned.rows, axis=1)
    counts = np.bincount(learned.labels, minlength=classes)
    sums = np.bincount(learned.labels, weights=lengths, minlength=classes)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _estimates_from_other_parts(run: RecordedRun) -> Iterator[Estimate]:
    agreement, classes = run.agreement, len(run.agreement.classes)
    if agreement.plan.values is PayloadKind.LOCAL_CLUSTERS:
        arrays = {site: run.payload(site).arrays for site in run.sites}
        counts = {site: np.bincount(a[1].astype(np.int64), a[2], classes) for site, a in arrays.items()}
        counts = {site: np.where(count > 0, count, np.nan) for site, count in counts.items()}
        yield Estimate("its sample counts, in the clear", counts)
    if Phase.DIRECTIONS in agreement.plan.phases:
        classes_of_rows = {site: run.payload(site, Phase.DIRECTIONS).arrays[1] for site in run.sites}
        numbers = {
            s: np.bincount(a.astype(np.int64), minlength=classes) * 1.0 for s, a in classes_of_rows.items()
        }
        yield Estimate("its numbers of local prototypes of each class", numbers)
    uploads_model = agreement.plan.values in (PayloadKind.VECTOR, PayloadKind.LOCAL_CLUSTERS)
    if uploads_model and agreement.method.traits.averaged in (ModelPart.MODEL, ModelPart.NOT_NORMS):
        biases = {site: _read_biases(run, site) for site in run.sites}
        # Some classes have higher biases at every site: frequency shows in the difference to the other sites.
        mean = np.mean(list(biases.values()), axis=0)
        yield Estimate("the biases of its classifier", {site: bias - mean for site, bias in biases.items()})


def _read_biases(run: RecordedRun, site: str) -> Rows:
    """Return the biases (K,) of the classifier that the site uploaded."""
    layout = run.agreement.layout
    vector = run.payload(site).arrays[-1]
    samples = vector[layout.means] if layout.weighted else 1.0
    model = copy.deepcopy(run.sites[site].model)  # for its shapes, which are agreed
    AveragedPart(model, run.agreement.method.traits.averaged).load(layout.split(vector)[1] / samples)
    bias = getattr(model.classifier, "bias", None)
    if not isinstance(bias, torch.Tensor):
        return np.zeros(len(run.agreement.classes))
    return np.asarray(bias.detach().double().numpy())


class Domains(Case):
    """Case of property inference: the domains of two sites' samples of a class."""

    attack = "domain of a site's data"
    metric = "share of pairs of sites whose domains are told apart"
    chance, margin = 0.5, 0.15
    question = "Can the adversary tell from which source, device or population a site's records are?"
    ability = "tell from which source, device or population a site's records are"
    not_covered = (
        "Domains of which the adversary has no samples, and what a site's feature extractor shows by itself: an"
        " extractor that is uploaded in the clear shows more than prototypes do."
    )

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:
        """Compare each two sites' classes; no result unless two sites have a class of different domains."""
        public = Public.of(run)
        views = {site: add_length_readings(run, readings(run, adversary, site)) for site in public.owned}
        results = []
        for reading, learned in group_by_reading(views).items():
            by_class = [_tell_apart(learned, public, number) for number in range(len(run.agreement.classes))]
            if any(len(scores) for scores in by_class):
                results.append(measure_over_clusters([scores for scores in by_class if len(scores)], reading))
        return results


@dataclass(frozen=True)
class Public:
    """Public samples: ``labels`` and ``domains`` (N,), and ``features`` (N, d) under each site's extractor.

    ``owned`` has the truth: the domain of each site's classes, without those whose samples are of several domains.
    """

    features: Mapping[str, Rows]
    labels: Labels
    domains: NDArray[np.str_]
    owned: Mapping[str, Mapping[int, str]]

    @classmethod
    def of(cls, run: RecordedRun) -> Public:
        """Return the test samples of all sites, and the domains of their training samples."""
        sites = load_scene(run.config, run.seed).divided.sites
        inputs = torch.cat([run.sites[site.name].test.inputs for site in sites])
        labels = np.concatenate([run.sites[site.name].test.labels for site in sites])
        domains = np.concatenate([np.array(site.domains)[site.test.domains] for site in sites])
        owned = {site.name: dict(_find_main_domains(site, run.sites[site.name].labels)) for site in sites}
        owned = {name: domains_of_site for name, domains_of_site in owned.items() if domains_of_site}
        return cls({name: run.sites[name].features(inputs) for name in owned}, labels, domains, owned)

    def of_domain(self, site: str, number: int, domain: str) -> Rows:
        """Return the features of a class and domain under a site's extractor."""
        return np.asarray(self.features[site][(self.labels == number) & (self.domains == domain)])


def _find_main_domains(site: SiteArrays, classes: Labels) -> Iterator[tuple[int, str]]:
    for number in np.unique(classes):
        counts = np.bincount(site.train.domains[site.train.labels == number], minlength=len(site.domains))
        if counts.sum() and counts.max() >= MOSTLY * counts.sum():
            yield int(number), site.domains[counts.argmax()]


def _tell_apart(learned: Mapping[str, LearnedRows], public: Public, number: int) -> Rows:
    """Return for each two sites with different domains of the class whether they are told apart: 1, 0, ½ for a tie."""
    holders = [
        site for site, reading in learned.items() if number in public.owned[site] and number in reading.labels
    ]
    pairs = [
        pair for pair in combinations(holders, 2) if len({public.owned[site][number] for site in pair}) == 2
    ]
    # Under both sites' extractors: one of them alone would tell its own site's domain.
    scores = (
        sum(_preference(learned, public, number, pair, extractor) for extractor in pair) for pair in pairs
    )
    return np.array([(np.sign(score) + 1.0) / 2.0 for score in scores])


def _preference(
    learned: Mapping[str, LearnedRows], public: Public, number: int, pair: tuple[str, str], extractor: str
) -> float:
    """Return how much more the first site's rows look like its own domain than the second's do, under one extractor."""
    samples = [public.of_domain(extractor, number, public.owned[site][number]) for site in pair]
    rows = [learned[site].of_class(number).mean(axis=0, keepdims=True) for site in pair]
    if min(map(len, samples)) < FEWEST_PUBLIC:
        return 0.0
    if rows[0].shape[1] == 1:  # lengths were read, and no directions
        samples = [np.linalg.norm(rows, axis=1, keepdims=True) for rows in samples]
    names = np.repeat([1, 0], [len(rows) for rows in samples])
    classifier = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(
        np.concatenate(samples), names
    )
    one, two = classifier.decision_function(np.concatenate(rows))
    return float(one - two)


# Shared


def _count_records(run: RecordedRun, site: str) -> Labels:
    return np.bincount(run.sites[site].train.labels, minlength=len(run.agreement.classes))
