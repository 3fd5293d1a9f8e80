"""Counts that travel in an encrypted sum: whole numbers within what the ciphertext errs, or none at all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agreement import Agreement, Method, Protection
from agreement.derived.encrypted_sums import EncryptedClusterSum, EncryptedSum, ExtensionSum, whole_counts
from agreement.derived.means import check_total
from crypto.ckks.sums import SummingServer, SummingSite
from crypto.errors import ImplausibleError, MalformedError, PrecisionError
from crypto.fixed_point import Segment
from crypto.sum_protection import SumFacts
from tests.crypto.ckks_reference import group
from tests.support.grouped import grouped_agreement

Vector = NDArray[np.float64]
SAMPLES = (17, 400, 99_999)
HOLDS = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 0]], dtype=np.bool_)


def weighed(**averaging: int) -> Agreement:
    """Return the agreement of FedAvg, whose models are weighted by samples."""
    agreement = grouped_agreement(Protection.CKKS, method=Method.FEDAVG)
    changed = agreement.averaging.model_copy(update=averaging)
    return Agreement.model_validate({**dict(agreement), "averaging": changed})


def decrypted(sums: EncryptedSum, layout_length: int) -> Vector:
    """Return the sum over three sites with these samples and classes; their models are zeros."""
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
def test_a_count_beyond_the_stated_error_is_refused(position: int) -> None:
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
            with pytest.raises(ImplausibleError, match="count"):
                sums.opened(changed)
        else:
            sums.opened(changed)


@given(st.integers(1, 10**9), st.integers(3, 256))
def test_adjacent_counts_are_distinguishable_under_every_agreement(most_samples: int, max_sites: int) -> None:
    agreement = weighed(most_samples=most_samples).model_copy(update={"max_sites": max_sites})
    errors = EncryptedSum(agreement).form.error(max_sites)[agreement.layout.length - 1 :]
    assert (2.0 * errors < 0.01).all()


@given(st.integers(1, 10**9), st.integers(3, 256))
def test_adjacent_counts_of_clusters_are_distinguishable_under_every_agreement(
    most_samples: int, max_sites: int
) -> None:
    agreement = grouped_agreement(Protection.CKKS, method=Method.FEDPLCC)
    averaging = agreement.averaging.model_copy(update={"most_samples": most_samples})
    changed = {"averaging": averaging, "max_sites": max_sites}
    sums = EncryptedClusterSum(agreement.model_copy(update=changed), 4)
    errors = sums.form.error(max_sites)
    start = 4 * agreement.dim
    counts_and_rows, sites, samples = errors[start : start + 8], errors[-1:], errors[-2:-1]
    for each in (counts_and_rows, sites, samples):
        assert (2.0 * each < 0.01).all()


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ImplausibleError, match="count"):
        whole_counts(np.array([-1.0]), np.array([0.1]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, 2.0**63])
def test_a_count_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ImplausibleError, match="count"):
        whole_counts(np.array([3.0, value]), np.array([0.1, 0.1]))


def prototypes() -> Agreement:
    return grouped_agreement(Protection.CKKS, method=Method.FEDPROTO)


def counted(agreement: Agreement, error: float) -> tuple[ExtensionSum, Vector]:
    """Return the sum over three sites that have all classes, with zeros for prototypes."""
    facts = agreement.sum_facts
    values = np.zeros(facts.length)
    values[agreement.layout.length :] = 3.0
    return ExtensionSum(agreement, np.full(facts.length, error)), values


@pytest.mark.parametrize("error", [0.25, 0.3, np.inf, np.nan])
def test_sums_that_are_too_inexact_count_nobody(error: float) -> None:
    counted(prototypes(), 0.24)
    with pytest.raises(PrecisionError, match="count"):
        counted(prototypes(), error)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, -2, -1])
def test_a_sum_with_a_value_that_is_not_finite_is_refused(position: int, value: float) -> None:
    """A prototype's, a class's and the sites'."""
    sums, values = counted(prototypes(), 1e-9)
    sums.means(sums.opened(values))
    values[position] = value
    with pytest.raises(ImplausibleError, match="finite"):
        sums.opened(values)


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values[1:],
        lambda values: np.append(values, 3.0),
        lambda values: values[None],
        lambda values: values.astype(np.float32),
        lambda values: values.astype(np.complex128),
    ],
)
def test_a_sum_of_another_shape_or_dtype_is_refused(change: Callable[[Vector], Vector]) -> None:
    sums, values = counted(prototypes(), 1e-9)
    with pytest.raises(ImplausibleError, match="shape"):
        sums.opened(change(values))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_mean_without_a_norm_is_refused(value: float) -> None:
    agreement = prototypes()
    total, holders = np.zeros(agreement.layout.length), np.full(len(agreement.classes), 3)
    check_total(agreement, total, holders, 3)
    total[0] = value
    with pytest.raises(MalformedError, match="norm_bound"):
        check_total(agreement, total, holders, 3)


def test_a_protection_need_not_state_what_float64_errs() -> None:
    """Ones that are scaled by a tenth, added and scaled back are 4e-16 off; 1e-9 is nobody's rounding."""
    sums, values = counted(prototypes(), 0.0)
    values[-1] = (0.1 + 0.1 + 0.1) * 10.0
    assert values[-1] > 3.0
    assert sums.opened(values).members == 3
    values[-1] = 3.0 + 1e-9
    with pytest.raises(ImplausibleError, match="count"):
        sums.opened(values)


@pytest.mark.parametrize("terms", [1, 3, 256])
@pytest.mark.parametrize("scale", [0.1, 1.0 / 3.0, 1e3])
def test_stated_rounding_bounds_sums_added_one_by_one(terms: int, scale: float) -> None:
    facts, total = SumFacts((Segment(2, 1.0), Segment(1, 64.0)), terms), np.zeros(3)
    for _ in range(terms):
        total += np.array([1.0, 1.0, 64.0]) * scale
    off = np.abs(total / scale - terms * np.array([1.0, 1.0, 64.0]))
    assert facts.rounding.shape == (3,)
    assert (off <= facts.rounding).all()
    assert (2.0 * facts.rounding < 1e-8).all()
