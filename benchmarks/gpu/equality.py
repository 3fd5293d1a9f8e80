"""Equality of simulated runs on two devices, up to rounding that is measured.

A run on the device is compared with the *reference*: the same run on the CPU, one site after the other, by sessions,
without a protection. Both round in float32, in different orders of sums, and training amplifies rounding by a factor
that no formula gives: batch normalisation of few pixels divides by small deviations, and a ReLU's derivative jumps. The
amplification is therefore measured, by further runs on the CPU:

* *reordered*: the reference with other kernels (no oneDNN) and sites in one batched program. Its distance from the
  reference is what another order of sums makes of this run. The device may be :data:`ROUNDING` times as far away.
* *protected*: the reference with the case's protection, if it has one. The device may be farther away by
  :data:`PROTECTING` times the distance of this run from the reference: what masks and ciphertexts round.
* *shifted*: the reference with a learning rate that is larger by ``power``, one percent. The check must be able to see
  such an error: a tolerance above this distance is reported as too wide, and counts as a failure.

Distances are Euclidean norms over all sites' values of one kind together. Withheld classes, groups and integers must be
equal. Now and then a tie decides, of a ReLU or between two clusters, and rounding becomes a jump: one in some twenty
pairs of runs on a CPU. A jump belongs to one seed and a wrong path is wrong at each, so that a comparison that fails is
repeated with the next of :data:`SEEDS`, and the last one counts.
"""

from __future__ import annotations

import logging
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file

from agreement import ConfigError, Protection
from protoseal.simulation.batched import graphs
from protoseal.simulation.config import SimulationConfig, load_simulation
from protoseal.simulation.experiment import CompletedRound, Watcher, simulate

ROUNDING = 64.0
"""Distance allowed to a device, in distances between two orders of sums on the CPU.

Winograd's F(4×4, 3×3), which cuDNN may choose, rounds about ten times as much as a direct sum (Lavin and Gray 2016).
Distances between pairs of orders on a CPU varied by a factor of two between seeds, by SGD. The rest is a margin.
"""
PROTECTING = 3.0
"""Distance allowed to a device under a protection, in distances of a protected run on the CPU from one without.

Noise of ciphertexts is drawn anew in each run. Norms of so many numbers hardly vary, but training amplifies them.
"""
LEAST = 2.0**-20
"""Distance that is always allowed, relative to the values: 16 units of rounding, for runs equal in both orders."""
SEEDS = (0, 1, 2)
GRAPHS = Path(graphs.__file__).stem
"""Name by which the log knows the module that captures CUDA graphs."""


@dataclass(frozen=True)
class Case:
    """A configuration of ``simulate``, and the ``variants`` of it that run on the device.

    A variant's ``seeds`` are further seeds, which train in lockstep with the one that is compared.
    With ``beside_itself`` all runs are on the device and batched, where random numbers are drawn for each site: the
    engines are compared with each other.
    """

    name: str
    flags: Mapping[str, object]
    settings: tuple[str, ...] = ()
    variants: tuple[Mapping[str, object], ...] = ({},)
    power: float = 0.01
    beside_itself: bool = False


