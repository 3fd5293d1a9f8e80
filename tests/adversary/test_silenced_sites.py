"""Targets of the coordinator's making silence all sites but one (PFPL with equal weights under ``masked``)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from agreement import Agreement, Optimiser, Protection
from algorithms.pfpl import Weighting
from tests.adversary.conftest import OpenMasked
from tests.adversary.masked_play import MaskedPlay
from tests.support.grouped import EVERYONE
from tests.support.small import short_training, small_agreement

_HELD = 2
"""Classes that every site has, the first ones."""


def _agreement() -> Agreement:
    training = short_training("tests.support.grouped:build", lr=0.01, optimiser=Optimiser.SGD, local_epochs=3)
    base = small_agreement(Protection.MASKED, Weighting.UNIFORM, rounds=12)
    return Agreement.model_validate({**dict(base), "training": training, "norm_bound": 50.0})


def _sum_of_last_round(play: MaskedPlay, lengths: list[float | None]) -> NDArray[np.float64]:
    """Return the opened sum (K, d) after rounds whose results have targets of these lengths in every channel.

    ``None`` stands for the honest result.
    """
    shape = (len(play.agreement.classes), play.agreement.dim)
    for number, length in enumerate(lengths, 1):
        begun = play.attempt(*EVERYONE, round_number=number)
        opened = begun.carried_out(EVERYONE)
        result = play.result_of(opened, begun, EVERYONE)
        if length is not None:
            holders = result.arrays[1]
            targets = np.full(shape, length / np.sqrt(shape[1])) * holders[:, None]
            result = replace(result, arrays=(targets.ravel(), holders))
        for name in EVERYONE:
            play.give_result(name, result, round_number=number)
    return opened.reshape(shape)[:_HELD]


def _rows(play: MaskedPlay, rounds: int) -> dict[str, NDArray[np.float64]]:
    return {name: play.site(name).trainee.train_round(rounds)[0][:_HELD] for name in EVERYONE}


def test_the_stated_limit_targets_below_zero_leave_one_site_alone_in_the_sum(open_masked: OpenMasked) -> None:
    """Features die at three of four sites under negative targets; the fourth site's grow back under positive ones."""
    play = open_masked(_agreement(), {})
    play.set_up(*EVERYONE)
    lengths: list[float | None] = [-0.5, 4.0, 4.0, 4.0, 4.0]
    opened = _sum_of_last_round(play, lengths)
    rows = _rows(play, len(lengths))
    (alone,) = (name for name in EVERYONE if np.abs(rows[name]).max() > 0.1)
    np.testing.assert_allclose(opened, rows[alone], atol=1e-4)


def test_honest_results_leave_no_site_alone_in_the_sum(open_masked: OpenMasked) -> None:
    play = open_masked(_agreement(), {})
    play.set_up(*EVERYONE)
    opened = _sum_of_last_round(play, [None] * 5)
    for row in _rows(play, 5).values():
        assert np.abs(row).max() > 0.1
        assert np.abs(opened - row).max() > 0.1
