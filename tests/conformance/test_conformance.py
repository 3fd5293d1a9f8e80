"""A run under `ckks` is a run under `plain`, within the written bound: same prototypes, same predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from algorithms.pfpl import Weighting
from protoseal.config import Agreement, PfplSection, Protection
from tests.conformance.expected import check_predictions, excess, inputs_of
from tests.conformance.runs import Record, agreement_for, data_for, holdings, run

SERVED = [Weighting.DISTANCE, Weighting.COMPLEMENT, Weighting.UNIFORM]
SHAPES = [(3, 3, 8, 2), (5, 10, 300, 1), (8, 10, 8, 1)]
"""Sites, classes, features, rounds: few features, more than a ciphertext holds (256 here), many sites."""

PAIR = {"min_holders": 1, "min_sites": 2, "allow_fewer_holders_reveals_peers": True}


def both(tmp_path: Path, sites: int, ckks: Agreement) -> tuple[Record, Record]:
    """The same run under `ckks` and under `plain`."""
    plain = Agreement.model_validate({**dict(ckks), "protection": Protection.PLAIN})
    data = data_for(ckks, holdings(sites, len(ckks.classes)))
    return run(ckks, data, tmp_path / "ckks"), run(plain, data, tmp_path / "plain")


def check(agreement: Agreement, encrypted: Record, plain: Record) -> None:
    for number in range(1, agreement.rounds + 1):
        assert excess(agreement, encrypted, number, agreement.pfpl.weighting) <= 1.0
    for key, taken in encrypted.items():
        check_predictions(taken, plain[key])
        np.testing.assert_array_equal(taken.prototypes.has_personal, plain[key].prototypes.has_personal)
    # In the first round both trained alike, so the protections had the same numbers to work on.
    first = [key for key in encrypted if key[0] == 1]
    for key in first:
        np.testing.assert_array_equal(encrypted[key].prototypes.local, plain[key].prototypes.local)


@pytest.mark.parametrize("weighting", SERVED)
@pytest.mark.parametrize(("sites", "classes", "dim", "rounds"), SHAPES)
def test_ckks_gives_what_plain_gives(
    tmp_path: Path, sites: int, classes: int, dim: int, rounds: int, weighting: Weighting
) -> None:
    agreement = agreement_for(Protection.CKKS, weighting, classes=classes, dim=dim, rounds=rounds)
    encrypted, plain = both(tmp_path, sites, agreement)
    check(agreement, encrypted, plain)
    assert not inputs_of(agreement, encrypted, 1).cohort.holds[:, -1].any()  # withheld: two holders


@pytest.mark.parametrize("weighting", SERVED)
def test_two_sites_that_agreed_to_show_each_other_their_prototypes(
    tmp_path: Path, weighting: Weighting
) -> None:
    agreement = agreement_for(Protection.CKKS, weighting, classes=3, dim=8, **PAIR)
    encrypted, plain = both(tmp_path, 2, agreement)
    check(agreement, encrypted, plain)


def test_the_bound_tells_the_weightings_apart(tmp_path: Path) -> None:
    agreement = agreement_for(Protection.CKKS, Weighting.COMPLEMENT, classes=10, dim=64, rounds=1)
    record = run(agreement, data_for(agreement, holdings(5, 10)), tmp_path)
    assert excess(agreement, record, 1, Weighting.COMPLEMENT) <= 1.0
    assert excess(agreement, record, 1, Weighting.DISTANCE) > 20.0
    assert excess(agreement, record, 1, Weighting.UNIFORM) > 20.0


def test_what_needs_inner_products_is_refused_under_ckks() -> None:
    with pytest.raises(ValidationError, match="weighting 'inverse' needs 'gram', and protection 'ckks'"):
        agreement_for(Protection.CKKS, Weighting.INVERSE, classes=3, dim=8)
    unsquared = PfplSection(weighting=Weighting.DISTANCE, squared=False)
    with pytest.raises(ValidationError, match="'distance, unsquared' needs 'gram', and protection 'ckks'"):
        agreement_for(Protection.CKKS, Weighting.DISTANCE, classes=3, dim=8, pfpl=unsquared)
    assert agreement_for(Protection.PLAIN, Weighting.DISTANCE, classes=3, dim=8, pfpl=unsquared)
