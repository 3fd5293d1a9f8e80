"""FedProx, FedRep and Ditto at a site, against loops over batches with every term written in the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from agreement import ModelPart, Optimiser
from agreement.registry.recipe import Recipe, Stage, Trains
from algorithms.method_losses import CrossEntropyLoss
from algorithms.prototypes import Targets
from secure_client.data import SiteData
from secure_client.models.prototype_model import SplitModel, compute_outputs
from secure_client.training import loop as training_loop
from secure_client.training.job import Schedule, training_seed
from secure_client.training.learner import Learner
from secure_client.training.loop import run_job

CLASSES, DIM, BATCH, EPOCHS, LR, MOMENTUM, DECAY = 3, 6, 8, 2, 0.05, 0.9, 1e-3
SITE, SEED = "a", 5
GUIDE = Targets.of(np.full((CLASSES, DIM), 0.5), np.ones(CLASSES, dtype=np.bool_))
"""Targets that methods with cross entropy alone must not read."""

Weights = dict[str, Tensor]
both_optimisers = pytest.mark.parametrize("optimiser", list(Optimiser))


def digits(start: int, stop: int) -> TensorDataset:
    scans = load_digits()
    chosen = np.flatnonzero(scans.target < CLASSES)[start:stop]
    images = torch.tensor(scans.images[chosen] / 16, dtype=torch.float64)
    return TensorDataset(images.flatten(1), torch.tensor(scans.target[chosen]))


TRAIN, TEST = digits(0, 45), digits(45, 100)


def make_model(seed: int = 0) -> SplitModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = nn.Sequential(nn.Linear(64, DIM), nn.GroupNorm(2, DIM), nn.ReLU())
        return SplitModel(backbone, nn.Linear(DIM, CLASSES)).double()


def make_learner(optimiser: Optimiser = Optimiser.SGD, *, seed: int = 0, **recipe: Any) -> Learner:
    return Learner(
        make_model(seed),
        SiteData(TRAIN, TEST),
        Recipe(CrossEntropyLoss(), averages=ModelPart.MODEL, **recipe),
        Schedule(LR, MOMENTUM, DECAY, BATCH, EPOCHS, optimiser),
        site=SITE,
        seed=SEED,
        classes=CLASSES,
        dim=DIM,
        device=torch.device("cpu"),
    )


def by_hand(
    model: nn.Module,
    optimiser: Optimiser,
    *,
    round_number: int = 1,
    stage: int = 0,
    epochs: int = EPOCHS,
    pull: float = 0.0,
    anchor: Mapping[str, Tensor] = {},
    trains: Callable[[str], bool] = lambda name: True,
) -> None:
    """Differentiate cross-entropy and ``pull``/2 times the squared distance to ``anchor`` as one loss."""
    own = {name: each for name, each in model.named_parameters() if trains(name)}
    settings: dict[str, Any] = {"lr": LR, "weight_decay": DECAY}
    if optimiser is Optimiser.SGD:
        steps: torch.optim.Optimizer = torch.optim.SGD(own.values(), momentum=MOMENTUM, **settings)
    else:
        steps = torch.optim.Adam(own.values(), **settings)
    inputs, labels = TRAIN.tensors
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training_seed(SEED, SITE, round_number, stage))
        orders = [torch.randperm(len(labels)) for _ in range(epochs)]
    for chosen in (order[i : i + BATCH] for order in orders for i in range(0, len(order), BATCH)):
        loss = functional.cross_entropy(model(inputs[chosen]), labels[chosen])
        for name, held in anchor.items():
            loss = loss + pull / 2.0 * ((own[name] - held) ** 2).sum()
        steps.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        steps.step()


class Whole(nn.Module):
    """The model as one function of its inputs, with the parameters' own names."""

    def __init__(self, model: SplitModel) -> None:
        super().__init__()
        self.backbone, self.classifier = model.backbone, model.classifier

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.backbone(inputs))
        return logits


def whole(seed: int = 0) -> Whole:
    return Whole(make_model(seed))


def weights(model: nn.Module) -> Weights:
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def furthest(first: Weights, second: Weights) -> float:
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def of(learner: Learner, prefix: str = "") -> Weights:
    """Return a state's entries whose names begin with ``prefix``, without it."""
    state = learner.state()
    return {name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)}


CLOSE, FAR = 1e-9, 1e-3
"""Sums of float64 in another order, through two rounds; what another loss makes of the same batches."""


# FedProx


@both_optimisers
def test_fedprox_is_the_term_in_the_loss(optimiser: Optimiser) -> None:
    """Two rounds; the second starts from, and is pulled to, what was averaged."""
    learner, hand = make_learner(optimiser, proximal=2.0), whole()
    averaged = make_learner(seed=3).averaged_vector()
    for number in (1, 2):
        learner.train(number, GUIDE)
        by_hand(hand, optimiser, round_number=number, pull=2.0, anchor=weights(hand))
        assert furthest(of(learner), weights(hand)) < CLOSE
        learner.load_averaged(averaged)
        hand = whole(seed=3)


@both_optimisers
def test_fedprox_without_the_pull_or_of_another_anchor_differs(optimiser: Optimiser) -> None:
    learner = make_learner(optimiser, proximal=2.0)
    learner.train(1, GUIDE)
    free, elsewhere = whole(), whole()
    by_hand(free, optimiser)
    by_hand(elsewhere, optimiser, pull=2.0, anchor=weights(whole(seed=3)))
    for other in (free, elsewhere):
        assert furthest(of(learner), weights(other)) > FAR


def test_fedavg_is_fedprox_without_the_pull() -> None:
    learner, hand = make_learner(), whole()
    learner.train(1, GUIDE)
    by_hand(hand, Optimiser.SGD)
    assert furthest(of(learner), weights(hand)) < CLOSE


