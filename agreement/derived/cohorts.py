"""Phases of a round, and the cohorts whose values are combined in it, as they follow from the agreement."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agreement.registry.round_plan import ONE_STEP
from agreement.schema.agreement import Agreement
from algorithms.averaging import active_classes
from algorithms.gram_matrix import Bool
from crypto.pairwise.attempt import fewest_against
from crypto.protection import Cohort
from protoseal_wire.messages import ActiveList, Phase

_FEWEST_MASKED = 2


def first_round(agreement: Agreement) -> int:
    """Return 0 where the method clusters sites before training, else 1."""
    return 0 if agreement.method.is_grouped else 1


def has_common_group(agreement: Agreement) -> bool:
    """Return whether the uploads of all sites are added up or clustered together, as one group."""
    return agreement.sums and not agreement.method.is_grouped


def min_group_size(agreement: Agreement, roster: int) -> int:
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
    return max(agreement.min_holders, _FEWEST_MASKED, agreement.masking.fewest_resisting(roster), of_noise)


def steps_of(agreement: Agreement, round_number: int) -> tuple[Phase, ...]:
    """Return the phases of a round between PRESENCE and the coordinator's computation."""
    return agreement.plan.phases if round_number > 0 else ONE_STEP


def has_result(round_number: int) -> bool:
    """Return whether sites are sent a result; the groups of a clustering come with the start of the next round."""
    return round_number > 0


def stated_classes(agreement: Agreement, round_number: int, held: Bool) -> NDArray[np.bool_]:
    """Return the classes that a site with the classes ``held`` (K,) states in a round.

    A site states no class in a round without rows (:meth:`Agreement.sends_rows`), and all classes where noise is
    shared, since each site adds its part of the noise to all of them.
    """
    if not agreement.sends_rows(round_number):
        return np.zeros_like(held)
    return np.ones_like(held) if agreement.distributed_noise else np.array(held)


def cohort_of(active: ActiveList, agreement: Agreement) -> Cohort:
    """Return the cohort: holders of the classes that at least ``min_holders`` participants hold.

    The coordinator and every site call this on the same signed list, so they withhold the same classes.
    """
    # Every party sorts the sites in the same way, because a site's position in the cohort decides which row of a Gram
    # matrix, which keys of pads and which x of a Shamir share are the site's.
    statements = sorted(active.statements, key=lambda statement: statement.site)
    presence = np.stack([statement.holds for statement in statements])
    holds = presence & active_classes(presence, agreement.min_holders)
    return Cohort(tuple(statement.site for statement in statements), holds, agreement.dim)


def group_cohort(active: ActiveList, group: tuple[str, ...], agreement: Agreement) -> Cohort:
    """Return :func:`cohort_of` over the members of one group (of all that the run has) that are on the list.

    Raises ``ValueError`` if there is no such member.
    """
    there = tuple(statement for statement in active.statements if statement.site in group)
    return cohort_of(ActiveList(there), agreement)


def clustering_cohort(active: ActiveList, agreement: Agreement) -> Cohort:
    """Return the cohort of everyone on the list, with each site's prototypes of all classes as one row of one class."""
    sites = tuple(sorted(statement.site for statement in active.statements))
    holds = np.ones((len(sites), 1), dtype=np.bool_)
    return Cohort(sites, holds, len(agreement.classes) * agreement.dim)
