"""Recorded runs of the bundled digits for tests of attacks, each simulated once in a process."""

from __future__ import annotations

from functools import cache

from protoseal.evaluation.attacks.recorded_run import RecordedRun, record_run
from protoseal.simulation.config import load_simulation

SETTINGS = {"dataset": "digits", "split": "iid", "sites": 4, "rounds": 1, "device": "cpu"}


@cache
def recorded(method: str, protection: str = "plain", samples: tuple[int, ...] = ()) -> RecordedRun:
    """Return the recorded run of a method under a protection, without noise."""
    return record_anew(method, protection, samples)


def record_anew(
    method: str, protection: str, samples: tuple[int, ...] = (), **settings: object
) -> RecordedRun:
    """Record a run that no other test shares, for instance of a weakened build."""
    config = load_simulation(None, {"method": method, "protection": protection, **SETTINGS, **settings})
    return record_run(config, 0, samples=samples)
