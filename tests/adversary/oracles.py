"""Two coordinators that turn sites' answers into an oracle about single records or sealed numbers.

The first asks, through an encrypted sum, whether a number that is sealed in the sum is beyond a bound. To the sum of
models it adds constants, for which it needs no key: the biases of both hidden layers become so small that no feature is
above zero, but for one unit's, which becomes what it was, less the bound. So in the next round features are all zero,
or all point one way, and nothing that a site trains changes that.

The second asks through models of its own making. Their first layer compares one pixel of a record with a bound, and
clusters of zeros move no feature. A question is whether a site has a training record of a class whose pixel exceeds the
bound; each round asks it of every site and class at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tenseal import sealapi
from torch import nn

from agreement import Agreement, AveragingSection, MaskingSection, Method, Protection
from agreement.derived.payload_shapes import directions_shape, limits_of
from algorithms.fedplcc import has_direction
from crypto.ckks.parameters import context
from crypto.ckks.serialization import dump, read_payload
from crypto.ckks.sums import SummingServer
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.checkpoints.exchanged_values import TrainedValues
from secure_client.data import SiteData
from secure_client.models.prototype_model import SplitModel
from secure_client.training.averaged_parameters import AveragedPart
from secure_server.aggregator import Aggregator
from secure_server.exchanges.exchange import Attempt, Outcome
from tests.conformance.federations import data_for, grouped_agreement
from tests.conformance.transcripts import ClusterTranscript, Transcript, record_cluster_run, record_run
from tests.support.small import short_training

DIM, CLASSES, PIXELS = 12, 3, 16
UNIT = 3
FAR_BELOW = 20.0
"""Any bias of these models, and what any image adds to it."""
FIRST = slice(DIM * PIXELS, DIM * PIXELS + DIM)
SECOND = slice(FIRST.stop + DIM * DIM, FIRST.stop + DIM * DIM + DIM)
"""Positions of the hidden layers' biases in the averaged part."""


