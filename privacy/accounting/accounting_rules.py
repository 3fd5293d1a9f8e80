"""Accounting rules of a ledger: which choices may follow from earlier outputs."""

from __future__ import annotations

from enum import StrEnum


class Accounting(StrEnum):
    """Accountant of a ledger, which decides which parameters may be chosen after earlier outputs were seen.

    ``PLD`` counts by privacy loss distributions, and refuses DP-SGD beside entries of another agreement. ``PLANNED``
    counts like ``PLD`` without that refusal: the site vouches that all agreements were fixed before the first of them
    released anything. ``RENYI`` counts by a Rényi filter, so that every agreement may depend on all earlier outputs.
    """

    PLD = "pld"
    PLANNED = "pld-planned"
    RENYI = "renyi-filter"
