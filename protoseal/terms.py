"""What follows from the agreement, the same for the coordinator and for every site."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from algorithms.holders import active_classes
from algorithms.linear import Bool
from crypto.fixed_point import MIN_FRACTION_BITS
from crypto.pairwise.binding import fewest_against
from crypto.protection import Axis, Cohort, PayloadForm, UpTo
from crypto.rows import NORM_SLACK
from protoseal.config import AddedProtection, Agreement, Protection
from protoseal.config.agreement import CKKS_SLOTS
from protoseal_wire.codec import Limits
from protoseal_wire.messages import ActiveList, Phase

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


def limits_of(agreement: Agreement, sites: int | None = None) -> Limits:
    """The sizes that the codec enforces in a run under this agreement, with ``sites`` sites at most.

    The coordinator knows how many sites its file names. A site does not, and allows for as many as are agreed.
    """
    return Limits(
        classes=len(agreement.classes),
        dim=agreement.dim,
        sites=sites or agreement.max_sites,
        parameters=max(agreement.layout.model, _added_numbers(agreement)),
        per_class=agreement.clustering.most_of_class if agreement.clusters else 1,
        ciphertexts=most_ciphertexts(agreement),
    )


def most_ciphertexts(agreement: Agreement) -> int:
    """The most that an encrypted sum, or its means, take: two numbers in a slot, a direction's each in two slots.

    Numbers with large bounds travel as two (:class:`crypto.ckks.sums.SumForm`), so that twice as many are allowed for.
    """
    if isinstance(agreement.protection, AddedProtection):
        return added_form(agreement).blobs
    if not agreement.sums or agreement.protection is not Protection.CKKS:
        return 0
    classes, own = len(agreement.classes), agreement.clustering
    clusters = classes * own.most_clusters if agreement.clusters else 0
    numbers = agreement.layout.length + own.length(clusters, agreement.dim) + clusters + classes + 1
    return -(-numbers // CKKS_SLOTS) + -(-2 * classes * agreement.dim // CKKS_SLOTS)


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


def directions_form(agreement: Agreement) -> PayloadForm:
    """What a site's answer to DIRECTIONS consists of: directions of local prototypes, and their classes."""
    rows = UpTo(len(agreement.classes) * agreement.clustering.most_local)
    return PayloadForm(arrays=((rows, agreement.dim), (rows,)))


def values_form(agreement: Agreement, round_number: int) -> PayloadForm:
    """What a site's answer to VALUES consists of. How many words a sum over clusters has follows from these."""
    if round_number == 0:
        return PayloadForm(arrays=((1, len(agreement.classes) * agreement.dim),))
    if isinstance(agreement.protection, AddedProtection):
        return added_form(agreement)
    if not agreement.sums:
        return _pfpl_form(agreement)
    if agreement.protection is Protection.CKKS:
        return sums_form(agreement)
    length = agreement.layout.length
    if agreement.protection is Protection.MASKED:
        return PayloadForm(words=((agreement.ring_bits, _words(agreement)),))
    rows = UpTo(len(agreement.classes) * agreement.clustering.most_local)
    of_clusters = ((rows, agreement.dim), (rows,), (rows,)) if agreement.clusters else ()
    return PayloadForm(arrays=(*of_clusters, (length,)))


def result_form(agreement: Agreement) -> PayloadForm:
    """What a RESULT consists of. Of a sum: the means, and for each class whether there is a prototype of it.

    Of clusters: their centres, classes and weights, and the mean model. Encrypted: the sums themselves, and of clusters
    their classes.
    """
    if isinstance(agreement.protection, AddedProtection):
        return added_form(agreement)
    if agreement.sums and agreement.protection is Protection.CKKS:
        rows = UpTo(len(agreement.classes) * agreement.clustering.most_clusters)
        return replace(sums_form(agreement), arrays=((rows,),) if agreement.clusters else ())
    if agreement.clusters:
        rows = UpTo(len(agreement.classes) * agreement.clustering.most_clusters)
        return PayloadForm(arrays=((rows, agreement.dim), (rows,), (rows,), (agreement.layout.means,)))
    if agreement.sums:
        return PayloadForm(arrays=((agreement.layout.means,), (len(agreement.classes),)))
    return _pfpl_form(agreement)


def sums_form(agreement: Agreement) -> PayloadForm:
    """Of an encrypted sum, what a site adds to it, and of the means that a leader makes of it."""
    return PayloadForm(blobs=limits_of(agreement).blobs)


def added_form(agreement: Agreement) -> PayloadForm:
    """Under a third party's protection, what travels up and down. ``ValueError`` under any other."""
    protection = agreement.protection
    if not isinstance(protection, AddedProtection):
        raise ValueError(f"protection {protection.value!r} is built in")
    settings = agreement.settings_of(protection)
    if agreement.sums and protection.sums is not None:
        return protection.sums.form(settings, agreement.sum_facts)
    if protection.peers is None:
        raise ValueError(f"protection {protection.value!r} does not serve method {agreement.method.value}")
    return protection.peers.form(settings, len(agreement.classes), agreement.dim)


def _added_numbers(agreement: Agreement) -> int:
    """How many numbers of 8 bytes a payload of a third party's protection has at most; 0 under any other."""
    if not isinstance(agreement.protection, AddedProtection):
        return 0
    form = added_form(agreement)
    shapes = [*form.arrays, *((length,) for _, length in form.words)]
    return sum(prod(axis.most if isinstance(axis, UpTo) else axis for axis in shape) for shape in shapes)


def _words(agreement: Agreement) -> Axis:
    length = agreement.layout.length
    if not agreement.clusters:
        return length
    most = len(agreement.classes) * agreement.clustering.most_clusters
    return UpTo(length + agreement.clustering.length(most, agreement.dim))


def longest_mean(agreement: Agreement) -> float:
    """The longest that a group's mean prototype can be when every member keeps to the norm bound.

    In fixed point each component is off by half a unit at most, and a unit is never more than 2^-16.
    """
    half_a_unit = 2.0 ** -(MIN_FRACTION_BITS + 1)
    return float(agreement.norm_bound * (1.0 + NORM_SLACK) + half_a_unit * np.sqrt(agreement.dim))


def _pfpl_form(agreement: Agreement) -> PayloadForm:
    if agreement.protection is Protection.CKKS:
        return PayloadForm(blobs=limits_of(agreement).blobs)
    return PayloadForm(arrays=((len(agreement.classes), agreement.dim),))


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
