"""Exchanges with hidden presence: each site's cohort has its own classes, the coordinator's has none."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from crypto.ckks.hidden_site import HiddenSite
from crypto.ckks.packing import Packing
from crypto.ckks.server import CkksServer
from crypto.protection import Cohort, Combination, Payload
from tests.crypto.ckks_reference import TAU, Bool, Stack, group

LEAST = 3
"""``min_holders`` of most tests."""
Slots = NDArray[np.complex128]
"""What a ciphertext decrypts to."""


def hidden_site(combination: Combination, least: int = LEAST) -> HiddenSite:
    return HiddenSite(group().secret, combination, TAU, least)


def hidden_server(combination: Combination) -> CkksServer:
    return CkksServer(combination, group().keys_path, None, hidden=True)


def seen_by(site: int | None, cohort: Cohort) -> Cohort:
    """The cohort as a site knows it, or as the coordinator does: None."""
    holds = np.zeros_like(cohort.holds)
    if site is not None:
        holds[site] = cohort.holds[site]
    return replace(cohort, holds=holds)


def hidden_uploads(
    stack: Stack, cohort: Cohort, combination: Combination, least: int = LEAST
) -> dict[str, Payload]:
    half = hidden_site(combination, least)
    return {site: half.protect(stack[i], site, seen_by(i, cohort)) for i, site in enumerate(cohort.sites)}


def hidden_answers(
    stack: Stack, cohort: Cohort, combination: Combination, least: int = LEAST
) -> dict[str, Payload]:
    server, payloads = hidden_server(combination), hidden_uploads(stack, cohort, combination, least)
    for site, payload in payloads.items():
        server.validate(payload, site, seen_by(None, cohort))
    return server.combine(payloads, seen_by(None, cohort))


def hidden_exchange(
    stack: Stack, cohort: Cohort, combination: Combination, least: int = LEAST
) -> tuple[Stack, Bool]:
    """What all sites get, (n, K, d), and the classes (n, K) for which they take it."""
    answers = hidden_answers(stack, cohort, combination, least)
    half = hidden_site(combination, least)
    read = [
        half.read(answers[site], stack[i], site, seen_by(i, cohort)) for i, site in enumerate(cohort.sites)
    ]
    rows, given = zip(*read, strict=True)
    return np.stack(rows), np.stack(given)


def packing_of(cohort: Cohort) -> Packing:
    return Packing(cohort.classes, cohort.dim)
