"""Evaluation of a site's model on the site's test data; the results stay at the site."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreement import Inference


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


def share_per_class(right: NDArray[np.int64], counts: NDArray[np.int64]) -> tuple[float | None, ...]:
    """Return the accuracy of each class, from (K,) samples and correct ones; None for a class without samples."""
    return tuple(
        one / count if count else None for one, count in zip(right.tolist(), counts.tolist(), strict=True)
    )
