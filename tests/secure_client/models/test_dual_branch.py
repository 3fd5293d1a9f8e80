"""FedDBP's model around others' backbones, and a site that trains, scores and predicts with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from agreement.registry.recipe import Recipe, Trains
from algorithms.feddbp import FeddbpLoss, fuse
from algorithms.prototypes import Clusters, Targets
from secure_client.data import SiteData
from secure_client.errors import ModelError
from secure_client.models.prototype_model import (
    PrototypeModel,
    SplitModel,
    build_model,
    check_model,
    compute_outputs,
)
from secure_client.models.wrapped_models import DualBranch, add_branches
from secure_client.training.job import Schedule, trained_parameters
from secure_client.training.learner import Learner
from tests.algorithms import feddbp_reference as reference
from tests.support.refusals import refuses
from tests.support.site_data import digit_scans

CLASSES, DIM = 10, 16


class Counting(nn.Module):
    """A backbone that knows how often it ran."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.runs = nn.Linear(6, DIM), 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.runs += 1
        return torch.relu(self.layer(inputs))


class WithoutDeriving(nn.Module):
    """A site's own model, which keeps the contract and knows nothing of the class that states it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.classifier = nn.Linear(6, DIM), nn.Linear(DIM, CLASSES)

    def features(self, inputs: Tensor) -> Tensor:
        return torch.tanh(self.body(inputs))


def counting() -> tuple[Counting, SplitModel]:
    torch.manual_seed(0)
    backbone = Counting()
    return backbone, SplitModel(backbone, nn.Linear(DIM, CLASSES))


def small() -> PrototypeModel:
    return build_model("small-cnn", classes=CLASSES, dim=DIM, channels=1, image_size=8, seed=1)


def linear() -> SplitModel:
    """Return a model for scans of 8×8, which trains quickly."""
    torch.manual_seed(1)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, DIM), nn.ReLU())
    return SplitModel(backbone, nn.Linear(DIM, CLASSES))


INPUTS = torch.arange(30.0).reshape(5, 6).sin()


@pytest.mark.parametrize(("share", "decision"), [(True, True), (True, False), (False, True)])
def test_dual_branch_outputs_run_the_backbone_once(share: bool, decision: bool) -> None:
    backbone, split = counting()
    classifier = split.classifier
    model = add_branches(split, DIM, seed=2, share=share, decision=decision)
    check_model(model, INPUTS, classes=CLASSES, dim=DIM)
    backbone.runs = 0
    with torch.no_grad():
        given = compute_outputs(model, INPUTS)
        assert backbone.runs == 1
        embedded = backbone(INPUTS)
        branches = dict(model.branches.named_children())
        z_d = branches["decision"](embedded) if decision else None
        z_s = branches["shared"](embedded) if share else z_d
        assert z_s is not None
        torch.testing.assert_close(given.features, z_s)
        torch.testing.assert_close(given.logits, classifier(z_s))
        torch.testing.assert_close(model.features(INPUTS), z_s)
        torch.testing.assert_close(model(INPUTS), given.logits)
        if z_d is None:
            assert given.decision is given.decision_logits is None
        else:
            assert given.decision is not None
            assert given.decision_logits is not None
            torch.testing.assert_close(given.decision, z_d)
            torch.testing.assert_close(given.decision_logits, classifier(z_d))


def test_dual_branch_only_the_shared_branch_is_rectified() -> None:
    given = compute_outputs(add_branches(counting()[1], DIM, seed=2), INPUTS)
    assert given.decision is not None
    assert (given.features >= 0).all()
    assert (given.features > 0).any()
    assert (given.decision < 0).any()


def test_other_models_have_no_decision_branch() -> None:
    own: Any = WithoutDeriving()
    for model in (counting()[1], own):
        given = compute_outputs(model, INPUTS)
        assert given.decision is given.decision_logits is None
        torch.testing.assert_close(given.logits, model.classifier(given.features))
        branched = add_branches(model, DIM, seed=2)
        check_model(branched, INPUTS, classes=CLASSES, dim=DIM)
        assert compute_outputs(branched, INPUTS).decision is not None


def test_dual_branch_each_parameter_has_one_name() -> None:
    """A state with two names for one tensor cannot be stored, and says a model is larger than it is."""
    model = add_branches(small(), DIM, seed=2)
    state = model.state_dict()
    assert len({value.data_ptr() for value in state.values()}) == len(state)
    assert set(state) == {name for name, _ in model.named_parameters()}
    heads = trained_parameters(model, Trains.CLASSIFIER)
    assert sorted(heads) == ["classifier.bias", "classifier.weight"]


def test_add_branches_weights_follow_from_the_seed_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first = add_branches(small(), DIM, seed=2).branches.state_dict()
    assert torch.equal(torch.rand(3), expected), "the generator is left alone"
    other_backbone = add_branches(counting()[1], DIM, seed=2).branches.state_dict()
    other_seed = add_branches(small(), DIM, seed=3).branches.state_dict()
    assert all(torch.equal(first[name], other_backbone[name]) for name in first)
    assert not any(torch.equal(first[name], other_seed[name]) for name in first)


def test_dual_branch_classifier_that_is_no_module_is_refused() -> None:
    class Headless(PrototypeModel):
        def features(self, inputs: Tensor) -> Tensor:
            return inputs

        def classifier(self, features: Tensor) -> Tensor:  # type: ignore[override]
            return features

    with refuses("model.classifier", error=ModelError):
        DualBranch(Headless(), DIM)


def test_dual_branch_without_branches_is_refused() -> None:
    with pytest.raises(ValueError, match="branch"):
        DualBranch(counting()[1], DIM, share=False, decision=False)


TRAIN, TEST = digit_scans(0, 90), digit_scans(90, 150)


def learner(objective: FeddbpLoss, *, epochs: int = 6, scores: bool = True, **branches: bool) -> Learner:
    """Return a learner by SGD without momentum, as in the paper."""
    return Learner(
        add_branches(linear(), DIM, seed=4, **branches),
        SiteData(TRAIN, TEST),
        Recipe(objective, scores=scores),
        Schedule(lr=0.03, momentum=0.0, weight_decay=0.0, batch_size=8, local_epochs=epochs),
        site="a",
        seed=5,
        classes=CLASSES,
        dim=DIM,
        device=torch.device("cpu"),
    )


def own_targets(site: Learner) -> Targets:
    rows, counts = site.prototypes()
    return Targets.of(rows, counts > 0)


@pytest.mark.parametrize("objective", [FeddbpLoss(), FeddbpLoss(share=False), FeddbpLoss(decision=False)])
def test_dual_branch_learns_to_read_digits(objective: FeddbpLoss) -> None:
    """A site trains by cross entropy, and then towards its own prototypes, with both branches or either."""
    site = learner(objective, epochs=50, share=objective.share, decision=objective.decision)
    first = site.train(1, None)
    second = site.train(2, own_targets(site))
    assert first.alignment == 0.0
    assert second.alignment > 0.0
    assert second.classification < first.classification / 2
    evaluation = site.evaluate(own_targets(site))
    assert evaluation is not None
    assert evaluation.accuracy_classifier > 0.7
    assert evaluation.accuracy_prototype is not None
    assert evaluation.accuracy_prototype > 0.7


def test_dual_branch_whole_round_is_that_of_the_equations() -> None:
    """Two sites: prototypes and scores, the mean over both, its fusion with the own, and training with it."""
    sites = [learner(FeddbpLoss()), learner(FeddbpLoss())]
    for site, seed in zip(sites, (1, 2), strict=True):
        site.train(seed, None)
    prototypes = [site.prototypes()[0] for site in sites]
    mean, everyone = (prototypes[0] + prototypes[1]) / 2, np.ones(CLASSES, dtype=np.bool_)
    scores = sites[0].scores(sites[0].embed())
    assert scores is not None
    rows, present = fuse(prototypes[0], everyone, scores, mean, everyone, eta=1.0, top=3)
    from_own = (rows == prototypes[0]) & (prototypes[0] != mean)
    assert (from_own.sum(axis=1) <= 3).all()
    assert from_own.any(), "the two sites' prototypes differ in channels that matter"
    assert sites[0].train(2, Targets.of(rows, present)).alignment > 0.0


def test_fisher_scores_are_those_of_a_loop() -> None:
    site = learner(FeddbpLoss())
    site.train(1, None)
    found = site.scores(site.embed())
    model = site.predictor
    sums, counts = np.zeros((CLASSES, DIM)), np.zeros((CLASSES, 1))
    for image, label in zip(*TRAIN.tensors, strict=True):
        z = model.features(image[None]).detach().requires_grad_()
        log_p = functional.log_softmax(model.classifier(z).double(), dim=1)[0, label]
        (slope,) = torch.autograd.grad(log_p, z)
        sums[label] += slope[0].double().numpy() ** 2
        counts[label] += 1
    assert found is not None
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, sums / counts, rtol=1e-3, atol=1e-12)
    np.testing.assert_array_equal(found, site.scores(site.embed()))
    assert learner(FeddbpLoss(), scores=False).scores([]) is None


def test_accuracy_by_prototype_is_the_decision_branchs() -> None:
    site = learner(FeddbpLoss())
    site.train(1, None)
    targets = own_targets(site)
    evaluation = site.evaluate(targets)
    assert evaluation is not None
    right = {"decision": 0, "features": 0}
    rows, present = targets.rows.tolist(), targets.present.tolist()
    with torch.no_grad():
        for image, label in zip(*TEST.tensors, strict=True):
            given = compute_outputs(site.predictor, image[None])
            assert given.decision is not None
            near = reference.nearest(given.decision[0].tolist(), rows, present, direction=True)
            other = reference.nearest(given.features[0].tolist(), rows, present, direction=False)
            right["decision"] += near == int(label)
            right["features"] += other == int(label)
    assert right["decision"] != right["features"], "the case must tell the two apart"
    assert evaluation.accuracy_prototype == right["decision"] / len(TEST)


def test_accuracy_by_clusters_is_that_of_the_nearest() -> None:
    """The nearest cluster is that of the largest cosine, with one cluster a class."""
    site = learner(FeddbpLoss(decision=False), decision=False)
    site.train(1, None)
    rows, counts = site.prototypes()
    clusters = Clusters.of(rows, np.arange(CLASSES), np.ones(CLASSES))
    evaluation = site.evaluate(clusters)
    assert evaluation is not None
    right = 0
    with torch.no_grad():
        for image, label in zip(*TEST.tensors, strict=True):
            z = site.predictor.features(image[None])[0].tolist()
            near = reference.nearest(z, clusters.rows.tolist(), [True] * CLASSES, direction=True)
            right += near == int(label)
    assert (counts > 0).all()
    assert evaluation.accuracy_prototype == right / len(TEST)
