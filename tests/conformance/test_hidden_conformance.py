"""Hidden presence under `ckks`: sites come to what they come to under `plain`, where everyone knows who has what.

The same prototypes, classes withheld, predictions and accuracies. What the coordinator gets to know is elsewhere:
tests/adversary/test_hidden_presence.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from algorithms.pfpl import Weighting
from protoseal.config import Agreement, Method, Presence, Protection
from protoseal.federation import LocalFederation
from protoseal.files import SiteRound
from protoseal_wire.messages import Phase
from tests.conformance import literal
from tests.conformance.expected import check_predictions, excess
from tests.conformance.grouped_runs import Book, compare_predictions, grouped_agreement, run_grouped
from tests.conformance.runs import HIDDEN, Bool, agreement_for, data_for, run
from tests.conformance.turns import Loss

pytestmark = pytest.mark.full
PUBLIC = {"presence": Presence.PUBLIC, "allow_hidden_presence_reveals_peers": False}
WEIGHTINGS = (Weighting.DISTANCE, Weighting.COMPLEMENT, Weighting.UNIFORM)
SHAPES = [(4, 6, 8, 2), (6, 10, 300, 1)]
"""Sites, classes, features, rounds: few features, more than a ciphertext holds (256 here)."""


def patterns(sites: int, classes: int) -> Bool:
    """Classes that 0, 1, 2 and 3 sites have; any of the others, and the last two all."""
    holds = np.random.default_rng(sites).random((sites, classes)) < 0.7
    for number in range(4):
        holds[:, number] = np.arange(sites) < number
    holds[:, -2:] = True
    return holds


def as_public(agreement: Agreement, protection: Protection) -> Agreement:
    return Agreement.model_validate({**dict(agreement), **PUBLIC, "protection": protection})


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize(("sites", "classes", "dim", "rounds"), SHAPES)
def test_pfpl_gives_what_plain_gives(
    tmp_path: Path, sites: int, classes: int, dim: int, rounds: int, weighting: Weighting
) -> None:
    agreement = agreement_for(Protection.CKKS, weighting, classes=classes, dim=dim, rounds=rounds, **HIDDEN)
    data = data_for(agreement, patterns(sites, classes))
    hidden = run(agreement, data, tmp_path / "hidden")
    plain = run(as_public(agreement, Protection.PLAIN), data, tmp_path / "plain")
    assert set(hidden) == set(plain)
    for number in range(1, rounds + 1):
        assert excess(agreement, hidden, number) <= 1.0
    check_predictions(*((taken, plain[key]) for key, taken in hidden.items()))
    for key, taken in hidden.items():
        has = taken.prototypes.has_personal
        np.testing.assert_array_equal(has, plain[key].prototypes.has_personal)
        assert not has[:3].any()
    assert hidden[1, "site-1"].prototypes.has_personal[3]


def figures(agreement: Agreement, holds: Bool) -> Mapping[tuple[int, str], SiteRound]:
    """What each site reports of each round."""
    found: dict[tuple[int, str], SiteRound] = {}
    data = data_for(agreement, holds)
    with LocalFederation(
        agreement, data, on_round=lambda site, each: found.update({(each.round, site): each})
    ) as federation:
        federation.run()
    return found


def of_pfpl(weighting: Weighting) -> Callable[[Any], Agreement]:
    return lambda settings: agreement_for(Protection.CKKS, weighting, classes=6, dim=8, rounds=2, **settings)


def of_fedproto(settings: Any) -> Agreement:
    return grouped_agreement(Protection.CKKS, method=Method.FEDPROTO, classes=6, dim=8, rounds=2, **settings)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(of_pfpl(Weighting.DISTANCE), id="pfpl-distance"),
        pytest.param(of_pfpl(Weighting.COMPLEMENT), id="pfpl-complement"),
        pytest.param(of_fedproto, id="fedproto"),
    ],
)
def test_accuracies_and_withheld_classes_are_those_of_public_presence(make: Any) -> None:
    holds = patterns(4, 6)
    hidden, public = (figures(make(settings), holds) for settings in (HIDDEN, PUBLIC))
    assert set(hidden) == set(public)
    for key, each in hidden.items():
        assert each.withheld == public[key].withheld
        assert each.accuracy_classifier == public[key].accuracy_classifier
        assert each.accuracy_prototype == public[key].accuracy_prototype
    assert hidden[1, "site-1"].withheld == ("1", "2")


# Sums

SUMS = {"fedproto": Method.FEDPROTO, "feddbp": Method.FEDDBP, "fedavg": Method.FEDAVG}
LOSSES = (Loss("site-4", 1, Phase.VALUES), Loss("site-2", 2, Phase.RESULT))


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each run is made once; with losses in the first two of four rounds, or without any in two."""

    @cache
    def book(method: str, hidden: bool, lossy: bool = False) -> Book:
        agreement = grouped_agreement(
            Protection.CKKS if hidden else Protection.PLAIN,
            method=SUMS[method],
            classes=6,
            dim=12,
            rounds=4 if lossy else 2,
            norm_bound=40.0,
            **(HIDDEN if hidden else {}),
        )
        data = data_for(agreement, patterns(5, 6))
        return run_grouped(agreement, data, tmp_path_factory.mktemp("run"), LOSSES if lossy else ())

    return book


@pytest.mark.parametrize("method", SUMS)
def test_sums_are_the_equations_on_what_sites_put_in(books: Any, method: str) -> None:
    book, plain = books(method, True), books(method, False)
    for number in (1, 2):
        assert literal.excess(book, number) <= 1.0
        compare_predictions(book, plain, number)
        assert literal.excess(book, number, without=("site-2",)) > 100.0
    for key, got in plain.got.items():
        np.testing.assert_array_equal(book.got[key].has, got.has)
    if SUMS[method] is not Method.FEDAVG:
        np.testing.assert_array_equal(book.got[1, "site-1"].has[:4], [False, False, False, True])


@pytest.mark.parametrize("method", ["fedproto", "feddbp"])
def test_sums_without_who_was_lost_are_exact_for_the_others(books: Any, method: str) -> None:
    book = books(method, True, True)
    assert book.summary() == [(1, 2, False), (2, 1, False), (3, 1, False), (4, 1, False)]
    assert "site-4" not in literal.contributors(book, 1)
    for number in range(1, 5):
        assert literal.excess(book, number) <= 1.0
    caught_up = book.starts[3, 1, "site-2"].catch_up
    assert caught_up is not None
    assert caught_up.scheme == "ckks/1"
