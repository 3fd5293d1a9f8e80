"""Paths of a simulation that a device must compute as the CPU does: the cases of :mod:`benchmarks.gpu.equality`.

Methods, protections and engines are those that the code has; pairs that it refuses are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from agreement import DpSgdSection, Norm
from agreement.registry.methods import METHODS
from benchmarks.gpu.equality import (
    Case,
    Comparison,
    Measured,
    Outcome,
    choices,
    compare,
    is_served,
    judge,
    raise_logged_errors,
    run,
)
from benchmarks.workloads import WORKLOADS, Workload
from protoseal.simulation.batched.training import Batching, KeptPrograms, Precision, run_together
from secure_client.training.batches import TensorSource
from secure_client.training.job import Job

DIGITS: Mapping[str, object] = {
    "dataset": "digits",
    "split": "iid:per=60",
    "sites": 4,
    "rounds": 2,
    "tests": 5,
    "evaluate_every": 2,
    "workers": 1,
}
BRIEF = ("min_holders=3", "training.local_epochs=1", "training.optimiser=sgd", "training.lr=0.03")
"""Settings of short runs. SGD, since Adam divides by small gradients, and a tie of a ReLU then moves weights far."""
COLOUR = (
    "training.batch_size=5",  # several steps of one shape, which a graph replays from the third on
    *("preprocessing.image_size=16", "preprocessing.channels=3"),
    *("preprocessing.mean=[0.5,0.5,0.5]", "preprocessing.std=[0.5,0.5,0.5]"),
)
ENGINES = tuple({"engine": engine} for engine in choices("engine"))
LOCKSTEP: Mapping[str, object] = {"engine": "tensors", "seeds": [7]}
NETWORKS = {
    "fedpc-cnn": ("training.model=fedpc-cnn",),
    "fedpc-cnn, Adam": ("training.model=fedpc-cnn", "training.optimiser=adam", "training.lr=0.001"),
    "tanh-cnn": ("training.model=tanh-cnn",),
    "schedule": (
        *("training.model=tanh-cnn", "training.momentum=0.9", "schedule.optimiser_state=kept"),
        *("schedule.participation=0.7", "schedule.crop=2", "schedule.flip=true"),
    ),
}
DEEP = {
    "resnet10": Workload("resnet10", 512, 3, 16, sites=3, batch=4, steps=4),
    "resnet10, group": Workload("resnet10", 512, 3, 16, sites=3, batch=4, steps=4, norm=Norm.GROUP),
    "resnet18": Workload("resnet18", 512, 3, 16, sites=3, batch=4, steps=4),
}
LEAST_DEEP = 1e-10
"""Distance that is always allowed in float64: a million units of rounding."""
ROUNDED = Workload("tanh-cnn", 64, 3, 16, sites=3, batch=16, steps=4)
ROUNDED_POWER = 0.25
"""Error of the learning rate that must show beside products of lower precision."""


def compare_methods(device: str, protection: str) -> Iterator[Comparison]:
    """Compare every method that a protection serves, in every engine that runs it."""
    for method in METHODS:
        case = Case(f"{method}, {protection}", {**DIGITS, "method": method, "protection": protection}, BRIEF)
        yield from _compare_variants(case, device, [*ENGINES, LOCKSTEP])


def compare_networks(device: str) -> Iterator[Comparison]:
    """Compare networks, also with dropout and different ones, in every way to batch sites and every engine."""
    flags = {**DIGITS, "method": "pfpl", "split": "iid:per=28", "sites": 3, "tests": 1}
    batched = [{"batched": how} for how in ("auto", *choices("batched"))]
    for name, settings in NETWORKS.items():
        case = Case(name, flags, (*BRIEF, *COLOUR, *settings))
        yield from _compare_variants(case, device, [*batched, *ENGINES])
    mixed = {"models": ["fedpc-cnn", "tanh-cnn", "small-cnn"]}
    yield from _compare_variants(
        Case("different networks", {**flags, **mixed}, (*BRIEF, *COLOUR, "dim=64")), device, batched
    )
    grouped = {**flags, "method": "fedpc", "sites": 8, "split": "dirichlet:0.3,per=30"}
    yield from _compare_variants(Case("two groups", grouped, (*BRIEF, "fedpc.groups=2")), device, ENGINES)
    dropout = (*BRIEF, f"training.model={__name__}:build_dropout_network")
    masked = [
        variant for variant in batched if variant != {"batched": "never"}
    ]  # draws other masks on a card
    yield from _compare_variants(Case("dropout", flags, dropout, beside_itself=True), device, masked)


def compare_deep_networks(device: str) -> Iterator[Comparison]:
    """Compare the training of deep networks in float64, in every way to batch sites.

    In float32 so many ReLUs have a tie somewhere in nearly every run.
    """
    for name, workload in DEEP.items():
        with raise_logged_errors():
            reference = _train_twice(workload, "cpu", Batching.NEVER)
            reordered = _train_twice(workload, "cpu", Batching.ALWAYS)
            shifted = _train_twice(workload, "cpu", Batching.NEVER, rate=1.01)
            measured = Measured(reference, reordered, shifted, reference)
            for batching in Batching:
                tested = _train_twice(workload, device, batching)
                distances, problems = judge(measured, tested, 0.01, LEAST_DEEP)
                yield Comparison(f"{name} batched={batching}", 0, distances, problems)
    yield from _compare_precisions(device)


def _compare_precisions(device: str) -> Iterator[Comparison]:
    """Compare training in lower precision with float32 on the CPU, where bfloat16 gives the size of its error.

    TF32 rounds to three bits more, so that its error is an eighth.
    """
    always = Batching.ALWAYS
    with raise_logged_errors():
        reference, shifted, rounded = (
            _train_twice(ROUNDED, "cpu", always, rate, precision)
            for rate, precision in (
                (1.0, Precision.FLOAT32),
                (1.0 + ROUNDED_POWER, Precision.FLOAT32),
                (1.0, Precision.BF16),
            )
        )
        for precision, share in ((Precision.TF32, 1 / 8), (Precision.BF16, 1.0)):
            error = {
                kind: values + share * (rounded.values[kind] - values)
                for kind, values in reference.values.items()
            }
            measured = Measured(reference, reference, shifted, Outcome({}, error))
            tested = _train_twice(ROUNDED, device, always, precision=precision)
            distances, problems = judge(measured, tested, ROUNDED_POWER)
            yield Comparison(f"{ROUNDED.model} precision={precision}", 0, distances, problems)


def _train_twice(
    workload: Workload, device: str, batching: Batching, rate: float = 1.0, precision: Precision | None = None
) -> Outcome:
    """Train in two calls, as in two rounds, of which the second finds its programs; in float64 without a precision."""
    dtype = torch.float64 if precision is None else torch.float32
    jobs = []
    for job in workload.jobs(torch.device(device)):
        inputs, labels = job.source.tensors  # type: ignore[attr-defined]
        source = TensorSource(TensorDataset(inputs.to(dtype), labels), job.device)
        schedule = replace(job.schedule, lr=rate * 2.0**-7)  # exact in float32, in which a graph reads it
        jobs.append(replace(job, model=job.model.to(dtype), source=source, schedule=schedule))
    begun, programs = _weights(jobs), KeptPrograms()
    for _ in range(2):
        run_together(jobs, batching, precision=precision or Precision.FLOAT32, programs=programs)
    return Outcome({}, {"change": (_weights(jobs) - begun).numpy()})


def _weights(jobs: Sequence[Job]) -> Tensor:
    """Return a copy of all weights, float64 (P,), on the CPU."""
    flat = [nn.utils.parameters_to_vector(job.model.parameters()).detach() for job in jobs]
    return torch.cat(flat).cpu().double()


def _compare_variants(
    case: Case, device: str, variants: Sequence[Mapping[str, object]]
) -> Iterator[Comparison]:
    served = tuple(variant for variant in variants if is_served(case, variant))
    if served:
        yield from compare(replace(case, variants=served), device)


def build_dropout_network(num_classes: int, dim: int) -> tuple[nn.Module, nn.Module]:
    """Build a network of 8×8 images with dropout, which no built-in network has."""
    extractor = nn.Sequential(nn.Flatten(), nn.Linear(64, dim), nn.ReLU(), nn.Dropout(0.3))
    return extractor, nn.Linear(dim, num_classes)


# DP-SGD, whose noise comes from the operating system

PRIVATE = DpSgdSection(noise_multiplier=0.01, clip=1.0, sampling_rate=1.0)
"""Steps on all records with little noise, which only a job may take: a run with so little has no finite ε."""
NOISE_ROUNDING, NOISE_POWER = 2.0, 0.25
"""Distance allowed in distances between two CPU runs, and the error of the learning rate that must show.

