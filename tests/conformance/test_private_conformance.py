"""With noise every protection gives what `plain` does: the papers' equations on the noisy values that sites put in."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from protoseal.config import Extractor, FeddbpSection, FedplccSection, Method, Protection
from tests.conformance import clustered_runs, literal
from tests.conformance.clustered_runs import ClusterBook, run_clustered
from tests.conformance.grouped_runs import Book, compare_predictions, run_grouped, two_kinds
from tests.conformance.private_runs import PRIVACY, private_agreement
from tests.conformance.runs import Bool, data_for
from tests.support.replayed_noise import replayed_noise

ROUNDS, DIM = 3, 12
CASES: dict[str, tuple[Method, Extractor, dict[str, Any]]] = {
    "fedpc": (Method.FEDPC, Extractor.TRAINED, {}),
    "fedpc, frozen": (Method.FEDPC, Extractor.FROZEN, {}),
    "feddbp": (Method.FEDDBP, Extractor.TRAINED, {"feddbp": FeddbpSection(own=0.75, top_channels=5)}),
    "feddbp, frozen": (Method.FEDDBP, Extractor.FROZEN, {"feddbp": FeddbpSection(own=0.75, top_channels=5)}),
    "fedproto": (Method.FEDPROTO, Extractor.TRAINED, {}),
    "fedplcc": (Method.FEDPLCC, Extractor.TRAINED, {}),
    "fedplcc, weighted centres": (
        Method.FEDPLCC,
        Extractor.TRAINED,
        {"fedplcc": FedplccSection(weighted_centres=True)},
    ),
}
HOLDS: Bool = two_kinds()

Books = Callable[[Protection, str], Book]
each_case = pytest.mark.parametrize("case", CASES)
each_protection = pytest.mark.parametrize("protection", Protection)
every_round = pytest.mark.parametrize("number", range(1, ROUNDS + 1))


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Books:
    """Every run is made once, all of a case with the same noise."""

    @cache
    def book(protection: Protection, case: str) -> Book:
        method, extractor, settings = CASES[case]
        agreement = private_agreement(
            protection,
            method,
            classes=HOLDS.shape[1],
            dim=DIM,
            rounds=ROUNDS,
            privacy=PRIVACY.model_copy(update={"extractor": extractor}),
            **settings,
        )
        with replayed_noise():
            run = run_clustered if method is Method.FEDPLCC else run_grouped
            return run(agreement, data_for(agreement, HOLDS), tmp_path_factory.mktemp("run"))

    return book


def excess(book: Book, number: int) -> float:
    if isinstance(book, ClusterBook):
        return clustered_runs.excess(book, number)
    return literal.excess(book, number)


@every_round
@each_protection
@each_case
def test_a_round_is_the_equations_on_the_noisy_values_that_sites_put_in(
    books: Books, protection: Protection, case: str, number: int
) -> None:
    book = books(protection, case)
    assert len(literal.contributors(book, number)) == len(HOLDS)
    assert excess(book, number) <= 1.0


@each_case
def test_what_sites_put_in_first_is_the_same_to_the_last_bit(books: Books, case: str) -> None:
    plain = books(Protection.PLAIN, case)
    for protection in (Protection.MASKED, Protection.CKKS):
        book = books(protection, case)
        assert book.groups == plain.groups
        for key in (key for key in plain.put if key[0] <= 1):
            np.testing.assert_array_equal(book.put[key].rows, plain.put[key].rows)
            np.testing.assert_array_equal(book.put[key].holds, plain.put[key].holds)
            np.testing.assert_array_equal(book.put[key].averaged, plain.put[key].averaged)
            assert book.put[key].samples == plain.put[key].samples
        if isinstance(book, ClusterBook) and isinstance(plain, ClusterBook):
            for at in (at for at in plain.local if at[0] == 1):
                np.testing.assert_array_equal(book.local[at].rows, plain.local[at].rows)
                np.testing.assert_array_equal(book.local[at].counts, plain.local[at].counts)


@every_round
@each_case
def test_the_saved_models_predict_the_same(books: Books, case: str, number: int) -> None:
    for protection in (Protection.MASKED, Protection.CKKS):
        compare_predictions(books(protection, case), books(Protection.PLAIN, case), number)
