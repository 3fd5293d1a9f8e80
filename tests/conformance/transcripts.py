"""Recorded runs in this process: what each site put in, was told and got in each round, and the files that it saved."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreement import Agreement, Method, Protection
from agreement.derived.encrypted_sums import EncryptedClusterSum, EncryptedGroups, EncryptedSum
from agreement.derived.means import Means
from agreement.derived.payload_shapes import limits_of, result_shape
from algorithms.fedplcc import GlobalClusters, LocalClusters
from algorithms.inference import by_prototype
from algorithms.losses import Outputs, units
from algorithms.prototypes import Clusters, Guide
from crypto.ckks.group_mixing import MixingSite
from crypto.ckks.sums import SummingSite
from crypto.pairwise.attempt import MaskKeys
from crypto.protection import Payload, whole_numbers
from protoseal.simulation.local_federation import DirectTransport, LocalFederation, LocalSite
from protoseal_wire import codec
from protoseal_wire.cluster_assignment import read_clusters
from protoseal_wire.messages import Phase, PhaseKey, RoundStart, Work
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.checkpoints.predictor import inference_guide
from secure_client.data import SiteData
from secure_client.models.prototype_model import compute_outputs
from secure_client.output.site_files import MODEL, SitePrototypes, read_prototypes
from secure_client.output.site_log import SiteRound
from secure_client.protocol.journal import Journal
from secure_client.training.evaluation import evaluate_outputs
from secure_server.coordinator import Coordinator
from secure_server.round_log import CoordinatorRound
from secure_server.rounds.state import Groups
from secure_server.store import Received
from tests.conformance.drop_outs import Clock, Loss, play, set_deadlines
from tests.conformance.federations import Bool

Float = NDArray[np.float64]


At = tuple[int, int, str]
"""Round, attempt and site."""


@dataclass(frozen=True)
class Taken:
    """A site after the result of a round, and what it predicts for its own N test samples.

    ``targets`` (K, d) are the prototypes that it trains towards before they are rounded to float32 for training.
    ``predictions`` are (2, N), by classifier and by nearest prototype; ``margins`` are by how much logit or
    distance the first choice is ahead of the second.
    """

    prototypes: SitePrototypes
    targets: NDArray[np.float64]
    predictions: NDArray[np.int64]
    margins: NDArray[np.float64]


Record = dict[tuple[int, str], Taken]
"""Files of a site, by round and site."""


def _gap(scores: Tensor) -> Tensor:
    """Return how far the best score of each row is ahead of the next, (N,); infinite for a single score."""
    if scores.shape[1] == 1:
        return torch.full_like(scores[:, 0], torch.inf)
    best = scores.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


def _nearness(outputs: Outputs, guide: Guide) -> Tensor:
    """Score each sample against each class that has prototypes: the negative distance, or the largest cosine."""
    if isinstance(guide, Clusters):
        cosines = units(outputs.features) @ units(guide.rows).T
        classes = sorted(set(guide.labels.tolist()))
        return torch.stack([cosines[:, guide.labels == k].max(dim=1).values for k in classes], 1)
    compared, rows = outputs.features, guide.rows[guide.present]
    if outputs.decision is not None:
        compared, rows = units(outputs.decision), units(rows)
    return -torch.cdist(compared, rows)


def _targets(journal: Journal, prototypes: SitePrototypes) -> NDArray[np.float64]:
    """Return the stored part of a site's last result, (K, d): PFPL's answer, or the base of a sum."""
    for kept in ("targets", "base"):
        stored = journal.get(kept)
        if stored is not None:
            return safetensors.numpy.load(stored[1])["rows"]
    return prototypes.personal


def taken_from(folder: Path, agreement: Agreement, data: SiteData, journal: Journal) -> Taken:
    """Read a site's files, and predict on its own test samples."""
    prototypes = read_prototypes(folder)
    model = build_agreed_model(agreement, agreement.training.model)
    model.load_state_dict(safetensors.torch.load_file(folder / MODEL))
    model.eval()
    dataset: Any = data.test
    inputs = torch.stack([dataset[i][0] for i in range(len(dataset))])
    guide = inference_guide(prototypes)
    with torch.no_grad():
        outputs = compute_outputs(model, inputs)
        near = by_prototype(outputs, guide)
    margins = torch.stack([_gap(outputs.logits), _gap(_nearness(outputs, guide))])
    predictions = torch.stack([outputs.logits.argmax(dim=1), near])
    return Taken(prototypes, _targets(journal, prototypes), predictions.numpy(), margins.double().numpy())


