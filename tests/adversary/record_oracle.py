"""A coordinator that asks, through models of its own making, about single records, and reads the sites' answers.

It returns a model whose first layer compares one pixel of a record with a bound, and clusters of zeros, which move no
feature. A question is whether a site has a training record of a class whose pixel exceeds the bound; each round asks
it of every site and class at once.
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

from agreement import Agreement, Method, Protection
from agreement.derived.payload_shapes import directions_shape, limits_of
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.data import SiteData
from secure_server.aggregator import Aggregator
from secure_server.exchanges.exchange import Attempt, Outcome
from tests.adversary.presence_oracle import CLASSES, DIM, PIXELS, agreed
from tests.conformance.federations import data_for
from tests.conformance.transcripts import Transcript, record_cluster_run, record_run

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
