"""Abstract exchange at a site, as a session uses it, and the parts that every exchange is built of.

An exchange is the site's half of the rounds of one (method family, protection) pair:
:mod:`secure_client.exchanges.peers`, :mod:`secure_client.exchanges.sums`, :mod:`secure_client.exchanges.peer_sums` and
:mod:`secure_client.exchanges.clusters`. An exchange decides *which* values leave; a half of the agreed protection makes
them into a payload. Each exchange takes its half at the run's start, so that a missing half ends the run there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from agreement import Agreement
from algorithms.gram_matrix import Bool
from crypto.pairwise.attempt import MaskKeys
from protoseal_wire.messages import PhaseKey, RoundStart
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.errors import Violation
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
    learner: CheckpointedLearner
    journal: Journal
    setup: Setup
    participants: Participants
    masks: SecureAggregation


@dataclass(frozen=True)
class PresenceBase:
    """Base that a site's model was trained from, and the site's keys for masks, as PRESENCE states them.

    ``base`` is the SHA-256 of a result, or empty where rounds have no common base.
    """

    base: bytes = b""
    keys: MaskKeys | None = None


@dataclass(frozen=True)
class ResultSummary:
    """Summary of one result: the number of sites in it, and the classes (K,) for which the site received a value."""

    sites: int
    classes: Bool


class SiteExchange(ABC):
    """A site's half of the exchange of each round.

    A request that the protocol does not allow raises :class:`secure_client.errors.Violation`, and is not answered.
    """

    @abstractmethod
    def start(self, key: PhaseKey, start: RoundStart) -> None:
        """Take the groups and the base that the round trains from, before training (PRESENCE)."""

    @abstractmethod
    def presence(self, key: PhaseKey) -> PresenceBase:
        """Return the base and the keys of the site's statement, after training (PRESENCE)."""

    @abstractmethod
    def step(self, key: PhaseKey, request: bytes) -> Answer:
        """Return the answer to a phase between PRESENCE and RESULT that the order of phases allows now.

        Values must be made by a half of the agreed protection: see :mod:`secure_client.protocol.sent_values`.
        """

    @abstractmethod
    def result(self, key: PhaseKey, request: bytes) -> ResultSummary:
        """Take a RESULT, from which later rounds train."""

    @abstractmethod
    def end(self) -> None:
        """End the run: erase the secrets of its last attempt."""


def check_nothing_given(key: PhaseKey, start: RoundStart) -> None:
    """Raise :class:`Violation` for a start with groups or a base, where the method or the round has neither."""
    if start != RoundStart():
        raise Violation(
            f"round {key.round} has neither groups nor a base, but the coordinator sent some with PRESENCE"
        )
