"""A subject with all its records, or a whole site, changes the query no more than one record may, in exact integers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from privacy.errors import NotFiniteError
from privacy.mechanisms import joint_clipping as joint_module
from privacy.mechanisms.grid import SIGMA
from privacy.mechanisms.joint_clipping import JointSums, factor, joint_sums
from privacy.mechanisms.prototype_query import PrototypeQuery
from tests.crypto.noise_checks import WrongNoiseError, check_shape, check_sigma
from tests.privacy.neighbours import (
    CLASSES,
    Owned,
    TooSensitiveError,
    change,
    check_subjects,
    owned,
    settings,
)

QUERY = PrototypeQuery(1.0, 1.0, 1.0, 1.0)


def ordinary() -> Owned:
    """Return three subjects: nine records of one class, unequal numbers of three classes, and one record."""
    features = np.random.default_rng(3).normal(scale=2.0, size=(25, 4))
    features[:9] = features[0]  # one direction, at the clip: as much as a subject can be
    labels = np.array([0] * 9 + [0] * 11 + [1] * 3 + [2] + [1], dtype=np.int64)
    return Owned(features, labels, np.repeat(np.array([2, 5, 6], dtype=np.int64), (9, 15, 1)))


def whole_site(given: Owned) -> Owned:
    return Owned(given.features, given.labels, np.zeros(len(given.labels), np.int64))


@given(st.data(), settings())
def test_one_subject_changes_the_query_like_one_record(data: st.DataObject, query: PrototypeQuery) -> None:
    check_subjects(query, data.draw(owned(query.clip)))


@given(st.data(), settings())
def test_one_site_changes_the_query_like_one_record(data: st.DataObject, query: PrototypeQuery) -> None:
    check_subjects(query, whole_site(data.draw(owned(query.clip))))


@pytest.mark.parametrize("times", [1, 2, 1000])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_bound_is_met_for_any_records_and_classes(times: int, classes: int) -> None:
    """Records as long as the clip: nothing is given away but what truncation to whole steps takes."""
    labels = np.repeat(np.arange(classes, dtype=np.int64), times)
    features = np.tile([[3.0, 4.0]], (len(labels), 1))
    moved = change(QUERY, whole_site(Owned(features, labels, labels)), 0)
    assert 1 - 1e-5 < moved / QUERY.grid.sensitivity_squared <= 1


def test_subjects_of_one_record_equal_the_query_by_records() -> None:
    given_records = ordinary()
    owners = np.arange(len(given_records.labels), dtype=np.int64)
    single = Owned(given_records.features, given_records.labels, owners).asked(QUERY)
    known = QUERY.sum_exact(given_records.features, given_records.labels, CLASSES)
    assert (single.vectors == known.vectors).all()
    assert (single.weights == known.weights).all()


@given(st.integers(1, 4096), st.integers(1, 2**32))
def test_factor_is_the_largest_within_the_share(classes: int, records: int) -> None:
    found = factor(classes, records)
    assert found**2 * classes * records**2 <= 2**64 < (found + 1) ** 2 * classes * records**2


def test_contribution_is_independent_of_order_batches_and_others() -> None:
    given_records = ordinary()
    alone = [given_records.of(given_records.owners == owner).asked(QUERY) for owner in (2, 5, 6)]
    together = given_records.asked(QUERY)
    assert (together.vectors == sum(each.vectors for each in alone)).all()
    assert (together.weights == sum(each.weights for each in alone)).all()
    order = np.lexsort((np.arange(25)[::-1], given_records.owners))
    turned = Owned(given_records.features[order], given_records.labels[order], given_records.owners[order])
    joint = JointSums(QUERY.start(CLASSES, 4))
    for row in range(25):
        joint.add(turned.features[row : row + 1], turned.labels[row : row + 1], turned.owners[row : row + 1])
    assert (joint.close().vectors == together.vectors).all()


def test_pieces_of_a_batch_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ordinary().asked(QUERY)
    monkeypatch.setattr(joint_module, "_AT_ONCE", 8)
    assert (ordinary().asked(QUERY).vectors == whole.vectors).all()


def test_each_class_gets_the_subjects_mean_over_the_root_of_classes() -> None:
    features = np.array([[0.2, 0.0], [0.4, 0.2], [0.0, 0.6]])
    labels, owners = np.array([0, 0, 2], dtype=np.int64), np.zeros(3, np.int64)
    sums = joint_sums(QUERY.start(CLASSES, 2), [(features, labels)], owners)
    rows, share = sums.vectors * QUERY.grid.step, 1 / math.sqrt(2)
    np.testing.assert_allclose(rows, share * np.array([[0.3, 0.1], [0, 0], [0, 0.6]]), atol=1e-5)
    np.testing.assert_allclose(sums.weights / QUERY.grid.weight, [share, 0, share], atol=1e-5)


def test_subject_of_many_records_counts_as_one() -> None:
    records = 100_000
    features, labels = np.tile([[0.6, 0.8]], (records, 1)), np.zeros(records, np.int64)
    sums = Owned(features, labels, np.zeros(records, np.int64)).asked(QUERY)
    assert sums.weights[0] / QUERY.grid.weight == pytest.approx(1, abs=1e-4)
    assert sums.vectors[0] * QUERY.grid.step == pytest.approx(np.array([0.6, 0.8]), abs=1e-4)


def test_products_stay_within_63_bits() -> None:
    """The longest records that a grid allows, as Python's integers have them."""
    query = PrototypeQuery(1.0, 0.001, 2.0**-10, 1.0)
    assert query.grid.radius > 0.999 * 2**30
    features, labels = np.tile([[9.0, 0.0]], (300, 1)), np.arange(300, dtype=np.int64) // 120
    sums = Owned(features, labels, np.zeros(300, np.int64)).asked(query)
    for label, count in enumerate((120, 120, 60)):
        share = Fraction(factor(3, count), 2**32)
        assert sums.vectors[label, 0] == math.floor(count * query.grid.radius * share)
        assert sums.weights[label] == math.floor(count * query.grid.weight * share)


