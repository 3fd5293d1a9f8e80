"""A coordinator that asks, through an encrypted sum, whether a number that is sealed in it is beyond a bound.

To the sum of models it adds constants, for which it needs no key: the biases of both hidden layers become so small
that no feature is above zero, but for one unit's, which becomes what it was, less the bound. So in the next round
features are all zero, or all point one way, and nothing that a site trains changes that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tenseal import sealapi
from torch import nn

from agreement import Agreement, AveragingSection, MaskingSection, Method, Protection
from algorithms.fedplcc import has_direction
from crypto.ckks.parameters import context
from crypto.ckks.serialization import dump, read_payload
from crypto.ckks.sums import SummingServer
from crypto.protection import Payload
from secure_client.checkpoints.checkpoints import TrainedValues
from secure_client.models.prototype_model import SplitModel
from secure_client.training.averaged_parameters import AveragedPart
from tests.conformance.federations import data_for, grouped_agreement
from tests.conformance.transcripts import ClusterTranscript, record_cluster_run
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
            "training": short_training("tests.adversary.presence_oracle:build", batch_size=6, lr=lr),
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
    form, layout = server._form, agreed().layout
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
