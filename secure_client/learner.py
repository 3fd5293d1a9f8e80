"""A site's training round by round: model, data, objective and schedule. No transport, no protection."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from algorithms import metrics
from algorithms.linear import Float
from algorithms.prototypes import Targets, class_means, nearest_prototype
from algorithms.terms import Terms
from protoseal.config import Optimiser
from secure_client.batches import Source, in_order, open_source, split
from secure_client.data import SiteData
from secure_client.errors import DataError, DeviceError, ModelError, TrainingError
from secure_client.extractor import Extractor
from secure_client.models import PrototypeModel, check_model

EVALUATION_BATCH = 256

BatchLoss = Callable[[Tensor, Tensor, Tensor, Targets | None], Terms]
"""(features (B, d), logits (B, K), labels (B,), targets) to the batch's loss and its parts."""


@dataclass(frozen=True)
class Schedule:
    """Local training's settings, the same in every round. Raises ``ValueError`` for a value out of its range.

    ``momentum`` is SGD's; Adam has its own (0.9 and 0.999). ``weight_decay`` is added to the gradient by both.
    """

    lr: float
    momentum: float
    weight_decay: float
    batch_size: int
    local_epochs: int
    optimiser: Optimiser = Optimiser.SGD

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

    def optimise(self, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimiser of these parameters."""
        if self.optimiser is Optimiser.ADAM:
            return torch.optim.Adam(parameters, lr=self.lr, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Losses:
    """Means over the batches of a round's last local epoch."""

    total: float
    classification: float
    alignment: float


@dataclass(frozen=True)
class Evaluation:
    """Shares of a test set predicted rightly, in [0, 1]; by prototype only once there are prototypes.

    PM(V) and PM(L) are of the classifier, weighted by the classes of the site's training samples (see
    :mod:`algorithms.metrics`); None when the test set has no sample of these.
    """

    accuracy_classifier: float
    accuracy_prototype: float | None
    pm_v: float | None
    pm_l: float | None


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
        self._train_counts = self._check()

    def train(self, round_number: int, targets: Targets | None) -> Losses:
        """The local epochs of a round, by a fresh optimiser; without targets the objective has no alignment.

        Raises :class:`TrainingError` when the loss is not finite.
        """
        on_device = None if targets is None else targets.to(self._device)
        optimiser = self._schedule.optimise(self._model.parameters())
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
        """On the site's own test set, by classifier and by nearest prototype; None without a test set."""
        return None if self._test is None else self._evaluated(self._test, prototypes)

    def evaluate_on(self, dataset: Dataset[Any], prototypes: Targets | None) -> Evaluation:
        """The same on another test set. Raises :class:`DataError` for one without samples or with other classes."""
        source = open_source(dataset, self._device)
        _count_labels(source, self._classes)
        return self._evaluated(source, prototypes)

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

    @property
    def site(self) -> str:
        """Whose it is."""
        return self._site

    @property
    def extractor_sizes(self) -> tuple[int, int]:
        """(p, q): the numbers in the parameters and buffers of the model without its classifier."""
        return self._extractor.sizes

    def extractor_state(self) -> NDArray[np.float64]:
        """The model without its classifier, float64 (p + q,); a secret of this site once it has trained."""
        return self._extractor.vector()

    def load_extractor(self, vector: Float) -> None:
        """Take over an extractor, float64 (p + q,), and keep the classifier; see :meth:`Extractor.load`."""
        self._extractor.load(vector)

    @cached_property
    def _extractor(self) -> Extractor:
        return Extractor(self._model)

    def _evaluated(self, source: Source, prototypes: Targets | None) -> Evaluation:
        near = None if prototypes is None else prototypes.to(self._device)
        predicted, labels, by_prototype = [], [], 0
        for features, logits, known in self._outputs(source):
            predicted.append(logits.argmax(dim=1).cpu())
            labels.append(known.cpu())
            if near is not None:
                by_prototype += int((nearest_prototype(features, near) == known).sum())
        correct, counts = metrics.per_class(
            torch.cat(predicted).numpy(), torch.cat(labels).numpy(), self._classes
        )
        total = len(source)
        return Evaluation(
            accuracy_classifier=int(correct.sum()) / total,
            accuracy_prototype=None if near is None else by_prototype / total,
            pm_v=metrics.pm_v(correct, counts, self._train_counts),
            pm_l=metrics.pm_l(correct, counts, self._train_counts),
        )

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

    def _check(self) -> NDArray[np.int64]:
        """What the constructor promises; the training samples of each class, (K,)."""
        inputs, _ = next(self._train.batches([[0]]))
        check_model(self._model, inputs, classes=self._classes, dim=self._dim)
        if self._test is not None:
            _count_labels(self._test, self._classes)
        if self._has_batch_norm and 1 in (self._schedule.batch_size, len(self._train)):
            raise TrainingError(
                "batch normalisation cannot train on single samples; use a batch size of 2 or more"
                " and as many samples, or a model with nn.GroupNorm"
            )
        return _count_labels(self._train, self._classes)


def _count_labels(source: Source, classes: int) -> NDArray[np.int64]:
    """Samples of each class, (K,). Raises :class:`DataError` for a label outside [0, K)."""
    counts = torch.zeros(classes, dtype=torch.int64)
    for _, labels in source.batches(in_order(len(source), EVALUATION_BATCH)):
        outside = labels[(labels < 0) | (labels >= classes)]
        if len(outside):
            raise DataError(
                f"label {int(outside[0])} is outside the {classes} agreed classes, 0 to {classes - 1}"
            )
        counts += torch.bincount(labels.cpu(), minlength=classes)
    return counts.numpy()


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
