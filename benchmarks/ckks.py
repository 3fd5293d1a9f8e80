"""PFPL's circuit on ciphertexts against the same sums in TenSEAL's high-level code, and against itself.

python -m benchmarks.ckks --json ckks.json
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from benchmarks.ckks_group import (
    SPREAD,
    CkksRound,
    CountingCircuit,
    Group,
    HighLevel,
    Switch,
    distance_errors,
    errors,
    prototypes,
    switch_tasks,
)
from benchmarks.record import (
    Case,
    Spent,
    Task,
    Value,
    draw_growth,
    json_option,
    machine,
    peak_memory,
    record_cases,
    show,
    spent_on,
)
from crypto.ckks.noise_flooding import Receiver
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import CORRECTION, PROTOTYPE
from crypto.ckks.peer_combination import Combining
from crypto.ckks.peer_server import CkksServer
from crypto.ckks.serialization import read_ciphertext
from crypto.protection import Cohort, Combination, Payload, Pool
from protoseal.commands.options import COUNT, FILE, example, parse_counts
from protoseal.commands.terminal_output import one_line_errors
from secure_server.process_pool import Workers

PAIRS = 3
"""Number of pairs of one class in the high-level code, before each run of the circuit; scaled to all pairs."""
SWITCHES = 15
COLUMNS = {
    **{name: name for name in ("case", "sites", "dim", "seconds")},
    "baseline_seconds": "baseline's",
    "cpu_ratio": "ratio",
    "over_bound": "over bound",
    "smallest_D": "D",
    "error": "error",
    "bound": "bound",
}
CAPTION = (
    "ratio: of seconds on a core; upload: over the prototypes as float32; D: the smallest of the answers"
)
CURVES = {"cpu_seconds": "packed circuit", "baseline_cpu_seconds": "CKKSVector, scaled"}


@dataclass(frozen=True)
class CkksBenchmark:
    """Plan of a measurement: ``classes`` prototypes of ``dim`` features at each of ``sites``, under ``complement``.

    ``growth`` are numbers of sites, ``dims`` numbers of features; ``key_sets`` fresh keys for the errors, 0 for none.
    """

    sites: int = 20
    classes: int = 10
    dim: int = 512
    repeats: int = 3
    growth: tuple[int, ...] = (2, 5, 10, 20, 30, 50)
    dims: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    key_sets: int = 3

    @property
    def facts(self) -> dict[str, Value]:
        """Return the sizes as fields of a case."""
        return {"sites": self.sites, "classes": self.classes, "dim": self.dim}

    def round(self, group: Group) -> CkksRound:
        """Return one round: distant prototypes, and the sites' payloads."""
        stack = prototypes(self.sites, self.classes, self.dim, SPREAD)
        return CkksRound(group, Combination.COMPLEMENT, stack)


def measure(plan: CkksBenchmark) -> Iterator[Case]:
    """Yield each case when it is measured, on one core unless the case has another number."""
    with tempfile.TemporaryDirectory() as directory:
        group = Group.generate(Path(directory) / "keys.bin")
        yield _circuit("circuit", group, plan, plan.repeats)
        yield _bound(group, plan)
        yield _two_processes(group, plan)
        yield _site(group, plan)
        for sites in plan.growth:
            yield _grown("sites", group, replace(plan, sites=sites))
        for dim in plan.dims:
            yield _grown("dim", group, replace(plan, dim=dim))
        groups = [Group.generate(Path(directory) / f"keys-{i}.bin") for i in range(plan.key_sets)]
        if groups:
            yield from distance_errors(groups)
            yield from errors(groups, plan.sites, plan.classes, plan.dim)


def _circuit(name: str, group: Group, plan: CkksBenchmark, repeats: int, **more: Value) -> Case:
    """Compare one process with the high-level code, alternating, after one warm-up run."""
    work, high_level = plan.round(group), HighLevel(prototypes(2, 1, plan.dim, SPREAD))
    baseline, ours = [], []
    for _ in range(repeats + 1):
        baseline.append(high_level.whole(plan.sites, plan.classes, PAIRS))
        ours.append(spent_on(work.answers))
    what: dict[str, Value] = {
        "case": name,
        **plan.facts,
        "baseline": "CKKSVector, scaled",
        "cpu_seconds": _median(ours[1:], 1),
        "baseline_cpu_seconds": _median(baseline[1:], 1),
        **more,
    }
    return Case(what, ours[1:], baseline[1:])


