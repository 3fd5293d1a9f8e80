"""Combinations of peers' prototypes at a site, for PFPL and extensions: its next targets follow from them."""

from __future__ import annotations

import logging

import numpy as np

from agreement.derived.cohorts import cohort_of
from agreement.derived.payload_shapes import limits_of, result_shape
from algorithms.pfpl import personalise
from crypto.errors import ImplausibleError
from crypto.protection import Cohort, Payload, ProtectedPayload, Rows, SiteHalf
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
from secure_client.exchanges.row_protection import build_peer_half, check_peer_half

_log = logging.getLogger("protoseal.site")


class PeerExchange(SiteExchange):
    """PEERS rounds at a site: each site receives an individual answer, so there are no groups and no common base.

    No answer of the site depends on a decryption (Li and Micciancio, eprint 2020/1533).
    """

    def __init__(self, parts: ExchangeParts) -> None:
        self._agreement = parts.agreement
        self._site = parts.site
        self._learner = parts.learner
        self._setup = parts.setup
        self._participants = parts.participants
        self._limits = limits_of(parts.agreement)
        check_peer_half(parts.agreement)

    def start(self, key: PhaseKey, start: RoundStart) -> None:
        """See :class:`secure_client.exchanges.exchange.SiteExchange`, here and below."""
        check_nothing_given(key, start)

    def presence(self, key: PhaseKey) -> PresenceBase:  # noqa: ARG002 (the interface's argument)
        """Return no base and no keys."""
        return PresenceBase()

    def step(self, key: PhaseKey, request: bytes) -> ProtectedPayload:
        """Answer VALUES with the protected prototypes."""
        cohort = cohort_of(self._participants.verified(key, request), self._agreement)
        # Rows of classes that are withheld, or that this round does not send, stay here whatever a third party's half
        # does with them.
        self._participants.asked = cohort.holds[cohort.index(self._site)]
        sent = np.where(self._participants.asked[:, None], self._rows(key), 0.0)
        return ProtectedPayload(self._half(key, cohort), sent, self._site, cohort)

    def result(self, key: PhaseKey, request: bytes) -> ResultSummary:
        """Set the targets of later rounds: α of the own prototypes plus 1 − α of the peers'.

        In a round without rows the targets stay.
        """
        payload = codec.decode_payload(request, self._limits, result_shape(self._agreement))
        # This is the list for which this site protected its values.
        cohort = cohort_of(self._participants.agreed(key, Phase.VALUES), self._agreement)
        if not self._agreement.sends_rows(key.round):
            return ResultSummary(len(cohort.sites), self._learner.prototypes().has_personal)
        rows = self._rows(key)
        given = np.asarray(cohort.holds[cohort.index(self._site)])
        peers = self._peers(key, payload, rows, cohort)
        if peers is not None:
            targets = personalise(rows, peers, self._agreement.own_share) * self._agreement.norm_bound
            self._learner.take_targets(key.round, targets, given)
        return ResultSummary(len(cohort.sites), given)

    def end(self) -> None:
        """Do nothing: no secret of an attempt is stored."""

    def _peers(self, key: PhaseKey, payload: Payload, rows: Rows, cohort: Cohort) -> Rows | None:
        """Return the peers' combination (K, d); for an implausible decryption, log it and return None."""
        try:
            with hide_decryption_errors(f"the result of round {key.round}"):
                peers = self._half(key, cohort).unprotect(payload, rows, self._site, cohort)
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

    def _half(self, key: PhaseKey, cohort: Cohort) -> SiteHalf:
        return build_peer_half(self._agreement, self._setup, key, cohort)
