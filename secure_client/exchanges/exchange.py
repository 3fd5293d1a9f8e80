"""Interface of an exchange at a site, as a session uses it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agreement import Agreement
from algorithms.gram_matrix import Bool
from crypto.pairwise.wire_values import MaskKeys
from protoseal_wire.messages import PhaseKey, RoundStart
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.protocol.journal import Journal
from secure_client.protocol.participants import Participants
from secure_client.protocol.secure_aggregation import SecureAggregation
from secure_client.protocol.sent_values import Answer
from secure_client.protocol.setup import Setup


@dataclass(frozen=True)
class ExchangeParts:
    """Components of an exchange at a site."""

    agreement: Agreement
    site: str
    trainee: CheckpointedLearner
    journal: Journal
    setup: Setup
    participants: Participants
    masks: SecureAggregation


@dataclass(frozen=True)
class ResultSummary:
    """Summary of one result: the number of sites in it, and the classes (K,) for which the site received a value."""

    sites: int
    classes: Bool


class SiteExchange(Protocol):
    """A site's half of the exchange of each round.

    A request that the protocol does not allow raises :class:`secure_client.errors.Violation`, and is not answered.
    """

    def start(self, key: PhaseKey, start: RoundStart) -> None:
        """Take the groups and the base that the round trains from, before training (PRESENCE)."""
        ...

    def stated(self, key: PhaseKey) -> tuple[bytes, MaskKeys | None]:
        """Return the base and the keys of the site's statement, after training (PRESENCE)."""
        ...

    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """Return the answer to a phase between PRESENCE and RESULT that the order of phases allows now.

        Values must be made by a half of the agreed protection: see :mod:`secure_client.protocol.sent_values`.
        """
        ...

    def result(self, key: PhaseKey, request: bytes) -> ResultSummary:
        """Take a RESULT, from which later rounds train."""
        ...

    def end(self) -> None:
        """End the run: erase the secrets of its last attempt."""
        ...