def _bound(group: Group, plan: CkksBenchmark) -> Case:
    """Return the circuit's case, with the number of key switches times the cost of each as the baseline."""
    work, packing = plan.round(group), Packing(plan.classes, plan.dim)
    switches, tasks = _switches(group, work, packing), switch_tasks(group, plan.dim)
    spent, bounds = [], []
    for _ in range(plan.repeats + 1):
        spent.append(spent_on(work.answers))
        once = {kind: [spent_on(switch) for _ in range(SWITCHES)] for kind, switch in tasks.items()}
        totals = (sum(n * _median(once[kind], part) for kind, n in switches.items()) for part in (0, 1))
        bounds.append(Spent(*totals))
    times = zip(spent[1:], bounds[1:], strict=True)
    pairs, rotations = plan.sites * (plan.sites - 1) // 2, len(packing.rotations)
    what: dict[str, Value] = {
        "case": "key switches",
        **plan.facts,
        "baseline": "key switches alone",
        "key_switches": switches.total(),
        "key_switches_pair_by_pair": pairs * (rotations + 1) + 2 * packing.parts * plan.sites,
        **{f"{name}_{primes}_primes": switches[name, primes] for name, primes in tasks},
        **{f"{name}_{primes}_primes_ms": 1e3 * _median(once[name, primes], 1) for name, primes in tasks},
        "over_bound": statistics.median(circuit.cpu / bound.cpu for circuit, bound in times),
    }
    return Case(what, spent[1:], bounds[1:])


def _switches(group: Group, work: CkksRound, packing: Packing) -> Counter[Switch]:
    """Count the key switches of each kind in an aggregation."""
    circuit = CountingCircuit(group)
    uploads = [payload.blobs for payload in work.payloads.values()]
    prototypes = [[read_ciphertext(blob, PROTOTYPE) for blob in blobs[:-1]] for blobs in uploads]
    corrections = [read_ciphertext(blobs[-1], CORRECTION) for blobs in uploads]
    combining = Combining(circuit, Combination.COMPLEMENT, packing)
    receivers = [
        Receiver(circuit, packing, lacks, correction)
        for lacks, correction in zip(~work.cohort.holds, corrections, strict=True)
    ]
    for _ in combining.answers(prototypes, receivers):
        pass
    return circuit.switches


def _median(spent: list[Spent], part: int) -> float:
    return statistics.median(times[part] for times in spent)


def _two_processes(group: Group, plan: CkksBenchmark) -> Case:
    """Compare two worker processes with none. Seconds on a core are of the busier worker and the parent process.

    ``machine_allows`` is the speed-up if each worker did only its half, measured by two whole aggregations at the same
    time, one in each worker, which share caches and memory but do not wait for each other.
    """
    work = plan.round(group)
    with Workers(2) as executor:
        tasks = work.answers, partial(work.answers, executor), partial(_side_by_side, executor, work)
        one, two, apart = zip(
            *[[_on_busiest_core(task) for task in tasks] for _ in range(plan.repeats + 1)][1:], strict=True
        )
    what: dict[str, Value] = {
        "case": "two processes",
        **plan.facts,
        "baseline": "one process",
        "machine_allows": statistics.median(2 * a.wall / b.wall for a, b in zip(one, apart, strict=True)),
    }
    return Case(what, two, one)


def _side_by_side(executor: Pool, work: CkksRound) -> None:
    """Run as many whole aggregations as there are processes."""
    whole = partial(work.server().combine, work.payloads, work.cohort)
    for running in [executor.submit(_computed, whole) for _ in range(executor.workers)]:
        running.result()


def _computed(whole: Task) -> None:
    """Compute the answers without returning them."""
    whole()


def _on_busiest_core(task: Task) -> Spent:
    before = _on_core()
    spent = spent_on(task)
    theirs = [seconds - before.get(pid, 0.0) for pid, seconds in _on_core().items()]
    return Spent(spent.wall, spent.cpu + max(theirs, default=0.0))


