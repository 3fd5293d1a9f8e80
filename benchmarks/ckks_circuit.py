"""Speed and error of the ``ckks`` circuit, printed as JSON.

    python benchmarks/ckks_circuit.py speed --sites 5 --dim 64
    python benchmarks/ckks_circuit.py error --key-sets 20

``speed`` compares in one run: the direct circuit with the same sums written in TenSEAL's CKKSVector, timed on a few
pairs of one class and scaled to all pairs and classes, both in seconds of one core; and the circuit in one process
with two of them, by the wall clock. ``error`` compares answers with exact ones.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np
import tenseal
from numpy.typing import NDArray

from algorithms.pfpl.aggregation import Weighting, peer_weights
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import DENOMINATOR
from crypto.ckks.precision import peer_error, total_error
from crypto.ckks.secret import CkksSecret
from crypto.ckks.serialization import read_ciphertext
from crypto.ckks.server import CkksServer
from crypto.ckks.site import CkksSite
from crypto.plain import PlainServer, PlainSite
from crypto.protection import Cohort, Combination, Payload, ServerHalf, SiteHalf

Array = NDArray[np.float64]

_TAU = 1e-4
_SAMPLED_PAIRS = 3


@dataclass(frozen=True)
class Group:
    """One group's keys, with the coordinator's part in a file."""

    secret: CkksSecret
    keys_path: Path


def make_group(directory: Path) -> Group:
    """Fresh keys; those in the directory are replaced."""
    secret, keys = CkksSecret.generate()
    path = directory / "keys.bin"
    path.write_bytes(keys.to_bytes())
    return Group(secret, path)


def make_stack(sites: int, classes: int, dim: int, spread: float) -> Array:
    """Prototypes of norm 1 around a centre for each class, (n, K, d)."""
    rng = np.random.default_rng(0)
    stack = rng.normal(size=(classes, dim)) + spread * rng.normal(size=(sites, classes, dim))
    stack /= np.linalg.norm(stack, axis=-1, keepdims=True)
    return stack


def make_cohort(sites: int, classes: int, dim: int, missing: float = 0.0) -> Cohort:
    """Each site misses each class with the given probability, but the first three hold all."""
    holds = np.random.default_rng(1).random((sites, classes)) >= missing
    holds[:3] = True
    return Cohort(tuple(f"site-{i:03}" for i in range(sites)), holds, dim)


def protect(site: SiteHalf, stack: Array, cohort: Cohort) -> dict[str, Payload]:
    """All sites' payloads."""
    return {name: site.protect(stack[i], name, cohort) for i, name in enumerate(cohort.sites)}


def exchange(site: SiteHalf, server: ServerHalf, stack: Array, cohort: Cohort) -> Array:
    """What all sites receive, (n, K, d)."""
    answers = server.combine(protect(site, stack, cohort), cohort)
    return np.stack(
        [site.unprotect(answers[name], stack[i], name, cohort) for i, name in enumerate(cohort.sites)]
    )


def seconds(task: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Time of one call: this process's on a core, whatever else the machine does, or by another clock."""
    start = clock()
    task()
    return clock() - start


def high_level_seconds(stack: Array, repeat: int) -> float:
    """TenSEAL's own vectors: per class, d_im by ``dot``, d_im·C_m by ``*``, sums by ``+``; scaled to all pairs.

    Multiplying a vector by a one-slot result costs another level, so this code needs ring degree 16384.
    """
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 16384, coeff_mod_bit_sizes=[60, 40, 40, 40, 60])
    context.global_scale = 2.0**40
    context.generate_galois_keys()
    sites, classes, _ = stack.shape
    vectors = [tenseal.ckks_vector(context, row.tolist()) for row in stack[:2, 0]]
    start = time.process_time()
    for _ in range(repeat):
        difference = vectors[0] - vectors[1]
        distance = difference.dot(difference)
        for vector in vectors:
            products = vector * distance
            products + products
    pair_seconds = (time.process_time() - start) / repeat
    return pair_seconds * float(classes * sites * (sites - 1) / 2)


