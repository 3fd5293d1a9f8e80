"""Training several sites at once gives what training them one by one gives."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from algorithms import classification
from algorithms.feddbp import objective as feddbp
from algorithms.fedpc import objective as fedpc
from algorithms.fedplcc import objective as fedplcc
from algorithms.fedplvm import objective as fedplvm
from algorithms.fedproto import objective as fedproto
from algorithms.fpl import objective as fpl
from algorithms.pfpl import objective as pfpl
from algorithms.prototypes import Clusters, Guide, Targets
from algorithms.terms import Outputs, Terms
from protoseal.config import Norm, Optimiser
from secure_client import together
from secure_client.backbones import BACKBONES
from secure_client.batches import DatasetSource, Source, TensorSource, full_and_rest, split
from secure_client.dual_branch import add_branches
from secure_client.errors import TrainingError
from secure_client.models import PrototypeModel, SplitModel, build_model
from secure_client.recipe import BatchLoss, Trains
from secure_client.stacked import Stack, signature
from secure_client.stacked_layers import CannotStack
from secure_client.together import Batching, run_together, sites_at_once
from secure_client.training import Job, Losses, Schedule, run

CLASSES, DIM, SIDE = 3, 5, 8
CPU = torch.device("cpu")
SIZES = (9, 4, 13, 8, 9, 2)
"""With batches of 4: short ends, whole ones, two sites alike, and a site smaller than a batch."""
SCHEDULE = Schedule(lr=0.05, momentum=0.9, weight_decay=1e-2, batch_size=4, local_epochs=2)
ALIGNED = pfpl.Objective(0.5)
ADAM = replace(SCHEDULE, optimiser=Optimiser.ADAM, lr=0.01)


def images(count: int, seed: int, channels: int = 1, side: int = SIDE) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(count, channels, side, side, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(CLASSES, (count,), generator=generator))


def targets(seed: int) -> Targets:
    """Of all classes but one."""
    generator = torch.Generator().manual_seed(100 + seed)
    rows = torch.rand(CLASSES, DIM, generator=generator, dtype=torch.float64)
    return Targets(rows, torch.arange(CLASSES) != seed % CLASSES)


def clusters(seed: int) -> Clusters:
    generator = torch.Generator().manual_seed(200 + seed)
    labels = torch.tensor([0, 0, 0, 1, 2])
    weights = torch.tensor([0.5, 0.3, 0.2, 1.0, 1.0], dtype=torch.float64)
    return Clusters(torch.rand(5, DIM, generator=generator, dtype=torch.float64), labels, weights)


def model_of(spec: str = "small-cnn", norm: Norm = Norm.BATCH, side: int = SIDE) -> PrototypeModel:
    return build_model(
        spec, classes=CLASSES, dim=DIM, channels=1, image_size=side, seed=0, norm=norm
    ).double()


def jobs_of(
    model: PrototypeModel,
    objective: BatchLoss = ALIGNED,
    guides: Sequence[Guide | None] | None = None,
    *,
    schedule: Schedule = SCHEDULE,
    sizes: Sequence[int] = SIZES,
    trains: Trains = Trains.ALL,
    proximal: float = 0.0,
    side: int = SIDE,
) -> list[Job]:
    """A job for each site, each with a model of its own that is a little different."""
    return [
        Job(
            model=moved(model, site),
            source=TensorSource(images(size, site, side=side), CPU),
            objective=objective,
            guide=targets(site) if guides is None else guides[site],
            schedule=schedule,
            epochs=schedule.local_epochs,
            trains=trains,
            seed=site,
            device=CPU,
            anchor={name: each.detach().clone() for name, each in model.named_parameters()},
            proximal=proximal,
        )
        for site, size in enumerate(sizes)
    ]


def moved(model: PrototypeModel, site: int) -> PrototypeModel:
    own = copy.deepcopy(model)
    torch.manual_seed(site)
    with torch.no_grad():
        for each in own.parameters():
            each.add_(torch.randn_like(each), alpha=0.01)
    return own


def copies(jobs: Sequence[Job]) -> list[Job]:
    return [replace(job, model=copy.deepcopy(job.model)) for job in jobs]


def states(jobs: Sequence[Job]) -> list[dict[str, Tensor]]:
    return [{name: each.clone() for name, each in job.model.state_dict().items()} for job in jobs]


def assert_alike(jobs: Sequence[Job], *, tolerance: float = 1e-9, at_once: int | None = None) -> None:
    """Both ways of training change the models, and to the same."""
    alone, begun = copies(jobs), states(jobs)
    expected = [run(job) for job in alone]
    assert_close(run_together(jobs, Batching.ALWAYS, at_once=at_once), expected, tolerance)
    for ours, theirs, before in zip(jobs, alone, begun, strict=True):
        torch.testing.assert_close(
            ours.model.state_dict(), theirs.model.state_dict(), rtol=tolerance, atol=tolerance
        )
        assert any(not torch.equal(each, before[name]) for name, each in ours.model.state_dict().items())
        assert ours.model.training


def assert_close(found: Sequence[Losses], expected: Sequence[Losses], tolerance: float) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        values = [(each.total, each.classification, each.alignment) for each in (ours, theirs)]
        assert values[0] == pytest.approx(values[1], rel=max(tolerance, 1e-6), abs=1e-6)  # sums are float32


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that are run one by one from now on."""
    seen: list[Job] = []

    def noted(job: Job) -> Losses:
        seen.append(job)
        return run(job)

    monkeypatch.setattr(together, "run", noted)
    return seen


