"""What follows from the agreement, the same for the coordinator and for every site."""

from __future__ import annotations

import numpy as np

from algorithms.holders import active_classes
from crypto.protection import Cohort
from protoseal.config import Agreement
from protoseal_wire.codec import Limits
from protoseal_wire.codec.limits import MOST_SITES
from protoseal_wire.messages import ActiveList


def limits_of(agreement: Agreement, sites: int = MOST_SITES) -> Limits:
    """The sizes that the codec enforces in a run under this agreement, with ``sites`` sites at most.

    The coordinator knows how many sites its file names. A site does not, and allows for as many as there may be.
    """
    return Limits(classes=len(agreement.classes), dim=agreement.dim, sites=sites)


def cohort_of(active: ActiveList, agreement: Agreement) -> Cohort:
    """Who contributes to which class: holders of classes that at least ``min_holders`` participants hold.

    The coordinator and every site call this on the same signed list, so they withhold the same classes.
    """
    statements = sorted(active.statements, key=lambda statement: statement.site)
    presence = np.stack([statement.holds for statement in statements])
    holds = presence & active_classes(presence, agreement.min_holders)
    return Cohort(tuple(statement.site for statement in statements), holds, agreement.dim)
