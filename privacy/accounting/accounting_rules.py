"""Accounting rules of a ledger: which choices may follow from earlier outputs."""

from __future__ import annotations

from enum import StrEnum


class Accounting(StrEnum):
    """The accountant of a ledger, which decides what may be chosen after earlier outputs were seen.

    ``PLD``: by privacy loss distributions; DP-SGD is refused beside entries of another agreement. ``PLANNED``: the same
    without that refusal, on the site's word that all agreements were fixed before the first of them released anything.
    ``RENYI``: by a Rényi filter, under which every agreement may follow from all earlier outputs.
    """

    PLD = "pld"
    PLANNED = "pld-planned"
    RENYI = "renyi-filter"
