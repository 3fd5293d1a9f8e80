"""Adversaries' readings of a victim's prototypes: exact where the trust model says so, and useless elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from protoseal.attacks.readings import Adversary, LearnedRows, readings
from protoseal.attacks.recorded_run import RecordedRun
from tests.protoseal.attacks.recorded import record_anew, recorded, recorded_in_groups, recorded_peer_sum

VICTIM = "site-2"
EXACT, NEAR, USELESS = "exact", "near", "useless"
COORDINATOR, PEER, HALF, PEERS, COLLUSION = Adversary

EXPECTED: dict[tuple[str, str], dict[Adversary, str]] = {
    ("pfpl", "plain"): {COORDINATOR: EXACT, PEER: NEAR, HALF: EXACT, PEERS: EXACT, COLLUSION: EXACT},
    ("pfpl", "masked"): {COORDINATOR: USELESS, PEER: NEAR, HALF: EXACT, PEERS: EXACT, COLLUSION: EXACT},
    ("pfpl", "ckks"): {COORDINATOR: USELESS, PEER: NEAR, HALF: EXACT, PEERS: EXACT, COLLUSION: EXACT},
    ("feddbp", "plain"): {COORDINATOR: EXACT, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: EXACT},
    ("feddbp", "masked"): {COORDINATOR: NEAR, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: NEAR},
    ("feddbp", "ckks"): {COORDINATOR: USELESS, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: EXACT},
    ("fedpc", "masked"): {COORDINATOR: NEAR, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: NEAR},
    ("fedplcc", "plain"): {COORDINATOR: EXACT, PEER: NEAR, HALF: NEAR, PEERS: NEAR, COLLUSION: EXACT},
    ("fedplcc", "masked"): {COORDINATOR: NEAR, PEER: NEAR, HALF: NEAR, PEERS: NEAR, COLLUSION: EXACT},
    ("fedplcc", "ckks"): {COORDINATOR: USELESS, PEER: NEAR, HALF: NEAR, PEERS: NEAR, COLLUSION: EXACT},
}
"""Nearness of an adversary's best reading to the victim's prototypes, by method and protection."""
IN_GROUPS: dict[str, dict[Adversary, str]] = {
    "plain": {COORDINATOR: EXACT, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: EXACT},
    "masked": {COORDINATOR: NEAR, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: NEAR},
    "ckks": {COORDINATOR: USELESS, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: EXACT},
}
"""Nearness by protection, for FedPC with two groups."""
ENCRYPTED = [pair for pair in EXPECTED if pair[1] == "ckks"]
PAIRS = [pytest.param(*pair, marks=pytest.mark.full if pair in ENCRYPTED[1:] else ()) for pair in EXPECTED]
"""Readings of one encrypted run are enough for `make test`."""


def nearest(run: RecordedRun, learned: LearnedRows) -> np.ndarray[Any, Any]:
    """Return the cosine of each of the victim's prototypes with the nearest row that was read of its class."""
    site, cosines = run.sites[VICTIM], []
    for own, k in zip(site.rows, site.labels, strict=True):
        rows = learned.of_class(k)
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(own)
        cosines.extend([float((rows @ own / np.maximum(lengths, 1e-12)).max())] * bool(len(rows)))
    return np.array(cosines)


def check_nearness(run: RecordedRun, nearness: Mapping[Adversary, str]) -> None:
    for adversary, expected in nearness.items():
        found = readings(run, adversary, VICTIM)
        cosines = max((nearest(run, each) for each in found), key=lambda each: float(np.median(each)))
        if expected == EXACT:
            assert cosines.min() > 1 - 1e-6, adversary
        elif expected == NEAR:
            assert 0.3 < np.median(cosines) < 1 - 1e-6, adversary
        else:
            assert np.abs(np.median(cosines)) < 0.3, adversary


@pytest.mark.parametrize(("method", "protection"), PAIRS)
def test_readings_come_as_near_as_the_trust_model_says(method: str, protection: str) -> None:
    check_nearness(recorded(method, protection), EXPECTED[method, protection])


def test_a_sum_of_peers_shows_no_prototype_but_to_all_other_sites() -> None:
    expected = {COORDINATOR: NEAR, PEER: NEAR, HALF: NEAR, PEERS: EXACT, COLLUSION: NEAR}
    check_nearness(recorded_peer_sum(), expected)


@pytest.mark.parametrize("protection", ["plain", "masked", pytest.param("ckks", marks=pytest.mark.full)])
def test_readings_of_groups_come_as_near_as_the_trust_model_says(protection: str) -> None:
    check_nearness(recorded_in_groups(protection), IN_GROUPS[protection])


@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_all_other_sites_solve_for_the_victims_prototypes(protection: str) -> None:
    """Decryption and rotation do not matter here: the results themselves determine the one unknown site."""
    run = recorded("pfpl", protection)
    (learned,) = readings(run, PEERS, VICTIM)
    np.testing.assert_allclose(learned.rows, run.sites[VICTIM].rows[learned.labels], rtol=0, atol=1e-3)


def test_rounds_that_send_no_prototypes_are_not_what_is_attacked() -> None:
    """The second of two rounds of frozen features sends zeros, on which every attack would fail."""
    frozen = {"frozen_extractor": True, "norm": "group"}
    run = record_anew("fedproto", "plain", rounds=2, training=frozen)
    assert run.result(VICTIM)[0].round == 1
    check_nearness(run, {COORDINATOR: EXACT})
