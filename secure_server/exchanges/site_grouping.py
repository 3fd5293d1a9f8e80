"""FedPC's grouping of sites before any training, from inner products of the sites' prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from agreement.derived.cohorts import clustering_cohort
from algorithms.fedpc import cluster
from crypto.plain import GramServer
from crypto.protection import Payload
from secure_server.exchanges.exchange import Attempt, ExchangeParts, Outcome, SinglePhaseExchange
from secure_server.rounds.state import Groups


class SiteGrouping(SinglePhaseExchange):
    """Step in which each site sends one row, all of its prototypes one after the other; ``plain``, or rotated.

    The limit: the groups show which sites' prototypes are alike, to the coordinator and to every site.
    """

    def __init__(self, parts: ExchangeParts) -> None:
        """Search groups by the parts' executor, or in this thread when there is none."""
        super().__init__(parts, round_number=0)
        self._server = GramServer(parts.agreement.plan.row_scheme)
        self._executor = parts.executor

    def validate(self, payload: Payload, site: str, attempt: Attempt) -> None:
        """Validate a payload, as :class:`crypto.plain.GramServer` does."""
        self._server.validate(payload, site, clustering_cohort(attempt.active, self._agreement))

    def outcome(self, attempt: Attempt) -> Outcome:
        """Return groups of all members of the run, also of those that took no part."""
        cohort = clustering_cohort(attempt.active, self._agreement)
        search = partial(
            cluster,
            self._server.gram(self.payloads(attempt), cohort),
            min_holders=self._agreement.min_holders,
            groups=self._agreement.fedpc.groups,
            seed=self._agreement.training.init_seed,
        )
        labels = search() if self._executor is None else self._executor.submit(search).result()
        groups = grouped(cohort.sites, [int(label) for label in labels])
        return Outcome(groups=with_absent(groups, tuple(attempt.roster.members)))


def grouped(sites: Sequence[str], labels: Sequence[int]) -> Groups:
    """Return sites with the same label together: each group sorted, the groups by their first names."""
    groups = (
        tuple(sorted(site for site, group in zip(sites, labels, strict=True) if group == label))
        for label in set(labels)
    )
    return tuple(sorted(groups))


def with_absent(groups: Groups, members: Sequence[str]) -> Groups:
    """Add the members that are in no group to the largest group, the first by name if several are largest.

    The coordinator knows nothing of these members, and a large group misses them least when they drop out again.
    """
    present = {site for group in groups for site in group}
    absent = tuple(site for site in members if site not in present)
    largest = min(groups, key=lambda group: (-len(group), group))
    joined = tuple(sorted((*largest, *absent)))
    return tuple(sorted(joined if group is largest else group for group in groups))
