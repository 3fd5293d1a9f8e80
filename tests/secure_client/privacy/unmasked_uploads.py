"""Uploads of all sites of a run in this process, with the masks taken off again.

Keys, seeds in shares, signatures and masks are random, and are made of nothing else than names, rounds and one another:
of these the sizes are written down. Everything else is written down as it was sent.

Files and values that a site keeps of a run, by name; and a double that trains by the seed alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from numpy.typing import NDArray

from agreement import Agreement
from agreement.derived.payload_shapes import limits_of, values_shape
from crypto.pairwise import masks
from crypto.pairwise.attempt import AttemptSecrets, Binding
from crypto.pairwise.masks import mask, masked_words
from crypto.protection import Words
from protoseal.simulation.local_federation import DirectTransport, LocalFederation, LocalSite
from protoseal_wire import codec
from protoseal_wire.messages import JoinReply, JoinRequest, Phase, PhaseKey, Work
from secure_client.checkpoints import checkpointed_learner
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.exchanges import sums
from secure_client.exchanges.row_protection import row_protection
from secure_client.privacy.noisy_prototypes import _HEAD
from secure_client.training.job import Job, Losses, trained_parameters
from secure_server.coordinator import Coordinator

At = tuple[str, int, int]
"""A site, a round and an attempt."""
_SIGNED = ("signature", "certificate")


@dataclass
class Sent:
    """``traces`` by name; by site, round and attempt the ``words`` (L,) of each masked vector without its masks.

    ``shown``: by site the row (1, K·d) that FedPC's clustering compares, before it is turned.
    """

    agreement: Agreement
    traces: Traces = field(default_factory=dict)
    words: dict[At, Words] = field(default_factory=dict)
    shown: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    _masks: dict[At, Words] = field(default_factory=dict)

    @contextmanager
    def noted(self, federation: LocalFederation) -> Iterator[None]:
        """Write down what the federation's sites send inside the block."""
        for site in federation.sites:
            site.transport = _Tap(federation.coordinator, site, self)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(masks, "mask", self._masked)
            patch.setattr(sums, "row_protection", self._half)
            yield

    def joined(self, site: str, request: JoinRequest) -> None:
        """Record a site's first call."""
        anchor = request.anchor
        assert anchor is not None
        said = (request.protocol, request.run, site, request.agreement_hash, anchor.key, anchor.seq)
        self._put(f"{site} joined", repr((said, outline(request.statement))).encode())

    def answered(self, site: str, key: PhaseKey, content: bytes, result: bytes) -> None:
        """Record an answer; ``result`` is the hash of the last result that the site was given."""
        name = f"{site} sent {key.phase.name} of round {key.round}, attempt {key.attempt}"
        limits = limits_of(self.agreement)
        match key.phase:
            case Phase.PRESENCE:
                statement = codec.decode_presence(content, limits)
                assert statement.anchor is not None
                self._put(f"{name}: classes", statement.holds.tobytes())
                self._put(f"{name}: base", b"as given" if statement.base == result else statement.base)
                self._put(f"{name}: ledger", repr((statement.anchor.key, statement.anchor.seq)).encode())
                self._put(name, repr(outline(statement)).encode())
            case Phase.VALUES if key.round == 0:
                self._put(name, self.shown[site].tobytes())
            case Phase.VALUES:
                at = (site, key.round, key.attempt)
                payload = codec.decode_payload(content, limits, values_shape(self.agreement, key.round))
                masked = masked_words(payload, self.agreement.ring_bits, self.agreement.layout.length)
                self.words[at] = masked - self._masks[at]
                self._put(name, self.words[at].tobytes())
            case Phase.SHARES:
                self._put(name, repr(outline(codec.decode_shares_made(content, limits))).encode())
            case Phase.SURVIVORS:
                self._put(name, repr(outline(codec.decode_survivor_signature(content, limits))).encode())
            case Phase.UNMASK:
                self._put(name, repr(outline(codec.decode_released_shares(content, limits))).encode())
            case Phase.ROSTER:
                self._put(name, repr(outline(codec.decode_roster_answer(content, limits))).encode())
            case _:
                self._put(name, content)

    def _put(self, name: str, content: bytes) -> None:
        assert name not in self.traces
        self.traces[name] = content

    def _masked(
        self, words: Words, secrets: AttemptSecrets, binding: Binding, site: str, *given: Any
    ) -> Words:
        self._masks[site, binding.round, binding.attempt] = mask(
            np.zeros_like(words), secrets, binding, site, *given
        )
        return mask(words, secrets, binding, site, *given)

    def _half(self, *given: Any) -> Any:
        half: Any = row_protection(*given)
        protect = half.protect

        def protect_noted(row: NDArray[np.float64], site: str, cohort: Any) -> Any:
            self.shown[site] = row.copy()
            return protect(row, site, cohort)

        half.protect = protect_noted
        return half


class _Tap(DirectTransport):
    """A site's calls, each written down before it is made."""

    def __init__(self, coordinator: Coordinator, site: LocalSite, sent: Sent) -> None:
        super().__init__(coordinator, sent.agreement.run, site.name)
        self._name = site.name
        self._sent = sent
        self._result = b""

    def join(self, request: JoinRequest) -> JoinReply:
        self._sent.joined(self._name, request)
        return super().join(request)

    def download(self, work: Work) -> bytes:
        content = super().download(work)
        if work.key.phase is Phase.RESULT and work.key.round:
            self._result = hashlib.sha256(content).digest()
        return content

    def upload(self, key: PhaseKey, content: bytes) -> None:
        self._sent.answered(self._name, key, content, self._result)
        super().upload(key, content)

    def leave(self) -> None:
        raise AssertionError(f"{self._name} left")


def outline(value: Any) -> Any:
    """Return a message with the sizes of its random parts, but without signatures, whose sizes are random too."""
    if is_dataclass(value):
        return {name: outline(each) for name, each in vars(value).items() if name not in _SIGNED}
    if isinstance(value, Mapping):
        return {name: outline(each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return [outline(each) for each in value]
    return len(value) if isinstance(value, bytes) else value


def differing(one: Mapping[str, bytes], other: Mapping[str, bytes], but: Sequence[str] = ()) -> list[str]:
    """Return the names of entries that differ; ``but`` excludes the names that contain one of these words."""
    names = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    return [name for name in names if not any(each in name for each in but)]


Traces = dict[str, bytes]


def kept_by(learner: CheckpointedLearner, *documents: str) -> Traces:
    """Return these documents of the journal, as far as it has them, and the contents of the file of prototypes.

    But for the ledger's head, in which there is the time of day.
    """
    found = Traces()
    for document in documents:
        stored = learner._journal.get(document)
        arrays = {} if stored is None else safetensors.numpy.load(stored[1])
        found |= {f"{document}: {name}": each.tobytes() for name, each in arrays.items() if name != _HEAD}
    own = learner.predictor.prototypes()
    return found | {f"file: {name}": each.tobytes() for name, each in vars(own).items() if each is not None}


@contextmanager
def moved_by_the_seed() -> Iterator[None]:
    """Have training read no record inside the block."""

    def run(job: Job) -> Losses:
        moves = torch.Generator().manual_seed(job.seed)
        with torch.no_grad():
            for each in trained_parameters(job.model, job.trains).values():
                each.add_(torch.randn(each.shape, generator=moves), alpha=0.05)
        return Losses(1.0, 1.0, 0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointed_learner, "run_job", run)
        yield
