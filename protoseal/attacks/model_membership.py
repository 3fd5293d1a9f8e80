"""Membership inference on exchanged models: a score of each record that says whether it trained the model.

*Offline LiRA* (Carlini et al. 2022, section VI): the logit of a model's confidence in the candidate's label, less its
mean over *shadow models* that never saw the candidate, divided by their deviation. Shadow models are trained on the
adversary's public samples, by the run's own recipe, as long as the run trained. Where only the extractor is exchanged,
a linear discriminant on features of public samples, which no extractor has seen, stands for the classifier.

The interval is over sites, or over classes at sites where sites are few.

Limit: the shadow models train alone, without the federation's targets and averages, and are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch.utils.data import TensorDataset

from agreement import Agreement, ModelPart
from protoseal.attacks.cases import FEWEST_CLUSTERS, Case, Measurement, divide_test_samples
from protoseal.attacks.exchanged_models import ExchangedModel, load_model, read_models
from protoseal.attacks.prototype_membership import Scores, measure_scores
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import LabelledImages, RecordedRun, Rows, compute_features
from secure_client.checkpoints.learner_factory import build_learner
from secure_client.data import SiteData
from secure_client.models.prototype_model import PrototypeModel, compute_outputs

SHADOWS = 8
"""Shadow models of a run."""
_BATCH, _SHRINKAGE, _LEAST = 256, 0.1, -40.0


@dataclass(frozen=True)
class Shadows:
    """Shadow models of a run, and for each the public samples that it was trained on, and those that it did not see."""

    models: Sequence[PrototypeModel] = field(repr=False)
    seen: Sequence[LabelledImages] = field(repr=False)
    unseen: Sequence[LabelledImages] = field(repr=False)


class ModelMembership(Case):
    """Case of membership inference from exchanged models or extractors, by offline LiRA."""

    attack = "membership inference on exchanged models"
    metric = "area under the ROC curve"
    chance, margin = 0.5, 0.05
    question = "Can the adversary tell from a model whether a given record trained it?"
    ability = "tell from a model whether a given record trained it"
    not_covered = (
        "Records that the adversary chose or planted, attacks with hundreds of shadow models, and what all rounds'"
        " models tell together."
    )

    def __init__(self) -> None:
        self._last: tuple[str, Shadows] | None = None

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:
        """Score every site's training samples and outsiders under each model that the adversary reads."""
        by_reading: dict[str, list[Scores]] = {}
        for victim in run.sites:
            for read in read_models(run, adversary, victim):
                by_reading.setdefault(read.reading, []).extend(self._scores(run, victim, read))
        return [measure_scores(reading, scores) for reading, scores in by_reading.items()]

    def _scores(self, run: RecordedRun, victim: str, read: ExchangedModel) -> list[Scores]:
        """Return the scores of the victim's members (m,) and outsiders (n,), in the parts that are resampled."""
        shadows, target = self._shadows(run), load_model(run, read.vector)
        parts = run.sites[victim].train, divide_test_samples(run, victim).outsiders
        scores = [_standardise(run.agreement, target, shadows, part) for part in parts]
        return _split_by_class(run, victim, scores)

    def _shadows(self, run: RecordedRun) -> Shadows:
        """Return the shadow models of a run, which another protection leaves as they are."""
        training = f"{run.seed} {run.config.model_dump_json(exclude={'protection', 'out'})}"
        if self._last is None or self._last[0] != training:
            self._last = training, train_shadows(run)
        return self._last[1]


def common_public(run: RecordedRun) -> LabelledImages:
    """Return the public samples that are no outsiders of any site, so that no shadow model saw a candidate."""
    parts = [divide_test_samples(run, name).public for name in run.sites]
    contents = [[image.numpy().tobytes() for image in part.inputs] for part in parts]
    # A shadow model that saw a candidate would make an outsider look like a member.
    shared = reduce(set.__and__, map(set, contents))
    return parts[0].take(
        np.array([i for i, content in enumerate(contents[0]) if content in shared], dtype=np.int64)
    )


