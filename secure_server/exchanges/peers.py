"""Peers at the coordinator: each site's rows in, for each site a combination of its peers' rows out."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

from agreement import Agreement
from agreement.derived.cohorts import cohort_of
from agreement.registry.protections import PeersHalves
from algorithms.gram_matrix import convex
from algorithms.pfpl import peer_weights
from crypto.ckks.peer_server import CkksServer
from crypto.plain import PlainServer, Weights
from crypto.protection import Combination, Payload, ServerHalf
from secure_server.exchanges.exchange import Attempt, ExchangeParts, Outcome, SinglePhaseExchange


class PeerHalf(SinglePhaseExchange):
    """Exchange in which a server half of :mod:`crypto` combines rows by the method's weights."""

    def __init__(self, parts: ExchangeParts) -> None:
        super().__init__(parts)
        self.server = self.build_server(parts)

    @abstractmethod
    def build_server(self, parts: ExchangeParts) -> ServerHalf:
        """Return the half that validates and combines payloads; raise ``ValueError`` if the protection has none."""

    def validate(self, payload: Payload, site: str, attempt: Attempt) -> None:
        """Validate a payload, as the protection does."""
        self.server.validate(payload, site, cohort_of(attempt.active, self._agreement))

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return one answer for each participant."""
        cohort = cohort_of(attempt.active, self._agreement)
        return Outcome(self.server.combine(self.payloads(attempt), cohort))


class RowHalf(PeerHalf):
    """Rows whose inner products the coordinator sees: in the clear, or rotated by a secret matrix."""

    def build_server(self, parts: ExchangeParts) -> ServerHalf:
        """Return the half for the scheme that the plan names."""
        return PlainServer(peers_weights(parts.agreement), parts.agreement.plan.row_scheme)


class CkksPeerHalf(PeerHalf):
    """Rows in ciphertexts, of which the coordinator evaluates combinations without seeing inner products."""

    def build_server(self, parts: ExchangeParts) -> ServerHalf:
        """Return the half, which reads the group's evaluation keys when it combines."""
        combination = Combination(parts.agreement.pfpl.weighting.value)
        return CkksServer(combination, parts.keys_path, parts.executor)


class DeclaredPeerHalf(PeerHalf):
    """Rows under a protection that gives its halves as functions, such as a third party's."""

    def build_server(self, parts: ExchangeParts) -> ServerHalf:
        """Return the declared half; raise ``ValueError`` if the protection declares none for rows."""
        protection = parts.agreement.protection
        if not isinstance(protection.peers, PeersHalves):
            raise ValueError(f"protection {protection.value!r} declares no half of rows")
        settings = parts.agreement.settings_of(protection)
        return protection.peers.server(settings, peers_weights(parts.agreement))


def peers_weights(agreement: Agreement) -> Weights:
    """Return the weights by which the method combines prototypes, from visible inner products."""
    method, pfpl = agreement.method, agreement.pfpl
    if method.weights is not None:
        return convex(method.weights(agreement.settings_of(method)))
    return partial(peer_weights, weighting=pfpl.weighting, tau=agreement.agreement_threshold)