@pytest.mark.parametrize("schedule", [SCHEDULE, ADAM, replace(SCHEDULE, momentum=0.0, weight_decay=0.0)])
@pytest.mark.parametrize(("spec", "side"), [("small-cnn", SIDE), ("fedpc-cnn", 16)])
def test_together_is_one_by_one(spec: str, side: int, schedule: Schedule, alone: list[Job]) -> None:
    assert_alike(jobs_of(model_of(spec, side=side), schedule=schedule, side=side))
    assert alone == []


@pytest.mark.parametrize("at_once", [2, 4])
def test_in_groups(at_once: int, alone: list[Job]) -> None:
    assert_alike(jobs_of(model_of()), at_once=at_once)
    assert alone == []


GUIDED: dict[str, tuple[BatchLoss, list[Guide]]] = {
    "pfpl": (pfpl.Objective(0.7), [targets(site) for site in range(6)]),
    "pfpl literal": (pfpl.Objective(0.7, literal=True), [targets(site) for site in range(6)]),
    "fedpc": (fedpc.Objective(0.5), [targets(site) for site in range(6)]),
    "fedproto": (fedproto.Objective(1.0), [targets(0)] * 6),
    "fedplcc": (fedplcc.Objective(0.5, 0.5), [clusters(0)] * 6),
    "fpl": (fpl.Objective(), [clusters(site) for site in range(6)]),
    "fedplvm": (fedplvm.Objective(weight=1.0), [clusters(site) for site in range(6)]),
    "cross entropy": (classification.Objective(), [targets(site) for site in range(6)]),
}


@pytest.mark.parametrize("method", GUIDED)
@pytest.mark.parametrize("guided", [True, False])
def test_of_every_method(method: str, guided: bool, alone: list[Job]) -> None:
    objective, guides = GUIDED[method]
    assert_alike(jobs_of(model_of(), objective, guides if guided else [None] * 6))
    assert alone == []


@pytest.mark.parametrize("literal", [True, False])
def test_of_two_branches(literal: bool, alone: list[Job]) -> None:
    dual = add_branches(model_of(), DIM, seed=1).double()
    assert_alike(jobs_of(dual, feddbp.Objective(literal=literal)))
    assert_alike(jobs_of(dual, feddbp.Objective(), [None] * 6))
    assert alone == []


def test_sites_with_and_without_a_guide_train_apart(alone: list[Job]) -> None:
    guides = [targets(0), None, targets(2), None, None, targets(5)]
    assert_alike(jobs_of(model_of(), guides=guides))
    assert alone == []


