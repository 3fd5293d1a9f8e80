"""Membership inference by the Adversarial Robustness Toolbox (ART), beside this project's attack on the same models.

    pip install adversarial-robustness-toolbox
    python -m benchmarks.art_membership

prints the area under the ROC curve of each attack on the sites' uploaded models of a FedAvg run on the bundled digits,
without protection. All attacks have the same members and outsiders, and those with shadow models the same ones.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from art.attacks.inference.membership_inference import (  # type: ignore[import-not-found,unused-ignore]  # not required
    MembershipInferenceBlackBox,
    MembershipInferenceBlackBoxRuleBased,
)
from art.estimators.classification import (  # type: ignore[import-not-found,unused-ignore]  # not required
    PyTorchClassifier,
)

from protoseal.attacks.cases import divide_test_samples
from protoseal.attacks.exchanged_models import load_model, read_models
from protoseal.attacks.model_membership import ModelMembership, Shadows, train_shadows
from protoseal.attacks.prototype_membership import auc
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import LabelledImages, Labels, RecordedRun, Rows, record_run
from protoseal.attacks.update_inversion import Logits
from protoseal.simulation.config import load_simulation
from secure_client.models.prototype_model import PrototypeModel, compute_outputs

_SETTINGS = {
    "method": "fedavg",
    "protection": "plain",
    "split": "iid",
    "sites": 5,
    "rounds": 1,
    "training": {"local_epochs": 20},
}


def areas(run: RecordedRun) -> dict[str, float]:
    """Return the area under the ROC curve of each attack, over the candidates of all sites."""
    shadows = train_shadows(run)
    scores_by_kind = dict[str, list[tuple[Rows, Rows]]]()
    for name, site in run.sites.items():
        uploaded, *_ = read_models(run, Adversary.COORDINATOR, name)
        classifier = _classifier(run, load_model(run, uploaded.vector))
        for kind, attack in (
            ("ART, by rule", MembershipInferenceBlackBoxRuleBased(classifier)),
            ("ART, random forest on shadow models", _forest(classifier, shadows)),
        ):
            scores = [
                _scores(attack, part) for part in (site.train, divide_test_samples(run, name).outsiders)
            ]
            scores_by_kind.setdefault(kind, []).append((scores[0], scores[1]))
    art = {
        kind: auc(*(np.concatenate(part) for part in zip(*pairs, strict=True)))
        for kind, pairs in scores_by_kind.items()
    }
    offline, *_ = ModelMembership().measure(run, Adversary.COORDINATOR)
    return {**art, "offline LiRA of this project": offline.value}


def _forest(classifier: PyTorchClassifier, shadows: Shadows) -> MembershipInferenceBlackBox:
    """Return ART's attack, trained on what shadow models predict for equally many members and others."""
    attack = MembershipInferenceBlackBox(classifier, attack_model_type="rf")
    count = min(sum(map(len, shadows.seen)), sum(map(len, shadows.unseen)))
    (seen, labels), (unseen, other_labels) = (
        _predictions(shadows.models, parts, count) for parts in (shadows.seen, shadows.unseen)
    )
    attack.fit(pred=seen, y=labels, test_pred=unseen, test_y=other_labels)
    return attack


def _predictions(
    models: Sequence[PrototypeModel], parts: Sequence[LabelledImages], count: int
) -> tuple[Rows, Labels]:
    """Return class probabilities (count, K) and labels (count,) of randomly drawn pairs of a model and a sample."""
    with torch.no_grad():
        outputs = [
            torch.softmax(compute_outputs(model, part.inputs).logits, dim=1).numpy()
            for model, part in zip(models, parts, strict=True)
        ]
    chosen = np.random.default_rng(0).permutation(sum(map(len, parts)))[:count]
    return np.concatenate(outputs)[chosen], np.concatenate([part.labels for part in parts])[chosen]


def _classifier(run: RecordedRun, model: PrototypeModel) -> PyTorchClassifier:
    _, *shape = next(iter(run.sites.values())).train.inputs.shape
    return PyTorchClassifier(
        Logits(model).eval(),
        torch.nn.CrossEntropyLoss(),
        tuple(shape),
        len(run.agreement.classes),
        device_type="cpu",
    )


def _scores(attack: Any, candidates: LabelledImages) -> Rows:
    """Return a score (N,) of each candidate, which is higher for those that the attack calls members."""
    inputs, labels = candidates.inputs.numpy(), candidates.labels
    scores = np.asarray(attack.infer(inputs, labels, probabilities=True), dtype=np.float64)
    return scores.reshape(len(labels), -1)[:, -1]


if __name__ == "__main__":
    for attack_name, area in areas(record_run(load_simulation(None, _SETTINGS), 0)).items():
        sys.stdout.write(f"{attack_name}: {area:.3f}\n")
