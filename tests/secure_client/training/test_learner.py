"""A site's training: deterministic, restartable, with prototypes and accuracies that loops agree with."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from agreement import Optimiser
from agreement.registry.recipe import Recipe
from algorithms.method_losses import PfplLoss
from algorithms.prototypes import Targets
from secure_client.data import SiteData
from secure_client.errors import DataError, DeviceError, ModelError, TrainingError
from secure_client.models.prototype_model import PrototypeModel, SplitModel, build_model
from secure_client.models.wrapped_models import add_branches
from secure_client.training.batches import split_batches
from secure_client.training.job import Schedule
from secure_client.training.learner import Learner, choose_device
from tests.support.refusals import refuses
from tests.support.site_data import digit_scans

CLASSES, DIM = 10, 16
CPU = torch.device("cpu")


class Listed(Dataset[tuple[Tensor, int]]):
    """Data set of a site's own making with the same samples and plain int labels."""

    def __init__(self, dataset: TensorDataset) -> None:
        self._inputs, self._labels = dataset.tensors

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._inputs[index], int(self._labels[index])


TRAIN, TEST = digit_scans(0, 90), digit_scans(90, 150)
DATA = SiteData(TRAIN, TEST)
TARGETS = Targets.of(np.full((CLASSES, DIM), 0.5), np.arange(CLASSES) < 7)


def small_model(seed: int = 1) -> PrototypeModel:
    return build_model("small-cnn", classes=CLASSES, dim=DIM, channels=1, image_size=8, seed=seed)


def dropout_model() -> PrototypeModel:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, DIM), nn.Dropout(0.5), nn.ReLU())
    return SplitModel(backbone, nn.Linear(DIM, CLASSES))


def norm_model() -> PrototypeModel:
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, DIM), nn.BatchNorm1d(DIM), nn.ReLU())
    return SplitModel(backbone, nn.Linear(DIM, CLASSES))


def branched_model() -> PrototypeModel:
    return add_branches(small_model(), DIM, seed=4)


def learner(model: PrototypeModel | None = None, data: SiteData = DATA, **changes: Any) -> Learner:
    schedule: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-5, "batch_size": 8}
    schedule |= {"local_epochs": 2, "optimiser": Optimiser.SGD}
    settings: dict[str, Any] = {"site": "a", "seed": 5, "classes": CLASSES, "dim": DIM, "device": CPU}
    for name, value in changes.items():
        (schedule if name in schedule else settings)[name] = value
    chosen = small_model() if model is None else model
    return Learner(chosen, data, Recipe(PfplLoss(2.0)), Schedule(**schedule), **settings)


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_learner_train_learns_to_read_digits() -> None:
    site = learner(lr=0.02, local_epochs=20)
    before = site.evaluate(None)
    losses = site.train(1, None)
    after = site.evaluate(None)
    assert before is not None
    assert after is not None
    assert before.accuracy_classifier < 0.4
    assert after.accuracy_classifier > 0.7
    assert after.accuracy_prototype is None
    assert losses.total == losses.classification
    assert losses.alignment == 0.0


@pytest.mark.parametrize("optimiser", list(Optimiser))
@pytest.mark.parametrize("make", [small_model, dropout_model, norm_model, branched_model])
def test_learner_restarted_trains_as_if_it_had_not_been(make: Any, optimiser: Optimiser) -> None:
    """Adam's moments do not outlive a round, or the site that kept running would step otherwise."""
    steady = learner(make(), optimiser=optimiser)
    steady.train(1, None)
    stored, expected = steady.state(), steady.train(2, TARGETS)
    torch.rand(11)
    restarted = learner(make(), optimiser=optimiser)
    restarted.load(stored)
    assert restarted.train(2, TARGETS) == expected
    assert same(restarted.state(), steady.state())


def trained_weights(**changes: Any) -> dict[str, Tensor]:
    site = learner(**changes)
    site.train(1, None)
    return site.state()


def test_learner_adam_ignores_momentum() -> None:
    """One batch, one epoch: every weight moves by lr · g/(|g| + eps), which is at most lr and for most about lr."""
    before = learner().state()
    one_step = {"optimiser": Optimiser.ADAM, "lr": 1e-3, "batch_size": 90, "local_epochs": 1}
    after = trained_weights(**one_step)
    moved = torch.cat([(after[name] - before[name]).abs().flatten() for name in before])
    assert moved.max() <= 1e-3 * 1.001
    assert moved[moved > 0].median() > 0.99e-3
    assert same(after, trained_weights(**one_step, momentum=0.0))
    assert not same(after, trained_weights(**{**one_step, "optimiser": Optimiser.SGD}))


@pytest.mark.parametrize("optimiser", list(Optimiser))
def test_learner_weight_decay_shrinks_weights(optimiser: Optimiser) -> None:
    settings = {"optimiser": optimiser, "lr": 1e-3, "local_epochs": 4}
    norms = [
        sum(float(value.square().sum()) for value in trained_weights(weight_decay=decay, **settings).values())
        for decay in (0.0, 1.0)
    ]
    assert norms[1] < norms[0]


