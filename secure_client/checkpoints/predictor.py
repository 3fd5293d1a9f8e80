"""Predictor of a site: the model and the targets that its method predicts with, to be evaluated and saved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import safetensors.torch

from agreement import Predicts
from agreement.storage.run_files import write_bytes
from algorithms.prototypes import Clusters, Guide, Targets
from secure_client.checkpoints.checkpoints import Base
from secure_client.output.site_files import MODEL, SitePrototypes, write_prototypes
from secure_client.training.evaluation import Evaluation
from secure_client.training.learner import Learner


def deciding_guide(prototypes: SitePrototypes) -> Guide | None:
    """Return the targets for prediction, or None if no class has a prototype. Noisy counts can leave no class."""
    guide = inference_guide(prototypes)
    there = guide.present.any() if isinstance(guide, Targets) else len(guide.labels)
    return guide if there else None


def inference_guide(prototypes: SitePrototypes) -> Guide:
    """Return the guide that classifies samples by prototype: all clusters, if any, else one row a class."""
    if prototypes.clusters is None:
        return Targets.of(*prototypes.for_inference())
    return Clusters.of(*prototypes.clusters_for_inference())


class Predictor:
    """Present model of a site, the ``base`` and ``guide`` of its training, and its prototypes."""

    def __init__(
        self,
        learner: Learner,
        base: Base | None,
        guide: Guide | None,
        prototypes: Callable[[], SitePrototypes],
    ) -> None:
        """Compute ``prototypes`` only where they are needed: a method without them takes a pass over the records."""
        self._learner = learner
        self._guide = guide
        self._prototypes = prototypes
        # A method that predicts with the aggregated model has one from the first result on.
        self._aggregated = (
            None if base is None or learner.predicts is not Predicts.AGGREGATED else base.averaged
        )

    def evaluate(self, test: Callable[[Guide | None], Evaluation | None]) -> Evaluation | None:
        """Run ``test`` with the method's predicting model; personalised accuracies are of the last trained model."""
        is_aggregated, is_frozen = self._aggregated is not None, self._learner.has_initial_features
        # A site's own prototypes belong to the model that it trained and do not fit another model's trained features.
        fits = is_frozen or (
            self._guide is not None and (not is_aggregated or isinstance(self._guide, Clusters))
        )
        guide = deciding_guide(self._prototypes()) if fits else None
        trained = test(guide)
        if trained is None or not is_aggregated:
            return trained
        with self._predicting_model():
            aggregated = test(guide)
        if aggregated is None:
            return None
        return replace(
            aggregated, pm_v=trained.pm_v, pm_l=trained.pm_l, accuracy_trained=trained.accuracy_classifier
        )

    def save(self, out: Path) -> None:
        """Write ``model.safetensors`` and ``prototypes.safetensors``, which ``protoseal predict`` loads."""
        write_prototypes(out, self._prototypes())
        with self._predicting_model():
            write_bytes(out / MODEL, safetensors.torch.save(self._learner.predictor_state()))

    @contextmanager
    def _predicting_model(self) -> Iterator[None]:
        """Give the learner the method's predicting model inside the ``with`` block."""
        if self._aggregated is None:
            yield
            return
        with self._learner.use_averaged(self._aggregated):
            yield
