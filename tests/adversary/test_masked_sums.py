"""What a masked sum gives the coordinator when it keeps to the protocol: the sum, and nothing of one site."""

from __future__ import annotations

import numpy as np
import pytest

from tests.adversary.conftest import OpenMasked
from tests.support.grouped import EVERYONE, grouped_agreement

A, B, C, D = EVERYONE


@pytest.mark.parametrize("bits", [64, 32])
def test_the_sum_opens_with_everyone_and_without_one_that_dropped_out(
    open_masked: OpenMasked, bits: int
) -> None:
    fedpc = grouped_agreement().fedpc.model_copy(update={"parameter_bound": 8.0})
    play = open_masked(grouped_agreement(masking={"ring_bits": bits}, fedpc=fedpc), {})
    play.set_up(*EVERYONE)
    for number, survivors in ((1, EVERYONE), (2, (A, B, D))):
        begun = play.attempt(*EVERYONE, round_number=number)
        expected = np.sum([play.vector(name, begun) for name in survivors], axis=0)
        assert np.abs(expected).max() > 0.1
        opened = begun.carried_out(survivors)
        assert (np.abs(opened - expected) <= play.rounding(len(survivors))).all()
        result = play.result_of(opened, begun, survivors)
        for name in EVERYONE:  # also who dropped out of the sum
            play.give_result(name, result, round_number=number)
    assert {play.site(name).trainee.base for name in EVERYONE} != {b""}
    assert len({play.site(name).trainee.base for name in EVERYONE}) == 1
