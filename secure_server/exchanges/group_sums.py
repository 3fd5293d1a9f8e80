"""FedPC's sums under ``plain``: the coordinator sees every site's prototypes and extractor, and adds them up."""

from __future__ import annotations

import numpy as np

from crypto.errors import MalformedError
from crypto.plain import SCHEME, only_array
from crypto.protection import Payload
from crypto.rows import NORM_SLACK
from protoseal.config import Agreement
from protoseal.terms import contribution_length, group_cohort
from secure_server.exchanges.attempt import Attempt, Outcome
from secure_server.exchanges.mixing import GroupSum, Vector, for_members, mixed
from secure_server.exchanges.one_step import OneStep


class GroupSums(OneStep):
    """One vector (L,) from each site: its prototypes [K·d] and its extractor."""

    def validate(self, payload: Payload, site: str, attempt: Attempt) -> None:
        """Raise :class:`MalformedError` for what masked sums would not carry, or a row of no active class."""
        vector = only_array(payload, SCHEME)
        cohort = group_cohort(attempt.active, attempt.group_of(site), self._agreement)
        rows = vector[: self._prototypes].reshape(cohort.classes, cohort.dim)
        if rows[~cohort.holds[cohort.index(site)]].any():
            raise MalformedError("a row stands where the site does not hold the class")
        _check_norms(rows, self._agreement.norm_bound)
        _check_extractor(vector[self._prototypes :], self._agreement)

    def outcome(self, attempt: Attempt) -> Outcome:
        """The result of its group for each participant."""
        sums = [self._sum(attempt, group) for group in attempt.groups]
        return for_members(attempt.groups, mixed(self._agreement, sums, SCHEME))

    def _sum(self, attempt: Attempt, group: tuple[str, ...]) -> GroupSum:
        """Of vectors that are read one at a time."""
        total = np.zeros(contribution_length(self._agreement))
        for site in group:
            total += only_array(self.payload(attempt, site), SCHEME)
        return GroupSum(group_cohort(attempt.active, group, self._agreement), group, total)

    @property
    def _prototypes(self) -> int:
        return len(self._agreement.classes) * self._agreement.dim


def _check_norms(rows: Vector, bound: float) -> None:
    longest = float(np.linalg.norm(rows, axis=1).max(initial=0.0))
    if longest > bound * (1.0 + NORM_SLACK):
        raise MalformedError(f"a prototype has norm {longest:.9g}; the agreed bound is {bound:g}")


def _check_extractor(extractor: Vector, agreement: Agreement) -> None:
    fedpc = agreement.fedpc
    parts = np.split(np.abs(extractor), [fedpc.extractor_parameters])
    for part, bound in zip(parts, (fedpc.parameter_bound, fedpc.buffer_bound), strict=True):
        if part.max(initial=0.0) > bound:
            raise MalformedError(f"an extractor's value is beyond its agreed bound of {bound:g}")