def build(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Return two hidden layers that end in a ReLU each."""
    layers = (nn.Linear(PIXELS, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU())
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), *layers), nn.Linear(dim, num_classes)


def agreed(
    protection: Protection = Protection.CKKS,
    rounds: int = 2,
    method: Method = Method.FEDPLCC,
    lr: float = 0.05,
) -> Agreement:
    """Return some rounds of a method that averages a model."""
    averaged = AveragedPart(SplitModel(*build(CLASSES, DIM)), method.traits.averaged)
    parameters, buffers = averaged.sizes
    return grouped_agreement(
        protection,
        method=method,
        fedpc={"groups": 1},
        classes=CLASSES,
        dim=DIM,
        rounds=rounds,
        norm_bound=40.0,
    ).model_copy(
        update={
            "averaging": AveragingSection(parameters=parameters, buffers=buffers),
            "masking": MaskingSection(ring_bits=64),
            "training": short_training("tests.adversary.oracles:build", batch_size=6, lr=lr),
        }
    )


def run(folder: Path) -> ClusterTranscript:
    """Four sites with all classes."""
    agreement = agreed()
    return record_cluster_run(agreement, data_for(agreement, np.ones((4, CLASSES), dtype=np.bool_)), folder)


def classes_with_a_direction(trained: TrainedValues) -> NDArray[np.bool_]:
    """Return the classes (K,) that a weakened site states: those with a prototype that is not zero."""
    assert trained.local is not None
    directed = trained.local.labels[has_direction(trained.local.rows)]
    return np.isin(np.arange(len(trained.counts)), directed)


def sealed(transcript: ClusterTranscript) -> tuple[float, int]:
    """Return the sum of the unit's bias, times samples, that the first round seals, and the samples."""
    puts = [put for (number, _, _), put in transcript.put.items() if number == 1]
    return sum(put.samples * float(put.averaged[SECOND][UNIT]) for put in puts), sum(
        put.samples for put in puts
    )


def asking(patch: pytest.MonkeyPatch, bound: float, samples: int) -> None:
    """Make the coordinator ask of each sum whether the unit's value is above the bound."""
    add: Callable[[SummingServer, list[Payload]], Payload] = SummingServer.add
    patch.setattr(
        SummingServer, "add", lambda server, payloads: _moved(server, add(server, payloads), bound, samples)
    )


def _moved(server: SummingServer, payload: Payload, bound: float, samples: int) -> Payload:
    form, layout = server._layout, agreed().layout
    added = np.zeros(form.vector.length)
    model = added[form.segments.length - 1 - layout.length :]  # a view; the 1 for the site comes last
    model[FIRST] = model[SECOND] = -FAR_BELOW * samples
    model[SECOND.start + UNIT] = -bound
    total = [
        _plus(ciphertext, slots, form.answers[0].scale)
        for ciphertext, slots in zip(
            read_payload(payload, form.answers), _slots(added / form.vector.bounds), strict=True
        )
    ]
    return Payload(payload.scheme, blobs=tuple(map(dump, total)))


def _slots(values: NDArray[np.float64]) -> NDArray[np.complex128]:
    """Pack two numbers to a slot, (parts, 4096)."""
    padded = np.zeros(-(-values.size // 8192) * 8192)
    padded[: values.size] = values
    return padded.view(np.complex128).reshape(-1, 4096)


def _plus(ciphertext: sealapi.Ciphertext, slots: NDArray[np.complex128], scale: float) -> sealapi.Ciphertext:
    plaintext = sealapi.Plaintext()
    sealapi.CKKSEncoder(context()).encode(slots.tolist(), ciphertext.parms_id(), scale, plaintext)
    sealapi.Evaluator(context()).add_plain_inplace(ciphertext, plaintext)
    return ciphertext


SITES = 4
GRID = 1.0 / 32.0
"""Step of a pooled pixel's values, which bounds of questions lie between."""
_SLOPE = 20.0
_SCALE = 1e-3
"""Length of crafted features: gradients of short features move no parameter by much."""
Float = NDArray[np.float64]
Answers = dict[tuple[int, str], NDArray[np.bool_]]
"""One answer for each class (K,), by round and site."""


@dataclass(frozen=True)
class Question:
    """Question whether a pooled pixel of a record exceeds a bound."""

    pixel: int
    bound: float


def dying(question: Question, channels: int = 1) -> Float:
    """Return a model whose features are x − bound, less a little, in some channels if the answer is yes, else zeros."""
    first, second = _dead_layers()
    left = np.arange(channels)
    first[0][left, question.pixel], first[1][left] = _SLOPE, -_SLOPE * question.bound
    second[0][left, left], second[1][left] = 1.0, -_SLOPE * GRID / 4.0  # a margin for what training moves
    return _model(first, second)


def turning(question: Question) -> Float:
    """Return a model whose features are (1, 0, …) where the answer is no, else (0, 1, pixels of the record)."""
    first, second = _dead_layers()
    step = _SLOPE * GRID / 2.0
    first[0][:2, question.pixel] = _SLOPE
    first[1][:2] = -_SLOPE * question.bound, -_SLOPE * question.bound - step
    others = np.arange(2, DIM)
    first[0][others, others], first[1][others] = 1.0, 1.5  # pixels are from -1 to 1
    gate = np.array([1.0, -1.0]) / step  # of the first two units: 0 for no, 1 for yes
    second[0][0, :2], second[1][0] = -_SCALE * gate, _SCALE
    second[0][1, :2], second[1][1] = _SCALE * gate, 0.0
    second[0][2:, :2], second[1][2:] = 3.0 * _SCALE * gate, -3.0 * _SCALE
    second[0][others, others] = _SCALE
    return _model(first, second)


def _dead_layers() -> tuple[tuple[Float, Float], tuple[Float, Float]]:
    """Return weights and biases of two layers without a unit alive."""
    return (np.zeros((DIM, PIXELS)), np.full(DIM, -1.0)), (np.zeros((DIM, DIM)), np.full(DIM, -1.0))


def _model(first: tuple[Float, Float], second: tuple[Float, Float]) -> Float:
    classifier = np.zeros(CLASSES * DIM + CLASSES)
    return np.concatenate([part.ravel() for part in (*first, *second)] + [classifier])


@dataclass(frozen=True)
class Questioned:
    """A run that was asked, its questions by round, its sites' data, and the centres that the coordinator opened.

    ``opened`` has, by round, the rows (G, d) and classes (G,) of the clusters' means.
    """

    transcript: Transcript
    questions: Mapping[int, Question]
    data: Mapping[str, SiteData]
    opened: Mapping[int, tuple[Float, Float]]

    @property
    def truth(self) -> Answers:
        """True answers."""
        return {
            (number, site): largest_pixels(data, question.pixel) > question.bound
            for number, question in self.questions.items()
            for site, data in self.data.items()
        }

    @property
    def stated(self) -> Answers:
        """Classes that sites stated."""
        return {
            at: codec.decode_presence(content, limits_of(self.transcript.agreement)).holds
            for at, content in self._received(Phase.PRESENCE).items()
        }

    @property
    def directions(self) -> dict[tuple[int, str], tuple[Float, Float]]:
        """Rotated directions (M, d) and their classes (M,)."""
        agreement = self.transcript.agreement
        limits, form = limits_of(agreement), directions_shape(agreement)
        found = {}
        for at, content in self._received(Phase.DIRECTIONS).items():
            rows, classes = codec.decode_payload(content, limits, form).arrays
            found[at] = rows, classes
        return found

    def _received(self, phase: Phase) -> dict[tuple[int, str], bytes]:
        return {
            (message.key.round, message.site): message.content
            for message in self.transcript.received
            if message.key is not None and message.key.phase is phase and message.key.round in self.questions
        }


def ask(
    folder: Path,
    patch: pytest.MonkeyPatch,
    craft: Callable[[Question], Float],
    questions: Mapping[int, Question],
    method: Method = Method.FEDPLCC,
) -> Questioned:
    """Run four sites with all classes under ``masked``. A question's round is the one in which sites answer it.

    The learning rate is so small that crafted models stay, as they do where training fails and is undone.
    """
    agreement = agreed(Protection.MASKED, max(questions), method, lr=1e-4)
    data = data_for(agreement, np.ones((SITES, CLASSES), dtype=np.bool_))
    combine, opened = Aggregator.combine, dict[int, tuple[Float, Float]]()

    def crafted(aggregator: Aggregator, attempt: Attempt) -> Outcome:
        outcome = combine(aggregator, attempt)
        if not outcome.results:  # round 0
            return outcome
        opened[attempt.key.round] = _centres(agreement, next(iter(outcome.results.values())))
        question = questions.get(attempt.key.round + 1)
        if question is None:
            return outcome
        results = {
            site: _with_model(agreement, payload, craft(question))
            for site, payload in outcome.results.items()
        }
        return replace(outcome, results=results)

    with patch.context() as inside:
        inside.setattr(Aggregator, "combine", crafted)
        run = record_cluster_run if agreement.clusters else record_run
        return Questioned(run(agreement, data, folder), questions, data, opened)


def _centres(agreement: Agreement, result: Payload) -> tuple[Float, Float]:
    """Return the rows (G, d) and classes (G,) of a result, which is the coordinator's own computation."""
    if agreement.clusters:
        return result.arrays[0], result.arrays[1]
    rows = result.arrays[0][: CLASSES * DIM].reshape(CLASSES, DIM)
    return rows, np.arange(CLASSES, dtype=np.float64)


def _with_model(agreement: Agreement, result: Payload, model: Float) -> Payload:
    """Return a result with this model and prototypes of zeros."""
    averaged = model[: agreement.averaging.parameters]
    if agreement.clusters:
        rows, classes, weights, _ = result.arrays
        return replace(result, arrays=(np.zeros_like(rows), classes, weights, averaged))
    return replace(result, arrays=(np.concatenate([np.zeros(CLASSES * DIM), averaged]), result.arrays[1]))


def pooled(data: SiteData) -> tuple[Float, NDArray[np.int64]]:
    """Return the pooled pixels (N, 16) of a site's training records, and their labels."""
    records: Any = data.train
    images, labels = zip(*[(image, int(label)) for image, label in records], strict=True)
    pixels = torch.nn.AvgPool2d(2)(torch.stack([torch.as_tensor(image) for image in images]))
    return pixels.flatten(1).double().numpy(), np.array(labels)


def largest_pixels(data: SiteData, pixel: int) -> Float:
    """Return the largest value of a pixel in each class (K,)."""
    pixels, labels = pooled(data)
    return np.array([pixels[labels == k, pixel].max() for k in range(CLASSES)])


def question_for_one_site(data: Mapping[str, SiteData], k: int) -> Question:
    """Return a question to which one site alone answers yes for class ``k``."""
    for pixel in range(PIXELS):
        *_, second, first = sorted(largest_pixels(each, pixel)[k] for each in data.values())
        if first - second > 0.9 * GRID:
            return Question(pixel, float(second) + GRID / 2.0)
    raise ValueError(f"no pixel of class {k} is largest at one site alone")


def question_for_half(data: Mapping[str, SiteData], pixel: int) -> Question:
    """Return a question about a pixel to which half of all sites and classes answer yes, or nearly half."""
    largest = np.sort(np.concatenate([largest_pixels(each, pixel) for each in data.values()]))
    return Question(pixel, float(largest[len(largest) // 2 - 1]) + GRID / 2.0)
