"""A coordinator that attacks masked sums: each attack succeeds against a double, and fails against the code as it is.

As in ``test_hostile_coordinator.py``: the double lacks every layer that holds the attack off by itself.
"""

from __future__ import annotations

import sqlite3

import pytest

from crypto.errors import CryptoError
from secure_client.errors import Violation
from tests.adversary.attack import assert_nothing_answered, assert_refused_again, weaken
from tests.adversary.conftest import OpenMasked
from tests.adversary.masked_attacks import SUM_ATTACKS, MaskedAttack
from tests.adversary.masked_play import MaskedPlay
from tests.adversary.masked_start_attacks import START_ATTACKS
from tests.support.grouped import grouped_agreement

MASKED_ATTACKS = SUM_ATTACKS | START_ATTACKS
BY_LAYER = [
    (name, layer)
    for name, attack in MASKED_ATTACKS.items()
    for layer in attack.layers
    if len(attack.layers) > 1
]


def opened(attack: MaskedAttack, open_masked: OpenMasked) -> MaskedPlay:
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
    play = opened(attack, open_masked)
    with pytest.raises(Violation, match=attack.refusal):
        attack.play(play)
    last = assert_nothing_answered(play)
    assert (last.site, last.key.phase) == (attack.victim, attack.phase)
    assert_refused_again(play, last, attack.refusal)


@pytest.mark.parametrize(("name", "layer"), BY_LAYER)
def test_each_layer_holds_by_itself(
    name: str, layer: str, open_masked: OpenMasked, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = MASKED_ATTACKS[name]
    for other in attack.layers:
        if other != layer:
            weaken(other, monkeypatch)
    play = opened(attack, open_masked)
    # Inner layers were not made to be met, and speak as what they are.
    with pytest.raises((Violation, CryptoError, sqlite3.IntegrityError)):
        attack.play(play)
    assert_nothing_answered(play)
