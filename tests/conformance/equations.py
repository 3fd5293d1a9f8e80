"""The papers' equations for a round of sums, one number at a time, and the bounds on a run's distance from them.

Under `ckks` a sum has the error that its form states, and what groups are mixed to that of mixing.

Under `masked` every coordinate of a contribution is rounded to a multiple of its resolution r (a power of two), so
it moves by r/2 at most, and a mean of any number of contributions too: sums of words are exact. Equations 7 and 8
are convex combinations of such means, which adds nothing: r/2 remains. So are FedDBP's fusions, of a mean and a row
that is not rounded. Models that come N times, N samples each, are divided by the sum of these, and so is how far their
sum is off: by n·r/2 of n contributions, or by an encrypted sum's error.

FedPC's weights ρ move as well, since they are cosines of what moved. Let e_j be the length of r/2 in every coordinate
that P_j has, and δ_j = 2e_j/‖P_j‖, by which its direction moves at most. A cosine of two is off by δ_j + δ_k at most,
that of one with itself by nothing, and so the sum S_j ≥ 1 of a row by no more than Δ_j = Σ_k≠j (δ_j + δ_k), and the
row of ρ, summed over magnitudes, by 2Δ_j. A class is renormalised by the weight s of the groups that have it, which
makes that twice as much over s at most. What weights multiply is no larger than the largest mean at its coordinate.

Clustered methods: a centre is a sum over the sites of a cluster, divided by its members, or their samples: no fewer
than these sites, so that r/2 remains. The mean model is a sum over n sites divided by their samples, and so is n·r/2.
Under `ckks` the error of a sum is divided by the same. Counts are whole numbers, which both have exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agreement import Agreement, Method, Protection
from agreement.derived.encrypted_sums import EncryptedClusterSum
from tests.algorithms import feddbp_reference as feddbp
from tests.algorithms import fedpc_reference as paper
from tests.algorithms import finch_reference as finch
from tests.algorithms import plain_lists as lists
from tests.algorithms.plain_lists import mean
from tests.conformance import peer_equations
from tests.conformance.federations import Bool
from tests.conformance.transcripts import (
    At,
    ClusterTranscript,
    Float,
    Put,
    Transcript,
    contributors,
    last_attempt,
    mix_errors,
    sum_errors,
)

_ROUNDING = 1e-14
"""Rounding of float64, relative to the largest value at a coordinate: sums of some dozens of products, reordered."""


@dataclass(frozen=True)
class Mixed:
    """Result of a group: rows (K, d) if any, has (K,), the averaged part (P,), and the bounds on their errors."""

    rows: Float
    has: Bool
    averaged: Float
    rows_bound: Float
    averaged_bound: Float


@dataclass(frozen=True)
class _Means:
    """Equations before 5: by group, rows (J, K, d) and has (J, K) and theta (J, P).

    ``shares`` (J,): of what is off in a sum, or in a contribution, so much is in a mean model.
    """

    rows: list[lists.Matrix]
    has: list[list[bool]]
    theta: lists.Matrix
    shares: list[float]


def expected(
    transcript: Transcript, number: int, *, without: Iterable[str] = (), rounded: bool = False
) -> dict[str, Mixed]:
    """Return for each site its group's result from all inputs to a round; meaningless for an abandoned round.

    ``without`` leaves contributions out. With ``rounded`` each is first rounded as fixed point has it, so that the
    bounds are those of float64 alone.
    """
    sites = [site for site in contributors(transcript, number) if site not in without]
    there = [group for group in transcript.groups if set(group) & set(sites)]
    puts = {site: _put(transcript, number, site, rounded) for site in sites}
    means = _within(transcript, puts, [[site for site in group if site in sites] for group in there])
    combine = _between if transcript.agreement.method.is_grouped else _unmixed
    mixed = combine(transcript, means, rounded=rounded)
    return {site: each for group, each in zip(there, mixed, strict=True) for site in group}


def excess(transcript: Transcript, number: int, *, without: Sequence[str] = ()) -> float:
    """Return the largest error of a round's results, in units of its bound, by the equations of the method.

    ``without`` leaves contributions out, which must show.
    """
    if transcript.agreement.method is Method.PFPL:
        return peer_equations.round_excess(transcript, number, without=without)
    if isinstance(transcript, ClusterTranscript):
        return cluster_excess(transcript, number, without=without)
    return sum_excess(transcript, number, without=tuple(without))


def sum_excess(transcript: Transcript, number: int, **options: bool | tuple[str, ...]) -> float:
    """Return the largest error of a round's results, in units of its bound; infinite for a wrong ``has``."""
    wanted = expected(transcript, number, **options)  # type: ignore[arg-type]
    worst = 0.0
    for (round_number, site), got in transcript.got.items():
        if round_number == number:
            want = wanted[site]
            if (got.has != want.has).any():
                return float("inf")
            off_rows, off_averaged = np.abs(got.rows - want.rows), np.abs(got.averaged - want.averaged)
            for off, bound in ((off_rows, want.rows_bound), (off_averaged, want.averaged_bound)):
                worst = max(worst, float((off / bound).max(initial=0.0)))
    return worst


