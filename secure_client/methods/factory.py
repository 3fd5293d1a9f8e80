"""The method of a run, under its protection."""

from __future__ import annotations

from typing import assert_never

from agreement import AddedProtection, Agreement, Family, Protection
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


def build_method(
    agreement: Agreement,
    party: Party,
    trainee: Trainee,
    journal: Journal,
    setup: Setup,
    participants: Participants,
) -> Method:
    """Raises ``ValueError`` for a method that runs in no session."""
    family, protection = agreement.method.traits.family, agreement.protection
    masks = MaskedSum(agreement, party, setup, journal)
    parts = Parts(agreement, party.name, trainee, journal, setup, participants, masks)
    match family:
        case Family.PEERS:
            return Pfpl(parts)
        case Family.ALONE:
            raise ValueError(f"method {agreement.method.value} runs in no session")
        case Family.CLUSTERS if protection is Protection.MASKED:
            return MaskedClustered(parts)
        case Family.CLUSTERS:
            return EncryptedClustered(parts) if protection is Protection.CKKS else Clustered(parts)
        case Family.GROUPS | Family.SUMS:
            return _sums_of(agreement)(parts)
        case _:
            assert_never(family)


def _sums_of(agreement: Agreement) -> type[Sums]:
    if isinstance(agreement.protection, AddedProtection):
        return AddedSums
    if agreement.protection is not Protection.CKKS:
        return Sums
    return EncryptedGroupSums if agreement.method.is_grouped else EncryptedSums