def train_shadows(run: RecordedRun) -> Shadows:
    """Train shadow models, each on a random part of the public samples, of a site's size if there are as many."""
    public, rng = common_public(run), np.random.default_rng(0)
    # Where only the extractor is exchanged, the public samples that a shadow did not see train its classifier.
    share = 0.5 if run.agreement.method.traits.averaged is ModelPart.EXTRACTOR else 0.9
    size = min(int(share * len(public)), max(len(site.train) for site in run.sites.values()))
    orders = [rng.permutation(len(public)) for _ in range(SHADOWS)]
    seen = [public.take(order[:size]) for order in orders]
    models = [_train_shadow(run, part, i) for i, part in enumerate(seen)]
    return Shadows(models, seen, [public.take(order[size:]) for order in orders])


def _train_shadow(run: RecordedRun, samples: LabelledImages, number: int) -> PrototypeModel:
    """Return a model trained by the run's recipe and schedule on samples of the adversary's."""
    agreement = run.agreement
    data = SiteData(TensorDataset(samples.inputs, torch.from_numpy(samples.labels)), None)
    learner = build_learner(
        agreement,
        f"shadow-{number}",
        data,
        model=agreement.training.model,
        device="cpu",
        pretrained=run.config.pretrained,
    )
    for round_number in range(1, agreement.rounds + 1):
        learner.train(round_number, None)
    return load_model(run, learner.averaged_vector())


def _standardise(
    agreement: Agreement, target: PrototypeModel, shadows: Shadows, candidates: LabelledImages
) -> Rows:
    """Return each candidate's confidence (N,) less the shadow models', divided by 1 and their deviation together."""
    pairs = list(zip(shadows.models, shadows.unseen, strict=True))
    own = np.array([_measure_confidence(agreement, target, unseen, candidates) for _, unseen in pairs])
    out = np.array([_measure_confidence(agreement, model, unseen, candidates) for model, unseen in pairs])
    # Few shadow models can agree by luck: without the 1, their small deviation would magnify noise.
    return np.asarray((own - out).mean(axis=0) / (1.0 + out.std(axis=0)))


def _measure_confidence(
    agreement: Agreement, model: PrototypeModel, public: LabelledImages, candidates: LabelledImages
) -> Rows:
    """Return log p − log(1 − p) (N,) for p, the probability of each candidate's own label."""
    logs = np.full((len(candidates), len(agreement.classes)), _LEAST)
    if agreement.method.traits.averaged is ModelPart.EXTRACTOR:
        # The classifier stays at its site; a discriminant on samples that no extractor saw stands for it.
        head = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=_SHRINKAGE)
        head.fit(compute_features(model, public.inputs), public.labels)
        logs[:, head.classes_] = head.predict_log_proba(compute_features(model, candidates.inputs))
    else:
        with torch.no_grad():
            parts = [compute_outputs(model, part).logits for part in torch.split(candidates.inputs, _BATCH)]
        logs = torch.log_softmax(torch.cat(parts).double(), dim=1).numpy()
    # The logit is near Gaussian, where the probability piles up at 1 (Carlini et al. 2022, figure 4).
    own = np.nan_to_num(logs[np.arange(len(candidates)), candidates.labels], nan=_LEAST).clip(_LEAST, -1e-12)
    return np.asarray(own - np.log(-np.expm1(own)))


def _split_by_class(run: RecordedRun, victim: str, scores: Sequence[Rows]) -> list[Scores]:
    """Divide scores of the victim's members and outsiders by class, or not if the sites alone make an interval."""
    if len(run.sites) >= FEWEST_CLUSTERS:
        return [Scores(*scores)]
    labels = run.sites[victim].train.labels, divide_test_samples(run, victim).outsiders.labels
    classes = range(len(run.agreement.classes))
    parts = [Scores(scores[0][labels[0] == k], scores[1][labels[1] == k]) for k in classes]
    return [part for part in parts if len(part.members) and len(part.outsiders)]
