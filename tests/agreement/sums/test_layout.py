"""Layout of a site's contribution to a sum, against lists that are put together a number at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agreement import METHODS, AveragingSection, Layout, Method, Protection
from agreement.derived.payload_shapes import result_shape, values_shape
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