def means_in(agreement: Agreement, site: LocalSite, payload: Payload) -> Means:
    """Return the means of a sum over all sites, or of mixed groups."""
    key = site.session._setup.ckks_key()
    if agreement.method.is_grouped:
        groups = EncryptedGroups(agreement)
        return groups.mixed(MixingSite(key, groups.form).unprotect(payload))
    sums = EncryptedSum(agreement)
    return sums.means(sums.opened(SummingSite(key, sums.form).unprotect(payload, agreement.max_sites)))


def clusters_in(agreement: Agreement, site: LocalSite, payload: Payload) -> tuple[GlobalClusters, Float]:
    """Clusters and the mean model; of two sums the first has the clusters, the second the model."""
    labels = whole_numbers(payload.arrays[0], len(agreement.classes))
    ends, key = len(EncryptedClusterSum(agreement, len(labels)).form.answers), site.session._setup.ckks_key()

    def opened(blobs: tuple[bytes, ...], count: int) -> tuple[GlobalClusters, Float]:
        sums = EncryptedClusterSum(agreement, count)
        one = replace(payload, arrays=(), blobs=blobs)
        return sums.means(SummingSite(key, sums.form).unprotect(one, agreement.max_sites), labels[:count])

    clusters, mean = opened(payload.blobs[:ends], len(labels))
    return clusters, opened(payload.blobs[ends:], 0)[1] if len(payload.blobs) > ends else mean


def sum_errors(agreement: Agreement, sites: int) -> Float:
    """Return the error (L,) of each number in a sum over so many sites, and so of a mean, a sum divided by one or
    more.
    """
    return EncryptedSum(agreement).form.error(sites)[: agreement.layout.length]


def mix_errors(agreement: Agreement, rows: Float, theta: Float) -> tuple[Float, Float, float]:
    """Bound the errors of rows (K, d), the averaged part (P,) and a weight, all undivided sums of magnitudes."""
    form = EncryptedGroups(agreement).form
    weights = np.full(len(rows) + 1, float(form.groups))
    errors = form.error(np.concatenate([rows.ravel(), theta, weights]))
    of_rows, of_theta = agreement.layout.split(errors)
    return of_rows, of_theta, float(errors[-1])


@dataclass(frozen=True)
class Put:
    """Input of a site to a sum: ``rows`` (K, d), the classes that it has, the averaged part of its model (p + q,).

    ``samples`` weighs the averaged part, where it is weighed. ``scores`` (K, d) stay at the site (FedDBP).
    """

    rows: Float
    holds: Bool
    averaged: Float
    samples: int = 0
    scores: Float | None = None


@dataclass(frozen=True)
class Got:
    """A result as it came: ``rows`` (K, d) if there are any, ``has`` (K,), the averaged part, the hash of its bytes."""

    attempt: int
    rows: Float
    has: Bool
    averaged: Float
    hash: bytes


@dataclass
class Transcript:
    """A run: by (round, attempt, site) what was put in and stated, by (round, site) what was got and became of it.

    ``guides`` are the targets (K, d) that a site trained towards in an attempt, ``trained`` PFPL's prototypes (K, d)
    after training.
    """

    agreement: Agreement
    put: dict[tuple[int, int, str], Put] = field(default_factory=dict)
    starts: dict[tuple[int, int, str], RoundStart] = field(default_factory=dict)
    bases: dict[tuple[int, int, str], bytes] = field(default_factory=dict)
    guides: dict[tuple[int, int, str], Float] = field(default_factory=dict)
    trained: dict[tuple[int, int, str], Float] = field(default_factory=dict)
    got: dict[tuple[int, str], Got] = field(default_factory=dict)
    taken: Record = field(default_factory=dict)
    rounds: list[CoordinatorRound] = field(default_factory=list)
    received: list[Received] = field(default_factory=list)
    roster_hash: bytes = b""

    @property
    def groups(self) -> Groups:
        """The groups that every site was told, the same in every round."""
        (groups,) = {start.groups for start in self.starts.values()}
        return groups

    def stated_keys(self) -> dict[tuple[int, int, str], MaskKeys]:
        """Return the keys for masks that every site stated, by (round, attempt, site)."""
        limits = limits_of(self.agreement)
        stated = [
            (each.key, codec.decode_presence(each.content, limits))
            for each in self.received
            if each.key is not None and each.key.phase is Phase.PRESENCE
        ]
        return {_at(key, each.site): each.keys for key, each in stated if each.keys is not None}

    def summary(self) -> list[tuple[int, int, bool]]:
        """Return (round, attempt, abandoned) as the coordinator reported them."""
        return [(each.round, each.attempt, each.abandoned) for each in self.rounds]