@pytest.mark.parametrize("trains", Trains)
@pytest.mark.parametrize("schedule", [SCHEDULE, ADAM])
def test_parts_that_stand_still(trains: Trains, schedule: Schedule, alone: list[Job]) -> None:
    jobs = jobs_of(model_of(), schedule=schedule, trains=trains)
    before = states(jobs)
    assert_alike(jobs)
    still = {
        Trains.ALL: (),
        Trains.CLASSIFIER: [name for name in before[0] if not name.startswith("classifier.")],
        Trains.EXTRACTOR: [name for name in before[0] if name.startswith("classifier.")],
    }[trains]
    for job, old in zip(jobs, before, strict=True):
        assert all(torch.equal(job.model.state_dict()[name], old[name]) for name in still)
    assert alone == []


def test_frozen_parameters_stay(alone: list[Job]) -> None:
    model = model_of()
    next(model.parameters()).requires_grad_(False)
    jobs = jobs_of(model)
    before = states(jobs)
    assert_alike(jobs)
    name = next(iter(before[0]))
    assert all(
        torch.equal(job.model.state_dict()[name], old[name]) for job, old in zip(jobs, before, strict=True)
    )
    assert alone == []


@pytest.mark.parametrize("schedule", [SCHEDULE, ADAM])
def test_proximal_term(schedule: Schedule, alone: list[Job]) -> None:
    assert_alike(jobs_of(model_of(), schedule=schedule, proximal=0.7))
    assert alone == []
    with_it, without = jobs_of(model_of(), proximal=0.7), jobs_of(model_of())
    run_together(with_it, Batching.ALWAYS)
    run_together(without, Batching.ALWAYS)
    assert not torch.allclose(
        states(with_it)[0]["classifier.weight"], states(without)[0]["classifier.weight"]
    )


SAME_BLOCKS = {"resnet18", "resnet34", "resnet101", "resnet152"}
"""As resnet10 or resnet50 have, and more of them."""


@pytest.mark.parametrize("spec", sorted(BACKBONES.keys() - SAME_BLOCKS))
@pytest.mark.parametrize("norm", Norm)
def test_every_network_that_is_built_in(spec: str, norm: Norm, alone: list[Job]) -> None:
    """One step: batch normalisation of a few pixels makes much of a difference in the last digit."""
    if spec == "resnet50" and norm is Norm.GROUP:
        pytest.skip("its blocks with the other norm, and this norm in resnet10")
    side = 16 if spec == "fedpc-cnn" else SIDE
    schedule = replace(SCHEDULE, batch_size=5, local_epochs=1)
    jobs = jobs_of(model_of(spec, norm, side), schedule=schedule, sizes=(5, 5), side=side)
    assert_alike(jobs, tolerance=1e-7)
    assert alone == []


def test_batch_normalisation_joins_a_single_last_sample(alone: list[Job]) -> None:
    """9 samples are 4 and 5, 8 are 4 and 4: the smaller site has more full batches."""
    jobs = jobs_of(model_of("resnet10"), sizes=(9, 8, 5, 13), schedule=replace(SCHEDULE, local_epochs=1))
    assert_alike(jobs, tolerance=1e-6)
    assert alone == []


def test_in_float32() -> None:
    jobs = jobs_of(model_of())
    for job in jobs:
        job.model.float()
        inputs, labels = job.source.tensors  # type: ignore[attr-defined]
        object.__setattr__(job, "source", TensorSource(TensorDataset(inputs.float(), labels), CPU))
        object.__setattr__(job, "guide", Targets(job.guide.rows.float(), job.guide.present))  # type: ignore[union-attr]
    assert_alike(jobs, tolerance=2e-5)


def test_steps_do_not_depend_on_who_trains_along() -> None:
    """One site's training, beside any others', is its own."""
    few, many = jobs_of(model_of(), sizes=SIZES[:2]), jobs_of(model_of())
    run_together(few, Batching.ALWAYS)
    run_together(many, Batching.ALWAYS)
    torch.testing.assert_close(states(few)[0], states(many)[0], rtol=1e-12, atol=1e-12)


