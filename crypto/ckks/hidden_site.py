"""A site's half of ``ckks`` with hidden presence (:mod:`crypto.ckks.hidden`): it tells nobody which classes it holds.

What a site sends is of the same form whatever it holds. Of each class *that it says it holds* it learns how many sites
do, its combination of peers and D_i. With fewer holders than the minimum it takes nothing, but it *could*, and nobody
checks what it says: see the limits there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.ckks.hidden import hidden_answer_forms, hidden_upload_forms, pack_norms
from crypto.ckks.packing import Complex, Float, Packing
from crypto.ckks.secret import CkksSecret
from crypto.ckks.site import CkksSite, Holders
from crypto.errors import ImplausibleError
from crypto.protection import Cohort, Combination, Payload, Rows

FEWEST_HOLDERS = 3
"""For ``complement``: with two, a site would have to know that before it sends what corrects for it."""
_NOT_WHOLE = 0.25
"""A count that is further from a whole number is none; errors are below 1e-6."""


class HiddenSite(CkksSite):
    """As :class:`CkksSite`. The site's cohort has its own classes and nobody else's."""

    _upload_forms = staticmethod(hidden_upload_forms)
    _answer_forms = staticmethod(hidden_answer_forms)

    def __init__(self, secret: CkksSecret, combination: Combination, tau: float, min_holders: int) -> None:
        """``min_holders``: with fewer, the site included, it keeps its own row. ``ValueError`` for too few to serve."""
        if combination is Combination.COMPLEMENT and min_holders < FEWEST_HOLDERS:
            raise ValueError(f"'complement' with hidden presence needs {FEWEST_HOLDERS} holders or more")
        super().__init__(secret, combination, tau)
        self._min_holders = min_holders

    def unprotect(self, answer: Payload, rows: Rows, site: str, cohort: Cohort) -> Rows:
        """The rows of :meth:`read`."""
        return self.read(answer, rows, site, cohort)[0]

    def read(self, answer: Payload, rows: Rows, site: str, cohort: Cohort) -> tuple[Rows, NDArray[np.bool_]]:
        """The combination of peers (K, d), and the classes (K,) that enough sites hold, this one among them.

        The own row stands in all others. Within :func:`crypto.ckks.precision.hidden_peer_error`. Raises as
        :meth:`CkksSite.unprotect`; a count that no sites come to is :class:`ImplausibleError` too.
        """
        packing, sites = Packing(cohort.classes, cohort.dim), len(cohort.sites)
        *vectors, of_absent = self._decrypted(answer, packing)
        held = cohort.holds[cohort.index(site)]
        absent = _whole_counts(packing.replicas(of_absent), held, sites - 1)
        given = held & (sites - absent >= self._min_holders)
        holders = Holders(given, np.where(given, sites - absent, 0), sites)
        return self._combined(vectors, rows, site, cohort, holders), given

    def _beside(self, packing: Packing, sent: Rows, site: str, cohort: Cohort) -> list[Complex | Float]:
        """Absences, and for ``complement`` norms with them."""
        absent = np.asarray(~cohort.holds[cohort.index(site)], dtype=np.float64)
        if self._combination is not Combination.COMPLEMENT:
            return [packing.replicate(absent)]
        norms = np.square(sent).sum(axis=1)
        return [packing.replicate(absent), pack_norms(packing, norms, absent)]


def _whole_counts(replicas: Complex, held: NDArray[np.bool_], most: int) -> NDArray[np.int64]:
    """How many sites lack each class (K,), from all slots of each (K, F); 0 for those that are not held.

    Raises :class:`ImplausibleError` unless those that are held are whole numbers from 0 to ``most``.
    """
    values = np.where(held[:, None], replicas, 0.0)
    counts = np.rint(values.real.mean(axis=1))
    # Written so that NaN fails too.
    whole = (np.abs(values - counts[:, None]) <= _NOT_WHOLE).all()
    if not (whole and ((counts >= 0) & (counts <= most)).all()):
        raise ImplausibleError("a decrypted count is not of sites")
    return np.asarray(counts, dtype=np.int64)