def test_learner_load_averaged_leaves_the_classifier() -> None:
    """Both end with the same features; each keeps its own classifier."""
    first, second = learner(), learner(small_model(seed=2), site="b")
    for site in (first, second):
        site.train(1, None)
    own = {name: value for name, value in second.state().items() if name.startswith("classifier")}
    parameters = sum(
        value.numel() for name, value in first.state().items() if not name.startswith("classifier")
    )
    assert first.averaged_sizes == second.averaged_sizes == (parameters, 0)
    assert not np.array_equal(first.averaged_vector(), second.averaged_vector())
    second.load_averaged(first.averaged_vector())
    assert np.array_equal(first.averaged_vector(), second.averaged_vector())
    np.testing.assert_array_equal(first.prototypes()[0], second.prototypes()[0])
    assert same(own, second.state())
    assert not same(own, first.state())


@pytest.mark.parametrize("change", [{"seed": 6}, {"site": "b"}])
def test_learner_other_seed_or_site_shuffles_otherwise(change: dict[str, Any]) -> None:
    first, second = learner(), learner(**change)
    first.train(1, None)
    second.train(1, None)
    assert not same(first.state(), second.state())


def test_learner_each_round_shuffles_otherwise() -> None:
    first, second = learner(), learner()
    first.train(1, None)
    second.train(2, None)
    assert not same(first.state(), second.state())


def test_learner_train_leaves_the_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    site = learner()
    torch.manual_seed(1)
    site.train(1, None)
    assert torch.equal(torch.rand(3), expected)


def test_learner_any_dataset_trains_as_tensors_do() -> None:
    tensors, listed = learner(), learner(data=SiteData(Listed(TRAIN), Listed(TEST)))
    assert tensors.train(1, TARGETS) == listed.train(1, TARGETS)
    assert same(tensors.state(), listed.state())
    assert tensors.evaluate(TARGETS) == listed.evaluate(TARGETS)


def test_learner_alignment_moves_prototypes_towards_targets() -> None:
    """Models, batches and epochs are the same with and without targets; classes without a target move freely."""
    free, aligned = learner(local_epochs=5), learner(local_epochs=5)
    free.train(1, None)
    aligned.train(1, TARGETS)
    distance = [np.abs(site.prototypes()[0][:7] - 0.5).mean() for site in (free, aligned)]
    assert distance[1] < 0.6 * distance[0]


@pytest.mark.parametrize("make", [small_model, dropout_model, norm_model])
def test_learner_prototypes_are_class_means_in_eval_mode(make: Any) -> None:
    model = make()
    site = learner(model)
    site.train(1, None)
    rows, counts = site.prototypes()
    assert rows.dtype == np.float64
    with torch.no_grad():
        features = model.eval().features(TRAIN.tensors[0]).double().numpy()
    labels = TRAIN.tensors[1].numpy()
    for k in range(CLASSES):
        assert counts[k] == (labels == k).sum()
        np.testing.assert_allclose(rows[k], features[labels == k].mean(axis=0), atol=1e-5)


def test_learner_class_without_samples_has_no_prototype() -> None:
    chosen = TRAIN.tensors[1] != 4
    data = SiteData(TensorDataset(TRAIN.tensors[0][chosen], TRAIN.tensors[1][chosen]), None)
    site = learner(data=data)
    rows, counts = site.prototypes()
    assert counts[4] == 0
    assert not rows[4].any()
    assert site.evaluate(None) is None


def test_evaluate_accuracies_are_those_of_a_loop() -> None:
    model = small_model()
    site = learner(model)
    site.train(1, None)
    rows, counts = site.prototypes()
    evaluation = site.evaluate(Targets.of(rows, counts > 0))
    right = near = 0
    with torch.no_grad():
        for image, label in zip(*TEST.tensors, strict=True):
            z = model.features(image[None])
            right += int(model.classifier(z).argmax()) == int(label)
            near += int(np.linalg.norm(rows - z.double().numpy(), axis=1).argmin()) == int(label)
    assert evaluation is not None
    assert (evaluation.accuracy_classifier, evaluation.accuracy_prototype) == (right / 60, near / 60)


