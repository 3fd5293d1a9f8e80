"""Recorded run: a simulated federation with everything that each party saw, and the truth that attacks are judged by.

A record has the messages that the coordinator received, the results that each site downloaded, the secrets that the
sites share, and, as the truth, each site's samples, the prototypes that it protected in the last round, and its model
after each of the last rounds. An attack gets what :mod:`protoseal.attacks.readings` derives from the
messages, and the truth scores it.
Beside that an attack may take what its case grants the adversary: colluding sites' own prototypes, numbers of samples,
holders of classes, known rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from agreement import Agreement
from crypto.protection import Payload
from protoseal.audit.site_evidence import SiteEvidence, collect_evidence
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import Scene, load_scene
from protoseal.simulation.local_federation import DirectTransport, LocalFederation, LocalSite
from protoseal_wire.messages import Phase, PhaseKey, Work
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.exchanges.row_protection import rotation_context
from secure_client.models.prototype_model import PrototypeModel, compute_outputs
from secure_client.output.site_files import SitePrototypes
from secure_client.protocol.setup import Setup
from secure_client.training.batches import batch_in_order, open_source
from secure_server.exchanges.exchange import read_upload
from secure_server.process_pool import Workers
from secure_server.store import Received

P = ParamSpec("P")
R = TypeVar("R")
Rows = NDArray[np.float64]
Labels = NDArray[np.int64]

MOST_EARLIER_ROUNDS = 8
"""Most rounds before the last of which a record keeps the sites' models."""
_CPU = torch.device("cpu")
_BATCH = 256


@dataclass(frozen=True)
class LabelledImages:
    """Samples as the models see them: ``inputs`` float32 (N, …) and ``labels`` int64 (N,)."""

    inputs: Tensor = field(repr=False)
    labels: Labels = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: NDArray[Any]) -> LabelledImages:
        """Return the samples at the indices, or where the mask is true."""
        return LabelledImages(self.inputs[torch.from_numpy(np.asarray(chosen))], self.labels[chosen])

    def of_class(self, number: int) -> LabelledImages:
        """Return the samples of one class."""
        return self.take(np.flatnonzero(self.labels == number))


@dataclass(frozen=True)
class SiteTruth:
    """One site's secrets after the last round.

    ``rows`` (M, d) with classes ``labels`` (M,) are the prototypes that the site protected, in feature units;
    ``averaged`` (p + q,) is the part of its model that the method averages, empty if there is none. ``received`` has
    the prototypes that the site decoded from its last result.
    """

    name: str
    train: LabelledImages
    test: LabelledImages
    model: PrototypeModel = field(repr=False)
    rows: Rows = field(repr=False)
    labels: Labels = field(repr=False)
    averaged: Rows = field(repr=False)
    received: SitePrototypes = field(repr=False)

    def features(self, inputs: Tensor) -> Rows:
        """Return features (N, d) of inputs under this site's model."""
        return compute_features(self.model, inputs)


