"""Runs that share one privacy ledger: the budget holds and no payment is lost, whatever the order and whoever dies."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from privacy.errors import BudgetError
from privacy.ledger.budget_account import read_account
from privacy.ledger.hash_chain import Anchor
from protoseal_files import append_only_file
from tests.states.interleaving import Killed, Strand, no_lock, pause, stepwise
from tests.support.ledgers import LIMIT, exact_epsilon, open_ledger, spending

_RUNS, _ROUNDS, _RESTARTS = 3, 4, 3
_NOISE = 4.0
"""Noise multiplier with which the budget does not suffice for all runs."""
_KILLED = 0.03
_append = append_only_file.append


@dataclass
class Outcome:
    """Outcome of a plan: payments that were acknowledged, refused, and cut off by a kill; and the problems found."""

    paid: int
    refused: int
    killed: int
    problems: list[str]


class SharedLedger:
    """One ledger and the processes that spend by it. The order of their steps, and who dies, follow from ``seed``."""

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._rng = random.Random(seed)  # noqa: S311 (a test's choices, to be repeated from the seed)
        self._anchors: list[Anchor] = []
        self._done: set[tuple[str, int]] = set()
        self._refused = self._killed = 0
        self._problems: list[str] = []

    def run(self) -> Outcome:
        """Let all processes spend until each has all its rounds, or the budget is spent."""
        strands = {f"run-{number}": self._started(f"run-{number}") for number in range(_RUNS)}
        with self._stepwise():
            while strands:
                name = self._rng.choice(sorted(strands))
                strand = strands[name]
                if self._killed < _RESTARTS and self._rng.random() < _KILLED:
                    strand.kill()
                else:
                    strand.resume()
                if strand.over:
                    del strands[name]
                    if self._was_killed(name, strand.error):
                        strands[name] = self._started(name)
        self._check()
        return Outcome(len(self._anchors), self._refused, self._killed, self._problems)

    def _started(self, run: str) -> Strand[None]:
        return Strand(lambda: self._spend_all(run))

    def _spend_all(self, run: str) -> None:
        ledger = open_ledger(self._path)
        for number in range(1, _ROUNDS + 1):
            if (run, number) not in self._done:
                try:
                    anchor = ledger.spend(spending(number, run, noise=_NOISE))
                except BudgetError:
                    self._refused += 1
                    return
                self._anchors.append(anchor)
                self._done.add((run, number))

    def _was_killed(self, run: str, error: BaseException | None) -> bool:
        if error is not None and not isinstance(error, Killed):
            self._problems.append(f"{run} cannot spend: {error}")
        self._killed += isinstance(error, Killed)
        return isinstance(error, Killed)

    def _check(self) -> None:
        try:
            account = read_account(self._path)
            for anchor in self._anchors:
                account.check_anchor(anchor)
        except Exception as error:
            self._problems.append(f"the ledger is not what was acknowledged: {error}")
            return
        spent = exact_epsilon(account.history, LIMIT.delta)
        if spent > LIMIT.epsilon:
            self._problems.append(f"epsilon {spent} is spent of {LIMIT.epsilon}")
        if not len(self._anchors) <= len(account.entries) <= len(self._anchors) + self._killed:
            self._problems.append(f"{len(account.entries)} entries of {len(self._anchors)} payments")

    # Steps

    @contextmanager
    def _stepwise(self) -> Iterator[None]:
        """A process pauses where another could come in between, and may be killed in the middle of a line."""
        with patch.object(append_only_file, "append", self._appended), stepwise(pause):
            yield

    def _appended(self, file: int, content: bytes) -> None:
        if self._killed < _RESTARTS and self._rng.random() < _KILLED:
            os.write(file, content[: int(len(content) * self._rng.random())])
            raise Killed
        _append(file, content)


_PLANS = 60


def test_shared_ledger_keeps_its_budget(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(_PLANS):
        outcome = SharedLedger(tmp_path / f"{seed}.jsonl", seed).run()
        assert not outcome.problems, (seed, outcome)
        seen.update(paid=outcome.paid, refused=outcome.refused, killed=outcome.killed)
    assert min(seen.values()) > _PLANS // 2, seen


def test_shared_ledger_without_lock_is_noticed(tmp_path: Path) -> None:
    with patch.object(append_only_file, "_lock", no_lock):
        outcomes = [SharedLedger(tmp_path / f"{seed}.jsonl", seed).run() for seed in range(5)]
    assert any(outcome.problems for outcome in outcomes)
