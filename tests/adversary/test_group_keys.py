"""A set-up is for one roster: any other, and one that is repeated, has keys that open nothing of the one before."""

from __future__ import annotations

import numpy as np
import pytest

from agreement import Protection
from agreement.derived.cohorts import cohort_of
from algorithms.pfpl import Weighting
from crypto.ckks.secret_key import CkksSecret
from protoseal_wire.messages import ActiveList
from tests.adversary.conftest import Open
from tests.adversary.hostile_coordinator import Hostile
from tests.support.grouped import EVERYONE

A, B, C, D = EVERYONE
ROSTERS = {
    "another that a site joins": EVERYONE,
    "another without a site": (A, C, D),
    "the same again": (A, B, C),
}


def opens(play: Hostile, secret: CkksSecret, name: str, active: ActiveList) -> bool:
    """Return True if the key reads those of the site's prototypes that are not withheld from the upload."""
    cohort = cohort_of(active, play.agreement)
    sent = cohort.holds[cohort.index(name)]
    read, rows = play.decrypt(secret, play.values(name, active), active), play.rows(name)
    assert np.abs(rows[sent]).max() > 0.1
    return bool(np.abs(read[sent] - rows[sent]).max() < 1e-4)


@pytest.mark.parametrize("case", ROSTERS)
def test_a_key_of_the_set_up_before_opens_nothing_under_the_next(case: str, open_play: Open) -> None:
    play, roster = open_play(Protection.CKKS, Weighting.UNIFORM), ROSTERS[case]
    play.set_up(A, B, C)
    setups = {name: play.site(name).session._setup for name in roster}
    old, seed = setups[A].ckks_key(), setups[A].rotation_seed()
    play.set_up(*roster, attempt=2)
    new = {setup.ckks_key().to_bytes() for setup in setups.values()}
    assert len(new) == 1
    assert new != {old.to_bytes()}
    assert {setup.rotation_seed() for setup in setups.values()} != {seed}
    active = play.begin(*roster)
    for name in roster:
        assert opens(play, setups[A].ckks_key(), name, active)
        assert not opens(play, old, name, active)
