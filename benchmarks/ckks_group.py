"""Group under ``ckks`` for benchmarks: keys, prototypes, payloads, errors, and the baseline in TenSEAL's own code."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
import tenseal
from numpy.typing import NDArray

from algorithms.pfpl import Weighting, peer_weights
from benchmarks.record import Case, Spent, Value, spent_on
from crypto.ckks.circuit import Circuit
from crypto.ckks.evaluation_keys import EvaluationKeys
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import DENOMINATOR, PROTOTYPE, Ciphertext, CkksLevel, peer_error, total_error
from crypto.ckks.peer_server import CkksServer
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import read_ciphertext
from crypto.ckks.site import CkksSite
from crypto.plain import PlainServer, PlainSite
from crypto.protection import Cohort, Combination, Payload, Pool

Array = NDArray[np.float64]
Switch = tuple[str, int]
"""Kind of key switch, and the number of primes of its ciphertext."""

TAU = 1e-4
SPREAD = 0.5
"""Default spread of prototypes around their class's centre."""


@dataclass(frozen=True)
class Group:
    """One group's keys, with the coordinator's part in a file."""

    secret: CkksSecret
    keys: EvaluationKeys
    keys_path: Path

    @classmethod
    def generate(cls, path: Path) -> Group:
        """Generate fresh keys, replacing the file."""
        secret, keys = CkksSecret.generate()
        path.write_bytes(keys.to_bytes())
        return cls(secret, keys, path)


class CkksRound:
    """Prototypes and payloads of the sites in one round."""

    def __init__(self, group: Group, combination: Combination, stack: Array, missing: float = 0.0) -> None:
        """``stack``: prototypes (n, K, d). A site misses a class with the given probability; the first three do not."""
        self.group, self.stack, self._combination = group, stack, combination
        sites, classes, dim = stack.shape
        holds = np.random.default_rng(1).random((sites, classes)) >= missing
        holds[:3] = True
        self.cohort = Cohort(tuple(f"site-{i:03}" for i in range(sites)), holds, dim)
        self.site = CkksSite(group.secret, combination, TAU)
        self.payloads = {name: self.protect(i) for i, name in enumerate(self.cohort.sites)}

    def protect(self, index: int) -> Payload:
        """Return the payload of one site."""
        return self.site.protect(self.stack[index], self.cohort.sites[index], self.cohort)

    def server(self, executor: Pool | None = None) -> CkksServer:
        """Return the coordinator's half."""
        return CkksServer(self._combination, self.group.keys_path, executor)

    def answers(self, executor: Pool | None = None) -> dict[str, Payload]:
        """Return the coordinator's answers to all payloads."""
        return self.server(executor).combine(self.payloads, self.cohort)

    def received(self) -> Array:
        """Return the rows that all sites read from their answers, (n, K, d)."""
        answers = self.answers()
        taken = zip(self.cohort.sites, self.stack, strict=True)
        return np.stack([self.site.unprotect(answers[name], rows, name, self.cohort) for name, rows in taken])


def prototypes(sites: int, classes: int, dim: int, spread: float) -> Array:
    """Draw prototypes of norm 1 around a centre for each class, (n, K, d)."""
    rng = np.random.default_rng(0)
    stack = rng.normal(size=(classes, dim)) + spread * rng.normal(size=(sites, classes, dim))
    stack /= np.linalg.norm(stack, axis=-1, keepdims=True)
    return stack


