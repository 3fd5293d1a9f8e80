"""What a session asks of a method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agreement import Agreement
from algorithms.gram import Bool
from crypto.pairwise.wire_values import MaskKeys
from protoseal_wire.messages import PhaseKey, RoundStart
from secure_client.protocol.journal import Journal
from secure_client.protocol.masked_sum import MaskedSum
from secure_client.protocol.participants import Participants
from secure_client.protocol.setup import Setup
from secure_client.site_model.checkpointed_learner import Trainee


@dataclass(frozen=True)
class Parts:
    """What a method's rounds at a site are put together from."""

    agreement: Agreement
    site: str
    trainee: Trainee
    journal: Journal
    setup: Setup
    participants: Participants
    masks: MaskedSum


@dataclass(frozen=True)
class Given:
    """What one result brought a site: among how many sites, and for which classes (K,) it got something."""

    sites: int
    classes: Bool


class Method(Protocol):
    """One method's rounds at a site. Everything that the protocol does not allow raises
    :class:`secure_client.errors.Violation`, and then nothing is answered."""

    def start(self, key: PhaseKey, start: RoundStart) -> None:
        """PRESENCE, before training: what the round trains from."""
        ...

    def stated(self, key: PhaseKey) -> tuple[bytes, MaskKeys | None]:
        """PRESENCE, after training: the base and the keys of the site's statement."""
        ...

    def step(self, key: PhaseKey, request: bytes) -> bytes:
        """The answer to a phase between PRESENCE and RESULT, which the order of phases allows now."""
        ...

    def result(self, key: PhaseKey, request: bytes) -> Given:
        """RESULT: take it for the rounds to come."""
        ...

    def end(self) -> None:
        """The run is over: erase what was kept for its last attempt."""
        ...
