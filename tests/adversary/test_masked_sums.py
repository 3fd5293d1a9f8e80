"""View of a coordinator that keeps to the protocol of a masked sum: the sum, and nothing of one site."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from torch.utils.data import TensorDataset

from agreement import AveragingSection, FedpcSection
from crypto.errors import MalformedError
from crypto.pairwise.attempt import AttemptSecrets
from crypto.pairwise.wire_values import ShareKind
from tests.adversary.conftest import OpenMasked
from tests.adversary.masked_play import MaskedPlay, Vector
from tests.support.grouped import EVERYONE, PARAMETERS, grouped_agreement
from tests.support.small import DIM, short_training

A, B, C, D = EVERYONE
WITHOUT_C = (A, B, D)


@pytest.mark.parametrize("bits", [64, 32])
def test_the_sum_opens_with_everyone_and_without_one_that_dropped_out(
    open_masked: OpenMasked, bits: int
) -> None:
    averaging = AveragingSection(parameters=PARAMETERS, parameter_bound=8.0)
    play = open_masked(grouped_agreement(masking={"ring_bits": bits}, averaging=averaging), {})
    play.set_up(*EVERYONE)
    for number, survivors in ((1, EVERYONE), (2, WITHOUT_C)):
        begun = play.attempt(*EVERYONE, round_number=number)
        expected = np.sum([play.vector(name, begun) for name in survivors], axis=0)
        assert np.abs(expected).max() > 0.1
        opened = begun.carried_out(survivors)
        assert (np.abs(opened - expected) <= play.rounding(len(survivors))).all()
        result = play.result_of(opened, begun, survivors)
        for name in EVERYONE:  # also who dropped out of the sum
            play.give_result(name, result, round_number=number)
    assert {play.site(name).trainee.base_hash for name in EVERYONE} != {b""}
    assert len({play.site(name).trainee.base_hash for name in EVERYONE}) == 1


def _opened_with_the_key_of_round_1(play: MaskedPlay) -> tuple[Vector, Vector]:
    """clinic-c drops out of round 1, which opens its mask key, and is in the sum of round 2, which opens its seed."""
    play.set_up(*EVERYONE)
    first = play.attempt(*EVERYONE)
    first.share(*EVERYONE)
    first.mask(*WITHOUT_C)
    released = first.release(WITHOUT_C, first.sign(WITHOUT_C, *WITHOUT_C), *WITHOUT_C)
    key = first.secret(C, ShareKind.KEY, released)
    second = play.attempt(*EVERYONE, round_number=2)
    second.share(*EVERYONE)
    second.mask(*EVERYONE)
    released = second.release(EVERYONE, second.sign(EVERYONE, *EVERYONE), *EVERYONE)
    seed = second.secret(C, ShareKind.SEED, released)
    found = second.opened_alone(C, seed, second.pair_keys_of(C, key))
    return found, play.vector(C, second)


def test_a_mask_key_of_one_round_opens_nothing_in_another(open_masked: OpenMasked) -> None:
    with pytest.raises(MalformedError, match="masks that do not cancel"):
        _opened_with_the_key_of_round_1(open_masked(grouped_agreement(), {}))


def test_a_mask_key_that_is_used_again_opens_a_site(
    open_masked: OpenMasked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The double's sites, asked in the same order in each round, make their secrets once and keep to them."""
    kept = cycle([AttemptSecrets.generate() for _ in EVERYONE])
    monkeypatch.setattr(AttemptSecrets, "generate", lambda: next(kept))
    play = open_masked(grouped_agreement(), {})
    found, secret = _opened_with_the_key_of_round_1(play)
    assert np.abs(secret).max() > 0.1
    assert (np.abs(found - secret) <= play.rounding()).all()


PRINTED: dict[str, Any] = {"fedpc": FedpcSection(literal=True)}
WITHOUT_DECAY: dict[str, Any] = {"training": short_training("tests.support.grouped:build", weight_decay=0.0)}


@pytest.mark.parametrize("settings", [PRINTED, WITHOUT_DECAY], ids=["printed norm", "without decay"])
def test_the_stated_limit_from_a_model_that_one_record_trains_its_site_is_read_in_the_sum(
    open_masked: OpenMasked, settings: dict[str, Any]
) -> None:
    """One unit is above zero, for that record alone: the other sites stand still, but for their weights' decay.

    The printed norm moves the victim far more than the decay moves the others; the mean square does not, so its case
    has no decay.
    """
    play = open_masked(grouped_agreement(**settings), {})
    play.set_up(*EVERYONE)
    begun = play.attempt(*EVERYONE)
    honest = play.result_of(begun.carried_out(EVERYONE), begun, EVERYONE)
    direction = np.random.default_rng(5).normal(size=64)
    images = {name: _images(play, name) for name in EVERYONE}
    highest = {name: float((each @ direction).max()) for name, each in images.items()}
    *_, second, victim = sorted(highest, key=lambda name: highest[name])
    model = np.concatenate([np.zeros(PARAMETERS - DIM), np.full(DIM, -1.0)])
    model[:64], model[-DIM] = (
        direction,
        -(highest[second] + highest[victim]) / 2,
    )  # found in rounds, by trying
    for name in EVERYONE:
        play.give_result(
            name, replace(honest, arrays=(_with_model(honest.arrays[0], model), honest.arrays[1]))
        )
    begun = play.attempt(*EVERYONE, round_number=2)
    read = begun.carried_out(EVERYONE)[-PARAMETERS:] - (len(EVERYONE) - 1) * model
    sent = play.vector(victim, begun)[-PARAMETERS:]
    assert np.abs(read - sent).max() < 0.01 * np.abs(sent - model).max()


def _images(play: MaskedPlay, name: str) -> Vector:
    """Return a site's training images, (N, 64)."""
    found = play.cast.data[name].train
    assert isinstance(found, TensorDataset)
    return found.tensors[0].flatten(1).double().numpy()


def _with_model(vector: Vector, model: Vector) -> Vector:
    """Return a result without prototypes and with a model of the coordinator's own."""
    return np.concatenate([np.zeros(len(vector) - len(model)), model])
