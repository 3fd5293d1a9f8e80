"""FedPC after the sums: means within groups, groups mixed by how alike they are, a result for each site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from algorithms.fedpc.aggregation import Groups, between, within
from crypto.errors import MalformedError
from crypto.protection import Cohort, Payload
from protoseal.config import Agreement
from protoseal.terms import longest_mean
from secure_server.exchanges.attempt import Outcome
from secure_server.run_state import Groups as SiteGroups

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class GroupSum:
    """A group's ``total`` (L,) over those of its ``cohort`` who are in the sum: prototypes, then the extractor."""

    cohort: Cohort
    members: tuple[str, ...]
    total: Vector

    @property
    def holders(self) -> NDArray[np.int64]:
        """How many members added a row for each class, (K,)."""
        indices = [self.cohort.index(site) for site in self.members]
        return np.asarray(self.cohort.holds[indices].sum(axis=0), dtype=np.int64)


def check_means(agreement: Agreement, each: GroupSum) -> None:
    """Raise :class:`MalformedError` for a mean that no members within the norm bound have.

    Every site would refuse it in a result. The limit: one member's longer row among shorter ones goes unnoticed.
    """
    classes, dim = len(agreement.classes), agreement.dim
    counted = each.holders >= agreement.min_holders
    rows = each.total[: classes * dim].reshape(classes, dim)[counted]
    longest = np.linalg.norm(rows / each.holders[counted, None], axis=1).max(initial=0.0)
    if longest > longest_mean(agreement):
        raise MalformedError(
            f"a mean prototype has norm {longest:.9g}: a member did not keep to the bound of {agreement.norm_bound:g}"
        )


def mixed(agreement: Agreement, sums: Sequence[GroupSum], scheme: str) -> list[Payload]:
    """Each group's result, in the order of the sums: its vector after equations 5 to 8, and which classes it has.

    Raises ``ValueError`` for a group that is too small to have one.
    """
    classes, dim = len(agreement.classes), agreement.dim
    split = classes * dim
    means = within(
        np.stack([each.total[:split].reshape(classes, dim) for each in sums]),
        np.stack([each.holders for each in sums]),
        np.stack([each.total[split:] for each in sums]),
        np.array([len(each.members) for each in sums], dtype=np.int64),
        agreement.min_holders,
    )
    groups = between(means, literal_absent=agreement.fedpc.literal_absent)
    return [_payload(groups, index, scheme) for index in range(len(sums))]


def for_members(groups: SiteGroups, results: Sequence[Payload]) -> Outcome:
    """Each group's result for each of its participants."""
    pairs = zip(groups, results, strict=True)
    return Outcome({site: result for group, result in pairs for site in group})


def _payload(groups: Groups, index: int, scheme: str) -> Payload:
    vector = np.concatenate([groups.rows[index].ravel(), groups.theta[index]])
    return Payload(scheme, arrays=(vector, groups.has[index].astype(np.float64)))
