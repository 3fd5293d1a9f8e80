"""A coordinator that attacks: each attack succeeds against a double, and fails against the code as it is.

The double lacks every layer that holds the attack off by itself; each layer is one line, and no configuration can
take it away. What the attack gains is asserted by the attack.
"""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from agreement import Protection
from agreement.derived.cohorts import cohort_of
from algorithms.pfpl import Weighting
from crypto.ckks.group_keys import CkksSecret
from protoseal_wire.messages import ActiveList
from secure_client.errors import ConflictingRequest, Violation
from tests.adversary.attack import assert_nothing_answered, assert_refused, by_layer, weaken, weaken_all_but
from tests.adversary.conftest import Open
from tests.adversary.opened_masks import decrypt_upload
from tests.adversary.round_attacks import ROUND_ATTACKS
from tests.adversary.set_up_attacks import SET_UP_ATTACKS
from tests.support.grouped import EVERYONE
from tests.support.scripted_coordinator import ScriptedCoordinator

ATTACKS = SET_UP_ATTACKS | ROUND_ATTACKS


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_succeeds_against_the_double(
    name: str, open_play: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = ATTACKS[name]
    for layer in attack.layers:
        weaken(layer, monkeypatch)
    attack.play(open_play(attack.protection, attack.weighting))


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_refused(name: str, open_play: Open) -> None:
    attack = ATTACKS[name]
    assert_refused(attack, open_play(attack.protection, attack.weighting))


@pytest.mark.parametrize(("name", "layer"), by_layer(ATTACKS))
def test_each_layer_holds_by_itself(
    name: str, layer: str, open_play: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = ATTACKS[name]
    weaken_all_but(layer, attack, monkeypatch)
    play = open_play(attack.protection, attack.weighting)
    # Inner layers were not made to be met, and speak as what they are.
    with pytest.raises((Violation, ValueError, sqlite3.IntegrityError)):
        attack.play(play)
    assert_nothing_answered(play)


def test_a_conflict_has_a_type_of_its_own(open_play: Open) -> None:
    attack = ATTACKS["asks for values twice"]
    with pytest.raises(ConflictingRequest):
        attack.play(open_play(attack.protection, attack.weighting))


# A set-up is for one roster: any other, and one that is repeated, has keys that open nothing of the one before.

A, B, C, D = EVERYONE
ROSTERS = {
    "another that a site joins": EVERYONE,
    "another without a site": (A, C, D),
    "the same again": (A, B, C),
}


def opens(play: ScriptedCoordinator, secret: CkksSecret, name: str, active: ActiveList) -> bool:
    """Return True if the key reads those of the site's prototypes that are not withheld from the upload."""
    cohort = cohort_of(active, play.agreement)
    sent = cohort.holds[cohort.index(name)]
    read, rows = decrypt_upload(play, secret, play.values(name, active), active), play.rows(name)
    assert np.abs(rows[sent]).max() > 0.1
    return bool(np.abs(read[sent] - rows[sent]).max() < 1e-4)


@pytest.mark.parametrize("case", ROSTERS)
def test_group_key_of_an_earlier_set_up_opens_nothing(case: str, open_play: Open) -> None:
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