def fusion_excess(
    transcript: Transcript, number: int, site: str, *, attempt: int = 1, **changes: Any
) -> float:
    """Return how far a FedDBP site's training targets in the *next* round are from equations 9 and 10, in bounds.

    The equations take the mean of the round, and the site's last input up to that round. ``changes`` are other
    settings.
    """
    settings = transcript.agreement.feddbp.model_copy(update=changes)
    mean = next(iter(expected(transcript, number).values()))
    own = last_put(transcript, number, site)
    assert own.scores is not None
    fused = feddbp.fused(
        own.rows.tolist(),
        own.holds.tolist(),
        own.scores.tolist(),
        mean.rows.tolist(),
        mean.has.tolist(),
        settings.own,
        settings.top_channels if settings.personal else 0,
    )
    off = np.abs(transcript.guides[number + 1, attempt, site] - np.array(fused))
    rounding = _ROUNDING * np.abs(own.rows).max()
    return float((off / (mean.rows_bound + rounding)).max())


def last_put(transcript: Transcript, number: int, site: str) -> Put:
    """Return a site's last input, up to and including a round."""
    rounds = [key for key in transcript.put if key[2] == site and key[0] <= number]
    return transcript.put[max(rounds)]


def resolutions(transcript: Transcript, *, rounded: bool) -> tuple[Float, Float]:
    """Return the resolutions of rows (K, d), if any, and of the averaged part (P,); zero where only floats are
    rounded.
    """
    layout = transcript.agreement.layout
    if rounded or transcript.agreement.protection is Protection.PLAIN:
        return layout.split(np.zeros(layout.length))
    if transcript.agreement.protection is Protection.CKKS:
        return layout.split(2.0 * sum_errors(transcript.agreement, sum(map(len, transcript.groups))))
    return layout.split(transcript.agreement.fixed_point().resolution)


def _put(transcript: Transcript, number: int, site: str, rounded: bool) -> Put:
    """Return a site's input, without rows where prototypes are not added up."""
    put, layout = transcript.put[number, last_attempt(transcript, number), site], transcript.agreement.layout
    put = replace(put, rows=np.where(put.holds[:, None], put.rows, 0.0) if layout.classes else put.rows[:0])
    if not rounded:
        return put
    fixed = transcript.agreement.fixed_point()
    vector = layout.contribution(put.rows, put.averaged, put.samples)
    rows, averaged = layout.split(fixed.decode_sum(fixed.encode(vector), 1))
    return replace(put, rows=rows, averaged=averaged / put.samples if layout.weighted else averaged)


def _within(transcript: Transcript, puts: dict[str, Put], groups: list[list[str]]) -> _Means:
    sites = list(puts)
    prototypes = [put.rows.tolist() for put in puts.values()]
    holds = [put.holds.tolist() for put in puts.values()]
    members = [[sites.index(site) for site in group] for group in groups]
    found = (
        [paper.intra(prototypes, holds, each, transcript.agreement.min_holders) for each in members]
        if transcript.agreement.layout.classes
        else [([], [False] * len(transcript.agreement.classes)) for _ in members]
    )
    theta = [_theta(transcript, [puts[site] for site in group]) for group in groups]
    shares = [_share(transcript, [puts[site] for site in group]) for group in groups]
    return _Means([rows for rows, _ in found], [has for _, has in found], theta, shares)


def _share(transcript: Transcript, puts: list[Put]) -> float:
    """Return the share of the rounding error that is left after the division, as the module's docstring derives it."""
    if not transcript.agreement.layout.weighted:
        return 1.0
    terms = 1 if transcript.agreement.protection is Protection.CKKS else len(puts)
    return terms / sum(put.samples for put in puts)


def _theta(transcript: Transcript, puts: list[Put]) -> lists.Vector:
    """Return the mean over sites, or over their samples."""
    if not transcript.agreement.layout.weighted:
        return lists.mean([put.averaged.tolist() for put in puts])
    total, sums = 0, [0.0] * transcript.agreement.layout.model
    for put in puts:
        total += put.samples
        for j, value in enumerate(put.averaged.tolist()):
            sums[j] += put.samples * value
    return [value / total for value in sums]


