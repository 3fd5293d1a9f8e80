"""Layout of encrypted sums and groups under ``ckks``: the summed values, then the counts that divide them.

Whoever has the key can therefore read a result, also a site that was absent when it was computed. Withheld classes
are zeros before encryption; the holders of each class are public.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agreement.derived.means import Means, check_samples, check_total, cluster_means, means_of
from agreement.derived.payload_shapes import longest_mean
from agreement.schema.agreement import Agreement
from algorithms.averaging import Counts
from algorithms.fedpc import MOST_GROUPS
from algorithms.fedplcc import Contribution, GlobalClusters
from algorithms.gram_matrix import Bool, Float
from algorithms.kmeans import Labels
from crypto.ckks.group_mixing import MixLayout
from crypto.ckks.sums import SumLayout
from crypto.errors import BoundError, ImplausibleError, MalformedError, PrecisionError
from crypto.fixed_point import Segment

_SLACK = 1e-6
"""Tolerance by which means may exceed their bounds: rounding and a ciphertext's error."""
_NOT_WHOLE = 2.0
"""Tolerance of a count, in units of its stated error; the float64 of a ciphertext adds a hundredth."""
_MOST = 2.0**53
"""Largest count: beyond it float64 has no odd numbers."""


@dataclass(frozen=True)
class DecryptedSum:
    """Decrypted sum: ``total`` (L,) as the layout says, over ``members``; ``holders`` (K,) have a class."""

    total: Float
    holders: Counts
    members: int


class CountedSum:
    """Sum in which each site adds its contribution, a 1 for each class that it contributes to, and a 1 for itself.

    See :attr:`agreement.schema.agreement.Agreement.sum_facts`.
    """

    def __init__(self, agreement: Agreement, error: Float) -> None:
        """Set ``error`` (L + K + 1,), the protection's largest error of each value of a sum."""
        self._agreement = agreement
        self._error = error

    def vector(self, contribution: Float, holds: Bool) -> NDArray[np.float64]:
        """Return the vector for a contribution (L,) that has rows of the classes ``holds`` (K,)."""
        return np.concatenate([contribution, holds.astype(np.float64), [1.0]])

    def opened(self, values: Float) -> DecryptedSum:
        """Return the content of a sum (L + K + 1,) of :meth:`vector` over sites.

        Raises :class:`ImplausibleError` for values that are no possible sum, whatever the protection returned.
        """
        _check_numbers(values, self._error.shape)
        ends = [self._agreement.layout.length]
        errors, of_counts = np.split(self._error, ends)
        total, counts = np.split(values, ends)
        # Counts divide the sum, and min_holders is compared with them, so they must be exact and not only near.
        holders = whole_counts(counts, of_counts)
        if self._agreement.layout.weighted:
            total[-1:] = whole_counts(total[-1:], errors[-1:])
        if not 1 <= holders[-1] <= self._agreement.max_sites or (holders[:-1] > holders[-1]).any():
            raise ImplausibleError("a decrypted sum counts no possible number of sites")
        return DecryptedSum(total, holders[:-1], int(holders[-1]))

    def means(self, opened: DecryptedSum) -> Means:
        """Return the means; raise :class:`ImplausibleError` for means beyond the bounds or of too few sites."""
        try:
            check_total(self._agreement, opened.total, opened.holders, opened.members)
            means = means_of(self._agreement, opened.total, opened.holders, opened.members)
        except (MalformedError, ValueError) as error:
            raise ImplausibleError(f"a decrypted sum: {error}") from error
        _, slack = self._agreement.layout.split(self._error)
        _check_model(self._agreement, means.model, slack)
        return means


