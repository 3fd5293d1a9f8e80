"""What every method's objective answers for a batch (torch)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Terms(NamedTuple):
    """A batch's loss and its two parts, each a scalar tensor.

    ``total`` is what is minimised; how the method weighs ``classification`` (cross entropy) and ``alignment``
    (distance from the prototypes received) in it is the objective's to say. Both parts are unweighted.
    """

    total: Tensor
    classification: Tensor
    alignment: Tensor
