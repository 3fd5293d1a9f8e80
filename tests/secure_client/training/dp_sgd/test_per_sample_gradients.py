"""Gradients of single records by Opacus: those that loops give, and the same bits whatever other records there are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from agreement import Norm
from agreement.registry.recipe import BatchLoss
from algorithms.losses import Outputs
from algorithms.prototypes import Guide, Targets
from secure_client.errors import ModelError
from secure_client.models.prototype_model import PrototypeModel, build_model, compute_outputs
from secure_client.training.dp_sgd import steps
from secure_client.training.dp_sgd.per_sample_gradients import (
    compute_sample_terms,
    store_gradients,
    take_gradients,
)
from secure_client.training.loop import run_job
from tests.secure_client.training.dp_sgd.private_training import (
    ALL,
    CLASSES,
    DIM,
    OBJECTIVES,
    guide_of,
    images,
    job_of,
    model_of,
)
from tests.support.marks import full_but
from tests.support.refusals import refuses

BLOCKS = (
    "small-cnn",
    "fedpc-cnn",
    "tanh-cnn",
    "scatternet",
    "resnet10",
    "resnet50",
    "googlenet",
    "mobilenet-v2",
)
"""A network of each kind of block."""
LABELS = torch.tensor([0, 2, 1, 0])
"""Class 2 has no prototype, and class 0 has two records."""


def by_hooks(model: PrototypeModel, objective: BatchLoss, batch: Tensor, guide: Guide | None) -> list[Tensor]:
    parameters = list(model.parameters())
    with store_gradients(model):
        terms = compute_sample_terms(objective, compute_outputs(model, batch), LABELS, guide)
        torch.autograd.backward(terms.total.sum())
        given = take_gradients(model, parameters)
    return [
        torch.zeros(len(batch), *own.shape, dtype=own.dtype) if each is None else each
        for own, each in zip(parameters, given, strict=True)
    ]


def by_loop(model: PrototypeModel, objective: BatchLoss, batch: Tensor, guide: Guide | None) -> list[Tensor]:
    """Return the gradients with each record as a batch of one, by torch alone."""
    rows = []
    for number in range(len(batch)):
        one = slice(number, number + 1)
        model.zero_grad()
        torch.autograd.backward(objective(compute_outputs(model, batch[one]), LABELS[one], guide).total)
        rows.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()])
    model.zero_grad()
    return [torch.stack(each) for each in zip(*rows, strict=True)]


def check(name: str, backbone: str, guide: Guide | None) -> None:
    model, objective = model_of(name, backbone).double().train(), OBJECTIVES[name]
    batch = images(len(LABELS))[0].double()
    ours, known = by_hooks(model, objective, batch, guide), by_loop(model, objective, batch, guide)
    assert max(float(each.abs().max()) for each in known) > 1e-3
    for (parameter, _), each, own in zip(model.named_parameters(), ours, known, strict=True):
        torch.testing.assert_close(each, own, rtol=1e-6, atol=1e-9, msg=parameter)


@pytest.mark.parametrize("guided", [True, False], ids=["guided", "first round"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_sample_gradients_of_every_loss_are_torchs(name: str, guided: bool) -> None:
    check(name, "small-cnn", guide_of(name, dtype=torch.float64) if guided else None)


@pytest.mark.parametrize("backbone", full_but(BLOCKS[1:], "fedpc-cnn", "tanh-cnn", "scatternet", "resnet10"))
def test_sample_gradients_of_every_network_are_torchs(backbone: str) -> None:
    check("pfpl", backbone, guide_of("pfpl", dtype=torch.float64))


def test_sample_gradients_of_both_branches_are_torchs() -> None:
    check("feddbp", "resnet10", guide_of("feddbp", dtype=torch.float64))


def test_store_gradients_leaves_the_model_without_a_trace() -> None:
    model, fresh = model_of("feddbp").train(), model_of("feddbp").train()
    by_hooks(model, OBJECTIVES["feddbp"], images(len(LABELS))[0], None)
    for module, untouched in zip(model.modules(), fresh.modules(), strict=True):
        assert vars(module).keys() == vars(untouched).keys()
        assert not module._forward_hooks
        assert not module._backward_hooks
    for parameter in model.parameters():
        assert not vars(parameter)


def test_take_gradients_output_that_the_loss_leaves_out_is_refused() -> None:
    """The classifier runs twice, and the loss has its second answer alone: Opacus would mix up the two inputs."""

    def second_alone(outputs: Outputs, labels: Tensor, guide: object) -> Tensor:
        assert outputs.decision_logits is not None
        return functional.cross_entropy(outputs.decision_logits, labels, reduction="sum")

    model = model_of("feddbp").train()
    parameters = list(model.parameters())
    with store_gradients(model):
        outputs = compute_outputs(model, images(len(LABELS))[0])
        torch.autograd.backward(second_alone(outputs, LABELS, None))
        with refuses("Linear", error=ModelError):
            take_gradients(model, parameters)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_sample_terms_are_the_same_whatever_the_batch(name: str) -> None:
    drawn = torch.Generator().manual_seed(3)
    outputs = outputs_for(name, len(LABELS), drawn)
    guide = guide_of(name, dtype=torch.float64)
    together = compute_sample_terms(OBJECTIVES[name], outputs, LABELS, guide).total
    for number in range(len(LABELS)):
        one = slice(number, number + 1)
        alone = Outputs(*(None if each is None else each[one] for each in outputs))  # type: ignore[arg-type]
        own = compute_sample_terms(OBJECTIVES[name], alone, LABELS[one], guide).total
        torch.testing.assert_close(together[number], own[0], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("name", ["pfpl-literal", "fedpc", "feddbp"])
def test_sample_terms_of_a_batchs_loss_depend_on_the_batch(name: str) -> None:
    """Means of features and margins are of the batch there: two records of a class move each other's terms."""
    outputs = outputs_for(name, len(LABELS), torch.Generator().manual_seed(3))
    guide = guide_of(name, dtype=torch.float64)
    batch = OBJECTIVES[name](outputs, LABELS, guide).total * len(LABELS)
    assert (
        abs(float(batch - compute_sample_terms(OBJECTIVES[name], outputs, LABELS, guide).total.sum())) > 1e-3
    )


