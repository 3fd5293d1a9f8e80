"""The holder minimum: which classes may be aggregated."""

import numpy as np
import pytest
from numpy.typing import NDArray

from algorithms.averaging import active_classes

PRESENCE = np.array([[True, True, False, True], [False, True, False, True], [False, False, False, True]])


@pytest.mark.parametrize(
    ("minimum", "expected"),
    [
        (1, [True, True, False, True]),
        (2, [False, True, False, True]),
        (3, [False, False, False, True]),
        (4, [False, False, False, False]),
    ],
)
def test_a_class_is_active_from_min_holders_sites_on(minimum: int, expected: list[bool]) -> None:
    assert active_classes(PRESENCE, minimum).tolist() == expected


@pytest.mark.parametrize("minimum", [0, -1])
def test_a_minimum_below_one_is_refused(minimum: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        active_classes(PRESENCE, minimum)


@pytest.mark.parametrize("presence", [PRESENCE.astype(np.int64), PRESENCE[0]])
def test_presence_that_is_not_a_bool_matrix_is_refused(presence: NDArray[np.bool_]) -> None:
    with pytest.raises(ValueError, match="bool matrix"):
        active_classes(presence, 3)
