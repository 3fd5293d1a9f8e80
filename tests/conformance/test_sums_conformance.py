"""FedDBP, FedProto and FedAvg under `masked` and `plain`, each against loops over the sites and against each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from agreement import FeddbpSection, MaskingSection, Method, Protection
from tests.conformance import sum_equations
from tests.conformance.grouped_runs import (
    Book,
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
"""Who holds what. Of nine, too few hold no class; of three, the second and the last are withheld."""
METHODS = (Method.FEDDBP, Method.FEDPROTO, Method.FEDAVG, Method.FEDPROTO_AVERAGED)
SECTION = FeddbpSection(own=0.75, top_channels=5)
"""With less than all of a site's own in fewer than all channels, so that either would be seen."""
BOUNDS = {"parameter_bound": 8.0, "buffer_bound": 30.0, "most_samples": 36}

Books = Callable[[Method, Protection, int, int], Book]
"""The run of a method with so many sites, and a ring of so many bits."""

each_method = pytest.mark.parametrize("method", METHODS)
each_size = pytest.mark.parametrize("sites", full_but(SIZES, 3))
every_round = pytest.mark.parametrize("number", range(1, ROUNDS + 1))


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Books:
    """Every run is made once."""

    @cache
    def book(method: Method, protection: Protection, sites: int, ring: int = 64) -> Book:
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

    return book


def both(books: Books, method: Method, sites: int) -> tuple[Book, Book]:
    """Under `masked`, and under `plain`."""
    return books(method, Protection.MASKED, sites, 64), books(method, Protection.PLAIN, sites, 64)


def names(sites: int) -> tuple[str, ...]:
    return tuple(f"site-{i + 1}" for i in range(sites))


@each_size
@each_method
def test_all_sites_are_one_group(books: Books, method: Method, sites: int) -> None:
    for book in both(books, method, sites):
        assert book.groups == (names(sites),)
        assert book.summary() == [(number, 1, False) for number in range(1, ROUNDS + 1)]
        assert {number for number, _, _ in book.put} == set(range(1, ROUNDS + 1))


@every_round
@each_size
@each_method
def test_a_round_is_the_means_of_what_the_sites_put_in(
    books: Books, method: Method, sites: int, number: int
) -> None:
    for book in both(books, method, sites):
        assert sum_equations.contributors(book, number) == names(sites)
        assert sum_equations.excess(book, number) <= 1.0


@every_round
@each_method
def test_masks_change_nothing_but_the_last_bits_of_each_contribution(
    books: Books, method: Method, number: int
) -> None:
    for sites in SIZES:
        assert sum_equations.excess(books(method, Protection.MASKED, sites, 64), number, rounded=True) <= 1.0


@each_size
@each_method
def test_a_masked_first_round_is_the_plain_one(books: Books, method: Method, sites: int) -> None:
    """Both trained alike until then, so that they had the same numbers to work on."""
    masked, plain = both(books, method, sites)
    for key, put in plain.put.items():
        if key[0] == 1:
            np.testing.assert_array_equal(masked.put[key].rows, put.rows)
            np.testing.assert_array_equal(masked.put[key].averaged, put.averaged)
    first = {key: got for key, got in plain.got.items() if key[0] == 1}
    assert sum_equations.excess(replace(masked, got=first), 1) <= 1.0


@every_round
@each_size
@each_method
def test_the_saved_models_predict_the_same(books: Books, method: Method, sites: int, number: int) -> None:
    compare_predictions(*both(books, method, sites), number)


@each_method
def test_classes_that_too_few_hold_are_withheld(books: Books, method: Method) -> None:
    for book in both(books, method, 3):
        for got in book.got.values():
            prototypes = book.agreement.layout.classes > 0
            assert got.has.tolist() == [prototypes, False, prototypes, False]
            assert not got.rows[~got.has[: len(got.rows)]].any()


@pytest.mark.parametrize("number", range(1, ROUNDS))
@each_size
def test_a_feddbp_site_trains_towards_its_own_fusion(books: Books, sites: int, number: int) -> None:
    for book in both(books, Method.FEDDBP, sites):
        for site in names(sites):
            assert sum_equations.fusion_excess(book, number, site) <= 1.0


@pytest.mark.full
def test_a_fedproto_site_trains_towards_the_mean(books: Books) -> None:
    for book in both(books, Method.FEDPROTO, 9):
        for site in names(9):
            np.testing.assert_array_equal(book.guides[2, 1, site], book.got[1, site].rows)


@pytest.mark.full
def test_a_fedavg_site_weighs_as_many_samples_as_it_has_up_to_the_most(books: Books) -> None:
    """Six of each class: three classes, or up to six at a site of the nine, 36 being the most."""
    plain = books(Method.FEDAVG, Protection.PLAIN, 9, 64)
    samples = {put.samples for put in plain.put.values()}
    assert samples == {6 * int(count) for count in SIZES[9].sum(axis=1)}
    assert len(samples) > 1
    assert max(samples) <= 36


# The power of the checks


@pytest.mark.full
def test_the_bound_is_that_of_the_ring(books: Books) -> None:
    """A ring of 32 bits is beyond the bound for 64, and that beyond what float64 alone may be off."""
    for method in (Method.FEDDBP, Method.FEDPROTO):
        large, plain = both(books, method, 9)
        small = books(method, Protection.MASKED, 9, 32)
        assert sum_equations.excess(small, 1) <= 1.0
        assert sum_equations.excess(replace(small, agreement=large.agreement), 1) > 1000.0
        assert sum_equations.excess(replace(large, agreement=plain.agreement), 1) > 2.0


@each_size
@each_method
def test_one_contribution_more_or_less_is_beyond_every_bound(
    books: Books, method: Method, sites: int
) -> None:
    for book in both(books, method, sites):
        for site in names(sites)[:3]:
            assert sum_equations.excess(book, 2, without=(site,)) > 100.0


@pytest.mark.full
def test_models_that_are_not_weighed_are_beyond_the_bound(books: Books) -> None:
    for book in both(books, Method.FEDAVG, 9):
        alike = {key: replace(put, samples=1) for key, put in book.put.items()}
        assert sum_equations.excess(replace(book, put=alike), 1) > 100.0


@pytest.mark.full
@pytest.mark.parametrize(
    "changes", [{"own": 1.0}, {"top_channels": 4}, {"top_channels": 12}, {"personal": False}]
)
def test_another_fusion_is_beyond_the_bound(books: Books, changes: dict[str, Any]) -> None:
    for book in both(books, Method.FEDDBP, 9):
        assert max(sum_equations.fusion_excess(book, 1, site, **changes) for site in names(9)) > 100.0


@pytest.mark.full
def test_the_fusion_by_another_sites_scores_is_beyond_the_bound(books: Books) -> None:
    book, _ = both(books, Method.FEDDBP, 9)
    swapped = dict(book.put)
    swapped[1, 1, "site-1"] = replace(book.put[1, 1, "site-1"], scores=book.put[1, 1, "site-3"].scores)
    assert sum_equations.fusion_excess(replace(book, put=swapped), 1, "site-1") > 100.0
