"""Combinations of peers' prototypes at a site, for PFPL and extensions: its next targets follow from them.

plain, masked        :class:`RowHalf` sends rows in the clear, or rotated
ckks                 :class:`CkksPeerHalf` encrypts rows and decrypts their combination
a third party's      :class:`DeclaredPeerHalf`
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

import numpy as np

from agreement.derived.cohorts import cohort_of
from agreement.derived.payload_shapes import limits_of, result_shape
from agreement.registry.protections import PeersHalves
from agreement.registry.round_plan import load_half
from algorithms.pfpl import personalise
from crypto import plain
from crypto.ckks.site import CkksSite
from crypto.errors import ImplausibleError
from crypto.protection import Cohort, Combination, DeclaredHalf, Payload, ProtectedPayload, Rows, SiteHalf
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey, RoundStart
from secure_client.error_containment import hide_decryption_errors
from secure_client.exchanges.exchange import (
    ExchangeParts,
    PresenceBase,
    ResultSummary,
    SiteExchange,
    check_nothing_given,
)
from secure_client.exchanges.row_protection import attempt_context, row_protection
from secure_client.protocol.sent_values import check_cleartext_agreed

_log = logging.getLogger("protoseal.site")


class PeerExchange(SiteExchange):
    """PEERS rounds at a site: each site receives an individual answer, so there are no groups and no common base.

    No answer of the site depends on a decryption (Li and Micciancio, eprint 2020/1533).
    """

    def __init__(self, parts: ExchangeParts) -> None:
        self._agreement = parts.agreement
        self._site = parts.site
        self._learner = parts.learner
        self._participants = parts.participants
        self._limits = limits_of(parts.agreement)
        self._half = build_peer_half(parts)

    def start(self, key: PhaseKey, start: RoundStart) -> None:
        """See :class:`secure_client.exchanges.exchange.SiteExchange`, here and below."""
        check_nothing_given(key, start)

    def presence(self, key: PhaseKey) -> PresenceBase:  # noqa: ARG002 (the interface's argument)
        """Return no base and no keys."""
        return PresenceBase()

    def step(self, key: PhaseKey, request: bytes) -> ProtectedPayload:
        """Answer VALUES with the protected prototypes."""
        cohort = cohort_of(self._participants.verify_list(key, request), self._agreement)
        # Rows of classes that are withheld, or that this round does not send, stay here whatever a third party's half
        # does with them.
        self._participants.requested_rows = cohort.held_by(self._site)
        sent = np.where(self._participants.requested_rows[:, None], self._rows(key), 0.0)
        return ProtectedPayload(self._half.for_attempt(key, cohort), sent, self._site, cohort)

    def result(self, key: PhaseKey, request: bytes) -> ResultSummary:
        """Set the targets of later rounds: α of the own prototypes plus 1 − α of the peers'.

        In a round without rows the targets stay.
        """
        payload = codec.decode_payload(request, self._limits, result_shape(self._agreement))
        # This is the list for which this site protected its values.
        cohort = cohort_of(self._participants.accepted_list(key, Phase.VALUES), self._agreement)
        if not self._agreement.sends_rows(key.round):
            return ResultSummary(len(cohort.sites), self._learner.predictor.prototypes().has_personal)
        rows = self._rows(key)
        given = cohort.held_by(self._site)
        peers = self._peers(key, payload, rows, cohort)
        if peers is not None:
            targets = personalise(rows, peers, self._agreement.own_share) * self._agreement.norm_bound
            self._learner.received.take_targets(key.round, targets, given)
        return ResultSummary(len(cohort.sites), given)

    def end(self) -> None:
        """Do nothing: no secret of an attempt is stored."""

    def _peers(self, key: PhaseKey, payload: Payload, rows: Rows, cohort: Cohort) -> Rows | None:
        """Return the peers' combination (K, d); for an implausible decryption, log it and return None."""
        try:
            with hide_decryption_errors(f"the result of round {key.round}"):
                half = self._half.for_attempt(key, cohort)
                peers = half.unprotect(payload, rows, self._site, cohort)
                if not np.isfinite(peers).all():  # a third party's protection may not check this
                    raise ImplausibleError("the combination of peers is not finite")
                return peers
        except ImplausibleError as error:
            _log.error(
                "the result of round %d is discarded, the targets stay unchanged: %s", key.round, error
            )
            return None

    def _rows(self, key: PhaseKey) -> Rows:
        """Return this round's prototypes in units of the norm bound: (K, d), norms at most 1."""
        rows, _ = self._learner.train_round(key.round)
        return np.asarray(rows / self._agreement.norm_bound)


class PeerHalf(ABC):
    """A protection's half of rows at one site, from which the half of each attempt is made."""

    def __init__(self, parts: ExchangeParts) -> None:
        self._agreement = parts.agreement
        self._setup = parts.setup

    @abstractmethod
    def for_attempt(self, key: PhaseKey, cohort: Cohort) -> SiteHalf:
        """Return the half for the attempt of ``key`` among ``cohort``.

        Raises :class:`secure_client.errors.Violation` when the coordinator skipped the step that delivers its secret.
        """


def build_peer_half(parts: ExchangeParts) -> PeerHalf:
    """Return the agreed protection's half; raise ``ValueError`` if the protection has none for rows."""
    half: PeerHalf = load_half(parts.agreement.plan.site_half, PeerHalf)(parts)
    return half


class RowHalf(PeerHalf):
    """Rows whose inner products the coordinator sees, as the plan says: in the clear, or rotated.

    Raises :class:`secure_client.errors.Unprotected` at a run's start for clear rows under another protection.
    """

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        if self._agreement.plan.row_scheme == plain.SCHEME:
            check_cleartext_agreed(self._agreement)

    def for_attempt(self, key: PhaseKey, _: Cohort) -> SiteHalf:
        """Return a half in the clear, or one that rotates by the attempt's matrices."""
        return row_protection(self._agreement, self._setup, key)


class CkksPeerHalf(PeerHalf):
    """Rows in ciphertexts, of which the coordinator evaluates a combination without seeing inner products."""

    def for_attempt(self, _key: PhaseKey, _cohort: Cohort) -> SiteHalf:
        """Return a half that encrypts afresh: ciphertexts need no context."""
        weighting = Combination(self._agreement.pfpl.weighting.value)
        return CkksSite(self._setup.ckks_key(), weighting, self._agreement.agreement_threshold)


class DeclaredPeerHalf(PeerHalf):
    """Rows under a protection that gives its halves as functions, such as a third party's."""

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        halves = parts.agreement.protection.peers
        if not isinstance(halves, PeersHalves):
            raise ValueError(f"protection {parts.agreement.protection.value!r} declares no half of rows")
        self._make = halves.site

    def for_attempt(self, key: PhaseKey, cohort: Cohort) -> SiteHalf:
        """Return the declared half, bound to everything that the coordinator could tell two sites differently."""
        context = attempt_context(self._agreement, self._setup, key, cohort)
        settings = self._agreement.settings_of(self._agreement.protection)
        return DeclaredHalf(self._make(settings, self._setup.group_secret(), context))