class Tap(DirectTransport):
    """A site's calls, written down in the transcript."""

    def __init__(self, coordinator: Coordinator, site: LocalSite, transcript: Transcript) -> None:
        super().__init__(coordinator, transcript.agreement.run, site.name)
        self._at, self._book = site, transcript

    def download(self, work: Work) -> bytes:
        """See :class:`DirectTransport`, here and below."""
        content = super().download(work)
        if work.key.phase is Phase.PRESENCE and work.key.round:
            limits, form = limits_of(self._book.agreement), result_shape(self._book.agreement)
            start = codec.decode_round_start(content, limits, form)
            self._book.starts[_at(work.key, self._at.name)] = start
        if work.key.phase is Phase.RESULT:
            self._book.got[work.key.round, self._at.name] = self._result(work.key, content)
        return content

    def upload(self, key: PhaseKey, content: bytes) -> None:
        super().upload(key, content)
        learner, at = self._at.learner, _at(key, self._at.name)
        if key.phase is Phase.PRESENCE and key.round:
            self._book.bases[at] = learner.received.base_hash
            if learner.received.base is not None:
                self._book.guides[at] = learner.received.base.rows
            if self._book.agreement.method is Method.PFPL:
                self._book.trained[at] = learner.train_round(key.round)[0]
        if key.phase is Phase.VALUES:
            rows, counts = learner.train_round(key.round)
            scores = learner.values.require_last().scores
            self._book.put[at] = Put(
                rows, counts > 0, learner.values.averaged_part(), int(counts.sum()), scores
            )

    def _result(self, key: PhaseKey, content: bytes) -> Got:
        agreement, found = self._book.agreement, hashlib.sha256(content).digest()
        if not agreement.sums:  # each site's combination of its peers is its own
            return Got(key.attempt, np.zeros(0), np.zeros(0, np.bool_), np.zeros(0), found)
        payload = codec.decode_payload(content, limits_of(agreement), result_shape(agreement))
        if agreement.protection is Protection.CKKS:
            means = means_in(agreement, self._at, payload)
            return Got(key.attempt, means.rows, means.has, means.model, found)
        vector, has = payload.arrays
        rows, averaged = agreement.layout.split(vector)
        return Got(key.attempt, rows, has == 1.0, averaged, found)


def _at(key: PhaseKey, site: str) -> tuple[int, int, str]:
    return key.round, key.attempt, site


def contributors(transcript: Transcript, number: int) -> tuple[str, ...]:
    """Return the sites whose values arrived in a round's last attempt, by name."""
    attempt = last_attempt(transcript, number)
    return tuple(sorted(site for (r, a, site) in transcript.put if (r, a) == (number, attempt)))


def last_attempt(transcript: Transcript, number: int) -> int:
    """Return the attempt in which a round ended."""
    (attempt,) = {each.attempt for each in transcript.rounds if each.round == number}
    return attempt


_TIE = 3e-4
"""A lead of less than this is a tie, which noise of 1e-5 in a target may break either way in later rounds."""


def check_predictions(*pairs: tuple[Taken, Taken]) -> None:
    """``AssertionError`` unless the first of each pair predicts what the second, the reference, does.

    Wherever the reference has made up its mind, which it has in more than 95 of 100 cases.
    """
    decided = [reference.margins > _TIE for _, reference in pairs]
    assert np.mean(np.concatenate(decided, axis=1)) > 0.95
    for (got, reference), clear in zip(pairs, decided, strict=True):
        np.testing.assert_array_equal(got.predictions[clear], reference.predictions[clear])


