"""Sums under ``plain``: the coordinator sees every site's prototypes and model, and adds them up."""

from __future__ import annotations

import numpy as np

from agreement import AveragingSection
from agreement.cohorts import group_cohort
from algorithms.gram_matrix import Bool
from crypto.errors import MalformedError
from crypto.plain import SCHEME, only_array
from crypto.protection import Payload
from crypto.prototype_row_checks import NORM_SLACK
from secure_server.exchanges.base import Attempt, Outcome
from secure_server.exchanges.group_results import (
    GroupSum,
    Vector,
    for_members,
    results_of,
    rows_of,
    with_last_rows,
)
from secure_server.exchanges.single_phase_exchange import SinglePhaseExchange


class PlainSums(SinglePhaseExchange):
    """One vector (L,) from each site, as :class:`agreement.Layout` says."""

    def validate(self, payload: Payload, site: str, attempt: Attempt) -> None:
        """Raise :class:`MalformedError` for values that masked sums would not carry, or a row of no active class."""
        vector, layout = only_array(payload, SCHEME), self._agreement.layout
        rows, model = layout.split(vector)
        if layout.classes:
            cohort = group_cohort(attempt.active, attempt.group_of(site), self._agreement)
            _check_rows(rows, cohort.holds[cohort.index(site)], self._agreement.norm_bound)
        weight = float(vector[-1]) if layout.weighted else 1.0
        check_weight(weight, self._agreement.averaging.most_samples)
        check_model(model / weight, self._agreement.averaging)

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return the result of its group for each participant."""
        sums = [self._sum(attempt, group) for group in attempt.groups]
        results = results_of(self._agreement, sums, SCHEME)
        if not self._agreement.repeats_rows(attempt.key.round):
            return for_members(attempt.groups, results)
        return for_members(attempt.groups, results, [rows_of(self._agreement, each) for each in sums])

    def _sum(self, attempt: Attempt, group: tuple[str, ...]) -> GroupSum:
        """Add vectors that are read one at a time."""
        total = np.zeros(self._agreement.layout.length)
        for site in group:
            total += only_array(self.payload(attempt, site), SCHEME)
        added = GroupSum(group_cohort(attempt.active, group, self._agreement), group, total)
        return with_last_rows(self._agreement, attempt, added, self._limits)


def _check_rows(rows: Vector, holds: Bool, bound: float) -> None:
    if rows[~holds].any():
        raise MalformedError("a row is not zero for a class that the site does not hold")
    longest = float(np.linalg.norm(rows, axis=1).max(initial=0.0))
    if longest > bound * (1.0 + NORM_SLACK):
        raise MalformedError(f"a prototype has norm {longest:.9g}; the agreed bound is {bound:g}")


def check_weight(weight: float, most: int) -> None:
    """Raise :class:`MalformedError` unless the weight is a number of samples, ``most`` at most."""
    if not 1.0 <= weight <= most or weight != int(weight):
        raise MalformedError(f"weight {weight:g} is not a number of samples from 1 to {most}")


def check_model(model: Vector, agreed: AveragingSection) -> None:
    """Raise :class:`MalformedError` for a model (p + q,) that exceeds the range of masked sums."""
    parts = np.split(np.abs(model), [agreed.parameters])
    for part, bound in zip(parts, (agreed.parameter_bound, agreed.buffer_bound), strict=True):
        if part.max(initial=0.0) > bound * (1.0 + NORM_SLACK):
            raise MalformedError(f"a value of the averaged model exceeds its agreed bound of {bound:g}")