def _unmixed(transcript: Transcript, means: _Means, *, rounded: bool) -> list[Mixed]:
    """Return one group's means as its result."""
    layout = transcript.agreement.layout
    steps, theta_steps = resolutions(transcript, rounded=rounded)
    found = []
    for given, has, theta_list, share in zip(means.rows, means.has, means.theta, means.shares, strict=True):
        rows, theta = np.array(given).reshape(layout.classes, layout.dim), np.array(theta_list)
        largest, largest_theta = np.abs(rows).max(initial=0.0), np.abs(theta).max(initial=0.0)
        bound = steps / 2.0 + _ROUNDING * largest + 1e-300
        theta_bound = share * theta_steps / 2.0 + _ROUNDING * largest_theta + 1e-300
        found.append(Mixed(rows, np.array(has), theta, bound, theta_bound))
    return found


def _between(transcript: Transcript, means: _Means, *, rounded: bool) -> list[Mixed]:
    literal = transcript.agreement.fedpc.literal
    vectors = [paper.concatenated(rows, has) for rows, has in zip(means.rows, means.has, strict=True)]
    weights = paper.rho(vectors)
    rows, has = paper.inter_prototypes(means.rows, means.has, weights, literal=literal)
    theta = paper.inter_theta(means.theta, weights)
    steps, theta_steps = resolutions(transcript, rounded=rounded)
    largest = np.abs(np.array(means.rows)).max(axis=0)
    largest_theta = np.abs(np.array(means.theta)).max(axis=0)
    known = np.array(means.has)
    moved = _weights_moved(np.array(vectors), np.repeat(known, steps.shape[1], axis=1) * steps.ravel() / 2.0)
    shares = np.where(has, np.array(weights) @ known, 1.0)
    mixed, mixed_theta = _mixed(
        transcript, np.abs(np.array(means.rows)).sum(axis=0), np.abs(np.array(means.theta)).sum(axis=0)
    )
    return [
        Mixed(
            np.array(rows[j]),
            np.array(has[j]),
            np.array(theta[j]),
            steps / 2.0
            + (2.0 * moved[j] / shares[j][:, None] + _ROUNDING) * largest
            + mixed / shares[j][:, None]
            + 1e-300,
            theta_steps / 2.0 + (moved[j] + _ROUNDING) * largest_theta + mixed_theta + 1e-300,
        )
        for j in range(len(vectors))
    ]


def _mixed(transcript: Transcript, rows: Float, theta: Float) -> tuple[Float, Float]:
    """Return the error of mixing on ciphertexts, in a weighted sum and in its weight, for summed magnitudes."""
    if transcript.agreement.protection is not Protection.CKKS:
        return np.zeros_like(rows), np.zeros_like(theta)
    of_rows, of_theta, of_weight = mix_errors(transcript.agreement, rows, theta)
    return of_rows + of_weight * rows, of_theta + of_weight * theta


def _weights_moved(vectors: Float, halves: Float) -> Float:
    """Return the bound (J,) on a row of ρ, summed over its magnitudes, by the module's argument."""
    lengths = np.linalg.norm(vectors, axis=1)
    turned = 2.0 * np.linalg.norm(halves, axis=1) / np.where(lengths > 0.0, lengths, np.inf)
    cosines = turned[:, None] + turned[None, :]
    np.fill_diagonal(cosines, 0.0)
    return np.asarray(2.0 * cosines.sum(axis=1))


_CLUSTER_ROUNDING = 1e-13


@dataclass(frozen=True)
class ClusterMeans:
    """A round's result: centres (G, d), their classes and weights, the mean model (P,); how far each may be off."""

    rows: Float
    labels: list[int]
    weights: Float
    averaged: Float
    rows_bound: Float
    averaged_bound: Float


def expected_local(transcript: ClusterTranscript, at: At) -> list[tuple[int, list[float], int]]:
    """Return (class, mean, samples) of each local prototype that a site has in an attempt, by class and in order."""
    own, found = transcript.agreement.clustering, []
    features, labels = transcript.features[at]
    for k in sorted(set(labels)):
        vectors = [row for row, y in zip(features.tolist(), labels, strict=True) if y == k]
        parts = _parts(vectors, literal=own.literal) if not own.single else [0] * len(vectors)
        for g in range(max(parts) + 1):
            members = [row for row, part in zip(vectors, parts, strict=True) if part == g]
            found.append((k, mean(members), len(members)))
    return found


