"""One group's keys for all tests, and each combination written as loops over sites and coordinates."""

import atexit
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from crypto.ckks.evaluation_keys import EvaluationKeys
from crypto.ckks.peer_server import CkksServer
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.site import CkksSite
from crypto.protection import Cohort, Combination, Payload, Rows

TAU = 1e-4

Stack = NDArray[np.float64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Group:
    """Secret and evaluation keys of a group's maker, and the file with the coordinator's part."""

    secret: CkksSecret
    keys: EvaluationKeys
    keys_path: Path


@cache
def group(number: int = 0) -> Group:
    """Keys are slow to make: each test process makes one set for each number."""
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)
    secret, keys = CkksSecret.generate()
    path = Path(directory.name) / f"keys-{number}.bin"
    path.write_bytes(keys.to_bytes())
    return Group(secret, keys, path)


def site_half(combination: Combination) -> CkksSite:
    return CkksSite(group().secret, combination, TAU)


def server_half(combination: Combination) -> CkksServer:
    return CkksServer(combination, group().keys_path, None)


def cohort_of(holds: Bool, dim: int) -> Cohort:
    return Cohort(tuple(f"site-{i:03}" for i in range(len(holds))), holds, dim)


def random_stack(shape: tuple[int, int, int], spread: float, seed: int) -> Stack:
    """Prototypes of norm 1 around a centre for each class."""
    rng = np.random.default_rng(seed)
    stack = rng.normal(size=shape[1:]) + spread * rng.normal(size=shape)
    stack /= np.linalg.norm(stack, axis=-1, keepdims=True)
    return stack


def uploads(stack: Stack, cohort: Cohort, combination: Combination) -> dict[str, Payload]:
    half = site_half(combination)
    return {site: half.protect(stack[i], site, cohort) for i, site in enumerate(cohort.sites)}


def exchange(stack: Stack, cohort: Cohort, combination: Combination) -> Stack:
    """Return the results of all sites, (n, K, d), through validation and both halves."""
    server, payloads = server_half(combination), uploads(stack, cohort, combination)
    for site, payload in payloads.items():
        server.validate(payload, site, cohort)
    return received(server.combine(payloads, cohort), stack, cohort, combination)


def received(answers: Mapping[str, Payload], stack: Stack, cohort: Cohort, combination: Combination) -> Stack:
    half = site_half(combination)
    return np.stack(
        [half.unprotect(answers[site], stack[i], site, cohort) for i, site in enumerate(cohort.sites)]
    )


def distance(x: Rows, y: Rows) -> float:
    return float(sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))


def expected_row(stack: Stack, holds: Bool, i: int, k: int, combination: Combination) -> Rows:
    """Equation 4 of PFPL for one site and class, literally; the own row where there is nothing to combine."""
    own: Rows = stack[i, k]
    peers = [m for m in range(len(stack)) if m != i and holds[m, k] and holds[i, k]]
    if not peers:
        return own
    weights = dict.fromkeys(peers, 1.0 / len(peers))
    total = sum(distance(own, stack[m, k]) for m in peers)
    compared = combination is Combination.DISTANCE or (
        combination is Combination.COMPLEMENT and len(peers) > 1
    )
    if compared and total <= TAU:
        return own
    for m in peers if compared else ():
        near = distance(own, stack[m, k])
        if combination is Combination.DISTANCE:
            weights[m] = near / total
        else:
            weights[m] = (total - near) / ((len(peers) - 1) * total)
    result: Rows = sum((weights[m] * stack[m, k] for m in peers), np.zeros_like(own))
    return result


def expected(stack: Stack, holds: Bool, combination: Combination) -> Stack:
    """Return the results of all sites and classes, (n, K, d)."""
    result = np.empty_like(stack)
    for i, k in np.ndindex(stack.shape[:2]):
        result[i, k] = expected_row(stack, holds, i, k, combination)
    return result


def totals(stack: Stack, holds: Bool) -> Stack:
    """D_i of each site and class, (n, K), over the holders of the class."""
    result = np.zeros(stack.shape[:2])
    for i, k in np.ndindex(stack.shape[:2]):
        result[i, k] = sum(distance(stack[i, k], stack[m, k]) for m in range(len(stack)) if holds[m, k])
    return result