def test_evaluate_personalised_accuracies_weigh_the_sites_classes() -> None:
    """A site of classes 0 (8 samples), 1 (4) and 2 (4), on a test set with classes it lacks: counted by hand."""
    scans, labels = TRAIN.tensors
    test = digit_scans(200, 400)
    rows = np.concatenate([np.flatnonzero(labels.numpy() == k)[:n] for k, n in ((0, 8), (1, 4), (2, 4))])
    model = small_model()
    site = learner(model, SiteData(TensorDataset(scans[rows], labels[rows]), test), lr=0.02, local_epochs=15)
    site.train(1, None)
    with torch.no_grad():
        right = (model(test.tensors[0]).argmax(dim=1) == test.tensors[1]).numpy()
    known = test.tensors[1].numpy()
    correct = np.array([right[known == k].sum() for k in range(3)])
    counts = np.array([(known == k).sum() for k in range(3)])
    assert not (correct == counts).all(), "the weights must matter"
    weights = np.array([8, 4, 4]) / 16
    evaluation = site.evaluate(None)
    assert evaluation == site.evaluate_on(Listed(test), None)
    assert evaluation is not None
    assert evaluation.accuracy_classifier == pytest.approx(right.mean())
    assert evaluation.pm_v == pytest.approx(correct.sum() / counts.sum())
    assert evaluation.pm_l == pytest.approx(weights @ correct / (weights @ counts))
    assert len({evaluation.accuracy_classifier, evaluation.pm_v, evaluation.pm_l}) == 3


def test_evaluate_without_the_sites_classes_has_no_personalised_accuracy() -> None:
    labels = TRAIN.tensors[1]
    halves = [TensorDataset(TRAIN.tensors[0][chosen], labels[chosen]) for chosen in (labels < 5, labels >= 5)]
    evaluation = learner(data=SiteData(halves[0], None)).evaluate_on(halves[1], None)
    assert (evaluation.pm_v, evaluation.pm_l) == (None, None)
    with refuses("samples"):
        learner().evaluate_on(digit_scans(0, 0), None)


def test_learner_state_is_a_copy_and_fits_its_own_model_alone() -> None:
    site = learner()
    state = site.state()
    frozen = {name: value.clone() for name, value in state.items()}
    site.train(1, None)
    assert same(state, frozen)
    with refuses("model", error=ModelError):
        learner(dropout_model()).load(state)


@pytest.mark.parametrize(("count", "sizes"), [(9, [4, 5]), (8, [4, 4]), (10, [4, 4, 2]), (1, [1])])
def test_split_batches_last_single_sample_joins_the_batch_before(count: int, sizes: list[int]) -> None:
    groups = split_batches(list(range(count)), 4, join_single=True)
    assert [len(group) for group in groups] == sizes
    assert sorted(index for group in groups for index in group) == list(range(count))


def test_learner_batch_norm_trains_with_one_sample_left_over() -> None:
    model = norm_model()
    before = parameters_to_vector(model.parameters()).detach().clone()
    learner(model, SiteData(digit_scans(0, 17), None), batch_size=4).train(1, None)
    after = parameters_to_vector(model.parameters())
    assert torch.isfinite(after).all()
    assert not torch.equal(after, before)


@pytest.mark.parametrize(("samples", "size"), [(1, 4), (8, 1)])
def test_learner_batch_norm_on_single_samples_is_refused(samples: int, size: int) -> None:
    with refuses("GroupNorm", error=TrainingError):
        learner(norm_model(), SiteData(digit_scans(0, samples), None), batch_size=size)
    learner(small_model(), SiteData(digit_scans(0, samples), None), batch_size=size).train(1, None)


def test_learner_loss_that_is_not_finite_is_refused() -> None:
    with refuses("1e+06", error=TrainingError):
        learner(lr=1e6).train(1, TARGETS)


class Endless(IterableDataset[tuple[Tensor, int]]):
    """A stream: no length, no index."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        yield torch.zeros(1, 8, 8), 0


@pytest.mark.parametrize(
    ("data", "error", "named"),
    [
        (SiteData(Endless(), None), DataError, "Endless"),
        (SiteData(digit_scans(0, 0), None), DataError, "samples"),
        (SiteData(TRAIN, digit_scans(0, 0)), DataError, "samples"),
        (
            SiteData(TensorDataset(torch.zeros(2, 1, 8, 8), torch.tensor([0, 10])), None),
            DataError,
            "label 10",
        ),
        (SiteData(TRAIN, TensorDataset(torch.zeros(1, 1, 8, 8), torch.tensor([-1]))), DataError, "label -1"),
        (
            SiteData(TensorDataset(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1])), None),
            ModelError,
            "channels",
        ),
    ],
)
def test_learner_data_that_does_not_fit_is_refused(
    data: SiteData, error: type[Exception], named: str
) -> None:
    with refuses(named, error=error):
        learner(data=data)


def test_choose_device_auto_is_the_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device("auto").type == expected
    assert choose_device("cpu") == CPU


@pytest.mark.parametrize("name", ["abacus", "cuda:99", "mps"])
def test_choose_device_missing_device_names_those_that_exist(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(*_: object, **__: object) -> None:
        raise RuntimeError("what torch says")

    monkeypatch.setattr(torch, "empty", raising)
    with pytest.raises(DeviceError) as raised:
        choose_device(name)
    assert repr(name) in str(raised.value)
    assert "cpu" in str(raised.value)
    assert "what torch says" not in str(raised.value)
