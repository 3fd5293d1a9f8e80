"""A coordinator that attacks masked sums: each attack succeeds against a double, and fails against the code as it is.

As in ``test_hostile_coordinator.py``: the double lacks every layer that holds the attack off by itself.
"""

from __future__ import annotations

import sqlite3

import pytest

from agreement import Agreement, Protection
from algorithms.pfpl import Weighting
from crypto.errors import CryptoError
from secure_client.errors import Violation
from tests.adversary.attack import (
    PRESENCE_FIELDS,
    assert_nothing_answered,
    assert_refused,
    by_layer,
    weaken,
    weaken_all_but,
)
from tests.adversary.conftest import OpenMasked
from tests.adversary.masked_attacks import (
    CHECK_KEYS,
    SIGNED,
    SPARSE_ATTACKS,
    SUM_ATTACKS,
    MaskedAttack,
    with_keys,
)
from tests.adversary.masked_start_attacks import START_ATTACKS
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.marks import full_but
from tests.support.scripted_sums import ScriptedSums
from tests.support.small import small_agreement

MASKED_ATTACKS = SUM_ATTACKS | START_ATTACKS | SPARSE_ATTACKS
OF_FEDPC = {
    "puts mask keys on statements without any",
    "gives one member another result",
    "gives another result to catch up with",
    "begins a round again from another result",
}
"""Attacks by messages of round 0 or by models, which PFPL has not."""
ON_PEERS = (
    "names two survivor sets",
    "sums up those whom it did not ask to unmask",
    "leaves a site alone with colluders",
    "leaves a class with one holder",
    "makes a group of some where all are one",
)
"""Attacks on a sum of peers that `make test` plays."""


def opened(attack: MaskedAttack, open_masked: OpenMasked) -> ScriptedSums:
    return open_masked(grouped_agreement(**attack.changes), attack.data_of)


@pytest.mark.parametrize("name", MASKED_ATTACKS)
def test_attack_succeeds_against_the_double(
    name: str, open_masked: OpenMasked, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = MASKED_ATTACKS[name]
    for layer in attack.layers:
        weaken(layer, monkeypatch)
    attack.play(opened(attack, open_masked))


@pytest.mark.parametrize("name", MASKED_ATTACKS)
def test_attack_is_refused(name: str, open_masked: OpenMasked) -> None:
    attack = MASKED_ATTACKS[name]
    assert_refused(attack, opened(attack, open_masked))


@pytest.mark.parametrize("name", full_but(sorted(MASKED_ATTACKS.keys() - OF_FEDPC), *ON_PEERS))
def test_attack_on_a_sum_of_peers_is_refused(name: str, open_masked: OpenMasked) -> None:
    """PFPL with equal weights: the same steps, checks and coalitions, and results that are sums."""
    attack = MASKED_ATTACKS[name]
    summed = {**dict(small_agreement(Protection.MASKED, Weighting.UNIFORM)), **attack.changes}
    assert_refused(attack, open_masked(Agreement.model_validate(summed), attack.data_of))


@pytest.mark.parametrize(("name", "layer"), by_layer(MASKED_ATTACKS))
def test_each_layer_holds_by_itself(
    name: str, layer: str, open_masked: OpenMasked, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = MASKED_ATTACKS[name]
    weaken_all_but(layer, attack, monkeypatch)
    play = opened(attack, open_masked)
    # Inner layers were not made to be met, and speak as what they are.
    with pytest.raises((Violation, CryptoError, sqlite3.IntegrityError)):
        attack.play(play)
    assert_nothing_answered(play)


@pytest.mark.parametrize(
    ("layers", "refusal"),
    [
        ((), SIGNED),
        ((PRESENCE_FIELDS,), "the active list is refused: clinic-c states no keys for its masks"),
        ((PRESENCE_FIELDS, CHECK_KEYS), "the keys of round 1 are refused: no mask keys of clinic-c"),
    ],
    ids=["signature", "list", "scheme"],
)
def test_a_list_that_a_members_keys_were_taken_off_is_refused_by_each_layer(
    layers: tuple[str, ...], refusal: str, open_masked: OpenMasked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack gains nothing: without any layer, no share can be sealed to that member."""
    for layer in layers:
        weaken(layer, monkeypatch)
    play = open_masked(grouped_agreement(), {})
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    with pytest.raises(Violation, match=refusal):
        begun.share(EVERYONE[0], active=with_keys(begun.active, {EVERYONE[2]: None}))
    assert_nothing_answered(play)
