"""Agreements on clusters: settings that are allowed, and settings that are refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from agreement import Agreement, Clustering, Method, Protection
from agreement.derived.cohorts import steps_of
from agreement.derived.payload_shapes import limits_of, result_shape, values_shape
from agreement.registry.round_plan import CLUSTERED_SUM, ENCRYPTED_CLUSTERS, ONE_STEP
from tests.support.summed import method_agreement

SMALL: dict[str, Any] = {"parameters": 9, "parameter_bound": 6.0, "most_samples": 10}
"""Bounds of the model and its weight that are no hindrance to words of 32 bits."""
CLUSTERED = (Method.FEDPLCC, Method.FPL, Method.FEDPLVM)


def agreement(method: Method = Method.FEDPLCC, **changes: Any) -> Agreement:
    return method_agreement(method, **{"protection": Protection.MASKED, **changes})


@pytest.mark.parametrize("method", CLUSTERED)
def test_rounds_have_a_step_more_under_masks(method: Method) -> None:
    assert steps_of(agreement(method), 1) == CLUSTERED_SUM
    assert steps_of(agreement(method, protection=Protection.PLAIN), 1) == ONE_STEP
    assert agreement(method).needs_group_secret


def test_encrypted_sums_take_directions_and_values() -> None:
    assert steps_of(agreement(protection=Protection.CKKS), 1) == ENCRYPTED_CLUSTERS


def test_vectors_as_they_are_cannot_be_clustered_by_their_directions() -> None:
    for protection in (Protection.MASKED, Protection.CKKS):
        with pytest.raises(
            ValidationError, match=f"vectors with their norms, but protection '{protection}' shows"
        ):
            agreement(fedplcc={"literal": True}, protection=protection)
    assert agreement(fedplcc={"literal": True}, protection=Protection.PLAIN).clustering.literal
    # It is FedPLCC's own switch.
    assert not agreement(Method.FEDPLVM, fedplcc={"literal": True}).clustering.literal


def test_a_ring_of_32_bits_has_no_room_for_samples() -> None:
    with pytest.raises(ValidationError, match="masked sums do not fit ring_bits = 32"):
        agreement(masking={"ring_bits": 32})


@pytest.mark.parametrize(
    ("changes", "ring"),
    [({}, 64), ({"averaging": SMALL}, 64), ({"averaging": SMALL, "max_sites": 64}, 32)],
)
def test_the_number_of_clusters_does_not_change_the_words(changes: dict[str, Any], ring: int) -> None:
    agreed = agreement(**changes)
    assert [agreed.fixed_point(clusters).ring_bits for clusters in (0, 1, 5, 48)] == [ring] * 4
    assert agreed.ring_bits == ring


def test_cluster_sums_beyond_the_ring_make_it_wider_though_the_model_fits() -> None:
    """64 prototypes of a site in one cluster; where there is one of each, 32 bits do."""
    small: dict[str, Any] = {"averaging": SMALL, "max_sites": 26}
    assert agreement(**small, norm_bound=10.0).ring_bits == 64
    assert agreement(Method.FPL, **small, norm_bound=10.0).ring_bits == 32


@pytest.mark.parametrize("most", [0, 257])
def test_the_number_of_prototypes_is_bounded(most: int) -> None:
    with pytest.raises(ValidationError, match="most_prototypes"):
        agreement(fedplcc={"most_prototypes": most})


@pytest.mark.parametrize(
    ("method", "section", "expected"),
    [
        (Method.FEDPLCC, {}, Clustering(64, 16)),
        (Method.FEDPLCC, {"weighted": False, "most_prototypes": 9}, Clustering(9, 16, uniform=True)),
        (Method.FPL, {}, Clustering(64, 16, single=True, uniform=True)),
        (Method.FEDPLVM, {}, Clustering(64, 16, uniform=True)),
    ],
)
def test_methods_cluster_as_they_are_described(
    method: Method, section: dict[str, Any], expected: Clustering
) -> None:
    assert agreement(method, fedplcc=section).clustering == expected


@pytest.mark.parametrize("method", CLUSTERED)
def test_the_most_that_a_site_may_add_has_room_in_the_words(method: Method) -> None:
    agreed = agreement(method)
    own, most = agreed.clustering, agreed.averaging.most_samples
    fixed = agreed.fixed_point(5)
    sums = np.full((5, agreed.dim), own.most_local * agreed.norm_bound)
    counts = np.full(5, float(own.most_counted(most)))
    model = np.full(agreed.layout.model, agreed.averaging.parameter_bound)
    part = own.vector(sums, counts)
    assert len(part) == own.length(5, agreed.dim)
    none = np.empty((0, agreed.dim))
    vector = np.concatenate([part, agreed.layout.contribution(none, model, most)])
    assert fixed.length == len(vector)
    total = fixed.decode_sum(fixed.encode(vector) + fixed.encode(vector), 2)
    np.testing.assert_array_equal(total, 2.0 * vector)
    again, counted = own.split(part, 5, agreed.dim)
    np.testing.assert_array_equal(again, sums)
    np.testing.assert_array_equal(counted, counts if own.counted else np.zeros(5))
    assert min(fixed.fraction_bits) >= 16


@pytest.mark.parametrize("protection", [Protection.PLAIN, Protection.MASKED])
@pytest.mark.parametrize("method", CLUSTERED)
def test_the_largest_messages_fit_their_limits(method: Method, protection: Protection) -> None:
    agreed = agreement(method, protection=protection)
    limits = limits_of(agreed)
    for form in (values_shape(agreed, 1), result_shape(agreed)):
        numbers = sum(_numbers(axes) for axes in form.arrays) + sum(_numbers(axes[1:]) for axes in form.words)
        assert 8 * numbers <= limits.payload


def _numbers(axes: tuple[Any, ...]) -> int:
    return int(np.prod([getattr(axis, "most", axis) for axis in axes]))


def test_a_run_with_too_many_prototypes_for_one_message_is_refused() -> None:
    classes = tuple(str(k) for k in range(1000))
    agreed = agreement(classes=classes, dim=1024, fedplcc={"most_prototypes": 256})
    with pytest.raises(ValueError, match="fewer prototypes of a class"):
        limits_of(agreed)
    assert limits_of(agreement(classes=classes, dim=1024, fedplcc={"most_prototypes": 16})).per_class == 16
