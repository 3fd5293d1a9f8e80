"""Forms and size limits of every payload of a run, derived from its agreement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from agreement.registry.protections import PeersHalves, SumHalves
from agreement.registry.round_plan import PayloadKind
from agreement.schema.agreement import CKKS_SLOTS, Agreement
from crypto.fixed_point import MIN_FRACTION_BITS
from crypto.protection import NORM_SLACK, Axis, PayloadShape, UpTo
from protoseal_wire.codec import Limits


def limits_of(agreement: Agreement, sites: int | None = None) -> Limits:
    """Return the sizes that the codec enforces in a run under this agreement, with ``sites`` sites at most.

    The coordinator knows how many sites its file names. A site does not, and allows for as many as are agreed.
    """
    return Limits(
        classes=len(agreement.classes),
        dim=agreement.dim,
        sites=sites or agreement.max_sites,
        parameters=max(agreement.layout.model, _extension_numbers(agreement)),
        per_class=agreement.clustering.most_of_class if agreement.clusters else 1,
        ciphertexts=most_ciphertexts(agreement),
        members=agreement.plan.result is PayloadKind.PEER_SUMS,
    )


def most_ciphertexts(agreement: Agreement) -> int:
    """Return the most ciphertexts of an encrypted sum, or of its means; of two sums where an earlier one is repeated.

    A slot holds two numbers, or half a number of a direction. Numbers with large bounds travel as two
    (:class:`crypto.ckks.sums.SumLayout`), so that twice as many are allowed for.
    """
    if agreement.plan.values is PayloadKind.EXTENSION:
        return extension_shape(agreement).blobs
    if not agreement.sums or agreement.plan.values is not PayloadKind.CIPHERTEXTS:
        return 0
    classes, clustering = len(agreement.classes), agreement.clustering
    clusters = classes * clustering.most_clusters if agreement.clusters else 0
    # The layout's numbers, each cluster's numbers and rows, each class's holders, and the number of sites.
    numbers = agreement.layout.length + clustering.length(clusters, agreement.dim) + clusters + classes + 1
    sums = 2 if agreement.row_period > 1 else 1
    return sums * (-(-numbers // CKKS_SLOTS) + -(-2 * classes * agreement.dim // CKKS_SLOTS))


def directions_shape(agreement: Agreement) -> PayloadShape:
    """Return the form of an answer to DIRECTIONS: directions of local prototypes, and their classes."""
    rows = UpTo(len(agreement.classes) * agreement.clustering.most_local)
    return PayloadShape(arrays=((rows, agreement.dim), (rows,)))


def values_shape(agreement: Agreement, round_number: int) -> PayloadShape:
    """Return the form of an answer to VALUES. A sum over clusters has as many words as the round has clusters."""
    if round_number == 0:
        return PayloadShape(arrays=((1, len(agreement.classes) * agreement.dim),))
    return _FORMS[agreement.plan.values](agreement)


def result_shape(agreement: Agreement) -> PayloadShape:
    """Return the form of a RESULT."""
    return _FORMS[agreement.plan.result](agreement)


def sums_shape(agreement: Agreement) -> PayloadShape:
    """Return the form of an encrypted sum, of a contribution to it, and of the means that a leader makes."""
    return PayloadShape(blobs=limits_of(agreement).blobs)


def extension_shape(agreement: Agreement) -> PayloadShape:
    """Return the form that the protection declares; raise ``ValueError`` if it declares none for the method."""
    protection = agreement.protection
    settings = agreement.settings_of(protection)
    match protection.halves(agreement.method.traits.family):
        case SumHalves() as halves:
            return halves.form(settings, agreement.sum_facts)
        case PeersHalves() as halves:
            return halves.form(settings, len(agreement.classes), agreement.dim)
        case _:
            raise ValueError(
                f"protection {protection.value!r} declares no form for method {agreement.method.value}"
            )


def _extension_numbers(agreement: Agreement) -> int:
    """Return the most numbers of 8 bytes in a payload whose form the protection declares; 0 in any other payload."""
    if agreement.plan.values is not PayloadKind.EXTENSION:
        return 0
    form = extension_shape(agreement)
    shapes = [*form.arrays, *((length,) for _, length in form.words)]
    return sum(prod(axis.most if isinstance(axis, UpTo) else axis for axis in shape) for shape in shapes)


def _words(agreement: Agreement) -> Axis:
    length = agreement.layout.length
    if not agreement.clusters:
        return length
    most = len(agreement.classes) * agreement.clustering.most_clusters
    return UpTo(length + agreement.clustering.length(most, agreement.dim))


def longest_mean(agreement: Agreement) -> float:
    """Return the greatest length of a group's mean prototype when every member keeps to the norm bound.

    In fixed point each component is off by half a unit at most, and a unit is never more than 2^-16.
    """
    half_a_unit = 2.0 ** -(MIN_FRACTION_BITS + 1)
    return float(agreement.norm_bound * (1.0 + NORM_SLACK) + half_a_unit * np.sqrt(agreement.dim))


def _rows(agreement: Agreement) -> PayloadShape:
    return PayloadShape(arrays=((len(agreement.classes), agreement.dim),))


def _vector(agreement: Agreement) -> PayloadShape:
    return PayloadShape(arrays=((agreement.layout.length,),))


def _masked_words(agreement: Agreement) -> PayloadShape:
    return PayloadShape(words=((agreement.ring_bits, _words(agreement)),))


def _local_clusters(agreement: Agreement) -> PayloadShape:
    rows = UpTo(len(agreement.classes) * agreement.clustering.most_local)
    return PayloadShape(arrays=((rows, agreement.dim), (rows,), (rows,), (agreement.layout.length,)))


def _means(agreement: Agreement) -> PayloadShape:
    return PayloadShape(arrays=((agreement.layout.means,), (len(agreement.classes),)))


def _peer_sums(agreement: Agreement) -> PayloadShape:
    return PayloadShape(arrays=((agreement.layout.means,), (len(agreement.classes),)), blobs=1)


def _clusters(agreement: Agreement) -> PayloadShape:
    rows = _most_clusters(agreement)
    return PayloadShape(arrays=((rows, agreement.dim), (rows,), (rows,), (agreement.layout.means,)))


def _labelled_sums(agreement: Agreement) -> PayloadShape:
    return PayloadShape(arrays=((_most_clusters(agreement),),), blobs=limits_of(agreement).blobs)


def _most_clusters(agreement: Agreement) -> UpTo:
    return UpTo(len(agreement.classes) * agreement.clustering.most_clusters)


_FORMS: Mapping[PayloadKind, Callable[[Agreement], PayloadShape]] = {
    PayloadKind.ROWS: _rows,
    PayloadKind.VECTOR: _vector,
    PayloadKind.WORDS: _masked_words,
    PayloadKind.CIPHERTEXTS: sums_shape,
    PayloadKind.LOCAL_CLUSTERS: _local_clusters,
    PayloadKind.MEANS: _means,
    PayloadKind.PEER_SUMS: _peer_sums,
    PayloadKind.CLUSTERS: _clusters,
    PayloadKind.LABELLED_CIPHERTEXTS: _labelled_sums,
    PayloadKind.EXTENSION: extension_shape,
}