class ExtensionSum(CountedSum):
    """Counted sum under a third party's protection."""

    def __init__(self, agreement: Agreement, error: Float) -> None:
        """Set ``error`` (L + K + 1,) as the protection's half states it; float64's own error is added here.

        Raises :class:`PrecisionError` for an error that makes counts ambiguous: too few holders could pass for
        enough.
        """
        facts = agreement.sum_facts
        if error.shape != (facts.length,):
            raise PrecisionError(f"the stated error of sums has shape {error.shape}, not ({facts.length},)")
        super().__init__(agreement, error + facts.rounding)
        counted = self._error[agreement.layout.length - agreement.layout.weighted :]
        if not (np.isfinite(self._error).all() and (_NOT_WHOLE * counted < 0.5).all()):
            raise PrecisionError(f"sums under {agreement.protection.value!r} are too inexact to count sites")


class EncryptedSum(CountedSum):
    """Counted sum in ciphertexts of one ``form``."""

    def __init__(self, agreement: Agreement) -> None:
        facts = agreement.sum_facts
        self.form = SumLayout(facts.segments, terms=facts.terms)
        super().__init__(agreement, self.form.error(facts.terms))


class EncryptedClusterSum:
    """Sum over G clusters of prototypes.

    Each site adds its part in each cluster, the number of its rows in the cluster, the model as the layout has it,
    and a 1 for itself.
    """

    def __init__(self, agreement: Agreement, clusters: int) -> None:
        averaging, clustering = agreement.averaging, agreement.clustering
        self._agreement = agreement
        self._clusters = clusters
        segments = (
            *clustering.segments(clusters, agreement.dim, agreement.norm_bound, averaging.most_samples),
            Segment(clusters, float(clustering.most_local)),
            *agreement.layout.segments(agreement.norm_bound, averaging),
            Segment(1, 1.0),
        )
        self.form = SumLayout(segments, terms=agreement.max_sites)

    def vector(self, part: Contribution, model: Float) -> NDArray[np.float64]:
        """Return the vector of a site's part in the clusters and its model (p + q + 1,)."""
        clusters = self._agreement.clustering.vector(part.sums, part.counts)
        return np.concatenate([clusters, part.members.astype(np.float64), model, [1.0]])

    def means(self, values: Float, labels: Labels) -> tuple[GlobalClusters, NDArray[np.float64]]:
        """Return clusters of classes ``labels`` (G,), and the mean model, from the sum of :meth:`vector` over sites.

        Raises :class:`ImplausibleError` for values that no sites within their bounds have.
        """
        clustering, number, dim = self._agreement.clustering, self._clusters, self._agreement.dim
        ends = np.cumsum([clustering.length(number, dim), number, self._agreement.layout.length])
        of_clusters, rows, model, members = np.split(values, ends)
        errors = np.split(self.form.error(self._agreement.max_sites), ends)
        sums, counts = clustering.split(of_clusters, number, dim)
        rows_in, (sites,) = whole_counts(rows, errors[1]), whole_counts(members, errors[3])
        (samples,) = whole_counts(model[-1:], errors[2][-1:])
        counts = whole_counts(counts, clustering.split(errors[0], number, dim)[1]).astype(np.float64)
        model[-1] = samples
        if (rows_in < self._agreement.min_holders).any() or sites < self._agreement.min_holders:
            raise ImplausibleError("a decrypted sum has fewer sites than min_holders")
        total = Contribution(sums, rows_in.astype(np.float64), counts)
        try:
            check_samples(float(samples), int(sites), self._agreement.averaging.most_samples)
            clusters, mean = cluster_means(self._agreement, total, labels, model)
        except (MalformedError, ValueError) as error:
            raise ImplausibleError(f"a decrypted sum: {error}") from error
        _check_model(self._agreement, mean, self._agreement.layout.split(errors[2])[1])
        return clusters, mean