def compare_predictions(got: Transcript, reference: Transcript, number: int) -> None:
    """``AssertionError`` unless every site's model and prototypes after a round predict the same, nearly always."""
    keys = sorted(key for key in reference.taken if key[0] == number)
    assert keys == sorted(key for key in got.taken if key[0] == number)
    pairs = [(got.taken[key], reference.taken[key]) for key in keys]
    for mine, other in pairs:
        np.testing.assert_array_equal(mine.prototypes.has_personal, other.prototypes.has_personal)
    check_predictions(*pairs)


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
        return read_clusters(codec.decode_assignment(content, limits_of(self.agreement))).holders


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
        at, learner = (key.round, key.attempt, self._at.name), self._at.learner
        if key.phase in (Phase.DIRECTIONS, Phase.VALUES):
            self._book.sent.setdefault(at[:2], set()).add(at[2])
        if key.phase is Phase.PRESENCE:
            bare = learner._learner
            outputs = list(evaluate_outputs(bare._model, bare._train))
            features = np.concatenate([each.features.double().numpy() for each, _ in outputs])
            self._book.local[at] = learner.values.local()
            self._book.features[at] = features, [int(y) for _, labels in outputs for y in labels]

    def _result(self, key: PhaseKey, content: bytes) -> Got:
        agreement = self._book.agreement
        payload = codec.decode_payload(content, limits_of(agreement), result_shape(agreement))
        arrays = payload.arrays
        if agreement.protection is Protection.CKKS:
            clusters, mean = clusters_in(agreement, self._at, payload)
            arrays = (clusters.rows, clusters.labels.astype(np.float64), clusters.weights, mean)
        self._book.results[key.round, self._at.name] = arrays
        rows, labels, _, averaged = arrays
        has = np.isin(np.arange(len(agreement.classes)), labels)
        return Got(key.attempt, rows, has, averaged, hashlib.sha256(content).digest())


def recording_federation(
    agreement: Agreement, data: Mapping[str, SiteData], folder: Path, record: Record, *, keep: bool = False
) -> LocalFederation:
    """Return a federation that fills ``record`` as it goes; with ``keep`` it also keeps every message."""

    def take(name: str, figures: SiteRound) -> None:
        site = next(each for each in federation.sites if each.name == name)
        site.learner.predictor.save(folder)
        record[figures.round, name] = taken_from(folder, agreement, data[name], site.learner._journal)

    federation = LocalFederation(agreement, data, record=keep, on_round=take)
    return federation


BookT = TypeVar("BookT", bound=Transcript)


def record_run(
    agreement: Agreement, data: Mapping[str, SiteData], folder: Path, losses: Sequence[Loss] = ()
) -> Transcript:
    """Play a run from beginning to end, with sites lost on the way; of clustered methods a ClusterTranscript."""
    if agreement.clusters:
        return record_cluster_run(agreement, data, folder, losses)
    return record_into(Transcript(agreement), Tap, data, folder, losses)


def record_cluster_run(
    agreement: Agreement, data: Mapping[str, SiteData], folder: Path, losses: Sequence[Loss] = ()
) -> ClusterTranscript:
    """Play a run of a clustered method, with sites lost on the way."""
    return record_into(ClusterTranscript(agreement), ClusterTap, data, folder, losses)


def record_into(
    transcript: BookT,
    tap: Callable[[Coordinator, LocalSite, BookT], DirectTransport],
    data: Mapping[str, SiteData],
    folder: Path,
    losses: Sequence[Loss] = (),
) -> BookT:
    """Play a run into a transcript that ``tap`` fills, and return the transcript."""
    clock = Clock()
    with recording_federation(transcript.agreement, data, folder, transcript.taken, keep=True) as federation:
        set_deadlines(federation, folder / "keys.bin", clock)
        for site in federation.sites:
            site.transport = tap(federation.coordinator, site, transcript)
        play(federation, clock, losses)
        transcript.rounds, transcript.received = federation.rounds, list(federation.store.received())
        transcript.roster_hash = federation.coordinator.roster().hash
    return transcript
