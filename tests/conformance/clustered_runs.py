"""Runs whose sites' local prototypes are clustered, and what a round of them comes to, one number at a time.

Under `masked` every coordinate of what a site adds is rounded to a multiple of its resolution r (a power of two), so it
moves by r/2 at most. A centre is a sum over the sites of a cluster, divided by its members, or their samples: no fewer
than these sites, so that r/2 remains. The mean model is a sum over n sites divided by their samples, and so is n·r/2.
Under `ckks` the error of a sum is divided by the same. Counts are whole numbers, which both have exactly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from agreement import Agreement, Protection
from agreement.derived.encrypted_sums import EncryptedClusterSum
from agreement.derived.payload_forms import limits_of, result_form
from algorithms.fedplcc import LocalClusters
from protoseal_wire import codec
from protoseal_wire.cluster_assignment import clusters_of
from protoseal_wire.messages import Phase, PhaseKey, Work
from secure_client.data import SiteData
from secure_client.training.evaluation import evaluate_outputs
from tests.algorithms import finch_reference as paper
from tests.algorithms.plain_lists import mean
from tests.conformance.decrypted_results import clusters_in
from tests.conformance.grouped_runs import Float, Got, Tap, Transcript, run_into
from tests.conformance.stepped_federation import Loss
from tests.conformance.sum_equations import last_attempt

_ROUNDING = 1e-13
At = tuple[int, int, str]


@dataclass(frozen=True)
class Found:
    """A round's result: centres (G, d), their classes and weights, the mean model (P,); how far each may be off."""

    rows: Float
    labels: list[int]
    weights: Float
    averaged: Float
    rows_bound: Float
    averaged_bound: Float


@dataclass
class ClusterTranscript(Transcript):
    """Transcript with each site's local prototypes and features, the senders of directions or values, and full
    results.
    """

    local: dict[At, LocalClusters] = field(default_factory=dict)
    features: dict[At, tuple[Float, list[int]]] = field(default_factory=dict)
    sent: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    results: dict[tuple[int, str], tuple[Float, ...]] = field(default_factory=dict)
    told: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)

    def holders(self, number: int, attempt: int) -> tuple[tuple[str, ...], ...]:
        """Return the sites of each cluster of an attempt, as every site was told it, in the same bytes."""
        (content,) = self.told[number, attempt]
        return clusters_of(codec.decode_assignment(content, limits_of(self.agreement))).holders


class ClusterTap(Tap):
    """Fills such a transcript."""

    _book: ClusterTranscript

    def download(self, work: Work) -> bytes:
        """See :class:`DirectTransport`, here and below."""
        content = super().download(work)
        encrypted = self._book.agreement.protection is Protection.CKKS
        if work.key.phase is (Phase.VALUES if encrypted else Phase.SHARES):
            self._book.told.setdefault((work.key.round, work.key.attempt), set()).add(content)
        return content

    def upload(self, key: PhaseKey, content: bytes) -> None:
        super().upload(key, content)
        at, trainee = (key.round, key.attempt, self._at.name), self._at.trainee
        if key.phase in (Phase.DIRECTIONS, Phase.VALUES):
            self._book.sent.setdefault(at[:2], set()).add(at[2])
        if key.phase is Phase.PRESENCE:
            learner = trainee._learner
            outputs = list(evaluate_outputs(learner._model, learner._train))
            features = np.concatenate([each.features.double().numpy() for each, _ in outputs])
            self._book.local[at] = trainee.values.local()
            self._book.features[at] = features, [int(y) for _, labels in outputs for y in labels]

    def _result(self, key: PhaseKey, content: bytes) -> Got:
        agreement = self._book.agreement
        payload = codec.decode_payload(content, limits_of(agreement), result_form(agreement))
        arrays = payload.arrays
        if agreement.protection is Protection.CKKS:
            clusters, mean = clusters_in(agreement, self._at, payload)
            arrays = (clusters.rows, clusters.labels.astype(np.float64), clusters.weights, mean)
        self._book.results[key.round, self._at.name] = arrays
        rows, labels, _, averaged = arrays
        has = np.isin(np.arange(len(agreement.classes)), labels)
        return Got(key.attempt, rows, has, averaged, hashlib.sha256(content).digest())


def run_clustered(
    agreement: Agreement, data: Mapping[str, SiteData], folder: Path, losses: Sequence[Loss] = ()
) -> ClusterTranscript:
    """Run it from beginning to end, recorded, with sites lost on the way."""
    return run_into(ClusterTranscript(agreement), ClusterTap, data, folder, losses)


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


def expected(transcript: ClusterTranscript, number: int, *, without: Sequence[str] = ()) -> Found:
    """Return the result of a round's last attempt that the paper gives for the inputs of the sites whose values
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
        parts = paper.merged(
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
    return Found(
        centres,
        labels,
        np.array(weights),
        model,
        steps / np.array(divisors)[:, None] ** encrypted + _ROUNDING * np.abs(centres).max(initial=0.0),
        model_steps * (1 if encrypted else len(puts)) / samples + _ROUNDING * np.abs(model).max(),
    )


def excess(transcript: ClusterTranscript, number: int, *, without: Sequence[str] = ()) -> float:
    """Return the largest error of a round's results, in units of its bound; infinite for other clusters."""
    want, worst = expected(transcript, number, without=without), 0.0
    for (round_number, _), (rows, labels, weights, averaged) in transcript.results.items():
        if round_number != number:
            continue
        if rows.shape != want.rows.shape or labels.tolist() != want.labels:
            return float("inf")
        off = (
            np.abs(rows - want.rows) / want.rows_bound,
            np.abs(averaged - want.averaged) / want.averaged_bound,
            np.abs(weights - want.weights) / _ROUNDING,
        )
        worst = max(worst, *(float(each.max(initial=0.0)) for each in off))
    return worst


def _parts(vectors: list[list[float]], *, literal: bool) -> list[int]:
    return [0] if len(vectors) == 1 else paper.coarsest(paper.levels(vectors, literal=literal))


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
