"""Errors of PFPL's combinations and distances under ``ckks``, over several keys, beside their stated bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np

from algorithms.pfpl import Weighting, peer_weights
from benchmarks.ckks_group import SPREAD, TAU, Array, CkksRound, Group, prototypes
from benchmarks.record import Case, Value, spent_on
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import DENOMINATOR, peer_error, total_error
from crypto.ckks.serialization import read_ciphertext
from crypto.plain import PlainServer, PlainSite
from crypto.protection import Cohort, Combination


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
    wrong = np.max([np.abs(each.received() - exact).max(axis=-1) for each in rounds], axis=0)
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
    return np.stack([(np.square(stack - own) * held).sum(axis=(0, 2)) for own in stack])
