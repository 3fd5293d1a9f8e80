"""A coordinator that attacks: each attack succeeds against a double, and fails against the code as it is.

The double lacks every layer that holds the attack off by itself; each layer is one line, and no configuration can
take it away. What the attack gains is asserted by the attack. The attacks are on the set-up, on rounds of PFPL, on
masked sums over complete and sparse graphs, and on clusters.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, Protection
from agreement.derived.cohorts import cohort_of
from algorithms.pfpl import Weighting
from crypto.ckks.secret_key import CkksSecret
from crypto.errors import CryptoError
from protoseal_wire.messages import ActiveList
from secure_client.errors import Violation
from tests.adversary.attack import (
    AnyAttack,
    Plays,
    assert_nothing_answered,
    assert_refused,
    by_layer,
    weaken,
    weaken_all_but,
)
from tests.adversary.cluster_attacks import CLUSTER_ATTACKS
from tests.adversary.masked_attacks import SPARSE_ATTACKS, SUM_ATTACKS
from tests.adversary.masked_start_attacks import START_ATTACKS
from tests.adversary.opened_masks import decrypt_upload
from tests.adversary.round_attacks import ROUND_ATTACKS
from tests.adversary.set_up_attacks import SET_UP_ATTACKS
from tests.support.grouped import EVERYONE
from tests.support.marks import full_but
from tests.support.scripted_coordinator import ScriptedCoordinator
from tests.support.small import small_agreement

MASKED_ATTACKS = SUM_ATTACKS | START_ATTACKS | SPARSE_ATTACKS
ATTACKS: dict[str, AnyAttack[Any]] = {
    **SET_UP_ATTACKS,
    **ROUND_ATTACKS,
    **MASKED_ATTACKS,
    **CLUSTER_ATTACKS,
}
OF_FEDPC = {
    "puts mask keys on statements without any",
    "gives one member another result",
    "gives another result to catch up with",
    "begins a round again from another result",
}
"""Attacks on masked sums by messages of round 0 or by models, which PFPL has not."""
ON_PEERS = (
    "names two survivor sets",
    "sums up those whom it did not ask to unmask",
    "leaves a site alone with colluders",
    "leaves a class with one holder",
    "makes a group of some where all are one",
)
"""Attacks on a sum of peers that `make test` plays."""


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_succeeds_against_the_double(name: str, plays: Plays, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = ATTACKS[name]
    for layer in attack.layers:
        weaken(layer, monkeypatch)
    attack.play(attack.open(plays))


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_refused(name: str, plays: Plays) -> None:
    assert_refused(ATTACKS[name], ATTACKS[name].open(plays))


@pytest.mark.parametrize("name", full_but(sorted(MASKED_ATTACKS.keys() - OF_FEDPC), *ON_PEERS))
def test_attack_on_a_sum_of_peers_is_refused(name: str, plays: Plays) -> None:
    """PFPL with equal weights: the same steps, checks and coalitions, and results that are sums."""
    attack = MASKED_ATTACKS[name]
    summed = {**dict(small_agreement(Protection.MASKED, Weighting.UNIFORM)), **attack.changes}
    assert_refused(attack, plays.sums(Agreement.model_validate(summed), attack.data_of))


@pytest.mark.parametrize(("name", "layer"), by_layer(ATTACKS))
def test_each_layer_holds_by_itself(
    name: str, layer: str, plays: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = ATTACKS[name]
    weaken_all_but(layer, attack, monkeypatch)
    play = attack.open(plays)
    # Inner layers were not made to be met, and speak as what they are.
    errors = (Violation, CryptoError, sqlite3.IntegrityError)
    with pytest.raises(
        errors if name in MASKED_ATTACKS or name in CLUSTER_ATTACKS else (*errors, ValueError)
    ):
        attack.play(play)
    assert_nothing_answered(play)


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
    sent = cohort.held_by(name)
    read, rows = decrypt_upload(play, secret, play.values(name, active), active), play.rows(name)
    assert np.abs(rows[sent]).max() > 0.1
    return bool(np.abs(read[sent] - rows[sent]).max() < 1e-4)


@pytest.mark.parametrize("case", ROSTERS)
def test_group_key_of_an_earlier_set_up_opens_nothing(case: str, plays: Plays) -> None:
    play, roster = plays.peers(Protection.CKKS), ROSTERS[case]
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
