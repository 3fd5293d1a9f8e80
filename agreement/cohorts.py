"""Cohorts: the sites that contribute to each class of a round."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agreement.agreement import Agreement
from algorithms.gram import Bool
from algorithms.min_holders import active_classes
from crypto.protection import Cohort
from protoseal_wire.messages import ActiveList


def stated_classes(agreement: Agreement, held: Bool) -> NDArray[np.bool_]:
    """What a site that has the classes ``held`` (K,) says of them.

    It says that it has all, where noise is shared: each site adds its part of the noise to all.
    """
    return np.ones_like(held) if agreement.distributed_noise else np.array(held)


def cohort_of(active: ActiveList, agreement: Agreement) -> Cohort:
    """Who contributes to which class: holders of classes that at least ``min_holders`` participants hold.

    The coordinator and every site call this on the same signed list, so they withhold the same classes.
    """
    statements = sorted(active.statements, key=lambda statement: statement.site)
    presence = np.stack([statement.holds for statement in statements])
    holds = presence & active_classes(presence, agreement.min_holders)
    return Cohort(tuple(statement.site for statement in statements), holds, agreement.dim)


def group_cohort(active: ActiveList, group: tuple[str, ...], agreement: Agreement) -> Cohort:
    """:func:`cohort_of` over the members of one group (of all that the run has) that are on the list.

    ``ValueError`` when none is.
    """
    there = tuple(statement for statement in active.statements if statement.site in group)
    return cohort_of(ActiveList(there), agreement)


def clustering_cohort(active: ActiveList, agreement: Agreement) -> Cohort:
    """Everyone on the list, with its prototypes of all classes as the one row of one class."""
    sites = tuple(sorted(statement.site for statement in active.statements))
    holds = np.ones((len(sites), 1), dtype=np.bool_)
    return Cohort(sites, holds, len(agreement.classes) * agreement.dim)
