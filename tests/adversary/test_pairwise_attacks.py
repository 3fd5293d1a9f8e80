"""A masked sum gives its coordinator the sum: every attack is held off, and succeeds once its layers are gone.

The attacks are on sums over complete graphs and over sparse ones.
"""

from __future__ import annotations

import pytest

from crypto.errors import MalformedError, VerificationError
from crypto.pairwise.attempt import threshold
from tests.adversary import pairwise_attacks, sparse_pairwise_attacks
from tests.adversary.attack import assert_raised_in
from tests.adversary.pairwise_attacks import HELD_OFF, colluders_alone, honest_sum, split_view
from tests.support import weakened_builds

ATTACKS = pairwise_attacks.ATTACKS | sparse_pairwise_attacks.SPARSE_ATTACKS
DOUBLES = pairwise_attacks.DOUBLES | sparse_pairwise_attacks.DOUBLES
SINGLE = [(name, layer) for name, attack in ATTACKS.items() for layer in attack.layers]


def test_the_scene_is_one_that_works() -> None:
    honest_sum()


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_held_off(name: str) -> None:
    attack = ATTACKS[name]
    with pytest.raises(HELD_OFF) as refused:
        attack.play()
    assert_raised_in(refused.value, *attack.layers)


@pytest.mark.parametrize(("name", "layer"), SINGLE)
def test_each_layer_holds_by_itself(name: str, layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in set(ATTACKS[name].layers) - {layer}:
        weakened_builds.weaken(other, monkeypatch, DOUBLES)
    with pytest.raises(HELD_OFF):
        ATTACKS[name].play()


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_succeeds_without_its_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for layer in ATTACKS[name].layers:
        weakened_builds.weaken(layer, monkeypatch, DOUBLES)
    ATTACKS[name].play()


# The limits that are promised, from both sides


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8])
def test_two_survivor_sets_need_more_than_2t_n_1_colluders(count: int) -> None:
    enough = 2 * threshold(count) - count
    split_view(count, enough)
    with pytest.raises(VerificationError, match="survivors"):
        split_view(count, enough - 1)


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 8])
def test_shares_open_a_vector_from_the_threshold_on(count: int) -> None:
    """The victim is not one of them, so that a group of t members has too few others."""
    if threshold(count) < count:
        colluders_alone(count, threshold(count))
    with pytest.raises(MalformedError, match="are needed"):
        colluders_alone(count, threshold(count) - 1)
