"""Recorded runs of the bundled digits for tests of attacks, each simulated once in a process."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from crypto import rotation
from crypto.pairwise import masks, unmask
from crypto.protection import Words
from protoseal.attacks.recorded_run import RecordedRun, record_run
from protoseal.simulation.config import load_simulation

SETTINGS = {"dataset": "digits", "split": "iid", "sites": 4, "rounds": 1, "device": "cpu"}
FEW_RECORDS = "iid:per=60"
"""Split with few records, for tests of what is read and not of how well an attack does."""


@cache
def recorded(method: str, protection: str = "plain") -> RecordedRun:
    """Return the recorded run of a method under a protection, without noise, of few records."""
    return record_anew(method, protection, split=FEW_RECORDS)


@cache
def recorded_large(method: str, protection: str = "plain", samples: tuple[int, ...] = ()) -> RecordedRun:
    """Return the recorded run of a method under a protection, without noise, of all records."""
    return record_anew(method, protection, samples)


@cache
def recorded_frozen(protection: str, weighting: str = "complement") -> RecordedRun:
    """Return the recorded run of PFPL with frozen features, and 1, 2 or 20 samples of a class."""
    frozen = {"frozen_extractor": True, "norm": "group"}
    return record_anew(
        "pfpl", protection, (1, 2, 20), sites=3, training=frozen, pfpl={"weighting": weighting}
    )


@cache
def recorded_in_groups(protection: str, **fedpc: bool) -> RecordedRun:
    """Return the recorded run of FedPC with two groups: sites 1, 3 and 5, and the other five.

    Fewer than three sites of the first group have classes 1, 5, 6 and 8.
    """
    own = {"groups": 2} | fedpc
    return record_anew("fedpc", protection, split="dirichlet:0.5", sites=8, min_holders=3, fedpc=own)


@cache
def recorded_in_clusters(protection: str) -> RecordedRun:
    """Return the recorded run of FedPLCC with enough sites for several clusters of a class."""
    return record_anew("fedplcc", protection, sites=6)


@cache
def recorded_peer_sum() -> RecordedRun:
    """Return the recorded run of PFPL with equal weights under ``masked``: a sum, and no secret that sites share."""
    return record_anew("pfpl", "masked", pfpl={"weighting": "uniform"})


def record_anew(
    method: str, protection: str, samples: tuple[int, ...] = (), **settings: object
) -> RecordedRun:
    """Record a run that no other test shares, for instance of a weakened build."""
    config = load_simulation(None, {"method": method, "protection": protection, **SETTINGS, **settings})
    return record_run(config, 0, samples=samples)


# Builds in which a defence is missing


def leave_out_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sites send their words as they are, and the coordinator remove nothing."""

    def unchanged(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> Words:
        return words.copy()

    monkeypatch.setattr(masks, "add_streams", unchanged)
    monkeypatch.setattr(unmask, "add_streams", unchanged)


def leave_out_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sites send their rows as they are."""
    monkeypatch.setattr(rotation, "rotate", lambda key, vectors, inverse=False: vectors.copy())
