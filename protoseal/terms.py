"""What follows from the agreement, the same for the coordinator and for every site."""

from __future__ import annotations

import numpy as np

from algorithms.holders import active_classes
from crypto.fixed_point import MIN_FRACTION_BITS
from crypto.protection import Cohort, PayloadForm
from crypto.rows import NORM_SLACK
from protoseal.config import Agreement, Protection
from protoseal_wire.codec import Limits
from protoseal_wire.codec.limits import MOST_SITES
from protoseal_wire.messages import ActiveList, Phase

ONE_STEP = (Phase.VALUES,)
"""All send their values, and all must."""
MASKED_SUM = (Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK)
"""Pairwise masks, which let sites drop out on the way."""


def limits_of(agreement: Agreement, sites: int = MOST_SITES) -> Limits:
    """The sizes that the codec enforces in a run under this agreement, with ``sites`` sites at most.

    The coordinator knows how many sites its file names. A site does not, and allows for as many as there may be.
    """
    return Limits(
        classes=len(agreement.classes), dim=agreement.dim, sites=sites, parameters=agreement.parameters
    )


# The course of a run


def first_round(agreement: Agreement) -> int:
    """0 where the method clusters sites before training, else 1."""
    return 0 if agreement.method.is_grouped else 1


def steps_of(agreement: Agreement, round_number: int) -> tuple[Phase, ...]:
    """The phases of a round between PRESENCE and what the coordinator computes."""
    sums = agreement.method.is_grouped and round_number > 0
    return MASKED_SUM if sums and agreement.protection is Protection.MASKED else ONE_STEP


def has_result(round_number: int) -> bool:
    """Whether sites are sent a result: the clustering's groups come with the start of the next round."""
    return round_number > 0


# What is sent


def contribution_length(agreement: Agreement) -> int:
    """L: the numbers in one site's part of a FedPC sum, prototypes first, then the extractor."""
    return len(agreement.classes) * agreement.dim + agreement.parameters


def values_form(agreement: Agreement, round_number: int) -> PayloadForm:
    """What a site's answer to VALUES consists of."""
    if agreement.method.is_grouped:
        return _fedpc_values(agreement, round_number)
    return _pfpl_form(agreement)


def result_form(agreement: Agreement) -> PayloadForm:
    """What a RESULT consists of. FedPC: the group's vector, and for each class whether it has a prototype."""
    if agreement.method.is_grouped:
        return PayloadForm(arrays=((contribution_length(agreement),), (len(agreement.classes),)))
    return _pfpl_form(agreement)


def longest_mean(agreement: Agreement) -> float:
    """The longest that a group's mean prototype can be when every member keeps to the norm bound.

    In fixed point each component is off by half a unit at most, and a unit is never more than 2^-16.
    """
    half_a_unit = 2.0 ** -(MIN_FRACTION_BITS + 1)
    return float(agreement.norm_bound * (1.0 + NORM_SLACK) + half_a_unit * np.sqrt(agreement.dim))


def _fedpc_values(agreement: Agreement, round_number: int) -> PayloadForm:
    if round_number == 0:
        return PayloadForm(arrays=((1, len(agreement.classes) * agreement.dim),))
    length = contribution_length(agreement)
    if agreement.protection is Protection.MASKED:
        return PayloadForm(words=((agreement.masking.ring_bits, length),))
    return PayloadForm(arrays=((length,),))


def _pfpl_form(agreement: Agreement) -> PayloadForm:
    if agreement.protection is Protection.CKKS:
        return PayloadForm(blobs=limits_of(agreement).blobs)
    return PayloadForm(arrays=((len(agreement.classes), agreement.dim),))


# Who adds to what


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
