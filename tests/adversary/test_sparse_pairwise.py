"""Masked sums in a sparse graph give the coordinator the sum alone: attacks, and doubles that they succeed against."""

from __future__ import annotations

import pytest

from tests.adversary import pairwise_attacks
from tests.adversary.pairwise_attacks import HELD_OFF
from tests.adversary.sparse_pairwise_attacks import DOUBLES, SPARSE_ATTACKS

SINGLE = [(name, layer) for name, attack in SPARSE_ATTACKS.items() for layer in attack.layers]


@pytest.fixture
def weaken(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Doubles of this module's layers beside those of the complete graph's."""
    monkeypatch.setattr(pairwise_attacks, "DOUBLES", pairwise_attacks.DOUBLES | DOUBLES)
    return monkeypatch


@pytest.mark.parametrize("name", SPARSE_ATTACKS)
def test_attack_is_held_off(name: str) -> None:
    with pytest.raises(HELD_OFF, match=SPARSE_ATTACKS[name].refusal):
        SPARSE_ATTACKS[name].play()


@pytest.mark.parametrize(("name", "layer"), SINGLE)
def test_each_layer_holds_by_itself(name: str, layer: str, weaken: pytest.MonkeyPatch) -> None:
    for other in set(SPARSE_ATTACKS[name].layers) - {layer}:
        pairwise_attacks.weaken(other, weaken)
    with pytest.raises(HELD_OFF):
        SPARSE_ATTACKS[name].play()


@pytest.mark.parametrize("name", SPARSE_ATTACKS)
def test_attack_succeeds_without_its_layers(name: str, weaken: pytest.MonkeyPatch) -> None:
    for layer in SPARSE_ATTACKS[name].layers:
        pairwise_attacks.weaken(layer, weaken)
    SPARSE_ATTACKS[name].play()
