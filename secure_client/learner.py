"""A site's training round by round: model, data, objective and schedule. No transport, no protection."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from algorithms.pfpl.objective import Terms
from algorithms.prototypes import Targets, class_means, nearest_prototype
from secure_client.batches import Source, in_order, open_source, split
from secure_client.data import SiteData
from secure_client.errors import DataError, DeviceError, ModelError, TrainingError
from secure_client.models import PrototypeModel, check_model

EVALUATION_BATCH = 256

BatchLoss = Callable[[Tensor, Tensor, Tensor, Targets | None], Terms]
"""(features (B, d), logits (B, K), labels (B,), targets) to the batch's loss and its parts."""


@dataclass(frozen=True)
class Schedule:
    """SGD's settings, the same in every round. Raises ``ValueError`` for a value out of its range."""

    lr: float
    momentum: float
    weight_decay: float
    batch_size: int
    local_epochs: int

    def __post_init__(self) -> None:
        in_range = {
            "lr is above 0": self.lr > 0.0,
            "momentum is in [0, 1)": 0.0 <= self.momentum < 1.0,
            "weight_decay is at least 0": self.weight_decay >= 0.0,
            "batch_size is at least 1": self.batch_size >= 1,
            "local_epochs is at least 1": self.local_epochs >= 1,
        }
        for rule, holds in in_range.items():
            if not holds:
                raise ValueError(f"in the schedule, {rule}")


@dataclass(frozen=True)
class Losses:
    """Means over the batches of a round's last local epoch."""

    total: float
    classification: float
    alignment: float


@dataclass(frozen=True)
class Evaluation:
    """Shares of the test set predicted rightly, in [0, 1]; by prototype only once there are prototypes."""

    accuracy_classifier: float
    accuracy_prototype: float | None


