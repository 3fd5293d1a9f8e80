"""Accuracies of whole runs by the tensor engine beside sessions, paired by seed, and a run of a thousand sites.

OMP_NUM_THREADS=1 python -m benchmarks.engines --json engines.json
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import click
import numpy as np
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

from benchmarks.contestants.simulation import Stopwatch
from benchmarks.record import (
    Case,
    Spent,
    Value,
    json_option,
    machine,
    peak_memory,
    record_cases,
    show,
    spent_on,
)
from protoseal.commands.options import COUNT, example, parse_words
from protoseal.commands.terminal_output import one_line_errors
from protoseal.reports.result_files import RunResult
from protoseal.simulation.batched.training import run_together
from protoseal.simulation.config import load_simulation
from protoseal.simulation.experiment import simulate
from protoseal.simulation.run_folder import SavedRun

SETTINGS = {
    "dataset": "digits",
    "split": "mixed:n=6.5,max=25",
    "sites": "5",
    "dim": "16",
    "device": "cpu",
    "training.model": "small-cnn",
    "training.batch_size": "8",
    "training.local_epochs": "1",
}
_TESTS = 50
COLUMNS = {
    **{name: name for name in ("case", "method", "seconds")},
    "ratio": "over sessions",
    "cpu_ratio": "CPU",
    "difference": "difference, points",
    "interval": "95 %, ±",
    "training": "training",
    "peak_mib": "MiB",
}
CAPTION = "difference of mean accuracies, tensors less sessions, over seeds; share of rounds' time in `run_together`"


def pair_by_seed(method: str, *, seeds: int, rounds: int) -> Case:
    """Return the differences of accuracy by seed, and the times of both engines."""
    spent: dict[str, Spent] = {}
    accuracies: dict[str, dict[int, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in ("sessions", "tensors"):
            settings = {**SETTINGS, "method": method, "rounds": str(rounds), "engine": engine}
            flags = {"out": f"{folder}/{engine}", "seeds": tuple(range(seeds))}
            results: list[RunResult] = []
            config = load_simulation(None, flags, [f"{name}={value}" for name, value in settings.items()])
            spent[engine] = spent_on(lambda config=config, results=results: results.append(simulate(config)))  # type: ignore[misc] # bound now
            accuracies[engine] = {figures.seed: figures.mean_accuracy or 0.0 for figures in results[0].seeds}
    differences = 100.0 * np.array(
        [accuracies["tensors"][seed] - accuracies["sessions"][seed] for seed in range(seeds)]
    )
    half = stats.t.ppf(0.975, seeds - 1) * differences.std(ddof=1) / math.sqrt(seeds)
    what: dict[str, Value] = {
        "case": "paired",
        "method": method,
        "difference": float(differences.mean()),
        "interval": float(half),
    }
    return Case(what, [spent["tensors"]], [spent["sessions"]])


def run_many_sites(method: str, *, sites: int, rounds: int) -> Case:
    """Return the time, memory and share of training of a run of many sites with ten samples each to train on."""
    rng = np.random.default_rng(0)
    training = Stopwatch(run_together)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "images.npz"
        labels = np.arange(sites * 20) % 10
        images = rng.integers(0, 256, (len(labels) + _TESTS, 8, 8), dtype=np.uint8)
        own, overall = np.split(images, [len(labels)])
        # A test part of the data's own: samples of all sites, on which all sites test, would grow with the sites.
        np.savez(data, x_train=own, y_train=labels, x_test=overall, y_test=labels[:_TESTS])
        settings = {
            **SETTINGS,
            "method": method,
            "rounds": str(rounds),
            "sites": str(sites),
            "split": "iid:per=20,test=0.5",
            "dataset": f"npz:{data}",
        }
        text = [f"{name}={value}" for name, value in settings.items()]
        config = load_simulation(None, {"out": f"{folder}/out"}, text)
        with mock.patch("protoseal.simulation.site_pool.run_together", training):
            spent = spent_on(lambda: simulate(config))
        ended = SavedRun.read(Path(folder, "out", "runs", f"{method}.json")).outcome
    # Tests and the log are part of a round, and the prototypes' pass is no part of training.
    rounds_seconds = sum(completed.total_seconds for completed in ended.rounds)
    what: dict[str, Value] = {
        "case": f"{sites} sites",
        "method": method,
        "training": training.seconds / rounds_seconds,
        "peak_mib": peak_memory() // 2**20,
    }
    return Case(what, [spent])


def measure(methods: tuple[str, ...], *, seeds: int, rounds: int, sites: int) -> Iterator[Case]:
    """Yield the cases."""
    if sites:
        yield run_many_sites("pfpl", sites=sites, rounds=3)
        yield run_many_sites("fedavg", sites=sites, rounds=3)
    for method in methods:
        yield pair_by_seed(method, seeds=seeds, rounds=rounds)


@click.command(epilog=example("python -m benchmarks.engines --json engines.json"))
@click.option(
    "--methods", callback=parse_words, help="Methods to pair.  [default: pfpl,fedpc,feddbp,fedplcc,fedavg]"
)
@click.option("--seeds", type=click.IntRange(min=2), default=5, show_default=True, help="Number of seeds.")
@click.option("--rounds", type=COUNT, default=10, show_default=True, help="Rounds of each paired run.")
@click.option(
    "--sites", type=int, default=1000, show_default=True, help="Sites of the large run; 0 leaves it out."
)
@json_option
@one_line_errors
def main(methods: tuple[str, ...] | None, seeds: int, rounds: int, sites: int, path: Path | None) -> None:
    """Compare the engines of simulations."""
    chosen = methods or ("pfpl", "fedpc", "feddbp", "fedplcc", "fedavg")
    facts = machine(rounds=rounds, seeds=seeds)
    cases = record_cases("engines", measure(chosen, seeds=seeds, rounds=rounds, sites=sites), path, facts)
    show(cases, COLUMNS, CAPTION)


if __name__ == "__main__":
    main()