# Weaker doubles: each of them is caught


def _by_records(_: int, __: int) -> int:
    return 2**32


def _each_class_by_itself(_: int, records: int) -> int:
    return factor(1, records)


def _by_classes_alone(classes: int, _: int) -> int:
    return factor(classes, 1)


def _by_all_records_alike(_: int, records: int) -> int:
    return math.isqrt(2**64 // records)


@pytest.mark.parametrize(
    "weaker", [_by_records, _each_class_by_itself, _by_classes_alone, _by_all_records_alike]
)
def test_check_finds_other_factors(weaker: object, monkeypatch: pytest.MonkeyPatch) -> None:
    check_subjects(QUERY, ordinary())
    monkeypatch.setattr(joint_module, "factor", weaker)
    with pytest.raises(TooSensitiveError):
        check_subjects(QUERY, ordinary())


def test_check_finds_a_factor_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid is so fine that a factor that is rounded up makes a step."""
    query = PrototypeQuery(1.0, 0.001, 2.0**-10, 1.0)
    features, labels = np.tile([[9.0]], (3, 1)), np.zeros(3, np.int64)
    given_records = whole_site(Owned(features, labels, labels))
    check_subjects(query, given_records)
    monkeypatch.setattr(joint_module, "factor", lambda classes, records: factor(classes, records) + 2)
    with pytest.raises(TooSensitiveError):
        check_subjects(query, given_records)


def test_check_finds_a_subject_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(joint: JointSums, parts: object) -> None:
        joint._count(parts)  # type: ignore[arg-type]  # what it was given

    monkeypatch.setattr(JointSums, "_take", at_once)
    with pytest.raises(TooSensitiveError):
        check_subjects(QUERY, ordinary())


# Noise


def test_release_has_the_noise_of_records_and_counts_subjects() -> None:
    """100 subjects with 3 records in each of 4 of 40 classes: a class has 10 of them, each for a half."""
    query = PrototypeQuery(2.0, 1.5, 0.05, 0.2)
    subjects, classes = 100, 40
    owners = np.repeat(np.arange(subjects, dtype=np.int64), 12)
    labels = (4 * owners + np.tile(np.repeat(np.arange(4), 3), subjects)) % classes
    features = np.random.default_rng(2).normal(size=(len(labels), 16))
    noise: list[NDArray[np.float64]] = []
    sums = joint_sums(query.start(classes, 16), [(features, labels)], owners)
    for _ in range(10):
        released = sums.release()
        assert released.counts == pytest.approx(np.full(classes, 10 / 2), abs=8 * SIGMA / query.grid.weight)
        added = released.rows * released.counts[:, None] - sums.vectors * query.grid.step
        noise.append(added[released.present].ravel())
    drawn, sigma = np.concatenate(noise), 0.05 * 2.5
    check_sigma(drawn, sigma)
    check_shape(drawn, sigma)
    for times in (2 / 3, 3 / 2):
        with pytest.raises(WrongNoiseError):
            check_sigma(drawn, times * sigma)


# Refusals


def test_add_subject_that_returns_is_refused() -> None:
    joint, one = JointSums(QUERY.start(CLASSES, 2)), np.ones((1, 2))
    label = np.zeros(1, np.int64)
    joint.add(one, label, np.array([3]))
    joint.add(one, label, np.array([3]))
    joint.add(one, label, np.array([4]))
    with pytest.raises(ValueError, match="subjects"):
        joint.add(one, label, np.array([3]))
    with pytest.raises(ValueError, match="subjects"):
        joint.add(np.ones((2, 2)), np.zeros(2, np.int64), np.array([5, 4]))


@pytest.mark.parametrize("owners", [np.zeros(3, np.int64), np.zeros(2, np.int32), np.zeros((2, 1), np.int64)])
def test_add_owners_of_another_shape_are_refused(owners: NDArray[np.int64]) -> None:
    with pytest.raises(ValueError, match="subjects"):
        JointSums(QUERY.start(CLASSES, 2)).add(np.ones((2, 2)), np.zeros(2, np.int64), owners)


@pytest.mark.parametrize("owners", [1, 3])
def test_joint_sums_other_number_of_owners_is_refused(owners: int) -> None:
    batch = np.ones((2, 2)), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="subjects"):
        joint_sums(QUERY.start(CLASSES, 2), [batch], np.zeros(owners, np.int64))


def test_add_infinite_feature_is_refused() -> None:
    joint = JointSums(QUERY.start(CLASSES, 2))
    with pytest.raises(NotFiniteError):
        joint.add(np.array([[np.nan, 0.0]]), np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert not joint.close().vectors.any()


def test_add_too_many_records_is_refused() -> None:
    joint = JointSums(QUERY.start(CLASSES, 2))
    joint._records = 2**32
    with pytest.raises(ValueError, match=r"2\^32"):
        joint.add(np.ones((1, 2)), np.zeros(1, np.int64), np.zeros(1, np.int64))


def test_repr_shows_no_content() -> None:
    joint = JointSums(QUERY.start(CLASSES, 2))
    joint.add(np.ones((1, 2)), np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert repr(joint) == "JointSums(<secret>)"
    assert repr(joint._held) == "Parts(<secret>)"


def test_no_subjects_add_nothing() -> None:
    sums = joint_sums(QUERY.start(CLASSES, 2), [], np.zeros(0, np.int64))
    assert not sums.weights.any()
