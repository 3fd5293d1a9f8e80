"""Group under ``ckks`` for benchmarks: keys, prototypes, payloads, and the baseline in TenSEAL's own code."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import tenseal
from numpy.typing import NDArray

from benchmarks.record import Spent
from crypto.ckks.circuit import Circuit
from crypto.ckks.group_keys import CkksSecret, EvaluationKeys
from crypto.ckks.parameters import PROTOTYPE, Ciphertext, CkksLevel
from crypto.ckks.peer_server import CkksServer
from crypto.ckks.serialization import read_ciphertext
from crypto.ckks.site import CkksSite
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