class EncryptedGroups:
    """Layout of the means that a group's leader sends, and of the mixture over groups (FedPC, equations 5 to 8).

    The direction is that of the concatenated prototypes. Prototypes, the averaged part, a 1 for each class that the
    group has, and a 1 are mixed: the last two divide the first two.
    """

    def __init__(self, agreement: Agreement) -> None:
        self._agreement, averaging = agreement, agreement.averaging
        self._rows = len(agreement.classes) * agreement.dim
        segments = (
            Segment(self._rows, longest_mean(agreement) * (1.0 + _SLACK)),
            Segment(averaging.parameters, averaging.parameter_bound * (1.0 + _SLACK)),
            Segment(averaging.buffers, averaging.buffer_bound * (1.0 + _SLACK)),
            Segment(len(agreement.classes) + 1, 1.0),
        )
        self.form = MixLayout(self._rows, segments, groups=agreement.fedpc.groups or MOST_GROUPS)

    def parts(self, means: Means) -> tuple[Float, Float]:
        """Return the direction (M,), not scaled, and the vector (L,) of a group's means.

        Raises :class:`ImplausibleError` for means that exceed the range; any other error would show the decrypted
        values.
        """
        rows = np.where(means.has[:, None], means.rows, 0.0)
        vector = np.concatenate([rows.ravel(), means.model, means.has.astype(np.float64), [1.0]])
        try:
            self.form.vector.check(vector)
        except BoundError as error:
            raise ImplausibleError(f"a decrypted sum: {error}") from error
        # Prototypes are of features after a ReLU: only an error makes a component, and so a cosine, negative.
        return np.maximum(rows.ravel(), 0.0), vector

    def nothing(self) -> tuple[Float, Float]:
        """Return the message of a leader that cannot read its group's sum: same form, no effect on other groups."""
        return np.zeros(self._rows), np.zeros(self.form.vector.length)

    def mixed(self, values: Float) -> Means:
        """Return the base that a group trains from next; raise :class:`ImplausibleError` for a result of no groups.

        A class whose groups weigh ``agreement_threshold`` or less together has no prototype, in every protection.
        """
        agreement, classes = self._agreement, len(self._agreement.classes)
        numbers, shares, (total,) = np.split(values, [len(values) - classes - 1, len(values) - 1])
        if not 0.5 < total <= self.form.groups + 0.5:
            raise ImplausibleError("a decrypted result mixes no possible number of groups")
        # A share of about 0 is no group's: dividing by it would blow the ciphertexts' error up to a prototype.
        has = shares > agreement.agreement_threshold * total
        rows, model = np.split(numbers, [self._rows])
        divisor = total if agreement.fedpc.literal else np.where(has, shares, 1.0)[:, None]
        rows = np.where(has[:, None], rows.reshape(classes, -1) / divisor, 0.0)
        if not np.linalg.norm(rows, axis=1).max() <= longest_mean(agreement) * (1.0 + _SLACK):
            raise ImplausibleError("a decrypted result has a prototype that is longer than the norm bound")
        _check_model(agreement, model / total, np.zeros(len(model)))
        return Means(rows, has, model / total)


def _check_model(agreement: Agreement, model: Float, slack: Float) -> None:
    """Raise :class:`ImplausibleError` for a mean (p + q,) that no models within their bounds have.

    No honest sum gives such a mean, so a site does not train from it. ``slack`` (p + q,) is the error of ciphertexts.
    """
    layout, averaging = agreement.layout, agreement.averaging
    largest = [averaging.parameter_bound, averaging.buffer_bound]
    bounds = np.repeat(largest, [layout.parameters, layout.buffers])
    if not (np.abs(model) <= bounds * (1.0 + 2.0 * _SLACK) + slack).all():
        raise ImplausibleError("a decrypted model exceeds the agreed bounds")


def _check_numbers(values: Float, shape: tuple[int, ...]) -> None:
    """Raise :class:`ImplausibleError` unless they are finite float64 of that shape."""
    if values.dtype != np.float64 or values.shape != shape or not np.isfinite(values).all():
        raise ImplausibleError(f"a decrypted sum is not finite float64 of shape {shape}")


def whole_counts(values: Float, errors: Float) -> Counts:
    """Return exact counts from a decryption with these ``errors``; raise :class:`ImplausibleError` otherwise."""
    counts = np.rint(values)
    possible = (counts >= 0.0) & (counts <= _MOST)  # NaN fails both comparisons
    if not possible.all() or not (np.abs(values - counts) <= _NOT_WHOLE * errors).all():
        raise ImplausibleError("a decrypted sum has a count that is not whole")
    return counts.astype(np.int64)
