"""Cohorts: the sites that contribute to each class of a round."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agreement.agreement import Agreement
from algorithms.gram_matrix import Bool
from algorithms.min_holders import active_classes
from crypto.protection import Cohort
from protoseal_wire.messages import ActiveList


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
