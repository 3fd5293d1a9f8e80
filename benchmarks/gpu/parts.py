"""Parts of the GPU check, each run in a process of its own.

:func:`main` writes one line of JSON for each figure to a file when the figure is there, so that a part that is killed
leaves what it has measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import click
import torch

from agreement.registry.protections import PROTECTIONS
from benchmarks.gpu.equality import Comparison, raise_logged_errors
from benchmarks.gpu.paths import (
    ENGINES,
    compare_deep_networks,
    compare_methods,
    compare_networks,
    compare_private,
)
from benchmarks.gpu.speed import RoundShare, Timing, measure_round, time_training
from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).parents[2]
MARK = "pytest.mark.gpu"
Figure = Comparison | Timing | RoundShare


@dataclass(frozen=True)
class Part:
    """A part: ``run`` yields its figures on a device, for at most ``seconds`` on a card.

    Parts with ``alone`` measure speed, and nothing else may run beside them.
    """

    run: Callable[[str], Iterator[Figure]]
    seconds: int
    alone: bool = False


def run_gpu_tests(device: str) -> Iterator[Comparison]:
    """Run the tests that need a card, all of which are skipped on a CPU."""
    del device
    files = [
        str(path) for path in (ROOT / "tests").rglob("test_*.py") if MARK in path.read_text(encoding="utf-8")
    ]
    # Warnings of other versions of torch are no failures here.
    options = ("-q", "-m", "gpu", "-p", "no:cacheprovider", "-o", "filterwarnings=default")
    command = [sys.executable, "-m", "pytest", *options, *files]
    tests = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 (constants)
    click.echo(tests.stdout)
    ending = tests.stdout.strip().splitlines()[-1:] or ["no output"]
    yield Comparison(
        f"pytest -m gpu: {ending[0]}", 0, problems=() if tests.returncode == 0 else ("tests failed",)
    )


def time_workload(name: str, device: str) -> Iterator[Timing]:
    """Time the training of a workload; on a CPU with two sites, two steps and one turn."""
    workload, where = WORKLOADS[name], torch.device(device)
    if where.type == "cpu":
        return time_training(replace(workload, sites=2, steps=2), where, turns=1)
    return time_training(workload, where)


def measure_rounds(device: str) -> Iterator[RoundShare]:
    """Measure rounds of two methods in every engine: 20 sites with 300 images each, fewer on a CPU."""
    for method, name, batch in (("pfpl", "resnet18", 30), ("fedpc", "fedpc-cnn", 10)):
        workload = replace(WORKLOADS[name], sites=20, batch=batch, steps=300 // batch)
        if device == "cpu":
            workload = replace(workload, sites=3, batch=5, steps=2)
        with raise_logged_errors():
            for engine in ENGINES:
                yield measure_round(workload, method, engine, device)


PARTS: dict[str, Part] = {
    "tests": Part(run_gpu_tests, 120),
    "networks": Part(compare_networks, 240),
    "deep-networks": Part(compare_deep_networks, 240),
    "dp-sgd": Part(compare_private, 120),
    **{name: Part(partial(compare_methods, protection=name), 240) for name in PROTECTIONS},
    **{f"speed-{name}": Part(partial(time_workload, name), 90, alone=True) for name in WORKLOADS},
    "rounds": Part(measure_rounds, 150, alone=True),
}
"""Parts by name: those that compare, and then those that measure speed."""


def main(name: str, device: str, rows: str) -> None:
    """Run a part, and write its figures to the file ``rows``."""
    with Path(rows).open("w", encoding="utf-8") as file:
        for figure in PARTS[name].run(device):
            file.write(json.dumps({"kind": type(figure).__name__, **asdict(figure)}, allow_nan=False) + "\n")
            file.flush()