Norms of so many Gaussian numbers vary by less than a percent, so that twice the distance between two CPU runs is no
accident of the noise.
"""


def compare_private(device: str) -> Iterator[Comparison]:
    """Compare the weights after DP-SGD up to its noise, and a run's ε and withheld classes exactly."""
    reference, again, shifted, tested = (
        _train_privately(where, rate)
        for where, rate in (("cpu", 1), ("cpu", 1), ("cpu", 1 + NOISE_POWER), (device, 1))
    )
    spread, shift, distance = (
        float((other - reference).norm() / reference.norm()) for other in (again, shifted, tested)
    )
    tolerance, problems = NOISE_ROUNDING * spread, []
    if not distance <= tolerance:
        problems.append(f"change: distance {distance:.1e} above {tolerance:.1e}")
    if not tolerance < shift:
        problems.append(
            f"change: tolerance {tolerance:.1e} would hide an error of {NOISE_POWER:.0%}: {shift:.1e}"
        )
    yield Comparison("DP-SGD steps", 0, {"change": (distance, tolerance, shift)}, tuple(problems))
    yield _run_privately(device)


def _train_privately(device: str, rate: float) -> Tensor:
    """Return the change of a site's weights, float64 (P,), on the CPU."""
    # One label, so that the records' gradients add up, and the noise is small beside their sum.
    workload = replace(WORKLOADS["small-cnn-28"], sites=1, steps=10)
    (job,) = workload.jobs(torch.device(device), epochs=3)
    inputs, labels = workload.images(workload.samples).tensors
    source = TensorSource(TensorDataset(inputs, torch.zeros_like(labels)), job.device)
    schedule = replace(job.schedule, lr=0.1 * rate, batch_size=workload.samples)
    before = _weights([job])
    run_together([replace(job, source=source, schedule=schedule, dp_sgd=PRIVATE)])
    return _weights([job]) - before


def _run_privately(device: str) -> Comparison:
    settings = (
        *(
            *BRIEF,
            "training.norm=group",
            "privacy.clip=1.0",
            "privacy.noise_multiplier=2.0",
            "privacy.release_every=2",
        ),
        *("privacy.extractor=private", "privacy.dp_sgd.noise_multiplier=1.0", "privacy.dp_sgd.clip=1.0"),
        "privacy.dp_sgd.sampling_rate=0.1",
    )
    case = Case("DP-SGD run", {**DIGITS, "method": "pfpl"}, settings)
    reference, tested = (run(case, {"device": where}) for where in ("cpu", device))
    problems = [] if tested.exact["epsilon"] == reference.exact["epsilon"] else ["epsilon differs"]
    return Comparison("DP-SGD run", 0, {}, tuple(problems))