def expected_clusters(
    transcript: ClusterTranscript, number: int, *, without: Sequence[str] = ()
) -> ClusterMeans:
    """Return the result of a round's last attempt that the finch gives for the inputs of the sites whose values
    arrived.
    """
    attempt, own = last_attempt(transcript, number), transcript.agreement.clustering
    senders = sorted(transcript.sent[number, attempt])
    staying = [site for site in senders if (number, attempt, site) in transcript.put and site not in without]
    local = {site: transcript.local[number, attempt, site] for site in senders}
    rows: list[list[float]] = []
    labels: list[int] = []
    counts: list[float] = []
    divisors: list[float] = []
    for k in range(len(transcript.agreement.classes)):
        members = [
            (site, row.tolist(), int(count))
            for site in senders
            for row, y, count in zip(local[site].rows, local[site].labels, local[site].counts, strict=True)
            if y == k
        ]
        sites = [senders.index(site) for site, _, _ in members]
        if len(set(sites)) < transcript.agreement.min_holders:
            continue
        vectors = [row for _, row, _ in members]
        parts = finch.merged(
            vectors,
            _parts(vectors, literal=own.literal),
            sites,
            transcript.agreement.min_holders,
            _most(transcript.agreement, len(vectors)),
        )
        for g in range(max(parts) + 1):
            inside = [each for each, part in zip(members, parts, strict=True) if part == g]
            there = [(row, count) for site, row, count in inside if site in staying]
            rows.append(mean([row for row, _ in there]))
            labels.append(k)
            counts.append(1.0 if own.uniform else float(sum(count for _, count in there)))
            divisors.append(len(there))
    of_class = [sum(c for c, y in zip(counts, labels, strict=True) if y == k) for k in labels]
    weights = [count / total for count, total in zip(counts, of_class, strict=True)]
    puts = [transcript.put[number, attempt, site] for site in staying]
    samples = sum(put.samples for put in puts)
    model = np.asarray(sum(put.samples * put.averaged for put in puts) / samples)
    centres = np.array(rows).reshape(len(rows), transcript.agreement.dim)  # also of none
    steps, model_steps = _steps(transcript, len(rows), centres.shape, model.size)
    encrypted = transcript.agreement.protection is Protection.CKKS
    return ClusterMeans(
        centres,
        labels,
        np.array(weights),
        model,
        steps / np.array(divisors)[:, None] ** encrypted
        + _CLUSTER_ROUNDING * np.abs(centres).max(initial=0.0),
        model_steps * (1 if encrypted else len(puts)) / samples + _CLUSTER_ROUNDING * np.abs(model).max(),
    )


def cluster_excess(transcript: ClusterTranscript, number: int, *, without: Sequence[str] = ()) -> float:
    """Return the largest error of a round's results, in units of its bound; infinite for other clusters."""
    want, worst = expected_clusters(transcript, number, without=without), 0.0
    for (round_number, _), (rows, labels, weights, averaged) in transcript.results.items():
        if round_number != number:
            continue
        if rows.shape != want.rows.shape or labels.tolist() != want.labels:
            return float("inf")
        off = (
            np.abs(rows - want.rows) / want.rows_bound,
            np.abs(averaged - want.averaged) / want.averaged_bound,
            np.abs(weights - want.weights) / _CLUSTER_ROUNDING,
        )
        worst = max(worst, *(float(each.max(initial=0.0)) for each in off))
    return worst


def _parts(vectors: list[list[float]], *, literal: bool) -> list[int]:
    return [0] if len(vectors) == 1 else finch.coarsest(finch.levels(vectors, literal=literal))


def _most(agreement: Agreement, rows: int) -> int:
    """Return the most clusters of a class of so many prototypes."""
    most = agreement.clustering.most_clusters
    if agreement.protection is Protection.MASKED:
        while most > 1 and most * (most + 1) / 2 >= rows:
            most -= 1
    return most


def _steps(
    transcript: Transcript, clusters: int, shape: tuple[int, ...], parameters: int
) -> tuple[Float, Float]:
    """Return how far a contribution or an encrypted sum may be off: in each sum's numbers (G, d), and models' (P,)."""
    agreement, steps, model_steps = transcript.agreement, np.zeros(shape), np.zeros(parameters)
    if agreement.protection is Protection.MASKED:
        half = agreement.fixed_point(clusters).resolution / 2.0
        steps = half[: steps.size].reshape(shape)
        model_steps = half[-agreement.layout.length :][:parameters]
    if agreement.protection is Protection.CKKS:
        errors = EncryptedClusterSum(agreement, clusters).form.error(len({at[2] for at in transcript.put}))
        steps = errors[: steps.size].reshape(shape)
        model_steps = errors[-agreement.layout.length - 1 :][:parameters]
    return steps, model_steps
