"""Spendings to try a ledger with, an accountant that is exact and takes no time, and a search of ledgers' lines."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from privacy.accounting.events import Event, GaussianRelease
from privacy.ledger.budget_account import read_account
from privacy.ledger.hash_chain import Anchor
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Limit, ReleaseName, Spending
from privacy.ledger.remaining_budget import count_remaining

if TYPE_CHECKING:
    from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
    from secure_client.privacy.budget import SpentBudget


DATASET = "heart-2024"
LIMIT = Limit(epsilon=3.0, delta=1e-5)
NOISE = 6.2


def exact_epsilon(history: Sequence[Event], delta: float) -> float:
    """Return ε of Gaussian releases, which compose to one (Balle and Wang 2018, theorem 8).

    Steps count as if unsampled.
    """
    return _epsilon(math.sqrt(math.fsum(_square(event) for event in history)), delta)


def spending(number: int, run: str = "run-1", *, noise: float = NOISE, what: str = "prototypes") -> Spending:
    """Return the spending of one round."""
    return Spending(ReleaseName(run, number, what), bytes(32), GaussianRelease(noise, 1290), {"clip": 1.0})


def open_ledger(path: Path, dataset: str = DATASET, limit: Limit = LIMIT) -> Ledger:
    """Open a ledger with the exact accountant."""
    return Ledger(path, dataset, limit, epsilon=exact_epsilon)


def spent_budget(learner: CheckpointedLearner) -> SpentBudget:
    """Return what is spent of the budget of a site whose prototypes are noisy."""
    if learner.releases is None:
        raise LookupError("the site has no budget")
    return learner.releases.spent_budget()


def has_paid_for(ledger: Ledger, release: ReleaseName) -> bool:
    """Return True if any process has recorded a release of this name, sent or not."""
    ledger.epsilon_spent()  # reads the file, and repairs it
    return any(entry.spending.release == release for entry in read_account(ledger.path).entries)


def count_possible(ledger: Ledger, event: Event) -> int:
    """Return how many more releases like ``event``, or steps, fit the limit by the exact accountant."""
    return count_remaining(ledger.history, event, ledger.limit, exact_epsilon)


def _square(event: Event) -> float:
    steps = 1 if isinstance(event, GaussianRelease) else event.steps
    return steps / event.noise_multiplier**2


def _epsilon(mu: float, delta: float) -> float:
    low, high = 0.0, 1.0
    while _delta(mu, high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _delta(mu, middle) > delta else (low, middle)
    return high


def _delta(mu: float, epsilon: float) -> float:
    if mu == 0:
        return 0.0
    lost = _tail(mu / 2 + epsilon / mu)
    return _tail(epsilon / mu - mu / 2) - (math.exp(epsilon + math.log(lost)) if lost else 0.0)


def _tail(x: float) -> float:
    return math.erfc(x / math.sqrt(2)) / 2


def is_line(content: Mapping[str, object], before: Anchor, after: Anchor, salt: str | None = None) -> bool:
    """Return True if ``content`` is the line between two anchors. Only the site can give the line's ``salt``."""
    line = {**content, "seq": after.seq, "prev": before.head} | ({} if salt is None else {"salt": salt})
    return hashlib.sha256(canonical(line)).hexdigest() == after.head


def canonical(line: Mapping[str, object]) -> bytes:
    """Return a line's text without its newline."""
    return json.dumps(line, sort_keys=True, separators=(",", ":")).encode()
