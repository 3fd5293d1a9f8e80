"""Factory of a run's exchange at a site, by the agreed method and protection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agreement import Agreement
from agreement.registry.round_plan import ExchangeKind
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.exchanges.encrypted_clusters import EncryptedClusters
from secure_client.exchanges.encrypted_sums import EncryptedGroupSums, EncryptedSums
from secure_client.exchanges.exchange import ExchangeParts, SiteExchange
from secure_client.exchanges.extension_sums import ExtensionSums
from secure_client.exchanges.masked_clusters import MaskedClusters
from secure_client.exchanges.masked_sums import MaskedSums
from secure_client.exchanges.peer_sums import PeerSumExchange
from secure_client.exchanges.peers import PeerExchange
from secure_client.exchanges.plain_clusters import PlainClusters
from secure_client.exchanges.plain_sums import PlainSums
from secure_client.protocol.journal import Journal
from secure_client.protocol.participants import Participants
from secure_client.protocol.secure_aggregation import SecureAggregation
from secure_client.protocol.setup import Party, Setup

_EXCHANGES: Mapping[ExchangeKind, Callable[[ExchangeParts], SiteExchange]] = {
    ExchangeKind.PLAIN_PEERS: PeerExchange,
    ExchangeKind.ROTATED_PEERS: PeerExchange,
    ExchangeKind.ENCRYPTED_PEERS: PeerExchange,
    ExchangeKind.EXTENSION_PEERS: PeerExchange,
    ExchangeKind.PLAIN_SUMS: PlainSums,
    ExchangeKind.MASKED_SUMS: MaskedSums,
    ExchangeKind.MASKED_PEER_SUMS: PeerSumExchange,
    ExchangeKind.ENCRYPTED_SUMS: EncryptedSums,
    ExchangeKind.ENCRYPTED_GROUPS: EncryptedGroupSums,
    ExchangeKind.EXTENSION_SUMS: ExtensionSums,
    ExchangeKind.PLAIN_CLUSTERS: PlainClusters,
    ExchangeKind.MASKED_CLUSTERS: MaskedClusters,
    ExchangeKind.ENCRYPTED_CLUSTERS: EncryptedClusters,
}


def build_exchange(
    agreement: Agreement,
    party: Party,
    trainee: CheckpointedLearner,
    journal: Journal,
    setup: Setup,
    participants: Participants,
) -> SiteExchange:
    """Return the site's half of the agreed exchange; raise ``ValueError`` for a method that has no rounds."""
    build = _EXCHANGES[agreement.plan.exchange]
    masks = SecureAggregation(agreement, party, setup, journal)
    return build(ExchangeParts(agreement, party.name, trainee, journal, setup, participants, masks))
