"""Predictor of a site: the model and the targets that its method predicts with, to be evaluated and saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.torch
from torch.utils.data import Dataset

from agreement import Predicts
from agreement.storage.run_files import write_bytes
from algorithms.gram_matrix import Float
from algorithms.prototypes import Clusters, Guide, Targets
from secure_client.checkpoints.exchanged_values import ExchangedValues
from secure_client.error_containment import run_or_fallback
from secure_client.errors import DataError
from secure_client.output.site_files import MODEL, SitePrototypes, write_prototypes
from secure_client.training.evaluation import Evaluation
from secure_client.training.learner import Learner


def deciding_guide(prototypes: SitePrototypes) -> Guide | None:
    """Return the targets for prediction, or None if no class has a prototype. Noisy counts can leave no class."""
    guide = inference_guide(prototypes)
    has_any = guide.present.any() if isinstance(guide, Targets) else len(guide.labels)
    return guide if has_any else None


def inference_guide(prototypes: SitePrototypes) -> Guide:
    """Return the guide that classifies samples by prototype: all clusters, if any, else one row a class."""
    if prototypes.clusters is None:
        return Targets.of(*prototypes.for_inference())
    return Clusters.of(*prototypes.clusters_for_inference())


class SiteResults(Protocol):
    """Results that a site has received."""

    @property
    def guide(self) -> Guide | None:
        """Targets of training; None before the first useful result."""
        ...

    @property
    def averaged(self) -> Float | None:
        """Averaged part of the last result, (p + q,); None before the first result."""
        ...


class Predictor:
    """Model and targets that a site's method predicts with: the trained model, or the aggregated one where it says so.

    Results of tests stay at the site.
    """

    def __init__(self, learner: Learner, received: SiteResults, values: ExchangedValues) -> None:
        self._learner = learner
        self._received = received
        self._values = values

    def evaluate(self) -> Evaluation | None:
        """Evaluate on the site's own test set; None without a test set, and if the test fails.

        Accuracy by prototype needs personalised prototypes, or frozen features.
        """
        return run_or_fallback(
            lambda: self._test(self._learner.evaluate), lambda: None, f"{self._learner.site}: the test"
        )

    def evaluate_on(self, dataset: Dataset[Any]) -> Evaluation:
        """Evaluate on another test set than the site's own, which only a simulation has."""
        evaluated = self._test(lambda guide: self._learner.evaluate_on(dataset, guide))
        if evaluated is None:
            raise DataError("the test set is empty")
        return evaluated

    def prototypes(self) -> SitePrototypes:
        """Return this site's own prototypes of the last training, and those that it received; secrets of this site."""
        rows, counts = self._values.rows(), self._values.require_last().counts
        prototypes = SitePrototypes(rows, np.zeros_like(rows), np.zeros(len(rows), dtype=np.bool_), counts)
        match self._received.guide:
            case Targets(personal, present):
                return replace(prototypes, personal=personal.double().numpy(), has_personal=present.numpy())
            case Clusters(centres, labels, weights):
                return prototypes.with_clusters(
                    centres.double().numpy(), labels.numpy(), weights.double().numpy()
                )
            case None:
                return prototypes

    def save(self, out: Path) -> None:
        """Write ``model.safetensors`` and ``prototypes.safetensors``, which ``protoseal predict`` loads."""
        write_prototypes(out, self.prototypes())
        with self._predicting_model():
            write_bytes(out / MODEL, safetensors.torch.save(self._learner.predictor_state()))

    def _test(self, test: Callable[[Guide | None], Evaluation | None]) -> Evaluation | None:
        """Run ``test`` with the method's predicting model; personalised accuracies are of the last trained model."""
        deciding = self.guide()
        trained = test(deciding)
        if trained is None or self.aggregated is None:
            return trained
        with self._predicting_model():
            aggregated = test(deciding)
        return None if aggregated is None else with_trained(aggregated, trained)

    def guide(self) -> Guide | None:
        """Return the prototypes to predict by; None where there are none that fit the model."""
        guide = self._received.guide
        is_aggregated, is_frozen = self.aggregated is not None, self._learner.has_initial_features
        # A site's own prototypes belong to the model that it trained and do not fit another model's trained features.
        fits = is_frozen or (guide is not None and (not is_aggregated or isinstance(guide, Clusters)))
        # Computed only where they fit: a method without prototypes takes a pass over the records for them.
        return deciding_guide(self.prototypes()) if fits else None

    @property
    def aggregated(self) -> Float | None:
        """Averaged part of the last result, where the method predicts with it; a first result must have come."""
        return self._received.averaged if self._learner.predicts is Predicts.AGGREGATED else None

    @contextmanager
    def _predicting_model(self) -> Iterator[None]:
        """Give the learner the method's predicting model inside the ``with`` block."""
        aggregated = self.aggregated
        if aggregated is None:
            yield
            return
        with self._learner.use_averaged(aggregated):
            yield


def with_trained(aggregated: Evaluation, trained: Evaluation) -> Evaluation:
    """Return an aggregated model's evaluation with personalised accuracies of the model as the site trained it last."""
    return replace(
        aggregated, pm_v=trained.pm_v, pm_l=trained.pm_l, accuracy_trained=trained.accuracy_classifier
    )