@dataclass(frozen=True)
class EarlierRound:
    """One site's secrets after the round ``number``, which sent rows and was not the last to do so."""

    number: int
    model: PrototypeModel = field(repr=False)
    received: SitePrototypes = field(repr=False)


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """One run of one configuration, ``config`` with one ``seed``, up to the last round that sends prototypes.

    ``epsilon`` is the ε that the sites spent in the whole run, None without noise. ``downloads`` maps a site to the
    results that it received. ``setups`` are the sites' halves of the set-up, from which a colluding site gives its
    secrets away. ``received`` has the uploads of every round. ``earlier`` has each site's earlier rounds that sent
    rows, the last :data:`MOST_EARLIER_ROUNDS` of them, oldest first; it is empty for a method without prototypes.
    ``initial`` is the common model whose features a round 0 sends, None without a round 0. ``evidence`` has what each
    site kept of its noisy releases. ``cache`` holds what :func:`cached_in_run` functions computed from the run.
    """

    config: SimulationConfig
    seed: int
    agreement: Agreement
    epsilon: float | None
    sites: Mapping[str, SiteTruth]
    received: Sequence[Received] = field(repr=False)
    downloads: Mapping[str, Sequence[tuple[PhaseKey, bytes]]] = field(repr=False)
    setups: Mapping[str, GroupSecrets] = field(repr=False)
    earlier: Mapping[str, Sequence[EarlierRound]] = field(repr=False)
    initial: PrototypeModel | None = field(repr=False)
    evidence: Mapping[str, SiteEvidence] = field(default_factory=dict, repr=False)
    cache: dict[object, Any] = field(default_factory=dict, init=False, repr=False)

    def upload(self, site: str, phase: Phase = Phase.VALUES, number: int | None = None) -> Received:
        """Return the site's last upload of the phase, or its upload of the round ``number``."""
        uploads = [
            received
            for received in self.received
            if received.site == site
            and received.key is not None
            and received.key.phase is phase
            and number in (None, received.key.round)
        ]
        return uploads[-1]

    def payload(self, site: str, phase: Phase = Phase.VALUES, number: int | None = None) -> Payload:
        """Return the payload of the site's last upload of VALUES or DIRECTIONS, or of that of the round ``number``."""
        return self.read(self.upload(site, phase, number))

    def read(self, received: Received) -> Payload:
        """Return the payload of an upload of VALUES or DIRECTIONS; raise ``ValueError`` for a statement."""
        if received.key is None:
            raise ValueError("a statement is no upload of values")
        return read_upload(self.agreement, received.key, received.content)

    @property
    def last_round(self) -> int:
        """Return the last round that sends rows."""
        return self.result(min(self.sites))[0].round

    def models(self, site: str) -> Mapping[int, PrototypeModel]:
        """Return the model of each round, in order, whose features the site's rows of the round average."""
        models = {} if self.initial is None else {0: self.initial}
        models |= {earlier.number: earlier.model for earlier in self.earlier.get(site, ())}
        return {**models, self.last_round: self.sites[site].model}

    def result(self, site: str) -> tuple[PhaseKey, bytes]:
        """Return the last RESULT that the site received."""
        return [(key, content) for key, content in self.downloads[site] if key.phase is Phase.RESULT][-1]