def choose_device(name: str) -> torch.device:
    """``auto`` is the GPU when CUDA has one, else the CPU; anything else is torch's own name for a device.

    Raises :class:`DeviceError` for a name torch does not know or a GPU that is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was compiled with CUDA
        reason = str(error).splitlines()[0]
        raise DeviceError(f"device {name!r} cannot be used ({reason}); use auto, cpu or cuda:N") from error
    return device


class Learner:
    """One site's model and data, and what a round does with them.

    A round's result depends on the model, the targets, and (seed, site, round) alone: optimiser state does
    not outlive a round, and shuffling and dropout draw from a generator seeded by the three. So a site that
    was restarted and loaded its model trains as if it had not been, bit for bit on a CPU; on a GPU up to
    the order of its sums. The last batch of one sample joins the one before when the model has batch
    normalisation.
    """

    def __init__(
        self,
        model: PrototypeModel,
        data: SiteData,
        objective: BatchLoss,
        schedule: Schedule,
        *,
        site: str,
        seed: int,
        classes: int,
        dim: int,
        device: torch.device,
    ) -> None:
        """Move model and data to ``device`` and try one batch.

        Raises :class:`ModelError` when the model's outputs are not (B, d) and (B, K), :class:`DataError`
        for an empty data set or labels outside [0, K), :class:`TrainingError` when batch normalisation
        would have to train on single samples.
        """
        self._model = model.to(device)
        self._objective, self._schedule = objective, schedule
        self._site, self._seed = site, seed
        self._classes, self._dim = classes, dim
        self._device = device
        self._train = open_source(data.train, device)
        self._test = None if data.test is None else open_source(data.test, device)
        self._has_batch_norm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
        self._check()

    def train(self, round_number: int, targets: Targets | None) -> Losses:
        """The local epochs of a round, by a fresh SGD; without targets the objective has no alignment.

        Raises :class:`TrainingError` when the loss is not finite.
        """
        on_device = None if targets is None else targets.to(self._device)
        optimiser = torch.optim.SGD(
            self._model.parameters(),
            lr=self._schedule.lr,
            momentum=self._schedule.momentum,
            weight_decay=self._schedule.weight_decay,
        )
        self._model.train()
        with _seeded(self._device, self._seed, self._site, round_number):
            for _ in range(self._schedule.local_epochs):
                losses = self._epoch(optimiser, on_device)
                _check_finite(losses, self._schedule.lr)
        return losses

    def prototypes(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Class means of the features, float64 (K, d), and samples per class, int64 (K,).

        In ``eval()`` mode over the whole training set. Rows of classes without samples are zero. Neither is
        protected: both are this site's secrets.
        """
        embedded = ((features, labels) for features, _, labels in self._outputs(self._train))
        means, counts = class_means(embedded, self._classes, self._dim)
        return means.numpy(), counts.numpy()

    def evaluate(self, prototypes: Targets | None) -> Evaluation | None:
        """Accuracy on the test set, by classifier and by nearest prototype; None without a test set."""
        if self._test is None:
            return None
        near = None if prototypes is None else prototypes.to(self._device)
        by_classifier = by_prototype = 0
        for features, logits, labels in self._outputs(self._test):
            by_classifier += int((logits.argmax(dim=1) == labels).sum())
            if near is not None:
                by_prototype += int((nearest_prototype(features, near) == labels).sum())
        total = len(self._test)
        return Evaluation(by_classifier / total, None if near is None else by_prototype / total)

    def state(self) -> dict[str, Tensor]:
        """A copy of the model's parameters and buffers, on the CPU."""
        return {name: value.detach().cpu().clone() for name, value in self._model.state_dict().items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state; :class:`ModelError` when it is another model's."""
        try:
            self._model.load_state_dict(state)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"the stored model does not fit the configured one: {reason}") from error

    def _epoch(self, optimiser: torch.optim.Optimizer, targets: Targets | None) -> Losses:
        """One pass over the training set; losses stay on the device until it ends."""
        order = torch.randperm(len(self._train)).tolist()
        groups = split(order, self._schedule.batch_size, join_single=self._has_batch_norm)
        sums = torch.zeros(3, device=self._device)
        for inputs, labels in self._train.batches(groups):
            features = self._model.features(inputs)
            terms = self._objective(features, self._model.classifier(features), labels, targets)
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(terms.total)
            optimiser.step()
            sums += torch.stack(terms).detach()
        return Losses(*(sums / len(groups)).tolist())

    def _outputs(self, source: Source) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(features, logits, labels) over a whole source, in ``eval()`` mode and without gradients."""
        self._model.eval()
        for inputs, labels in source.batches(in_order(len(source), EVALUATION_BATCH)):
            with torch.no_grad():
                features = self._model.features(inputs)
                logits = self._model.classifier(features)
            yield features, logits, labels

    def _check(self) -> None:
        inputs, _ = next(self._train.batches([[0]]))
        check_model(self._model, inputs, classes=self._classes, dim=self._dim)
        for source in (self._train, self._test):
            if source is not None:
                _check_labels(source, self._classes)
        if self._has_batch_norm and 1 in (self._schedule.batch_size, len(self._train)):
            raise TrainingError(
                "batch normalisation cannot train on single samples; use a batch size of 2 or more"
                " and as many samples, or a model with nn.GroupNorm"
            )


def _check_labels(source: Source, classes: int) -> None:
    for _, labels in source.batches(in_order(len(source), EVALUATION_BATCH)):
        outside = labels[(labels < 0) | (labels >= classes)]
        if len(outside):
            raise DataError(
                f"label {int(outside[0])} is outside the {classes} agreed classes, 0 to {classes - 1}"
            )


def _check_finite(losses: Losses, lr: float) -> None:
    if not np.isfinite(losses.total):
        raise TrainingError(
            f"the training loss is {losses.total}; lower the learning rate (now {lr:g}) or the"
            " alignment weight, and look for extreme values in the data"
        )


@contextmanager
def _seeded(device: torch.device, seed: int, site: str, round_number: int) -> Iterator[None]:
    """torch's generators seeded by all three inside, as they were outside."""
    digest = hashlib.sha256(f"{seed}\0{site}\0{round_number}".encode()).digest()
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(int.from_bytes(digest[:8], "big") % 2**63)
        yield
