"""Clusters under ``plain``: the coordinator sees every site's local prototypes, their sample counts and its model."""

from __future__ import annotations

import numpy as np

from agreement.cohorts import group_cohort
from algorithms.fedplcc import Contribution, LocalClusters, contribution
from algorithms.gram_matrix import Float
from crypto.errors import MalformedError, UnknownSchemeError
from crypto.plain import SCHEME
from crypto.protection import Payload
from crypto.prototype_row_checks import NORM_SLACK, whole_numbers
from secure_server.exchanges.base import Attempt, Outcome
from secure_server.exchanges.cluster_assignment import (
    ClusterAssignment,
    LocalPrototypes,
    assign_clusters,
    check_labels,
    result_of,
    with_last_clusters,
)
from secure_server.exchanges.group_results import for_members
from secure_server.exchanges.plain_sums import check_model, check_weight
from secure_server.exchanges.single_phase_exchange import SinglePhaseExchange


class PlainClusters(SinglePhaseExchange):
    """Local prototypes (M, d) of each site, their classes and counts (M,), and its model as a layout has it."""

    def validate(self, payload: Payload, site: str, attempt: Attempt) -> None:
        """Raise :class:`MalformedError` for values that masked sums would not carry, or prototypes of other classes."""
        _, classes, samples, _ = _arrays(payload)
        cohort = group_cohort(attempt.active, attempt.group_of(site), self._agreement)
        check_labels(classes, cohort.holds[cohort.index(site)], self._agreement.clustering.most_local)
        if (whole_numbers(samples, self._most_counted + 1) < 1).any():
            raise MalformedError("a local prototype stands for no sample: each must count at least one")
        local, vector = _read(payload)
        _check_rows(local.rows, self._agreement.norm_bound)
        self._check_counts(local)
        check_weight(float(vector[-1]), self._agreement.averaging.most_samples)
        _, model = self._agreement.layout.split(vector)
        check_model(model / vector[-1], self._agreement.averaging)

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return the same result for each participant."""
        (group,) = attempt.groups
        local, model = {}, np.zeros(self._agreement.layout.length)
        for site in group:
            local[site], vector = _read(self.payload(attempt, site))
            model += vector
        found = assign_clusters(
            self._agreement, {site: LocalPrototypes(each.rows, each.labels) for site, each in local.items()}
        )
        total = self._sum(found, local)
        result = result_of(self._agreement, total, found.labels, model, SCHEME)
        result = with_last_clusters(self._agreement, attempt, result, self._limits)
        repeated = [result] if self._agreement.repeats_rows(attempt.key.round) else ()
        return for_members(attempt.groups, [result], repeated)

    def _sum(self, found: ClusterAssignment, local: dict[str, LocalClusters]) -> Contribution:
        each = [contribution(local[site], found.of_site[site], len(found.labels)) for site in sorted(local)]
        return Contribution(*(np.sum(parts, axis=0) for parts in zip(*each, strict=True)))

    @property
    def _most_counted(self) -> int:
        return self._agreement.clustering.most_counted(self._agreement.averaging.most_samples)

    def _check_counts(self, local: LocalClusters) -> None:
        most = self._most_counted
        if np.bincount(local.labels, weights=local.counts).max(initial=0.0) > most:
            raise MalformedError(f"a class has more than {most} samples, the agreed maximum")


def _arrays(payload: Payload) -> tuple[Float, Float, Float, Float]:
    if payload.scheme != SCHEME:
        raise UnknownSchemeError(f"expected a payload of scheme {SCHEME!r}, not {payload.scheme!r}")
    rows, classes, samples, vector = payload.arrays
    return rows, classes, samples, vector


def _read(payload: Payload) -> tuple[LocalClusters, Float]:
    """Return the prototypes and the vector (p + q + 1,) of a payload whose classes and counts were checked."""
    rows, classes, samples, vector = _arrays(payload)
    return LocalClusters(rows, classes.astype(np.int64), samples.astype(np.int64)), vector


def _check_rows(rows: Float, bound: float) -> None:
    longest = float(np.linalg.norm(rows, axis=1).max(initial=0.0))
    if longest > bound * (1.0 + NORM_SLACK):
        raise MalformedError(f"a local prototype has norm {longest:.9g}; the agreed bound is {bound:g}")
