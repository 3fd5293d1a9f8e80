"""Phases of a round, in the order that the agreement prescribes."""

from __future__ import annotations

from agreement.agreement import Agreement
from agreement.protections import Protection
from crypto.pairwise.attempt_binding import fewest_against
from protoseal_wire.messages import Phase

_FEWEST_MASKED = 2

ONE_STEP = (Phase.VALUES,)
"""All send their values, and all must."""
MASKED_SUM = (Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK)
"""Pairwise masks, which let sites drop out on the way."""


CLUSTERED_SUM = (Phase.DIRECTIONS, *MASKED_SUM)
"""First what tells which prototypes are alike, so that sums are of those."""
ENCRYPTED_CLUSTERS = (Phase.DIRECTIONS, Phase.VALUES)
"""The same with encrypted sums, which need no more."""
ENCRYPTED_GROUPS = (Phase.VALUES, Phase.MEANS)
"""Encrypted sums, which one member of each group makes into means and encrypts again."""


def first_round(agreement: Agreement) -> int:
    """0 where the method clusters sites before training, else 1."""
    return 0 if agreement.method.is_grouped else 1


def has_common_group(agreement: Agreement) -> bool:
    """Whether what sites send is added up, or clustered, over all of them: they are one group."""
    return agreement.sums and not agreement.method.is_grouped


def fewest_listed(agreement: Agreement, roster: int) -> int:
    """The fewest members of a group that an attempt lists, and that a group has, in a run of ``roster`` sites.

    Whatever ``min_holders`` is, a mask is between two; masks of a large run hold off ``max_colluding`` of it; and noise
    that is shared, and the masks that it is under, ``colluding``.
    """
    if Phase.SHARES not in steps_of(agreement, 1):
        return agreement.min_holders
    of_noise = (
        fewest_against(agreement.privacy.colluding)
        if agreement.privacy and agreement.distributed_noise
        else 1
    )
    return max(agreement.min_holders, _FEWEST_MASKED, agreement.masking.fewest_listed(roster), of_noise)


def steps_of(agreement: Agreement, round_number: int) -> tuple[Phase, ...]:
    """The phases of a round between PRESENCE and what the coordinator computes."""
    sums = agreement.sums and round_number > 0
    if not sums or agreement.protection is Protection.PLAIN:
        return ONE_STEP
    if agreement.protection is Protection.MASKED:
        return CLUSTERED_SUM if agreement.clusters else MASKED_SUM
    if agreement.clusters:
        return ENCRYPTED_CLUSTERS
    return ENCRYPTED_GROUPS if agreement.method.is_grouped else ONE_STEP


def has_result(round_number: int) -> bool:
    """Whether sites are sent a result: the clustering's groups come with the start of the next round."""
    return round_number > 0
