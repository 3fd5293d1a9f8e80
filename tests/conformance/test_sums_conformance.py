"""FedDBP, FedProto and FedAvg under `masked` and `plain`, each against loops over the sites and against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from agreement import AveragingSection, FeddbpSection, MaskingSection, Method, Protection
from tests.conformance import sum_equations
from tests.conformance.grouped_runs import (
    Transcript,
    compare_predictions,
    grouped_agreement,
    run_grouped,
    two_kinds,
)
from tests.conformance.runs import Bool, data_for
from tests.support.marks import full_but

ROUNDS, DIM = 3, 12
SIZES: dict[int, Bool] = {
    9: two_kinds(),
    3: np.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]], dtype=np.bool_),
}
"""Holders of the classes. Of nine sites too few hold no class; of three, the second and the last are withheld."""
METHODS = (Method.FEDDBP, Method.FEDPROTO, Method.FEDAVG, Method.FEDPROTO_AVERAGED)
SECTION = FeddbpSection(own=0.75, top_channels=5)
"""Settings with less than all of a site's own in fewer than all channels, so that either would be seen."""
BOUNDS = {"parameter_bound": 8.0, "most_samples": 36}

Transcripts = Callable[[Method, Protection, int, int], Transcript]
"""The run of a method with so many sites, and a ring of so many bits."""

each_method = pytest.mark.parametrize("method", METHODS)
each_size = pytest.mark.parametrize("sites", full_but(SIZES, 3))
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
    def transcript(method: Method, protection: Protection, sites: int, ring: int = 64) -> Transcript:
        holds = SIZES[sites]
        agreement = grouped_agreement(
            protection,
            method=method,
            classes=holds.shape[1],
            dim=DIM,
            rounds=ROUNDS,
            averaging=BOUNDS,
            feddbp=SECTION,
            masking=MaskingSection.model_validate({"ring_bits": ring}),
        )
        return run_grouped(agreement, data_for(agreement, holds), tmp_path_factory.mktemp("run"))

    return transcript


def both(transcripts: Transcripts, method: Method, sites: int) -> tuple[Transcript, Transcript]:
    """Return the transcripts under `masked` and under `plain`."""
    return transcripts(method, Protection.MASKED, sites, 64), transcripts(method, Protection.PLAIN, sites, 64)


def names(sites: int) -> tuple[str, ...]:
    return tuple(f"site-{i + 1}" for i in range(sites))


@each_size
@each_method
def test_all_sites_are_one_group(transcripts: Transcripts, method: Method, sites: int) -> None:
    for transcript in both(transcripts, method, sites):
        assert transcript.groups == (names(sites),)
        assert transcript.summary() == [(number, 1, False) for number in range(1, ROUNDS + 1)]
        assert {number for number, _, _ in transcript.put} == set(range(1, ROUNDS + 1))


@every_round
@each_size
@each_method
def test_a_round_is_the_means_of_what_the_sites_put_in(
    transcripts: Transcripts, method: Method, sites: int, number: int
) -> None:
    for transcript in both(transcripts, method, sites):
        assert sum_equations.contributors(transcript, number) == names(sites)
        assert sum_equations.excess(transcript, number) <= 1.0


@every_round
@each_method
def test_masks_change_nothing_but_the_last_bits_of_each_contribution(
    transcripts: Transcripts, method: Method, number: int
) -> None:
    for sites in SIZES:
        assert (
            sum_equations.excess(transcripts(method, Protection.MASKED, sites, 64), number, rounded=True)
            <= 1.0
        )


@each_size
@each_method
def test_a_masked_first_round_is_the_plain_one(transcripts: Transcripts, method: Method, sites: int) -> None:
    """Both trained alike until then, so that they had the same numbers to work on."""
    masked, plain = both(transcripts, method, sites)
    for key, put in plain.put.items():
        if key[0] == 1:
            np.testing.assert_array_equal(masked.put[key].rows, put.rows)
            np.testing.assert_array_equal(masked.put[key].averaged, put.averaged)
    first = {key: got for key, got in plain.got.items() if key[0] == 1}
    assert sum_equations.excess(replace(masked, got=first), 1) <= 1.0


