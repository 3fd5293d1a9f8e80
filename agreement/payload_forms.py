"""Forms and size limits of every payload of a run, derived from its agreement."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from agreement.agreement import CKKS_SLOTS, Agreement
from agreement.extensions.types import AddedProtection
from agreement.protections import Protection
from crypto.fixed_point import MIN_FRACTION_BITS
from crypto.protection import Axis, PayloadForm, UpTo
from crypto.row_checks import NORM_SLACK
from protoseal_wire.codec import Limits


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
