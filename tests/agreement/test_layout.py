"""Layout of a site's contribution to sums and to clusters, and agreements on clusters that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agreement import METHODS, Agreement, AveragingSection, Clustering, Layout, Method, Protection
from agreement.derived.cohorts import steps_of
from agreement.derived.payload_shapes import limits_of, result_shape, values_shape
from agreement.registry.round_plan import CLUSTERED_SUM, ENCRYPTED_CLUSTERS, ONE_STEP
from crypto.errors import BoundError
from crypto.fixed_point import FixedPoint, Segment
from tests.support.summed import method_agreement, sizes_of

LAYOUTS = st.builds(
    Layout,
    classes=st.integers(0, 4),
    dim=st.integers(1, 5),
    parameters=st.integers(1, 6),
    buffers=st.integers(0, 3),
    weighted=st.booleans(),
)
SUMMED = [method for method in METHODS.values() if method.traits.family.value in ("groups", "sums")]
AGREED = [method for method in SUMMED if method is not Method.AVERAGE]


def by_hand(layout: Layout, rows: list[list[float]], model: list[float], samples: int) -> list[float]:
    vector = [value for row in rows for value in row]
    vector += [value * samples if layout.weighted else value for value in model]
    return vector + ([float(samples)] if layout.weighted else [])


@given(LAYOUTS, st.integers(0, 2**32 - 1), st.integers(1, 1000))
def test_a_contribution_is_prototypes_then_model_then_weight(layout: Layout, seed: int, samples: int) -> None:
    rng = np.random.default_rng(seed)
    rows, model = rng.normal(size=(layout.classes, layout.dim)), rng.normal(size=layout.model)
    vector = layout.contribution(rows, model, samples)
    assert vector.tolist() == by_hand(layout, rows.tolist(), model.tolist(), samples)
    assert vector.shape == (layout.length,)
    for whole in (vector, vector[: layout.means]):
        got_rows, got_model = layout.split(whole)
        np.testing.assert_array_equal(got_rows, rows)
        np.testing.assert_array_equal(got_model, model * (samples if layout.weighted else 1))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 6), st.integers(0, 2**32 - 1))
def test_with_noise_weights_of_counts_come_last_and_both_are_whole(
    classes: int, dim: int, parameters: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    layout = Layout(classes, dim, parameters, 0, weighted=False, noisy=True)
    vectors, weights = rng.integers(-9, 9, (classes, dim)), rng.integers(-9, 9, classes)
    model = rng.uniform(-1.0, 1.0, parameters)
    vector = layout.noisy_contribution(vectors.astype(float), weights.astype(float), model)
    assert vector.tolist() == [*vectors.ravel().tolist(), *model.tolist(), *weights.tolist()]
    assert vector.shape == (layout.length,)
    got_vectors, got_weights = layout.noisy_parts(vector)
    np.testing.assert_array_equal(got_vectors, vectors)
    np.testing.assert_array_equal(got_weights, weights)
    np.testing.assert_array_equal(layout.split(vector)[1], model)
    segments = layout.segments(9.0, AveragingSection(parameters=parameters))
    fixed = FixedPoint(segments, terms=3)
    np.testing.assert_array_equal(
        fixed.resolution == 1.0, np.repeat([True, False, True], [classes * dim, parameters, classes])
    )


@given(LAYOUTS, st.integers(1, 50))
def test_segments_have_room_for_every_contribution_within_the_bounds(layout: Layout, most: int) -> None:
    """A contribution at the bounds is encoded, and one that is a step beyond any of them is refused."""
    agreed = AveragingSection(
        parameters=layout.parameters,
        buffers=layout.buffers,
        parameter_bound=2.0,
        most_samples=most,
    )
    segments = layout.segments(1.5, agreed)
    assert sum(each.length for each in segments) == layout.length
    rows = np.full((layout.classes, layout.dim), -1.5)
    model = np.repeat([2.0, -agreed.buffer_bound], [layout.parameters, layout.buffers])
    fixed = FixedPoint(segments, terms=4)
    vector = layout.contribution(rows, model, most)
    np.testing.assert_array_equal(np.abs(vector), np.repeat(*_bounds(segments)))
    np.testing.assert_array_equal(fixed.decode_sum(4 * fixed.encode(vector), 4), 4.0 * vector)
    ends = np.cumsum([each.length for each in segments]) - 1
    for end in ends:
        beyond = vector.copy()
        beyond[end] *= 1.001
        with pytest.raises(BoundError):
            fixed.encode(beyond)


def _bounds(segments: tuple[Segment, ...]) -> tuple[list[float], list[int]]:
    return [each.bound for each in segments], [each.length for each in segments]


@pytest.mark.parametrize("method", AGREED)
def test_a_methods_layout_is_what_its_traits_say(method: Method) -> None:
    agreement, traits = method_agreement(method), method.traits
    layout = agreement.layout
    assert layout.classes == (3 if traits.prototypes else 0)
    assert (layout.parameters, layout.buffers) == sizes_of(traits.averaged)
    assert layout.length == 3 * 8 * traits.prototypes + sum(sizes_of(traits.averaged)) + traits.weighted
    assert values_shape(agreement, 1).arrays == ((layout.length,),)
    assert result_shape(agreement).arrays == ((layout.length - traits.weighted,), (3,))
    masked = method_agreement(method, Protection.MASKED, masking={"ring_bits": 64})
    assert values_shape(masked, 1).words == ((64, layout.length),)
    assert masked.fixed_point().length == layout.length


def test_layout_leaves_out_parameters_that_are_not_averaged() -> None:
    """Sizes that an agreement states for another method's sake."""
    for method in (Method.PFPL, Method.FEDDBP, Method.FEDPROTO, Method.LOCAL):
        stated = AveragingSection(parameters=7, buffers=2)
        assert method_agreement(method, averaging=stated).layout.model == 0
    assert method_agreement(Method.PFPL).layout.length == 0


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
        with pytest.raises(ValidationError, match=f"literal.*{protection}"):
            agreement(fedplcc={"literal": True}, protection=protection)
    assert agreement(fedplcc={"literal": True}, protection=Protection.PLAIN).clustering.literal
    # It is FedPLCC's own switch.
    assert not agreement(Method.FEDPLVM, fedplcc={"literal": True}).clustering.literal


def test_a_ring_of_32_bits_has_no_room_for_samples() -> None:
    with pytest.raises(ValidationError, match="ring_bits"):
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
    with pytest.raises(ValueError, match="prototypes"):
        limits_of(agreed)
    assert limits_of(agreement(classes=classes, dim=1024, fedplcc={"most_prototypes": 16})).per_class == 16
