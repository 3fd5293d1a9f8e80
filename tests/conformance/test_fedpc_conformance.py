"""FedPC under `masked` is FedPC under `plain`, and both are the paper's equations: groups, results, predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from agreement import AveragingSection, MaskingSection, Protection
from tests.conformance import sum_equations
from tests.conformance.grouped_runs import (
    Got,
    Transcript,
    compare_predictions,
    grouped_agreement,
    run_grouped,
    three_kinds,
    two_kinds,
)
from tests.conformance.runs import Bool, data_for

ROUNDS = 3
SHAPES: dict[str, tuple[Bool, int, dict[str, Any]]] = {
    "two kinds": (two_kinds(), 16, {}),
    "three kinds": (three_kinds(), 8, {"groups": 3}),
}
"""Holders, features, and FedPC's settings: the number of groups is found by silhouette, or given."""
BOUNDS = {"parameter_bound": 8.0}
"""A ring of 32 bits has no room for the usual one."""

Transcripts = Callable[[Protection, str, int], Transcript]
"""The run of a shape, with a ring of so many bits."""

each_case = pytest.mark.parametrize(
    ("shape", "ring"), [("two kinds", 64), ("three kinds", 64), ("two kinds", 32)]
)
each_shape = pytest.mark.parametrize("shape", SHAPES)
every_round = pytest.mark.parametrize("number", range(1, ROUNDS + 1))


@pytest.fixture(scope="module", autouse=True)
def small_buffers() -> Iterator[None]:
    """Give buffers a bound with room in a ring of 32 bits, which the real one has not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AveragingSection, "buffer_bound", 30.0)
        yield


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> Transcripts:
    """Every run is made once."""

    @cache
    def transcript(protection: Protection, shape: str, ring: int = 64) -> Transcript:
        holds, dim, fedpc = SHAPES[shape]
        agreement = grouped_agreement(
            protection,
            classes=holds.shape[1],
            dim=dim,
            rounds=ROUNDS,
            fedpc=fedpc,
            averaging=BOUNDS if ring == 32 else {},
            masking=MaskingSection.model_validate({"ring_bits": ring}),
        )
        return run_grouped(agreement, data_for(agreement, holds), tmp_path_factory.mktemp("run"))

    return transcript


def both(transcripts: Transcripts, shape: str, ring: int = 64) -> tuple[Transcript, Transcript]:
    """Return the transcripts under `masked` and under `plain`."""
    return transcripts(Protection.MASKED, shape, ring), transcripts(Protection.PLAIN, shape, 64)


def first(transcript: Transcript) -> dict[tuple[int, str], Got]:
    """Return the results of the first round."""
    return {key: got for key, got in transcript.got.items() if key[0] == 1}


@each_case
def test_groups_are_the_same_and_follow_the_kinds_of_sites(
    transcripts: Transcripts, shape: str, ring: int
) -> None:
    masked, plain = both(transcripts, shape, ring)
    assert masked.groups == plain.groups
    count = len(masked.groups)
    assert count == (3 if shape == "three kinds" else 2)
    kinds = [{int(site.removeprefix("site-")) % count for site in group} for group in masked.groups]
    assert all(len(kind) == 1 for kind in kinds)


@every_round
@each_case
def test_a_round_is_the_equations_on_what_the_sites_put_in(
    transcripts: Transcripts, shape: str, ring: int, number: int
) -> None:
    for transcript in both(transcripts, shape, ring):
        assert len(sum_equations.contributors(transcript, number)) == len(SHAPES[shape][0])
        assert sum_equations.excess(transcript, number) <= 1.0


@every_round
@each_case
def test_masks_change_nothing_but_the_last_bits_of_each_contribution(
    transcripts: Transcripts, shape: str, ring: int, number: int
) -> None:
    """A masked result of contributions that are rounded beforehand is the paper's, as exact as float64."""
    assert sum_equations.excess(transcripts(Protection.MASKED, shape, ring), number, rounded=True) <= 1.0


@each_case
def test_a_masked_first_round_is_the_plain_one(transcripts: Transcripts, shape: str, ring: int) -> None:
    """Both trained alike until then, so that they had the same numbers to work on."""
    masked, plain = both(transcripts, shape, ring)
    for key, put in plain.put.items():
        if key[0] <= 1:
            np.testing.assert_array_equal(masked.put[key].rows, put.rows)
            np.testing.assert_array_equal(masked.put[key].averaged, put.averaged)
    assert sum_equations.excess(replace(masked, got=first(plain)), 1) <= 1.0
    assert max(np.abs(got.rows - plain.got[key].rows).max() for key, got in first(masked).items()) > 0.0


@every_round
@each_case
def test_the_saved_models_predict_the_same(
    transcripts: Transcripts, shape: str, ring: int, number: int
) -> None:
    compare_predictions(*both(transcripts, shape, ring), number)


def test_a_class_that_too_few_hold_is_withheld_where_they_are(transcripts: Transcripts) -> None:
    """Class 5 is at four sites, two in each group; class 0 at two of the second group, and at all of the first."""
    masked, _ = both(transcripts, "two kinds")
    expected = sum_equations.expected(masked, 1)
    for site, got in ((site, got) for (number, site), got in masked.got.items() if number == 1):
        np.testing.assert_array_equal(got.has, [True, True, True, True, True, False])
        assert not got.rows[5].any()
        assert (np.abs(got.rows - expected[site].rows) <= np.minimum(1e-9, expected[site].rows_bound)).all()


# The power of the checks


def test_the_bound_is_that_of_the_ring(transcripts: Transcripts) -> None:
    """A ring of 32 bits is beyond the bound for 64, and that beyond what float64 alone may be off."""
    large, plain = both(transcripts, "two kinds")
    small = transcripts(Protection.MASKED, "two kinds", 32)
    assert sum_equations.excess(replace(small, agreement=large.agreement), 1) > 1000.0
    assert sum_equations.excess(replace(large, agreement=plain.agreement), 1) > 2.0


@each_case
def test_one_contribution_more_or_less_is_beyond_every_bound(
    transcripts: Transcripts, shape: str, ring: int
) -> None:
    for transcript in both(transcripts, shape, ring):
        for site in sum_equations.contributors(transcript, 2):
            assert sum_equations.excess(transcript, 2, without=(site,)) > 100.0


@each_shape
def test_groups_that_do_not_listen_to_each_other_are_beyond_the_bound(
    transcripts: Transcripts, shape: str
) -> None:
    """Equations 7 and 8 left out: the means of one's own group."""
    masked, _ = both(transcripts, shape)
    alone = {
        site: sum_equations.expected(masked, 1, without=others(masked, site)) for _, site in first(masked)
    }
    got = {
        (1, site): replace(first(masked)[1, site], rows=mean[site].rows, averaged=mean[site].averaged)
        for site, mean in alone.items()
    }
    assert (
        sum_equations.excess(
            replace(masked, got={key: each for key, each in got.items() if key[1] in masked.groups[0]}), 1
        )
        > 1e6
    )


def others(transcript: Transcript, site: str) -> tuple[str, ...]:
    """Return the sites of other groups."""
    return tuple(other for group in transcript.groups if site not in group for other in group)
