"""Time of training as an answer: from when PRESENCE comes, a coordinator without a key reads a site's sealed parameter.

FedPC under ``ckks``. The coordinator returns the victim's upload, once for each site, plus constants. Where the sealed
parameter is above a bound of the coordinator's choice, the sites' next training overflows. Training that ended there
took a fraction of the time; training that takes all its steps answers nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tenseal import sealapi
from torch import nn

from agreement import Agreement, AveragingSection, FedpcSection, Method, Protection
from crypto.ckks.parameters import context
from crypto.ckks.serialization import dump, read_payload
from crypto.ckks.sums import SummingServer
from crypto.protection import Payload
from protoseal_wire.messages import Phase, PhaseKey, Work
from secure_client.models.prototype_model import SplitModel
from secure_client.training.averaged_parameters import AveragedPart
from secure_client.training.job import Job, Losses
from secure_client.training.loop import run_job
from tests.conformance.federations import data_for, grouped_agreement
from tests.conformance.transcripts import Tap, Transcript, record_into
from tests.support.small import short_training

_SITES, _CLASSES, _DIM = 4, 3, 64
_PIXELS, _WIDTH, _LAYERS = 16, 64, 12
_UNIT = 3
_SEALED = _PIXELS * _WIDTH + _WIDTH + _WIDTH * _WIDTH + _UNIT
"""Place of the sealed parameter in the extractor: a bias of the second layer."""
_PUSH, _GAIN = 50.0, 55.0
"""Constants near the bound of a parameter: a bias that silences a unit, and weights that multiply what is left."""
_STEP = 0.02
_ALIKE = 2.0
"""Ratio of times that the noise of a busy machine does not reach."""
Floats = NDArray[np.float64]


def build(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Build a deep model, in which one surviving unit grows from layer to layer."""
    layers: list[nn.Module] = [nn.AvgPool2d(2), nn.Flatten(), nn.Linear(_PIXELS, _WIDTH), nn.ReLU()]
    for _ in range(_LAYERS - 2):
        layers += [nn.Linear(_WIDTH, _WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(_WIDTH, dim), nn.ReLU()), nn.Linear(dim, num_classes)


def agreed() -> Agreement:
    sizes = AveragedPart(SplitModel(*build(_CLASSES, _DIM)), Method.FEDPC.traits.averaged).sizes
    agreement = grouped_agreement(
        Protection.CKKS, method=Method.FEDPC, classes=_CLASSES, dim=_DIM, rounds=2, norm_bound=40.0
    )
    changes = {
        "averaging": AveragingSection(parameters=sizes[0], buffers=sizes[1]),
        "fedpc": FedpcSection(groups=1),
        "training": short_training(
            "tests.adversary.test_training_time:build", batch_size=6, lr=0.01, local_epochs=40
        ),
    }
    return Agreement.model_validate({**dict(agreement), **changes})


def constants(bound: float) -> Floats:
    """Return what is added to the extractor: it overflows if the sealed bias is above ``bound``."""
    parts = []
    for layer in range(_LAYERS):
        inputs = _PIXELS if layer == 0 else _WIDTH
        outputs = _DIM if layer == _LAYERS - 1 else _WIDTH
        weights, biases = np.zeros((outputs, inputs)), np.full(outputs, -0.5)
        if layer < 2:
            biases[:] = -_PUSH
        else:
            weights[:] = _GAIN
        if layer == 1:
            biases[_UNIT] = -bound
        parts += [weights.ravel(), biases]
    return np.concatenate(parts)


def forged(agreement: Agreement, server: SummingServer, total: Payload, bound: float) -> Payload:
    """Return ``total`` plus constants; no key is used."""
    form = server._layout
    values, first = np.zeros(form.vector.length), _CLASSES * _DIM
    values[first : first + agreement.averaging.parameters] = constants(bound) * _SITES
    scaled = values / form.vector.bounds
    padded = np.zeros(-(-scaled.size // 8192) * 8192)
    padded[: scaled.size] = scaled
    rows = padded.view(np.complex128).reshape(-1, 4096)
    changed = [
        dump(_plus(each, row, form.answers[0].scale))
        for each, row in zip(read_payload(total, form.answers), rows, strict=True)
    ]
    return Payload(total.scheme, blobs=tuple(changed))


def _plus(ciphertext: Any, slots: NDArray[np.complex128], scale: float) -> Any:
    plain = sealapi.Plaintext()
    sealapi.CKKSEncoder(context()).encode(slots.tolist(), ciphertext.parms_id(), scale, plain)
    sealapi.Evaluator(context()).add_plain_inplace(ciphertext, plain)
    return ciphertext


class Watched(Tap):
    """A site's calls, with the processor's time from a request to its answer."""

    def download(self, work: Work) -> bytes:
        """See :class:`Tap`, here and below."""
        content = super().download(work)
        self._began = time.thread_time()
        return content

    def upload(self, key: PhaseKey, content: bytes) -> None:
        if key.phase is Phase.PRESENCE and key.round == 2:
            self._book.seconds.append(time.thread_time() - self._began)  # type: ignore[attr-defined]
        super().upload(key, content)


def play(folder: Path, bound: float) -> tuple[Transcript, float]:
    """Return a whole run with a forged result of the first round, and the sites' median time to the second PRESENCE."""
    agreement, calls = agreed(), 0
    transcript = Transcript(agreement)
    transcript.seconds = []  # type: ignore[attr-defined]
    add = SummingServer.add

    def forge(server: SummingServer, payloads: Iterable[Payload]) -> Payload:
        nonlocal calls
        calls += 1
        # The leader's request of the first round is made twice: to announce it, and to send it.
        if calls > 2:
            return add(server, payloads)
        victim, *_ = payloads
        return forged(agreement, server, add(server, [victim] * _SITES), bound)

    data = data_for(agreement, np.ones((_SITES, _CLASSES), dtype=np.bool_))
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SummingServer, "add", forge)
        record_into(transcript, Watched, data, folder)
    return transcript, median(transcript.seconds)  # type: ignore[attr-defined]


def times(folder: Path) -> tuple[float, float]:
    """Return the times if the sealed parameter is above the coordinator's bound, and if it is below."""
    transcript, _ = play(folder / "first", 10.0)
    sealed = float(transcript.put[1, 1, min(site for _, _, site in transcript.put)].averaged[_SEALED])
    _, above = play(folder / "above", sealed - _STEP)
    _, below = play(folder / "below", sealed + _STEP)
    return above, below


@pytest.mark.full
def test_time_of_training_does_not_tell_a_sealed_parameter(tmp_path: Path) -> None:
    above, below = times(tmp_path)
    assert 1 / _ALIKE < above / below < _ALIKE


@pytest.mark.full
def test_time_of_training_that_ends_when_it_diverges_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secure_client.checkpoints.checkpointed_learner.run_job", _until_it_diverges(run_job))
    above, below = times(tmp_path)
    assert above < below / _ALIKE


def _until_it_diverges(run_epochs: Callable[[Job], Losses]) -> Callable[[Job], Losses]:
    """Return a training loop that checks the loss after each epoch."""

    def run_job(job: Job) -> Losses:
        return [run_epochs(replace(job, epochs=1)) for _ in range(job.epochs)][-1]

    return run_job
