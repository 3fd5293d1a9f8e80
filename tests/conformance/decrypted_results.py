"""Results under `ckks`, decrypted with a site's key, and the bounds on their error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agreement import Agreement
from agreement.derived.encrypted_sums import EncryptedClusterSum, EncryptedGroups, EncryptedSum
from agreement.derived.means import Means
from algorithms.fedplcc import GlobalClusters
from crypto.ckks.group_mixing import MixingSite
from crypto.ckks.sums import SummingSite
from crypto.protection import Payload
from crypto.prototype_row_checks import whole_numbers
from protoseal.simulation.local_federation import LocalSite

Float = NDArray[np.float64]


def means_in(agreement: Agreement, site: LocalSite, payload: Payload) -> Means:
    """Return the means of a sum over all sites, or of mixed groups."""
    key = site.session._setup.ckks_key()
    if agreement.method.is_grouped:
        groups = EncryptedGroups(agreement)
        return groups.mixed(MixingSite(key, groups.form).unprotect(payload))
    sums = EncryptedSum(agreement)
    return sums.means(sums.opened(SummingSite(key, sums.form).unprotect(payload, agreement.max_sites)))


def clusters_in(agreement: Agreement, site: LocalSite, payload: Payload) -> tuple[GlobalClusters, Float]:
    """Clusters and the mean model; of two sums the first has the clusters, the second the model."""
    labels = whole_numbers(payload.arrays[0], len(agreement.classes))
    ends, key = len(EncryptedClusterSum(agreement, len(labels)).form.answers), site.session._setup.ckks_key()

    def opened(blobs: tuple[bytes, ...], count: int) -> tuple[GlobalClusters, Float]:
        sums = EncryptedClusterSum(agreement, count)
        one = replace(payload, arrays=(), blobs=blobs)
        return sums.means(SummingSite(key, sums.form).unprotect(one, agreement.max_sites), labels[:count])

    clusters, mean = opened(payload.blobs[:ends], len(labels))
    return clusters, opened(payload.blobs[ends:], 0)[1] if len(payload.blobs) > ends else mean


def sum_errors(agreement: Agreement, sites: int) -> Float:
    """Return the error (L,) of each number in a sum over so many sites, and so of a mean, a sum divided by one or
    more.
    """
    return EncryptedSum(agreement).form.error(sites)[: agreement.layout.length]


def mix_errors(agreement: Agreement, rows: Float, theta: Float) -> tuple[Float, Float, float]:
    """Bound the errors of rows (K, d), the averaged part (P,) and a weight, all undivided sums of magnitudes."""
    form = EncryptedGroups(agreement).form
    weights = np.full(len(rows) + 1, float(form.groups))
    errors = form.error(np.concatenate([rows.ravel(), theta, weights]))
    of_rows, of_theta = agreement.layout.split(errors)
    return of_rows, of_theta, float(errors[-1])