# FedRep

HEAD_EPOCHS = 3
STAGES = (Stage(Trains.CLASSIFIER, HEAD_EPOCHS), Stage(Trains.EXTRACTOR))


def is_head(name: str) -> bool:
    return name.startswith("classifier")


def is_body(name: str) -> bool:
    return not is_head(name)


@both_optimisers
def test_fedrep_trains_the_classifier_then_the_extractor(optimiser: Optimiser) -> None:
    """Each while the other stands still, bit for bit, and as a loop with that part's parameters alone has it."""
    learner, hand = make_learner(optimiser, stages=STAGES), whole()
    jobs = learner.jobs(1, GUIDE)
    assert [job.trains for job in jobs] == [Trains.CLASSIFIER, Trains.EXTRACTOR]
    for stage, (job, epochs, mine) in enumerate(
        zip(jobs, (HEAD_EPOCHS, EPOCHS), (is_head, is_body), strict=True)
    ):
        before = of(learner)
        run_job(job)
        after = of(learner)
        for name in before:
            assert torch.equal(after[name], before[name]) is not mine(name), name
        by_hand(hand, optimiser, stage=stage, epochs=epochs, trains=mine)
        assert furthest(after, weights(hand)) < CLOSE
    assert all(each.requires_grad for each in learner.predictor.parameters())


def test_fedrep_stages_the_other_way_round_differ() -> None:
    one, other = make_learner(stages=STAGES), make_learner(stages=STAGES[::-1])
    for learner in (one, other):
        learner.train(1, GUIDE)
    assert furthest(of(one), of(other)) > FAR


def test_fedrep_stage_that_trains_all_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_loop, "trained_parameters", lambda model, _: dict(model.named_parameters()))
    learner = make_learner(stages=STAGES)
    before = of(learner)
    run_job(learner.jobs(1, GUIDE)[0])
    assert not any(torch.equal(each, before[name]) for name, each in of(learner).items())


# Ditto

LAMBDA = 1.5


def ditto_by_hand(averages: Sequence[int], optimiser: Optimiser) -> tuple[Weights, Weights]:
    """Return (averaged, personal) after as many rounds as there are seeds of models averaged before each."""
    personal = whole()
    for number, seed in enumerate(averages, start=1):
        shared = whole(seed)
        start = weights(shared)
        by_hand(shared, optimiser, round_number=number)
        by_hand(personal, optimiser, round_number=number, stage=1, pull=LAMBDA, anchor=start)
    return weights(shared), weights(personal)


@both_optimisers
def test_ditto_second_model_is_held_near_the_firsts_start(optimiser: Optimiser) -> None:
    learner = make_learner(optimiser, personal=LAMBDA)
    for number, seed in enumerate((0, 3), start=1):
        learner.load_averaged(make_learner(seed=seed).averaged_vector())
        learner.train(number, GUIDE)
        shared, personal = ditto_by_hand((0, 3)[:number], optimiser)
        assert furthest(of(learner, "averaged."), shared) < CLOSE
        assert furthest(of(learner, "personal."), personal) < CLOSE
        assert furthest(shared, personal) > FAR


def test_ditto_second_model_is_pulled_to_no_other_model() -> None:
    """The second model is not pulled to its own start, which equals the averaged model in round 1 alone."""
    learner, alone = make_learner(personal=LAMBDA), whole()
    for number, seed in enumerate((0, 3), start=1):
        learner.load_averaged(make_learner(seed=seed).averaged_vector())
        learner.train(number, GUIDE)
        by_hand(alone, Optimiser.SGD, round_number=number, stage=1, pull=LAMBDA, anchor=weights(alone))
    assert furthest(of(learner, "personal."), weights(alone)) > FAR


def test_ditto_averages_as_fedavg_and_predicts_with_its_own_model() -> None:
    ditto, fedavg = make_learner(personal=LAMBDA), make_learner()
    for learner in (ditto, fedavg):
        learner.train(1, GUIDE)
    assert np.array_equal(ditto.averaged_vector(), fedavg.averaged_vector())
    own = of(ditto, "personal.")
    assert all(torch.equal(each, own[name]) for name, each in ditto.predictor_state().items())
    assert furthest(own, of(fedavg)) > FAR
    by_own = make_model()
    by_own.load_state_dict(own)
    inputs, labels = TEST.tensors
    chosen = compute_outputs(by_own.eval(), inputs).logits.argmax(dim=1)
    right = (chosen == labels).float().mean()
    evaluated = ditto.evaluate(None)
    assert evaluated is not None
    assert evaluated.accuracy_classifier == pytest.approx(float(right))


def test_ditto_prototypes_are_of_its_own_model() -> None:
    ditto = make_learner(personal=LAMBDA)
    ditto.train(1, GUIDE)
    model = make_model()
    model.load_state_dict(ditto.predictor_state())
    inputs, labels = TRAIN.tensors
    with torch.no_grad():
        features = model.features(inputs).double()
    means = torch.stack([features[labels == k].mean(dim=0) for k in range(CLASSES)])
    np.testing.assert_allclose(ditto.prototypes()[0], means.numpy(), rtol=1e-6)


def test_ditto_state_has_both_models() -> None:
    steady, restarted = make_learner(personal=LAMBDA), make_learner(personal=LAMBDA)
    steady.train(1, GUIDE)
    torch.rand(3)
    restarted.load(steady.state())
    for learner in (steady, restarted):
        learner.load_averaged(make_learner(seed=3).averaged_vector())
        learner.train(2, GUIDE)
    assert all(torch.equal(each, restarted.state()[name]) for name, each in steady.state().items())
    assert {name.partition(".")[0] for name in steady.state()} == {"averaged", "personal"}