def speed_case(group: Group, sites: int, classes: int, dim: int, executor: Executor) -> dict[str, object]:
    """One size: seconds of each part, bytes each way, and how much slower the high-level code is."""
    combination = Combination.COMPLEMENT
    stack, cohort = make_stack(sites, classes, dim, 0.5), make_cohort(sites, classes, dim, 0.3)
    site = CkksSite(group.secret, combination, _TAU)
    payloads = protect(site, stack, cohort)
    inline, split = (CkksServer(combination, group.keys_path, pool) for pool in (None, executor))
    split.combine(payloads, cohort)
    answers = inline.combine(payloads, cohort)
    name = cohort.sites[0]
    inline_seconds = seconds(lambda: inline.combine(payloads, cohort))
    baseline = high_level_seconds(stack, _SAMPLED_PAIRS)
    upload = sum(map(len, payloads[name].blobs))
    return {
        "sites": sites,
        "classes": classes,
        "dim": dim,
        "seconds": inline_seconds,
        "wall_seconds": seconds(lambda: inline.combine(payloads, cohort), time.perf_counter),
        "wall_seconds_two_processes": seconds(lambda: split.combine(payloads, cohort), time.perf_counter),
        "seconds_protect": seconds(lambda: site.protect(stack[0], name, cohort)),
        "seconds_validate": seconds(lambda: inline.validate(payloads[name], name, cohort)),
        "seconds_unprotect": seconds(lambda: site.unprotect(answers[name], stack[0], name, cohort)),
        "baseline_seconds": baseline,
        "ratio": baseline / inline_seconds,
        "upload_bytes": upload,
        "upload_over_float32": upload / (4 * classes * dim),
        "answer_bytes": sum(map(len, answers[name].blobs)),
    }


def distance_errors(group: Group, classes: int) -> tuple[float, float]:
    """Errors of one squared distance: the worst slot, and the worst class after averaging over its slots."""
    sites, dim = 2, 4096 // Packing(classes, 1).stride
    packing, stack = Packing(classes, dim), make_stack(sites, classes, dim, 0.5)
    cohort = make_cohort(sites, classes, dim)
    payloads = protect(CkksSite(group.secret, Combination.DISTANCE, _TAU), stack, cohort)
    answer = CkksServer(Combination.DISTANCE, group.keys_path, None).combine(payloads, cohort)[
        cohort.sites[0]
    ]
    decrypted = group.secret.decrypt(read_ciphertext(answer.blobs[-1], DENOMINATOR)).real
    wrong = packing.replicas(decrypted) - np.square(stack[0] - stack[1]).sum(axis=1)[:, None]
    return float(np.abs(wrong).max()), float(np.abs(wrong.mean(axis=1)).max())


def peer_case(
    group: Group, sites: int, spread: float, missing: float, name: Combination
) -> dict[str, object]:
    """Largest error of any coordinate of an answer beside the bound at the smallest D."""
    classes, dim = 10, 64
    stack, cohort = make_stack(sites, classes, dim, spread), make_cohort(sites, classes, dim, missing)
    weights = partial(peer_weights, weighting=Weighting(name.value), tau=_TAU)
    exact = exchange(PlainSite(), PlainServer(weights), stack, cohort)
    site, server = CkksSite(group.secret, name, _TAU), CkksServer(name, group.keys_path, None)
    wrong = np.abs(exchange(site, server, stack, cohort) - exact)
    differences = np.square(stack[:, None] - stack[None]).sum(axis=-1)
    totals = np.where(cohort.holds, (differences * cohort.holds[None]).sum(axis=1), np.inf)
    bounds = np.stack([peer_error(total, cohort.counts, sites) for total in totals])
    return {
        "combination": name.value,
        "sites": sites,
        "spread": spread,
        "missing": missing,
        "smallest_D": float(totals.min()),
        "error": float(wrong.max()),
        "bound": float(bounds[np.isfinite(totals)].max()),
    }


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    return {"cpu": platform.processor() or platform.machine(), "cores": multiprocessing.cpu_count()}


@click.group()
def main() -> None:
    """Speed and error of the ``ckks`` circuit."""


@main.command()
@click.option("--sites", default=5, show_default=True)
@click.option("--classes", default=10, show_default=True)
@click.option("--dim", default=64, show_default=True)
def speed(sites: int, classes: int, dim: int) -> None:
    """Seconds and bytes at one size."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory, ProcessPoolExecutor(2, mp_context=context) as executor:
        case = speed_case(make_group(Path(directory)), sites, classes, dim, executor)
    click.echo(json.dumps({"schema": 1, "name": "ckks", "machine": machine(), "cases": [case]}, indent=1))


@main.command()
@click.option("--key-sets", default=5, show_default=True, help="The largest error belongs to the key set.")
def error(key_sets: int) -> None:
    """Errors of distances over fresh keys, and of answers by how far prototypes are apart."""
    distances: dict[int, list[tuple[float, float]]] = {1: [], 3: [], 10: [], 16: []}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(key_sets):
            group = make_group(Path(directory))
            for classes, measured in distances.items():
                measured.append(distance_errors(group, classes))
        cases = [
            peer_case(group, sites, spread, missing, name)
            for sites, missing in ((3, 0.0), (5, 0.0), (8, 0.3), (20, 0.3))
            for spread in (0.5, 0.1, 0.01)
            for name in (Combination.DISTANCE, Combination.COMPLEMENT)
        ]
    worst = {classes: np.max(measured, axis=0).tolist() for classes, measured in distances.items()}
    result = {"distance": worst, "distance_mean_bound": total_error(2), "answers": cases}
    click.echo(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
