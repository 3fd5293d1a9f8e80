"""Forms and size limits of every payload of a run, derived from its agreement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from agreement.registry.round_plan import Form
from agreement.schema.agreement import CKKS_SLOTS, Agreement
from crypto.fixed_point import MIN_FRACTION_BITS
from crypto.protection import NORM_SLACK, Axis, PayloadForm, UpTo
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
        members=agreement.plan.result is Form.PEER_SUMS,
    )


def most_ciphertexts(agreement: Agreement) -> int:
    """Return the most ciphertexts of an encrypted sum, or of its means; of two sums where an earlier one is repeated.

    A slot holds two numbers, or half a number of a direction. Numbers with large bounds travel as two
    (:class:`crypto.ckks.sums.SumForm`), so that twice as many are allowed for.
    """
    if agreement.plan.values is Form.EXTENSION:
        return extension_form(agreement).blobs
    if not agreement.sums or agreement.plan.values is not Form.CIPHERTEXTS:
        return 0
    classes, own = len(agreement.classes), agreement.clustering
    clusters = classes * own.most_clusters if agreement.clusters else 0
    numbers = agreement.layout.length + own.length(clusters, agreement.dim) + clusters + classes + 1
    sums = 2 if agreement.row_period > 1 else 1
    return sums * (-(-numbers // CKKS_SLOTS) + -(-2 * classes * agreement.dim // CKKS_SLOTS))


def directions_form(agreement: Agreement) -> PayloadForm:
    """Return the form of an answer to DIRECTIONS: directions of local prototypes, and their classes."""
    rows = UpTo(len(agreement.classes) * agreement.clustering.most_local)
    return PayloadForm(arrays=((rows, agreement.dim), (rows,)))


def values_form(agreement: Agreement, round_number: int) -> PayloadForm:
    """Return the form of an answer to VALUES. A sum over clusters has as many words as the round has clusters."""
    if round_number == 0:
        return PayloadForm(arrays=((1, len(agreement.classes) * agreement.dim),))
    return _FORMS[agreement.plan.values](agreement)


def result_form(agreement: Agreement) -> PayloadForm:
    """Return the form of a RESULT."""
    return _FORMS[agreement.plan.result](agreement)


def sums_form(agreement: Agreement) -> PayloadForm:
    """Return the form of an encrypted sum, of a contribution to it, and of the means that a leader makes."""
    return PayloadForm(blobs=limits_of(agreement).blobs)


def extension_form(agreement: Agreement) -> PayloadForm:
    """Return the form that the protection declares; raise ``ValueError`` if it declares none for the method."""
    protection = agreement.protection
    settings = agreement.settings_of(protection)
    if agreement.sums and protection.sums is not None:
        return protection.sums.form(settings, agreement.sum_facts)
    if protection.peers is None:
        raise ValueError(f"protection {protection.value!r} does not serve method {agreement.method.value}")
    return protection.peers.form(settings, len(agreement.classes), agreement.dim)


def _extension_numbers(agreement: Agreement) -> int:
    """Return the most numbers of 8 bytes in a payload whose form the protection declares; 0 in any other payload."""
    if agreement.plan.values is not Form.EXTENSION:
        return 0
    form = extension_form(agreement)
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


def _rows(agreement: Agreement) -> PayloadForm:
    return PayloadForm(arrays=((len(agreement.classes), agreement.dim),))


def _vector(agreement: Agreement) -> PayloadForm:
    return PayloadForm(arrays=((agreement.layout.length,),))


def _masked_words(agreement: Agreement) -> PayloadForm:
    return PayloadForm(words=((agreement.ring_bits, _words(agreement)),))


def _local_clusters(agreement: Agreement) -> PayloadForm:
    rows = UpTo(len(agreement.classes) * agreement.clustering.most_local)
    return PayloadForm(arrays=((rows, agreement.dim), (rows,), (rows,), (agreement.layout.length,)))


def _means(agreement: Agreement) -> PayloadForm:
    return PayloadForm(arrays=((agreement.layout.means,), (len(agreement.classes),)))


def _peer_sums(agreement: Agreement) -> PayloadForm:
    return PayloadForm(arrays=((agreement.layout.means,), (len(agreement.classes),)), blobs=1)


def _clusters(agreement: Agreement) -> PayloadForm:
    rows = _most_clusters(agreement)
    return PayloadForm(arrays=((rows, agreement.dim), (rows,), (rows,), (agreement.layout.means,)))


def _labelled_sums(agreement: Agreement) -> PayloadForm:
    return PayloadForm(arrays=((_most_clusters(agreement),),), blobs=limits_of(agreement).blobs)


def _most_clusters(agreement: Agreement) -> UpTo:
    return UpTo(len(agreement.classes) * agreement.clustering.most_clusters)


_FORMS: Mapping[Form, Callable[[Agreement], PayloadForm]] = {
    Form.ROWS: _rows,
    Form.VECTOR: _vector,
    Form.WORDS: _masked_words,
    Form.CIPHERTEXTS: sums_form,
    Form.LOCAL_CLUSTERS: _local_clusters,
    Form.MEANS: _means,
    Form.PEER_SUMS: _peer_sums,
    Form.CLUSTERS: _clusters,
    Form.LABELLED_CIPHERTEXTS: _labelled_sums,
    Form.EXTENSION: extension_form,
}
