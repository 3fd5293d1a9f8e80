"""Evaluation of a site's model on the site's test data; the results stay at the site."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agreement import Inference
from algorithms import inference, metrics
from algorithms.losses import Outputs
from algorithms.prototypes import Guide
from secure_client.models.prototype_model import PrototypeModel, compute_outputs
from secure_client.training.batches import BatchSource, batch_in_order

EVALUATION_BATCH = 256
"""Number of records that are computed together."""


@dataclass(frozen=True)
class Evaluation:
    """Shares of a test set predicted correctly, in [0, 1]; by prototype only once prototypes exist.

    PM(V) and PM(L) are of the classifier, weighted by the classes of the site's training samples (see
    :mod:`algorithms.metrics`); None if the test set has no sample of these classes. Where a method predicts with an
    aggregated model, ``accuracy_trained``, PM(V) and PM(L) are of the classifier as the site trained it last.
    ``by_classifier`` and ``by_prototype`` are shares of each class, None for a class without test samples;
    ``by_prototype`` is empty without prototypes. ``samples`` is the size of the test set, and ``constant`` the share of
    its most frequent class: the accuracy of a model that always answers this class.
    """

    accuracy_classifier: float
    accuracy_prototype: float | None
    pm_v: float | None
    pm_l: float | None
    accuracy_trained: float | None = None
    by_classifier: tuple[float | None, ...] = ()
    by_prototype: tuple[float | None, ...] = ()
    samples: int | None = None
    constant: float | None = None

    def accuracy_by(self, inference: Inference) -> float | None:
        """Return the accuracy by this inference; None by prototype where no class has one."""
        return self.accuracy_prototype if inference is Inference.PROTOTYPE else self.accuracy_classifier

    def shares_by(self, inference: Inference) -> tuple[float | None, ...]:
        """Return the shares of each class by this inference; none by prototype where no class has one."""
        return self.by_prototype if inference is Inference.PROTOTYPE else self.by_classifier


def evaluate(
    model: PrototypeModel, source: BatchSource, prototypes: Guide | None, trained_on: NDArray[np.int64]
) -> Evaluation:
    """Return the evaluation of ``model`` by its classifier and, where there are ``prototypes``, by the nearest one.

    ``trained_on`` int64 (K,) are the training samples of each class. ``prototypes`` are on the source's device.
    """
    # One pass for both predictions, so that they are of the same features.
    predicted, nearest, labels = [], [], []
    for outputs, batch_labels in evaluate_outputs(model, source):
        predicted.append(outputs.logits.argmax(dim=1).cpu())
        labels.append(batch_labels.cpu())
        if prototypes is not None:
            nearest.append(inference.by_prototype(outputs, prototypes).cpu())
    return evaluation_of(
        torch.cat(predicted).numpy(),
        torch.cat(nearest).numpy() if nearest else None,
        torch.cat(labels).numpy(),
        trained_on,
    )


def evaluation_of(
    predicted: NDArray[np.int64],
    nearest: NDArray[np.int64] | None,
    labels: NDArray[np.int64],
    trained_on: NDArray[np.int64],
) -> Evaluation:
    """Return the evaluation of predictions by classifier (N,), and by prototype if there are any, of ``labels`` (N,).

    ``trained_on`` int64 (K,) are the training samples of each class.
    """
    classes, total = len(trained_on), len(labels)
    correct, counts = metrics.per_class(predicted, labels, classes)
    by_prototype: tuple[float | None, ...] = ()
    accuracy_prototype = None  # before the first prototypes, and under noisy counts that leave no class
    if nearest is not None:
        near_correct, _ = metrics.per_class(nearest, labels, classes)
        accuracy_prototype = int(near_correct.sum()) / total
        by_prototype = _share_per_class(near_correct, counts)
    return Evaluation(
        accuracy_classifier=int(correct.sum()) / total,
        accuracy_prototype=accuracy_prototype,
        by_classifier=_share_per_class(correct, counts),
        by_prototype=by_prototype,
        pm_v=metrics.pm_v(correct, counts, trained_on),
        pm_l=metrics.pm_l(correct, counts, trained_on),
        samples=total,
        constant=int(counts.max()) / total,
    )


def evaluate_outputs(model: PrototypeModel, source: BatchSource) -> Iterator[tuple[Outputs, Tensor]]:
    """Yield (outputs, labels) over a whole source, in ``eval()`` mode and without gradients."""
    model.eval()
    for inputs, labels in source.batches(batch_in_order(len(source), EVALUATION_BATCH)):
        with torch.no_grad():
            outputs = compute_outputs(model, inputs)
        yield outputs, labels


def _share_per_class(correct: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[float | None, ...]:
    """Return the accuracy of each class, from (K,) correct samples and all; None for a class without samples."""
    return tuple(
        right / count if count else None
        for right, count in zip(correct.tolist(), counts.tolist(), strict=True)
    )
