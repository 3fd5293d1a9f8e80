"""A coordinator that attacks: each attack succeeds against a double, and fails against the code as it is.

The double lacks every layer that holds the attack off by itself; each layer is one line, and no configuration can
take it away. What the attack gains is asserted by the attack.
"""

from __future__ import annotations

import sqlite3

import pytest

from secure_client.errors import ConflictingRequest, Violation
from tests.adversary.attack import assert_nothing_answered, assert_refused, by_layer, weaken, weaken_all_but
from tests.adversary.conftest import Open
from tests.adversary.round_attacks import ROUND_ATTACKS
from tests.adversary.set_up_attacks import SET_UP_ATTACKS

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
