"""PFPL: a protected run is a run under `plain`, within the written bound: same prototypes, same predictions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from agreement import Agreement, PfplSection, Protection
from algorithms.pfpl import Weighting
from tests.conformance.plain_answers import check_predictions, excess, inputs_of
from tests.conformance.runs import Record, agreement_for, data_for, holdings, run
from tests.support.marks import full_but

BY_DISTANCES = [
    PfplSection(weighting=each) for each in (Weighting.DISTANCE, Weighting.COMPLEMENT, Weighting.UNIFORM)
]
"""Weightings of a protection that computes weights from distances alone; the others need inner products."""
SERVED = {
    Protection.MASKED: [*BY_DISTANCES, PfplSection(weighting=Weighting.INVERSE)],
    Protection.CKKS: BY_DISTANCES,
}
SHAPES = [(3, 3, 8, 2), (5, 10, 300, 1), (8, 10, 8, 1)]
"""Sites, classes, features, rounds: few features, more than a ciphertext holds (256 here), many sites."""

PAIR = {"min_holders": 1, "min_sites": 2, "allow_fewer_holders_reveals_peers": True}

each_served = pytest.mark.parametrize(
    ("protection", "pfpl"),
    [
        pytest.param(protection, pfpl, id=f"{protection}-{pfpl.weighting}")
        for protection, served in SERVED.items()
        for pfpl in served
    ],
)


def both(tmp_path: Path, sites: int, protected: Agreement) -> tuple[Record, Record]:
    """Run under the protection and under `plain`."""
    plain = Agreement.model_validate({**dict(protected), "protection": Protection.PLAIN})
    data = data_for(protected, holdings(sites, len(protected.classes)))
    return run(protected, data, tmp_path / "protected"), run(plain, data, tmp_path / "plain")


def check(agreement: Agreement, protected: Record, plain: Record) -> None:
    for number in range(1, agreement.rounds + 1):
        assert excess(agreement, protected, number) <= 1.0
    for key, taken in protected.items():
        check_predictions((taken, plain[key]))
        np.testing.assert_array_equal(taken.prototypes.has_personal, plain[key].prototypes.has_personal)
    # In the first round both trained alike, so the protections had the same numbers to work on.
    first = [key for key in protected if key[0] == 1]
    for key in first:
        np.testing.assert_array_equal(protected[key].prototypes.local, plain[key].prototypes.local)


@each_served
@pytest.mark.parametrize(("sites", "classes", "dim", "rounds"), full_but(SHAPES, SHAPES[0]))
def test_every_protection_gives_what_plain_gives(
    tmp_path: Path,
    sites: int,
    classes: int,
    dim: int,
    rounds: int,
    protection: Protection,
    pfpl: PfplSection,
) -> None:
    agreement = agreement_for(protection, pfpl.weighting, classes=classes, dim=dim, rounds=rounds, pfpl=pfpl)
    protected, plain = both(tmp_path, sites, agreement)
    check(agreement, protected, plain)
    assert not inputs_of(agreement, protected, 1).cohort.holds[:, -1].any()  # withheld: two holders


@each_served
def test_two_sites_that_agreed_to_show_each_other_their_prototypes(
    tmp_path: Path, protection: Protection, pfpl: PfplSection
) -> None:
    agreement = agreement_for(protection, pfpl.weighting, classes=3, dim=8, pfpl=pfpl, **PAIR)
    protected, plain = both(tmp_path, 2, agreement)
    check(agreement, protected, plain)


@pytest.mark.parametrize("protection", list(SERVED))
def test_the_bound_tells_the_weightings_apart(tmp_path: Path, protection: Protection) -> None:
    agreement = agreement_for(protection, Weighting.COMPLEMENT, classes=10, dim=64, rounds=1)
    record = run(agreement, data_for(agreement, holdings(5, 10)), tmp_path)
    assert excess(agreement, record, 1) <= 1.0
    for other in SERVED[protection]:
        if other.weighting is not Weighting.COMPLEMENT:
            assert excess(agreement, record, 1, other) > 20.0


def test_the_bound_on_rotations_is_beyond_float32(tmp_path: Path) -> None:
    """Rotated rows that were rounded to float32 on their way would not pass."""
    agreement = agreement_for(Protection.MASKED, Weighting.COMPLEMENT, classes=3, dim=64, rounds=1)
    record = run(agreement, data_for(agreement, holdings(5, 3)), tmp_path)
    rounded = {
        key: replace(taken, targets=taken.targets.astype(np.float32).astype(np.float64))
        for key, taken in record.items()
    }
    assert excess(agreement, rounded, 1) > 20.0


def test_ckks_refuses_weightings_that_need_inner_products() -> None:
    with pytest.raises(ValidationError, match="weighting 'inverse' needs 'gram', but protection 'ckks'"):
        agreement_for(Protection.CKKS, Weighting.INVERSE, classes=3, dim=8)
