"""Exchanges of one step: every participant sends its values, which the coordinator can check by themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agreement import Agreement, Protection
from agreement.payload_forms import values_form
from crypto import plain
from crypto.errors import UnknownSchemeError
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.codec import Limits
from protoseal_wire.messages import Phase
from secure_server.exchanges.base import Attempt, Outcome
from secure_server.rounds.state import Quorum


class SinglePhaseExchange(ABC):
    """VALUES, from every participant: a missing one fails the attempt."""

    masked = False

    def __init__(self, agreement: Agreement, limits: Limits) -> None:
        self._agreement, self._limits = agreement, limits

    def quorums(self, _: Attempt) -> tuple[Quorum, ...]:
        """Return no quorum: everyone is needed."""
        return ()

    def request(self, attempt: Attempt, _phase: Phase, _site: str) -> bytes:
        """Return the presence of all participants."""
        return codec.encode_active_list(attempt.active)

    def check(self, attempt: Attempt, _phase: Phase, site: str, content: bytes) -> None:
        """Check an answer: decode it, refuse cleartext that is not agreed, then call :meth:`validate`."""
        payload = self._decoded(attempt, content)
        # A third party's half may not check this. Limit: the coordinator has seen the values by now.
        if payload.scheme == plain.SCHEME and self._agreement.protection is not Protection.PLAIN:
            raise UnknownSchemeError(
                f"{site} sent values of scheme {plain.SCHEME!r}, but protection "
                f"{self._agreement.protection.value!r} is agreed"
            )
        self.validate(payload, site, attempt)

    def payloads(self, attempt: Attempt) -> dict[str, Payload]:
        """Return the values of all participants."""
        return {site: self.payload(attempt, site) for site in attempt.survivors[Phase.VALUES]}

    def payload(self, attempt: Attempt, site: str) -> Payload:
        """Return the values of one participant."""
        return self._decoded(attempt, attempt.answer(Phase.VALUES, site))

    @abstractmethod
    def validate(self, payload: Payload, site: str, attempt: Attempt) -> None:
        """Raise :class:`crypto.errors.MalformedError` unless the payload may enter :meth:`outcome`."""

    @abstractmethod
    def outcome(self, attempt: Attempt) -> Outcome:
        """Return the outcome of everyone's values."""

    def _decoded(self, attempt: Attempt, content: bytes) -> Payload:
        return codec.decode_payload(content, self._limits, values_form(self._agreement, attempt.key.round))