def test_sample_terms_are_those_written_out() -> None:
    """PFPL's, FedPC's and FedDBP's alignment of a record by its formula."""
    drawn = torch.Generator().manual_seed(3)
    outputs, guide = outputs_for("feddbp", len(LABELS), drawn), guide_of("feddbp", dtype=torch.float64)
    assert isinstance(guide, Targets)
    assert outputs.decision is not None
    has = guide.present[LABELS]
    gaps = (outputs.features - guide.rows[LABELS]).square().sum(dim=1) * has
    for name, known in (("pfpl", gaps / DIM), ("pfpl-literal", gaps.sqrt()), ("fedpc", gaps / DIM)):
        found = compute_sample_terms(OBJECTIVES[name], outputs, LABELS, guide)
        torch.testing.assert_close(found.alignment, known)
        cross = functional.cross_entropy(outputs.logits, LABELS, reduction="none")
        weights = {"pfpl": (1.0, 10.0), "pfpl-literal": (1.0, 1.0), "fedpc": (0.5, 0.5)}[name]
        torch.testing.assert_close(found.total, weights[0] * cross + weights[1] * known)
    for number, label in enumerate(LABELS.tolist()):
        if not has[number]:
            continue
        apart = [
            float(
                (
                    functional.normalize(outputs.decision[number], dim=0) - functional.normalize(row, dim=0)
                ).norm()
            )
            for row in guide.rows[:2]
        ]
        own, other = apart[label], apart[1 - label]
        margin = (own + other) / 2
        hard = [margin - other] if other < margin else []
        terms = torch.tensor([-own, -other, *hard], dtype=torch.float64) / 0.07
        contrast = own / 0.07 + float(terms.logsumexp(0))
        found = compute_sample_terms(OBJECTIVES["feddbp"], outputs, LABELS, guide)
        expected = 10.0 * float(gaps[number]) / DIM + contrast
        assert float(found.alignment[number]) == pytest.approx(expected, rel=1e-9)


