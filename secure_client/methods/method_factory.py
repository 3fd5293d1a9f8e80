"""Factory of a run's method at a site, by the agreed method and protection."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agreement import Agreement
from agreement.round_plan import ExchangeKind
from secure_client.methods.base import Method, Parts
from secure_client.methods.clusters import Clustered
from secure_client.methods.encrypted_clusters import EncryptedClustered
from secure_client.methods.encrypted_sums import EncryptedGroupSums, EncryptedSums
from secure_client.methods.extension_sums import AddedSums
from secure_client.methods.masked_clusters import MaskedClustered
from secure_client.methods.pfpl import Pfpl
from secure_client.methods.sums import Sums
from secure_client.protocol.journal import Journal
from secure_client.protocol.masked_sum import MaskedSum
from secure_client.protocol.participants import Participants
from secure_client.protocol.setup import Party, Setup
from secure_client.site_model.checkpointed_learner import Trainee

_METHODS: Mapping[ExchangeKind, Callable[[Parts], Method]] = {
    ExchangeKind.PLAIN_PEERS: Pfpl,
    ExchangeKind.ROTATED_PEERS: Pfpl,
    ExchangeKind.ENCRYPTED_PEERS: Pfpl,
    ExchangeKind.EXTENSION_PEERS: Pfpl,
    ExchangeKind.PLAIN_SUMS: Sums,
    ExchangeKind.MASKED_SUMS: Sums,
    ExchangeKind.ENCRYPTED_SUMS: EncryptedSums,
    ExchangeKind.ENCRYPTED_GROUPS: EncryptedGroupSums,
    ExchangeKind.EXTENSION_SUMS: AddedSums,
    ExchangeKind.PLAIN_CLUSTERS: Clustered,
    ExchangeKind.MASKED_CLUSTERS: MaskedClustered,
    ExchangeKind.ENCRYPTED_CLUSTERS: EncryptedClustered,
}


def build_method(
    agreement: Agreement,
    party: Party,
    trainee: Trainee,
    journal: Journal,
    setup: Setup,
    participants: Participants,
) -> Method:
    """Return the site's half of the agreed exchange; raise ``ValueError`` for a method that has no rounds."""
    build = _METHODS[agreement.plan.exchange]
    masks = MaskedSum(agreement, party, setup, journal)
    return build(Parts(agreement, party.name, trainee, journal, setup, participants, masks))
