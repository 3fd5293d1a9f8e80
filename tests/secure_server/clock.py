"""A coordinator's clock, in the test's hand."""

from __future__ import annotations


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now