def _on_core() -> dict[int, float]:
    """Return the CPU seconds of this process's children, as Linux counts them."""
    children = [child.pid for child in multiprocessing.active_children() if child.pid]
    files = {pid: Path(f"/proc/{pid}/schedstat") for pid in children}
    return {pid: int(file.read_text().split()[0]) / 1e9 for pid, file in files.items() if file.exists()}


def _site(group: Group, plan: CkksBenchmark) -> Case:
    """Measure a site's part: bytes each way, and seconds of protecting, reading and validating."""
    work = plan.round(group)
    answers, server, name = work.answers(), work.server(), work.cohort.sites[0]
    payload = work.payloads[name]
    *rows, correction = map(len, payload.blobs)
    unprotect = partial(work.site.unprotect, answers[name], work.stack[0], name, work.cohort)
    float32 = 4 * plan.classes * plan.dim
    what: dict[str, Value] = {
        "case": "site",
        **plan.facts,
        "upload_bytes": sum(rows),
        "upload_of_float32": sum(rows) / float32,
        "with_correction_of_float32": (sum(rows) + correction) / float32,
        "answer_of_float32": sum(map(len, answers[name].blobs)) / float32,
        "unprotect_seconds": spent_on(unprotect).cpu,
        "validate_seconds": spent_on(partial(server.validate, payload, name, work.cohort)).cpu,
    }
    return Case(what, [spent_on(partial(work.protect, 0)) for _ in range(plan.repeats)])


def _grown(name: str, group: Group, plan: CkksBenchmark) -> Case:
    """Measure the circuit's case once, with the memory of a fresh process."""
    return _circuit(f"growth of {name}", group, plan, 1, peak_rss_bytes=_peak(plan.round(group)))


def _peak(work: CkksRound) -> int:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_memory, work.server(), work.payloads, work.cohort).result()


def _memory(server: CkksServer, payloads: dict[str, Payload], cohort: Cohort) -> int:
    server.combine(payloads, cohort)
    return peak_memory()


@click.command(
    epilog=example('python -m benchmarks.ckks --sites 5 --dim 64 --growth "" --dims "" --json ckks.json')
)
@json_option
@click.option(
    "--sites",
    type=click.IntRange(min=3),
    default=20,
    show_default=True,
    help="Number of sites that send prototypes.",
)
@click.option(
    "--classes", type=COUNT, default=10, show_default=True, help="Number of classes, one prototype each."
)
@click.option("--dim", type=COUNT, default=512, show_default=True, help="Dimension of a prototype.")
@click.option(
    "--repeats",
    type=COUNT,
    default=3,
    show_default=True,
    help="Number of times that each comparison is measured; the median counts.",
)
@click.option(
    "--growth",
    callback=parse_counts,
    default="2,5,10,20,30,50",
    show_default=True,
    help="Numbers of sites for the growth curve, with commas between; '' measures none.",
)
@click.option(
    "--dims",
    callback=parse_counts,
    default="64,128,256,512,1024,2048",
    show_default=True,
    help="Dimensions of prototypes for the growth curve, with commas between; '' measures none.",
)
@click.option(
    "--key-sets",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Number of fresh key sets over which errors are measured; 0 measures none.",
)
@click.option("--plot", type=FILE, help="File for the growth with sites, as SVG.")
@click.option("--plot-dims", type=FILE, help="File for the growth with dimensions, as SVG.")
@one_line_errors
def main(path: Path | None, plot: Path | None, plot_dims: Path | None, **settings: object) -> None:
    """Measure PFPL on ciphertexts beside the same sums in TenSEAL's high-level code.

    The figures are CPU seconds, key switches, bytes sent, and errors beside their stated bounds.
    """
    plan = CkksBenchmark(**settings)  # type: ignore[arg-type]  # click has checked them
    cases = record_cases("ckks", measure(plan), path, machine())
    show(cases, COLUMNS, CAPTION)
    for target, along in ((plot, "sites"), (plot_dims, "dim")):
        if target is not None:
            axes = along, "seconds of one core, for all sites"
            draw_growth(target, cases, along, CURVES, axes, name=f"growth of {along}")


if __name__ == "__main__":
    main()
