"""Violations that are known and not mended yet, each with what it comes of. The table is to become empty."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.states.invariants import Promise, Violation


@dataclass(frozen=True)
class Known:
    """A violation of ``promise`` whose text matches ``pattern``."""

    promise: Promise
    pattern: str
    cause: str


KNOWN = (
    Known(
        Promise.NO_REFUSAL,
        r"Violation: the (mask secrets|own shares|noise) of round \d+, attempt \d+ are erased",
        "a site left by an error of its own, and is asked for what it erased: its Leave was lost, or came after its"
        " PRESENCE and before the attempt began",
    ),
    Known(
        Promise.NO_REFUSAL,
        r"Refused: .* has not joined run .*, or has left it: join first",
        "a Leave that is late, or comes twice, throws out the process that has joined since",
    ),
)


def is_known(violation: Violation) -> bool:
    """Whether the table has it."""
    return any(
        each.promise is violation.promise and re.search(each.pattern, violation.text) for each in KNOWN
    )
