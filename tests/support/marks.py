"""The mark of test cases that ``make test`` leaves to ``make test-all``."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def full_but(cases: Iterable[object], *kept: object) -> list[object]:
    """Return ``cases`` as parameters of a test, all but ``kept`` of them marked ``full``.

    A tuple holds one value for each of the test's arguments. Raise ``ValueError`` for a kept case that is none of
    the cases.
    """
    every = list(cases)
    if missing := [case for case in kept if case not in every]:
        raise ValueError(f"not among the cases: {missing}")
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=() if case in kept else pytest.mark.full
        )
        for case in every
    ]
