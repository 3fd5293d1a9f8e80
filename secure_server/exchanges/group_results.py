"""Results of group sums: means, mixed between groups where there are several, and a result for each site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agreement import Agreement
from agreement.derived.means import check_total, means_of, noisy_rows
from algorithms.fedpc import Groups, means_within_groups, mix_groups
from algorithms.gram_matrix import Bool
from crypto.plain import SCHEME
from crypto.protection import Cohort, Payload, PayloadShape
from protoseal_wire.codec import Limits
from secure_server.exchanges.exchange import Attempt, Outcome, repeated_sum
from secure_server.rounds.state import Groups as SiteGroups

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class GroupSum:
    """Sum ``total`` (L,) over the members of a group that are in it, its ``cohort``: prototypes, then the extractor.

    ``last_holders`` (K,) are those of an earlier sum, whose prototypes ``total`` repeats.
    """

    cohort: Cohort
    members: tuple[str, ...]
    total: Vector
    last_holders: NDArray[np.int64] | None = None

    @property
    def holders(self) -> NDArray[np.int64]:
        """Return the number of sites that added a row for each class, (K,)."""
        if self.last_holders is not None:
            return self.last_holders
        indices = [self.cohort.index(site) for site in self.members]
        return np.asarray(self.cohort.holds[indices].sum(axis=0), dtype=np.int64)


def check_means(agreement: Agreement, group_sum: GroupSum) -> None:
    """Check a total, as :func:`agreement.derived.means.check_total`, since sites would refuse a wrong result."""
    check_total(agreement, group_sum.total, group_sum.holders, len(group_sum.members))


def summed_rows(agreement: Agreement, group_sum: GroupSum) -> Payload:
    """Return the sum's rows (K, d) and their holders (K,), which later rounds repeat."""
    rows, _ = agreement.layout.split(group_sum.total)
    return Payload(SCHEME, arrays=(rows, group_sum.holders.astype(np.float64)))


def with_last_rows(agreement: Agreement, attempt: Attempt, group_sum: GroupSum, limits: Limits) -> GroupSum:
    """Return a sum with its group's last rows, in a round whose sums have no prototypes; otherwise the same sum."""
    classes = len(agreement.classes)
    form = PayloadShape(arrays=((classes, agreement.dim), (classes,)))
    last = repeated_sum(agreement, attempt, group_sum.cohort.sites, form, limits)
    if last is None:
        return group_sum
    rows, holders = last.arrays
    total = np.concatenate([rows.ravel(), group_sum.total[agreement.layout.prototypes :]])
    return replace(group_sum, total=total, last_holders=holders.astype(np.int64))


def group_payloads(agreement: Agreement, sums: Sequence[GroupSum], scheme: str) -> list[Payload]:
    """Return the groups' results, in the order of the sums; raise ``ValueError`` for a group too small to have one."""
    if agreement.method.is_grouped:
        return _mixed(agreement, sums, scheme)
    return [_averaged(agreement, group_sum, scheme) for group_sum in sums]


def _mixed(agreement: Agreement, sums: Sequence[GroupSum], scheme: str) -> list[Payload]:
    """Mix the groups' vectors by FedPC's equations 5 to 8; also return which classes each group has."""
    parts = [agreement.layout.split(group_sum.total) for group_sum in sums]
    means = means_within_groups(
        np.stack([rows for rows, _ in parts]),
        np.stack([group_sum.holders for group_sum in sums]),
        np.stack([model for _, model in parts]),
        np.array([len(group_sum.members) for group_sum in sums], dtype=np.int64),
        agreement.min_holders,
    )
    if agreement.distributed_noise:
        # Noisy sums are over records, not over sites: their prototypes replace the means over holders.
        noisy = [
            noisy_rows(agreement, group_sum.total, len(group_sum.members), len(group_sum.cohort.sites))
            for group_sum in sums
        ]
        rows, has = np.stack([rows for rows, _ in noisy]), np.stack([has for _, has in noisy])
        means = Groups(rows, has, means.theta)
    mixed = mix_groups(means, literal=agreement.fedpc.literal, tau=agreement.agreement_threshold)
    return [
        _payload(rows, theta, has, scheme)
        for rows, theta, has in zip(mixed.rows, mixed.theta, mixed.has, strict=True)
    ]


def _averaged(agreement: Agreement, group_sum: GroupSum, scheme: str) -> Payload:
    """Average prototypes over their holders, or their records; models over samples, or over members."""
    members = len(group_sum.members)
    means = means_of(agreement, group_sum.total, group_sum.holders, members)
    if not agreement.distributed_noise:
        return _payload(means.rows, means.model, means.has, scheme)
    # The grid of the numbers follows the list, the least count of a class the survivors.
    rows, has = noisy_rows(agreement, group_sum.total, members, len(group_sum.cohort.sites))
    return _payload(rows, means.model, has, scheme)


def for_members(groups: SiteGroups, results: Sequence[Payload], sums: Sequence[Payload] = ()) -> Outcome:
    """Return each group's result for each of its participants, and each group's sum of rows, if there are any."""
    return Outcome(_by_site(groups, results), sums=_by_site(groups, sums) if sums else {})


def _by_site(groups: SiteGroups, payloads: Sequence[Payload]) -> dict[str, Payload]:
    pairs = zip(groups, payloads, strict=True)
    return {site: payload for group, payload in pairs for site in group}


def _payload(rows: Vector, model: Vector, has: Bool, scheme: str) -> Payload:
    return Payload(scheme, arrays=(np.concatenate([rows.ravel(), model]), has.astype(np.float64)))
