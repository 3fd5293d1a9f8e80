"""Simulations of the bundled digits that take seconds, and ends that come in the middle of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agreement import Agreement
from protoseal.simulation.config import SimulationConfig, load_simulation
from protoseal.simulation.experiment import CompletedRound, Watcher
from protoseal.simulation.local_federation import LocalFederation, RunOutcome
from protoseal.simulation.site_pool import ONE_BY_ONE, SiteTraining
from secure_client.data import SiteData

DIGITS = """
dataset = "digits"
split = "iid:per=40"
sites = 4
dim = 8
norm_bound = 100.0
device = "cpu"
batched = "never"
[training]
model = "small-cnn"
optimiser = "sgd"
lr = 0.02
batch_size = 8
local_epochs = 1
"""
"""The end of a file, whose beginning says which methods and how many rounds."""


def config_in(text: str, out: Path, **flags: Any) -> SimulationConfig:
    """Return the configuration of a file beside ``out``, which is left there, with the command's flags."""
    file = out.with_suffix(".toml")
    file.write_text(text, encoding="utf-8")
    return load_simulation(file, {"out": str(out), **flags})


def run_federation(
    agreement: Agreement,
    data: Mapping[str, SiteData],
    out: Path,
    *,
    training: SiteTraining = ONE_BY_ONE,
) -> RunOutcome:
    """Run the agreement over ``data`` (site name → its data); every site's files go to ``out/sites/NAME``."""
    with LocalFederation(agreement, data, training=training) as federation:
        federation.run()
        return federation.save(out)


class Rounds(Watcher):
    """Watcher that records what every site reported of each round of each method, in order."""

    def __init__(self) -> None:
        self.completed: list[CompletedRound] = []

    def on_completed(self, completed: CompletedRound) -> None:
        """Noted."""
        self.completed.append(completed)


class Killed(BaseException):
    """Ends a process in all but name."""


def fail_at(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, count: int, *, after: bool
) -> Callable[[], int]:
    """Raise at the ``count``-th call, before or after it does its work; the calls so far."""
    original, calls = getattr(owner, name), 0

    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count and not after:
            raise Killed
        done = original(*arguments, **named)
        if calls == count:
            raise Killed
        return done

    monkeypatch.setattr(owner, name, counted)
    return lambda: calls
