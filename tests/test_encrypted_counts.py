"""Counts that travel in an encrypted sum: whole numbers within what the ciphertext errs, or none at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from crypto.ckks.sums import SummingServer, SummingSite
from crypto.errors import ImplausibleError
from protoseal.config import Agreement, Method, Protection
from protoseal.encrypted import EncryptedClusterSum, EncryptedSum, whole_counts
from tests.crypto.ckks_reference import group
from tests.support.grouped import grouped_agreement

Vector = NDArray[np.float64]
SAMPLES = (17, 400, 99_999)
HOLDS = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0]], dtype=np.bool_)


def weighed(**averaging: int) -> Agreement:
    """FedAvg, whose models are weighed by samples."""
    agreement = grouped_agreement(Protection.CKKS, method=Method.FEDAVG)
    changed = agreement.averaging.model_copy(update=averaging)
    return Agreement.model_validate({**dict(agreement), "averaging": changed})


def decrypted(sums: EncryptedSum, layout_length: int) -> Vector:
    """A sum of three sites with these samples and classes; their models are zeros."""
    site = SummingSite(group().secret, sums.form)
    payloads = []
    for samples, holds in zip(SAMPLES, HOLDS, strict=True):
        contribution = np.zeros(layout_length)
        contribution[-1] = samples
        payloads.append(site.protect(sums.vector(contribution, holds)))
    return site.unprotect(SummingServer(sums.form).add(payloads), len(SAMPLES))


def test_counts_come_out_exactly_and_err_less_than_is_stated() -> None:
    agreement = weighed()
    sums, length = EncryptedSum(agreement), agreement.layout.length
    values = decrypted(sums, length)
    errors = sums.form.error(agreement.max_sites)
    exact = np.array([sum(SAMPLES), *HOLDS.sum(axis=0), len(SAMPLES)])
    off = np.abs(values[length - 1 :] - exact)
    assert off.max() > 0.0
    assert (off <= errors[length - 1 :]).all()
    opened = sums.opened(values)
    assert (opened.total[-1], opened.holders.tolist(), opened.members) == (sum(SAMPLES), [3, 2, 0], 3)


@pytest.mark.parametrize("position", range(-5, 0))
def test_a_count_beyond_that_is_none(position: int) -> None:
    """Each of them: samples, the three classes' holders, and sites; by errors that are far from a half."""
    agreement = weighed()
    sums = EncryptedSum(agreement)
    values, error = np.zeros(sums.form.length), sums.form.error(agreement.max_sites)[position]
    values[-1], values[-5] = 3.0, 20.0
    assert 4.0 * error < 1e-4
    for times, refused in ((1.9, False), (2.1, True), (-2.1, True)):
        changed = values.copy()
        changed[position] += times * error
        if refused:
            with pytest.raises(ImplausibleError, match="in parts"):
                sums.opened(changed)
        else:
            sums.opened(changed)


@given(st.integers(1, 10**9), st.integers(3, 256))
def test_whatever_is_agreed_a_count_is_told_from_the_next(most_samples: int, max_sites: int) -> None:
    agreement = weighed(most_samples=most_samples).model_copy(update={"max_sites": max_sites})
    errors = EncryptedSum(agreement).form.error(max_sites)[agreement.layout.length - 1 :]
    assert (2.0 * errors < 0.01).all()


@given(st.integers(1, 10**9), st.integers(3, 256), st.booleans())
def test_so_are_those_of_clusters(most_samples: int, max_sites: int, weighted_centres: bool) -> None:
    agreement = grouped_agreement(Protection.CKKS, method=Method.FEDPLCC)
    averaging = agreement.averaging.model_copy(update={"most_samples": most_samples})
    section = agreement.fedplcc.model_copy(update={"weighted_centres": weighted_centres})
    changed = {"averaging": averaging, "fedplcc": section, "max_sites": max_sites}
    sums = EncryptedClusterSum(agreement.model_copy(update=changed), 4)
    errors = sums.form.error(max_sites)
    start = 4 * agreement.dim
    counts_and_rows, sites, samples = errors[start : start + 8], errors[-1:], errors[-2:-1]
    for each in (counts_and_rows, sites, samples):
        assert (2.0 * each < 0.01).all()


def test_a_negative_count_is_none() -> None:
    with pytest.raises(ImplausibleError, match="in parts"):
        whole_counts(np.array([-1.0]), np.array([0.1]))