def test_one_site_diverges() -> None:
    jobs = jobs_of(model_of())
    with torch.no_grad():
        next(jobs[2].model.parameters())[:] = float("inf")
    with pytest.raises(TrainingError, match="lower the learning rate"):
        run_together(jobs, Batching.ALWAYS)


def test_one_model_twice_is_refused() -> None:
    job = jobs_of(model_of())[0]
    with pytest.raises(ValueError, match="one follows the other"):
        run_together([job, job])


class _Own(PrototypeModel):
    """A site's own network, which adds up its batch: batches of other sites would change its results."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(SIDE * SIDE, DIM)
        self.classifier = nn.Linear(DIM, CLASSES)

    def features(self, inputs: Tensor) -> Tensor:
        embedded: Tensor = self.body(inputs.flatten(1))
        return (embedded - embedded.mean(dim=0)).relu()


class _Samples(Dataset[tuple[Tensor, int]]):
    def __init__(self, tensors: TensorDataset) -> None:
        self._tensors = tensors

    def __len__(self) -> int:
        return len(self._tensors)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self._tensors[index]
        return image, int(label)


def with_layer(layer: nn.Module, at: int = 1) -> PrototypeModel:
    model = model_of()
    layers = list(model.backbone)  # type: ignore[arg-type]
    return SplitModel(nn.Sequential(*layers[:at], layer, *layers[at:]), model.classifier).double()


def tied() -> PrototypeModel:
    body = nn.Linear(DIM, DIM)
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, DIM), body, nn.ReLU(), body)
    return SplitModel(backbone, nn.Linear(DIM, CLASSES)).double()


def hooked() -> PrototypeModel:
    model = model_of()
    model.classifier.register_forward_hook(lambda _, __, output: 2 * output)
    return model


UNKNOWN: dict[str, Callable[[], PrototypeModel]] = {
    "own": lambda: _Own().double(),
    "dropout": lambda: with_layer(nn.Dropout(0.3)),
    "tied": tied,
    "hooked": hooked,
    "averages of all batches": lambda: with_layer(nn.BatchNorm2d(32, momentum=None)),
    "circular": lambda: with_layer(nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular")),
    "linear over pixels": lambda: with_layer(nn.Linear(SIDE, SIDE)),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_cannot_be_stacked_trains_one_by_one(kind: str, alone: list[Job]) -> None:
    assert_alike(jobs_of(UNKNOWN[kind](), sizes=(8, 6, 4)))
    assert len(alone) == 3


def test_data_that_are_decoded_train_one_by_one(alone: list[Job]) -> None:
    jobs = jobs_of(model_of())
    sources: list[Source] = [DatasetSource(_Samples(images(6, site)), CPU) for site in range(2)]
    mixed = [replace(job, source=source) for job, source in zip(jobs, sources, strict=False)] + jobs[2:]
    assert_alike(mixed)
    assert [job.seed for job in alone] == [0, 1]


def test_different_networks_train_in_groups_of_their_own(alone: list[Job]) -> None:
    plain, wide = jobs_of(model_of()), jobs_of(with_layer(nn.Conv2d(32, 32, 1)))
    assert_alike([*plain[:2], *wide[2:4], plain[4], *jobs_of(model_of("resnet10"))[5:]], tolerance=1e-6)
    assert [job.seed for job in alone] == [5]


def test_the_switch(alone: list[Job]) -> None:
    jobs = jobs_of(model_of())
    run_together(jobs, Batching.NEVER)
    assert [id(job) for job in alone] == [id(job) for job in jobs]
    alone.clear()
    run_together(jobs, Batching.AUTO)
    assert alone == []  # a small network
    run_together(jobs_of(model_of("resnet10"), sizes=(5, 5)), Batching.AUTO)
    assert len(alone) == 2  # on a CPU


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("at_once", [1, 2, None])
def test_side_by_side_in_threads(
    at_once: int | None, alone: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: list[tuple[str, int]] = []
    stacked = together._as_one

    def noted(jobs: list[Job]) -> list[Losses] | None:
        settings.append((threading.current_thread().name, torch.get_num_threads()))
        return stacked(jobs)

    monkeypatch.setattr(together, "_as_one", noted)
    assert_alike(jobs_of(model_of()), at_once=at_once)
    assert alone == []
    assert {threads for _, threads in settings} == {1}
    assert threading.current_thread().name not in {name for name, _ in settings}
    assert len(settings) == {1: 6, 2: 3, None: 2}[at_once]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_what_needs_torchs_generator_is_not_run_side_by_side(alone: list[Job]) -> None:
    dropping, plain = jobs_of(with_layer(nn.Dropout(0.3))), jobs_of(model_of())
    assert_alike([*dropping[:3], *plain[3:]])
    assert [job.seed for job in alone] == [0, 1, 2]


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_thread_leaves_the_setting_as_it_was() -> None:
    jobs = jobs_of(model_of())
    with torch.no_grad():
        next(jobs[2].model.parameters())[:] = float("inf")
    with pytest.raises(TrainingError):
        run_together(jobs)
    assert torch.get_num_threads() == 2


def test_sites_at_once_by_size() -> None:
    small, large = jobs_of(model_of())[0], jobs_of(model_of("resnet18"))[0]
    assert sites_at_once(small) == together.MOST_ON_CPU
    assert sites_at_once(large) == 1
    assert sites_at_once(large, Batching.ALWAYS) == 2
    assert sites_at_once(replace(large, device=torch.device("cuda"))) > 10


def test_signatures_differ_by_settings_and_shapes() -> None:
    ours = signature(model_of())
    assert ours == signature(model_of())
    others = [with_layer(nn.AvgPool2d(1, ceil_mode=mode)) for mode in (False, True)]
    assert len({ours, signature(model_of("fedpc-cnn", side=16)), *map(signature, others)}) == 4


def test_a_stack_leaves_models_alone_until_it_is_unloaded() -> None:
    models = [job.model for job in jobs_of(model_of())]
    before = [copy.deepcopy(model.state_dict()) for model in models]
    stack = Stack(models)
    for value in stack.values.values():
        value.zero_()
    torch.testing.assert_close([model.state_dict() for model in models], before)
    stack.unload()
    assert all(float(each.abs().sum()) == 0.0 for model in models for each in model.state_dict().values())


def test_inputs_without_samples_dimension_cannot_be_stacked() -> None:
    model = model_of()
    stack = Stack([model, copy.deepcopy(model)])
    stack.use(stack.rows(0, 2, frozenset()))
    with pytest.raises(CannotStack, match="3 dimensions"):
        stack.outputs(torch.rand(2, 4, SIDE, SIDE, dtype=torch.float64))


@pytest.mark.parametrize("count", range(1, 14))
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("join", [True, False])
def test_full_and_rest_is_split(count: int, size: int, join: bool) -> None:
    lengths = [len(each) for each in split(range(count), size, join_single=join)]
    full, rest = full_and_rest(count, size, join_single=join)
    assert lengths == [size] * full + [rest] * bool(rest)


def test_a_wrong_gradient_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison fails when the sites' losses are averaged instead of added up."""

    def averaged(outputs: Outputs, labels: Tensor, guide: Guide | None) -> Terms:
        terms = ALIGNED(outputs, labels, guide)  # type: ignore[arg-type]
        return Terms(terms.total / 6, terms.classification, terms.alignment)

    jobs = jobs_of(model_of())
    expected = copies(jobs)
    for job in expected:
        run(job)
    run_together([replace(job, objective=averaged) for job in jobs], Batching.ALWAYS)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(states(jobs), states(expected), rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("mixed", [False, True])
def test_on_a_gpu(mixed: bool) -> None:
    gpu = torch.device("cuda")
    jobs = [
        replace(
            job,
            model=job.model.to(gpu, torch.float32),
            source=TensorSource(
                TensorDataset(
                    *(each.float() for each in images(20, job.seed).tensors[:1]),
                    images(20, job.seed).tensors[1],
                ),
                gpu,
            ),
            guide=None,
            device=gpu,
            schedule=replace(SCHEDULE, mixed_precision=mixed),
        )
        for job in jobs_of(model_of())
    ]
    assert_alike(jobs, tolerance=5e-2 if mixed else 1e-4)