def cached_in_run(
    compute: Callable[Concatenate[RecordedRun, P], R],
) -> Callable[Concatenate[RecordedRun, P], R]:
    """Return the function with its results kept on the run, so that they are freed with the run.

    Arguments besides the run must be hashable.
    """

    @wraps(compute)
    def cached(run: RecordedRun, /, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (compute, args, tuple(sorted(kwargs.items())))
        if key not in run.cache:
            run.cache[key] = compute(run, *args, **kwargs)
        return cast("R", run.cache[key])

    return cached


@dataclass(frozen=True)
class GroupSecrets:
    """Secrets that every site holds: ``group`` bytes, and the context of each rotation by phase key."""

    group: bytes = field(repr=False)
    rotation_context: Callable[[PhaseKey, Phase], bytes] = field(repr=False)


class _Tap(DirectTransport):
    """Transport that keeps a copy of what the site downloads."""

    def __init__(self, inner: DirectTransport, downloads: list[tuple[PhaseKey, bytes]]) -> None:
        vars(self).update(vars(inner))  # the site's own transport, already connected
        self._downloads = downloads

    def download(self, work: Work) -> bytes:
        """Return the request, and keep it."""
        content = super().download(work)
        self._downloads.append((work.key, content))
        return content


def record_run(config: SimulationConfig, seed: int, *, samples: Sequence[int] = ()) -> RecordedRun:
    """Simulate one run of ``config`` and record it.

    With ``samples``, the sites keep that many training samples of a class, cyclically over sites and classes, so that
    prototypes of one, two, … samples leave the sites. Raises the errors of
    :func:`protoseal.simulation.experiment.simulate`.
    """
    scene = load_scene(config, seed)
    return record_scene(thin_scene(scene, samples) if samples else scene)


def record_scene(scene: Scene) -> RecordedRun:
    """Simulate and record one run on a scene's data."""
    config, agreement = scene.config, scene.agreement(scene.config.method)
    ends: list[RecordedRun] = []
    earlier: dict[str, deque[EarlierRound]] = {name: deque(maxlen=MOST_EARLIER_ROUNDS) for name in scene.data}
    downloads: dict[str, list[tuple[PhaseKey, bytes]]] = {name: [] for name in scene.data}
    initial: PrototypeModel | None = None
    sends_prototypes = agreement.method.traits.prototypes or agreement.clusters

    # Later rounds repeat prototypes and send none, so that an attack on their messages would prove nothing.
    last = max(number for number in range(1, agreement.rounds + 1) if agreement.sends_rows(number))

    def keep(federation: LocalFederation, number: int) -> None:
        if number < last and agreement.sends_rows(number) and sends_prototypes:
            for site in federation.sites:
                earlier[site.name].append(
                    EarlierRound(number, _copy_model(site.learner), site.learner.predictor.prototypes())
                )
        if number == last:
            ends.append(
                RecordedRun(
                    config=config,
                    seed=scene.seed,
                    agreement=agreement,
                    epsilon=_largest_epsilon(federation),
                    sites={site.name: _read_truth(site, scene, agreement) for site in federation.sites},
                    received=list(federation.store.received()),
                    downloads={name: list(contents) for name, contents in downloads.items()},
                    setups={
                        site.name: _read_secrets(site, party, agreement)
                        for site, party in zip(federation.sites, federation.parties, strict=True)
                    },
                    earlier={name: tuple(rounds) for name, rounds in earlier.items()},
                    initial=initial,
                )
            )
        if number == agreement.rounds:
            evidence = collect_evidence(federation, scene.data)
            ends.append(replace(ends[-1], epsilon=_largest_epsilon(federation), evidence=evidence))

    pool: Any = Workers(config.workers or 1) if config.protection.ckks_key else nullcontext()
    with (
        pool as executor,
        LocalFederation(
            agreement,
            scene.data,
            training=scene.training,
            executor=executor,
            record=True,
            keep_releases=True,
            on_completed=keep,
        ) as federation,
    ):
        for site in federation.sites:
            site.transport = _Tap(site.transport, downloads[site.name])
        if agreement.method.is_grouped:
            initial = _copy_model(federation.sites[0].learner)
        federation.run()
    return ends[-1]


def _copy_model(learner: CheckpointedLearner) -> PrototypeModel:
    """Return the model that embeds a site's samples, on the CPU."""
    return learner.embedding_model().to(_CPU).eval()


def _largest_epsilon(federation: LocalFederation) -> float | None:
    releases = [site.learner.releases for site in federation.sites]
    spent = [release.spent_budget().epsilon for release in releases if release is not None]
    return max(spent, default=None)


def _read_secrets(site: LocalSite, party: Any, agreement: Agreement) -> GroupSecrets:
    setup = Setup(agreement, party, site.journal, lambda: datetime.now(UTC))
    return GroupSecrets(
        setup.group_secret(), lambda key, phase: rotation_context(agreement, setup, key, phase)
    )


def _read_truth(site: LocalSite, scene: Scene, agreement: Agreement) -> SiteTruth:
    data, learner = scene.data[site.name], site.learner
    if agreement.clusters:
        local = learner.values.local()
        rows, labels = np.asarray(local.rows), np.asarray(local.labels)
    else:
        class_rows, held = learner.values.latest()
        rows, labels = class_rows[held], np.flatnonzero(held)
    return SiteTruth(
        name=site.name,
        train=load_images(data.train),
        test=load_images(data.test) if data.test is not None else load_images(data.train).take(np.arange(0)),
        model=_copy_model(learner),
        rows=np.array(rows, dtype=np.float64),
        labels=labels.astype(np.int64),
        averaged=learner.values.averaged_part() if agreement.method.averages else np.empty(0),
        received=learner.predictor.prototypes(),
    )


def thin_scene(scene: Scene, samples: Sequence[int]) -> Scene:
    """Return the scene with ``samples[(i + k) mod len(samples)]`` training samples of class k at site i, at most."""
    classes, rng = range(len(scene.divided.classes)), np.random.default_rng(scene.seed)
    sites = []
    for i, site in enumerate(scene.divided.sites):
        chosen = [
            # Drawn, not the first ones, which may be of another distribution than the rest.
            rng.permutation(np.flatnonzero(site.train.labels == k))[: samples[(i + k) % len(samples)]]
            for k in classes
        ]
        sites.append(replace(site, train=site.train.take(np.sort(np.concatenate(chosen)))))
    divided = replace(scene.divided, sites=tuple(sites))
    data = {site.name: site.to_data(divided.preprocessing) for site in sites}
    return replace(scene, divided=divided, data=data)


def load_images(dataset: Dataset[Any]) -> LabelledImages:
    """Return all samples of a data set, on the CPU."""
    source = open_source(dataset, _CPU)
    parts = list(source.batches(batch_in_order(len(source), _BATCH)))
    inputs = torch.cat([inputs for inputs, _ in parts])
    labels = torch.cat([labels for _, labels in parts])
    return LabelledImages(inputs, cast("Labels", labels.numpy().astype(np.int64)))


def compute_features(model: PrototypeModel, inputs: Tensor) -> Rows:
    """Return features float64 (N, d) in ``eval()`` mode."""
    model.eval()
    with torch.no_grad():
        parts = [compute_outputs(model, part).features for part in torch.split(inputs, _BATCH)]
    return np.asarray(torch.cat(parts).double().numpy()) if parts else np.empty((0, 0))