class CountingCircuit(Circuit):
    """Circuit that counts key switches."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.keys.load())
        self.switches: Counter[Switch] = Counter()

    def relinearise(self, ciphertext: Ciphertext) -> Ciphertext:
        """Relinearise as the circuit does."""
        return self._counted("relinearise", super().relinearise, ciphertext)

    def conjugate(self, ciphertext: Ciphertext) -> Ciphertext:
        """Conjugate as the circuit does."""
        return self._counted("rotate", super().conjugate, ciphertext)

    def rotate(self, ciphertext: Ciphertext, step: int) -> Ciphertext:
        """Rotate as the circuit does."""
        return self._counted("rotate", super().rotate, ciphertext, step)

    def _counted(self, name: str, switch: Callable[..., Ciphertext], *arguments: object) -> Ciphertext:
        result = switch(*arguments)
        self.switches[name, result.coeff_modulus_size()] += 1
        return result


def switch_tasks(group: Group, dim: int) -> dict[Switch, Callable[[], Ciphertext]]:
    """Return tasks with one key switch of each kind, on fresh ciphertexts."""
    circuit = Circuit(group.keys.load())
    slots = np.random.default_rng(2).normal(size=4096) / np.sqrt(dim)
    high = read_ciphertext(group.secret.encrypt(slots, PROTOTYPE), PROTOTYPE)
    tasks: dict[Switch, Callable[[], Ciphertext]] = {}
    for ciphertext in (high, circuit.lower(high, CkksLevel.PRODUCT)):
        primes, product = ciphertext.coeff_modulus_size(), circuit.multiply(ciphertext, ciphertext)
        tasks["rotate", primes] = partial(circuit.conjugate, ciphertext)
        tasks["relinearise", primes] = partial(circuit.relinearise, product)
    return tasks


class HighLevel:
    """Baseline by TenSEAL's vectors: per class, d_im by ``dot``, d_im·C_m by ``*``, sums by ``+``.

    Multiplying a vector by a one-slot result costs another level, so this code needs ring degree 16384.
    """

    def __init__(self, stack: Array) -> None:
        self._vectors = [tenseal.ckks_vector(self._context(), row.tolist()) for row in stack[:2, 0]]

    @staticmethod
    @cache
    def _context() -> tenseal.Context:
        """Return the context, whose keys take seconds to generate."""
        context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 16384, coeff_mod_bit_sizes=[60, 40, 40, 40, 60])
        context.global_scale = 2.0**40
        context.generate_galois_keys()
        return context

    def pair(self) -> None:
        """Compute one pair of sites in one class, for both sites."""
        left, right = self._vectors
        difference = left - right
        distance = difference.dot(difference)
        for vector in self._vectors:
            products = vector * distance
            products + products

    def whole(self, sites: int, classes: int, pairs: int) -> Spent:
        """Return the time of all pairs and classes, scaled from a few."""
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(pairs):
            self.pair()
        factor = classes * sites * (sites - 1) / 2 / pairs
        return Spent(factor * (time.perf_counter() - wall), factor * (time.process_time() - cpu))


def errors(groups: Sequence[Group], most_sites: int, classes: int, dim: int) -> Iterator[Case]:
    """Return the answers' errors, for distant and nearly equal prototypes, with and without absent sites."""
    for sites in sorted({min(most_sites, n) for n in (3, 8, 20)}):
        for missing, spread in product((0.0, 0.3), (0.5, 0.1, 0.01)):
            stack = prototypes(sites, classes, dim, spread)
            for combination in (Combination.DISTANCE, Combination.COMPLEMENT):
                rounds = [CkksRound(group, combination, stack, missing) for group in groups]
                yield _error(rounds, combination, {"spread": spread, "missing": missing})


def distance_errors(groups: Sequence[Group]) -> Iterator[Case]:
    """Return the largest error in any slot of a distance between opposite prototypes."""
    for classes in (1, 3, 10, 16):
        stack = prototypes(1, classes, 2 * Packing(classes, 1).copies, SPREAD)
        stack = np.concatenate([stack, -stack])
        rounds = [CkksRound(group, Combination.DISTANCE, stack) for group in groups]
        what: dict[str, Value] = {
            "case": "distance error",
            "sites": 2,
            "classes": classes,
            "dim": stack.shape[2],
            "key_sets": len(groups),
            "error": max(map(_distance_error, rounds)),
            "bound": total_error(2),
        }
        yield Case(what, [spent_on(rounds[0].answers)])


def _distance_error(work: CkksRound) -> float:
    answer = work.answers()[work.cohort.sites[0]]
    decrypted = work.group.secret.decrypt(read_ciphertext(answer.blobs[-1], DENOMINATOR))
    exact = np.square(work.stack[0] - work.stack[1]).sum(axis=1)
    replicas = Packing(work.cohort.classes, work.cohort.dim).replicas(decrypted)
    return float(np.abs(replicas - exact[:, None]).max())


def _error(rounds: Sequence[CkksRound], combination: Combination, setting: dict[str, float]) -> Case:
    """Return the largest error of an answer's coordinates over several keys, and the bound at the smallest D."""
    work = rounds[0]
    exact, held = _exact(work, combination), work.cohort.holds
    wrong = np.max([np.abs(work.received() - exact).max(axis=-1) for work in rounds], axis=0)
    totals = _totals(work.stack, work.cohort)
    bounds = np.stack([peer_error(total, work.cohort.counts, len(work.stack)) for total in totals])
    sites, classes, dim = work.stack.shape
    what: dict[str, Value] = {
        "case": "error",
        "sites": sites,
        "classes": classes,
        "dim": dim,
        "key_sets": len(rounds),
        "combination": combination.value,
        **setting,
        "smallest_D": float(totals[held].min()),
        "error": float(wrong[held].max()),
        "bound": float(bounds[held].max()),
        "of_bound": float((wrong / bounds)[held].max()),
    }
    return Case(what, [spent_on(work.answers)])


def _exact(work: CkksRound, combination: Combination) -> Array:
    weights = partial(peer_weights, weighting=Weighting(combination.value), tau=TAU)
    site, named = PlainSite(), list(zip(work.cohort.sites, work.stack, strict=True))
    payloads = {name: site.protect(rows, name, work.cohort) for name, rows in named}
    answers = PlainServer(weights).combine(payloads, work.cohort)
    return np.stack([site.unprotect(answers[name], rows, name, work.cohort) for name, rows in named])


def _totals(stack: Array, cohort: Cohort) -> Array:
    """Return D_i of each site and class, (n, K), over the holders of the class."""
    held = cohort.holds[:, :, None]
    return np.stack([(np.square(stack - rows) * held).sum(axis=(0, 2)) for rows in stack])
