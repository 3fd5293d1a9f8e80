"""Phases of a round, in the order that the agreement prescribes."""

from __future__ import annotations

from agreement.agreement import Agreement
from agreement.round_plan import ONE_STEP
from crypto.pairwise.attempt_binding import fewest_against
from protoseal_wire.messages import Phase

_FEWEST_MASKED = 2


def first_round(agreement: Agreement) -> int:
    """Return 0 where the method clusters sites before training, else 1."""
    return 0 if agreement.method.is_grouped else 1


def has_common_group(agreement: Agreement) -> bool:
    """Return whether the uploads of all sites are added up or clustered together, as one group."""
    return agreement.sums and not agreement.method.is_grouped


def fewest_listed(agreement: Agreement, roster: int) -> int:
    """Return the fewest members that a group and an attempt's list may have in a run of ``roster`` sites.

    Masks need two members, masks of a large run enough to hold off its ``max_colluding``, and shared noise and the
    masks over it enough to hold off ``colluding``, whatever ``min_holders`` is.
    """
    if not agreement.plan.masked:
        return agreement.min_holders
    of_noise = (
        fewest_against(agreement.privacy.colluding)
        if agreement.privacy and agreement.distributed_noise
        else 1
    )
    return max(agreement.min_holders, _FEWEST_MASKED, agreement.masking.fewest_listed(roster), of_noise)


def steps_of(agreement: Agreement, round_number: int) -> tuple[Phase, ...]:
    """Return the phases of a round between PRESENCE and the coordinator's computation."""
    return agreement.plan.phases if round_number > 0 else ONE_STEP


def has_result(round_number: int) -> bool:
    """Return whether sites are sent a result; the groups of a clustering come with the start of the next round."""
    return round_number > 0
