"""Runs in this process whose values are added up, and a transcript of what each site sent and received in a round."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from agreement import Agreement, AveragingSection, FedpcSection, Method, Protection
from agreement.derived.payload_forms import limits_of, result_form
from crypto.pairwise.wire_values import MaskKeys
from protoseal.simulation.local_federation import DirectTransport, LocalFederation, LocalSite
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey, RoundStart, Work
from secure_client.data import SiteData
from secure_client.models.prototype_model import SplitModel
from secure_client.output.site_log import SiteRound
from secure_client.training.averaged_parameters import AveragedPart
from secure_server.coordinator import Coordinator
from secure_server.round_log import CoordinatorRound
from secure_server.rounds.state import Groups
from secure_server.storage.store import Received
from tests.conformance.decrypted_results import means_in
from tests.conformance.plain_answers import check_predictions
from tests.conformance.runs import Bool, Record, taken_from
from tests.conformance.stepped_federation import Clock, Loss, play, set_deadlines
from tests.support.small import short_training, small_agreement

Float = NDArray[np.float64]
_PIXELS = 16


def build(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Build a model with a buffer or two: a layer and batch normalisation, features that end in a ReLU."""
    layers = (nn.AvgPool2d(2), nn.Flatten(), nn.Linear(_PIXELS, dim), nn.BatchNorm1d(dim), nn.ReLU())
    return nn.Sequential(*layers), nn.Linear(dim, num_classes)


def grouped_agreement(
    protection: Protection,
    *,
    classes: int,
    dim: int,
    rounds: int,
    method: Method = Method.FEDPC,
    fedpc: Mapping[str, Any] = {},
    averaging: Mapping[str, Any] = {},
    **settings: Any,
) -> Agreement:
    """Return an agreement on the method with this module's model, ``fedpc``, ``averaging`` and further ``settings``."""
    parameters, buffers = AveragedPart(SplitModel(*build(classes, dim)), method.traits.averaged).sizes
    sizes = {"parameters": parameters, "buffers": buffers}
    changed = {
        "method": method,
        "protection": protection,
        "classes": tuple(str(k) for k in range(classes)),
        "dim": dim,
        "norm_bound": dim**0.5,
        "fedpc": FedpcSection(**fedpc),
        "averaging": AveragingSection(**sizes, **averaging),
        "training": short_training("tests.conformance.grouped_runs:build", batch_size=6, lr=0.05),
        **settings,
    }
    return Agreement.model_validate({**dict(small_agreement(rounds=rounds)), **changed})


def two_kinds() -> Bool:
    """Nine sites, six classes, (9, 6): five sites of one kind and four of another, by turns.

    Class 0: all of the first kind, two of the second (too few). 1: the first kind. 2: everyone. 3: the second kind.
    4: the second kind and *three* of the first. 5: two of each, so that four have it and no group may.
    """
    holds = np.zeros((9, 6), dtype=np.bool_)
    first, second = np.arange(0, 9, 2), np.arange(1, 9, 2)
    holds[first[:, None], [0, 1, 2]] = True
    holds[second[:, None], [2, 3, 4]] = True
    holds[second[-2:], 0] = True
    holds[first[1:4], 4] = True
    holds[[*first[-2:], *second[:2]], 5] = True
    return holds


def three_kinds() -> Bool:
    """Ten sites, four classes, (10, 4): of four, three and three sites, each kind without one of the first three."""
    holds = np.ones((10, 4), dtype=np.bool_)
    holds[np.arange(10), np.arange(10) % 3] = False
    holds[:, 3] = np.arange(10) < 6  # two of each kind: withheld everywhere
    return holds


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

    ``guides`` are the targets (K, d) that a site trained towards in an attempt.
    """

    agreement: Agreement
    put: dict[tuple[int, int, str], Put] = field(default_factory=dict)
    starts: dict[tuple[int, int, str], RoundStart] = field(default_factory=dict)
    bases: dict[tuple[int, int, str], bytes] = field(default_factory=dict)
    guides: dict[tuple[int, int, str], Float] = field(default_factory=dict)
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
            limits, form = limits_of(self._book.agreement), result_form(self._book.agreement)
            start = codec.decode_round_start(content, limits, form)
            self._book.starts[_at(work.key, self._at.name)] = start
        if work.key.phase is Phase.RESULT:
            self._book.got[work.key.round, self._at.name] = self._result(work.key, content)
        return content

    def upload(self, key: PhaseKey, content: bytes) -> None:
        super().upload(key, content)
        trainee, at = self._at.trainee, _at(key, self._at.name)
        if key.phase is Phase.PRESENCE and key.round:
            self._book.bases[at] = trainee.base_hash
            if trainee.base is not None:
                self._book.guides[at] = trainee.base.rows
        if key.phase is Phase.VALUES:
            rows, counts = trainee.train_round(key.round)
            scores = trainee.values.require_last().scores
            self._book.put[at] = Put(rows, counts > 0, trainee.values.averaged(), int(counts.sum()), scores)

    def _result(self, key: PhaseKey, content: bytes) -> Got:
        agreement = self._book.agreement
        payload = codec.decode_payload(content, limits_of(agreement), result_form(agreement))
        found = hashlib.sha256(content).digest()
        if agreement.protection is Protection.CKKS:
            means = means_in(agreement, self._at, payload)
            return Got(key.attempt, means.rows, means.has, means.model, found)
        vector, has = payload.arrays
        rows, averaged = agreement.layout.split(vector)
        return Got(key.attempt, rows, has == 1.0, averaged, found)


def _at(key: PhaseKey, site: str) -> tuple[int, int, str]:
    return key.round, key.attempt, site


BookT = TypeVar("BookT", bound=Transcript)


def run_grouped(
    agreement: Agreement, data: Mapping[str, SiteData], folder: Path, losses: Sequence[Loss] = ()
) -> Transcript:
    """Run it from beginning to end, recorded, with sites lost on the way."""
    return run_into(Transcript(agreement), Tap, data, folder, losses)


def run_into(
    transcript: BookT,
    tap: Callable[[Coordinator, LocalSite, BookT], DirectTransport],
    data: Mapping[str, SiteData],
    folder: Path,
    losses: Sequence[Loss] = (),
) -> BookT:
    """Run into a transcript that ``tap`` fills, and return the transcript."""
    agreement, clock = transcript.agreement, Clock()

    def take(name: str, figures: SiteRound) -> None:
        by_name[name].trainee.save(folder)
        transcript.taken[figures.round, name] = taken_from(
            folder, agreement, data[name], by_name[name].trainee._checkpoints.journal
        )

    with LocalFederation(agreement, data, record=True, on_round=take) as federation:
        by_name = {site.name: site for site in federation.sites}
        set_deadlines(federation, folder / "keys.bin", clock)
        for site in federation.sites:
            site.transport = tap(federation.coordinator, site, transcript)
        play(federation, clock, losses)
        transcript.rounds, transcript.received = federation.rounds, list(federation.store.received())
        transcript.roster_hash = federation.coordinator.roster().hash
    return transcript


def compare_predictions(got: Transcript, reference: Transcript, number: int) -> None:
    """``AssertionError`` unless every site's model and prototypes after a round predict the same, nearly always."""
    keys = sorted(key for key in reference.taken if key[0] == number)
    assert keys == sorted(key for key in got.taken if key[0] == number)
    pairs = [(got.taken[key], reference.taken[key]) for key in keys]
    for mine, other in pairs:
        np.testing.assert_array_equal(mine.prototypes.has_personal, other.prototypes.has_personal)
    check_predictions(*pairs)