def outputs_for(name: str, count: int, drawn: torch.Generator) -> Outputs:
    def made(width: int) -> Tensor:
        return torch.rand(count, width, generator=drawn, dtype=torch.float64)

    if not name.startswith("feddbp"):
        return Outputs(made(DIM), made(CLASSES))
    return Outputs(made(DIM), made(CLASSES), made(DIM), made(CLASSES))


def test_store_gradients_batch_norm_is_refused() -> None:
    normalised = build_model(
        "resnet10", classes=CLASSES, dim=DIM, channels=1, image_size=16, seed=0, norm=Norm.BATCH
    )
    with pytest.raises(NotImplementedError), store_gradients(normalised):
        pass


COUNT, AT_ONCE = 5, 4
"""The last physical batch is of one record, unless one is taken away."""
FINE = ALL.model_copy(update={"noise_multiplier": 0.01})
"""A grid on which float32's last places show."""
BACKBONES = ("small-cnn", "fedpc-cnn", "tanh-cnn", "scatternet", "resnet10")
"""The smaller ones, and one of those with blocks and group normalisation."""


class HangsOnOthersError(AssertionError):
    """A record's part in a sum is not what it is alone."""


def sum_of(sums: list[Tensor], name: str, backbone: str, chosen: list[int]) -> Tensor:
    """Return a step's sum over the chosen records, in whole steps (P,)."""
    inputs, labels = images(COUNT)
    model, loss = model_of(name, backbone), OBJECTIVES[name]
    run_job(job_of(model, inputs[chosen], labels[chosen], dp_sgd=FINE, objective=loss, guide=guide_of(name)))
    return sums.pop()


def check_independence(sums: list[Tensor], name: str, backbone: str) -> None:
    """Check with and without a record in the middle; those after it move up."""
    every, record = list(range(COUNT)), 1
    whole, own = sum_of(sums, name, backbone, every), sum_of(sums, name, backbone, [record])
    others = sum_of(sums, name, backbone, [each for each in every if each != record])
    if not torch.equal(whole - others, own):
        raise HangsOnOthersError(f"{name}, {backbone}")
    assert bool(own.any())


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "physical_size", lambda *_: AT_ONCE)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_record_gradient_of_every_loss_is_independent_of_the_batch(
    sums: list[Tensor], silent: None, name: str
) -> None:
    check_independence(sums, name, "small-cnn")


@pytest.mark.parametrize("backbone", BACKBONES[1:])
def test_record_gradient_of_every_network_is_independent_of_the_batch(
    sums: list[Tensor], silent: None, backbone: str
) -> None:
    check_independence(sums, "pfpl", backbone)


def test_record_gradient_without_padding_depends_on_a_kernel_that_rounds_by_size(
    sums: list[Tensor], silent: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few processors have such kernels for networks as small as these, so the kernel is a double."""
    given = compute_outputs

    def rounded_by_size(model: PrototypeModel, inputs: Tensor) -> Outputs:
        factor = 1 + 1e-3 / len(inputs)
        return Outputs(*(None if each is None else each * factor for each in given(model, inputs)))  # type: ignore[arg-type]

    monkeypatch.setattr(steps, "compute_outputs", rounded_by_size)
    check_independence(sums, "pfpl", "small-cnn")
    monkeypatch.setattr(steps, "pad", lambda rows, size: rows)
    with pytest.raises(HangsOnOthersError):
        check_independence(sums, "pfpl", "small-cnn")