@dataclass(frozen=True)
class Comparison:
    """Result of one variant: ``distances`` by kind of value, as (distance, tolerance, distance of the shifted run)."""

    name: str
    seed: int
    distances: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Results of one run: what must be equal, and values by kind, as one float64 vector each."""

    exact: Mapping[str, object]
    values: Mapping[str, NDArray[np.float64]]


class Measured(NamedTuple):
    """Runs on the CPU by which a device is judged."""

    reference: Outcome
    reordered: Outcome
    shifted: Outcome
    protected: Outcome


class _Reports(Watcher):
    """Losses of every site and round of a seed."""

    def __init__(self, seed: int) -> None:
        self.losses: dict[tuple[int, str], tuple[float, ...]] = {}
        self._seed = seed

    def on_completed(self, completed: CompletedRound) -> None:
        for site, report in completed.reports.items() if completed.seed == self._seed else ():
            given = report.loss, report.loss_classification
            self.losses[completed.round, site] = tuple(float("nan") if x is None else x for x in given)


def choices(setting: str) -> tuple[str, ...]:
    """Return the values that a setting of ``simulate`` may have, but for ``auto``."""
    return tuple(
        value for value in get_args(SimulationConfig.model_fields[setting].annotation) if value != "auto"
    )


def compare(case: Case, device: str) -> Iterator[Comparison]:
    """Compare each of a case's variants with the reference; yield a comparison for each variant.

    Raises the errors of :func:`protoseal.simulation.experiment.simulate` for a reference that cannot run. An error of
    a variant is a problem of the variant.
    """
    left = list(case.variants)
    for seed in SEEDS:
        comparisons = list(_compare_seed(case, left, device, seed))
        last = seed == SEEDS[-1]
        yield from (comparison for comparison in comparisons if last or not comparison.problems)
        left = [
            variant
            for variant, comparison in zip(left, comparisons, strict=True)
            if comparison.problems and not last
        ]
        if not left:
            return


def _compare_seed(
    case: Case, variants: Sequence[Mapping[str, object]], device: str, seed: int
) -> Iterator[Comparison]:
    engine = {"engine": "sessions" if is_served(case, {"engine": "sessions"}) else "tensors"}
    alone: dict[str, object] = {**engine, "device": "cpu", "batched": "never", "seeds": [seed]}
    if case.beside_itself:
        alone |= {"device": device, "batched": "always"}
    plain = alone | {"protection": "plain"}
    config = load(case, {}, Path())
    reference = run(case, plain)
    with _other_kernels():
        reordered = run(
            case, plain | ({"engine": "tensors"} if case.beside_itself else {"batched": "always"})
        )
    shifted = run(case, plain, f"training.lr={config.training.lr * (1.0 + case.power)!r}")
    protected = reference if config.protection is Protection.PLAIN else run(case, alone)
    measured = Measured(reference, reordered, shifted, protected)
    for variant in variants:
        name = " ".join([case.name, *(f"{key}={value}" for key, value in variant.items())])
        try:
            seeds = [seed, *cast("Sequence[int]", variant.get("seeds", ()))]
            tested = run(case, {**variant, "device": device, "seeds": seeds})
        except Exception as error:  # the other variants run
            traceback.print_exc()
            if device == "cuda":
                torch.cuda.synchronize()  # raises where no other variant could run in this process
            yield Comparison(name, seed, problems=(f"{type(error).__name__}: {error}",))
            continue
        distances, problems = judge(measured, tested, case.power)
        yield Comparison(name, seed, distances, problems)


def judge(
    measured: Measured, tested: Outcome, power: float, least: float = LEAST
) -> tuple[dict[str, tuple[float, float, float]], tuple[str, ...]]:
    """Return the distances by kind, and what is wrong."""
    distances: dict[str, tuple[float, float, float]] = {}
    reference = measured.reference
    different = [key for key, value in reference.exact.items() if tested.exact.get(key) != value]
    problems = [f"{key} differ" for key in different]
    for kind, values in reference.values.items():
        found = [run.values.get(kind) for run in (*measured, tested)]
        if not all(
            given is not None and given.shape == values.shape and np.isfinite(given).all() for given in found
        ):
            problems.append(f"{kind}: other shapes, or not finite")
            continue
        scale = float(np.linalg.norm(values)) or 1.0
        _, spread, shift, error, distance = (
            float(np.linalg.norm(run.values[kind] - values)) / scale for run in (*measured, tested)
        )
        tolerance = max(ROUNDING * spread + PROTECTING * error, least)
        distances[kind] = distance, tolerance, shift
        if distance > tolerance:
            problems.append(f"{kind}: distance {distance:.1e} above {tolerance:.1e}")
        if tolerance >= shift:
            problems.append(
                f"{kind}: tolerance {tolerance:.1e} would hide an error of {power:.0%}: {shift:.1e}"
            )
    return distances, tuple(problems)


@contextmanager
def _other_kernels() -> Iterator[None]:
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(True)


class _Errors(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__(logging.WARNING)
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.module == GRAPHS:
            self._records.append(record)


@contextmanager
def raise_logged_errors() -> Iterator[None]:
    """Raise ``RuntimeError`` for an error that was only logged.

    A site contains its errors, and sites whose program raises train one by one. Steps that cannot be captured as a CUDA
    graph are taken without one, with a warning. Each hides the path that is to be compared.
    """
    records: list[logging.LogRecord] = []
    handler = _Errors(records)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
    for record in records:
        causes = [*(record.exc_info or ()), *(record.args or ())]
        cause = next((cause for cause in causes if isinstance(cause, Exception)), None)
        raise RuntimeError(record.getMessage()) from cause


def load(case: Case, flags: Mapping[str, object], out: Path, *settings: str) -> SimulationConfig:
    """Return a case's configuration; raise ``ConfigError`` for one that the product refuses."""
    return load_simulation(None, {**case.flags, **flags, "out": out}, [*case.settings, *settings])


def is_served(case: Case, flags: Mapping[str, object]) -> bool:
    """Return True unless the product refuses the case with these flags."""
    try:
        load(case, flags, Path())
    except ConfigError:
        return False
    return True


def run(case: Case, flags: Mapping[str, object], *settings: str) -> Outcome:
    """Run a case and return the results of its first seed, of which nothing stays on disk.

    Raises the errors of :func:`simulate`, and ``RuntimeError`` for an error that a site contained.
    """
    with tempfile.TemporaryDirectory(prefix="protoseal-gpu-") as folder:
        config = load(case, flags, Path(folder), *settings)
        reports = _Reports(config.seeds[0])
        with raise_logged_errors():
            result = simulate(config, reports, fresh=True)
        exact: dict[str, Any] = {
            "withheld classes": [site.withheld for site in result.sites],
            "groups": result.groups,
            "epsilon": [site.epsilon for site in result.sites],
            "reported rounds": sorted(reports.losses),
        }
        values: dict[str, list[NDArray[Any]]] = {
            "losses": [np.array(losses) for _, losses in sorted(reports.losses.items())]
        }
        first = Path(folder, f"seed-{config.seeds[0]}") if len(config.seeds) > 1 else Path(folder)
        for path in sorted(first.glob("sites/*/*.safetensors")):
            for name, array in sorted(load_file(path).items()):
                if array.dtype.kind == "f":
                    values.setdefault(path.stem, []).append(array.ravel())
                else:
                    exact[f"{path.parent.name} {path.stem} {name}"] = array.tolist()
    joined = {kind: np.concatenate(arrays).astype(np.float64) for kind, arrays in values.items()}
    return Outcome(exact, joined)