@every_round
@each_size
@each_method
def test_the_saved_models_predict_the_same(
    transcripts: Transcripts, method: Method, sites: int, number: int
) -> None:
    compare_predictions(*both(transcripts, method, sites), number)


@each_method
def test_classes_that_too_few_hold_are_withheld(transcripts: Transcripts, method: Method) -> None:
    for transcript in both(transcripts, method, 3):
        for got in transcript.got.values():
            prototypes = transcript.agreement.layout.classes > 0
            assert got.has.tolist() == [prototypes, False, prototypes, False]
            assert not got.rows[~got.has[: len(got.rows)]].any()


@pytest.mark.parametrize("number", range(1, ROUNDS))
@each_size
def test_a_feddbp_site_trains_towards_its_own_fusion(
    transcripts: Transcripts, sites: int, number: int
) -> None:
    for transcript in both(transcripts, Method.FEDDBP, sites):
        for site in names(sites):
            assert sum_equations.fusion_excess(transcript, number, site) <= 1.0


@pytest.mark.full
def test_a_fedproto_site_trains_towards_the_mean(transcripts: Transcripts) -> None:
    for transcript in both(transcripts, Method.FEDPROTO, 9):
        for site in names(9):
            np.testing.assert_array_equal(transcript.guides[2, 1, site], transcript.got[1, site].rows)


@pytest.mark.full
def test_a_fedavg_site_weighs_as_many_samples_as_it_has_up_to_the_most(transcripts: Transcripts) -> None:
    """Six of each class: three classes, or up to six at a site of the nine, 36 being the most."""
    plain = transcripts(Method.FEDAVG, Protection.PLAIN, 9, 64)
    samples = {put.samples for put in plain.put.values()}
    assert samples == {6 * int(count) for count in SIZES[9].sum(axis=1)}
    assert len(samples) > 1
    assert max(samples) <= 36


# The power of the checks


@pytest.mark.full
def test_the_bound_is_that_of_the_ring(transcripts: Transcripts) -> None:
    """A ring of 32 bits is beyond the bound for 64, and that beyond what float64 alone may be off."""
    for method in (Method.FEDDBP, Method.FEDPROTO):
        large, plain = both(transcripts, method, 9)
        small = transcripts(method, Protection.MASKED, 9, 32)
        assert sum_equations.excess(small, 1) <= 1.0
        assert sum_equations.excess(replace(small, agreement=large.agreement), 1) > 1000.0
        assert sum_equations.excess(replace(large, agreement=plain.agreement), 1) > 2.0


@each_size
@each_method
def test_one_contribution_more_or_less_is_beyond_every_bound(
    transcripts: Transcripts, method: Method, sites: int
) -> None:
    for transcript in both(transcripts, method, sites):
        for site in names(sites)[:3]:
            assert sum_equations.excess(transcript, 2, without=(site,)) > 100.0


@pytest.mark.full
def test_models_that_are_not_weighed_are_beyond_the_bound(transcripts: Transcripts) -> None:
    for transcript in both(transcripts, Method.FEDAVG, 9):
        alike = {key: replace(put, samples=1) for key, put in transcript.put.items()}
        assert sum_equations.excess(replace(transcript, put=alike), 1) > 100.0


@pytest.mark.full
@pytest.mark.parametrize(
    "changes", [{"own": 1.0}, {"top_channels": 4}, {"top_channels": 12}, {"personal": False}]
)
def test_another_fusion_is_beyond_the_bound(transcripts: Transcripts, changes: dict[str, Any]) -> None:
    for transcript in both(transcripts, Method.FEDDBP, 9):
        assert max(sum_equations.fusion_excess(transcript, 1, site, **changes) for site in names(9)) > 100.0


@pytest.mark.full
def test_the_fusion_by_another_sites_scores_is_beyond_the_bound(transcripts: Transcripts) -> None:
    transcript, _ = both(transcripts, Method.FEDDBP, 9)
    swapped = dict(transcript.put)
    swapped[1, 1, "site-1"] = replace(
        transcript.put[1, 1, "site-1"], scores=transcript.put[1, 1, "site-3"].scores
    )
    assert sum_equations.fusion_excess(replace(transcript, put=swapped), 1, "site-1") > 100.0
