"""Site half of ``ckks``: encrypts rows, and decrypts the coordinator's answer to a combination of peers.

A site learns its combination of peers and D_i = Σ_m ‖C_i − C_m‖² for the classes it holds. Limit: sites share one
secret key, so nothing here protects a site from a coordinator that colludes with another site, nor from sites that pool
their results (:mod:`algorithms.pfpl`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.ckks.packing import Complex, Packing
from crypto.ckks.parameters import SCHEME, answer_shapes, check_cohort_size, check_tau, upload_shapes
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import read_payload
from crypto.errors import ImplausibleError
from crypto.fixed_point import Float
from crypto.protection import Cohort, Combination, Payload, Rows, rows_to_send

Counts = NDArray[np.int64]

# A convex combination has a norm of at most 1; a norm above 2 is not rounding.
_LONGEST = 2.0


class CkksSite:
    """Site half that encrypts rows under the group's secret key and decrypts the answers."""

    scheme = SCHEME

    def __init__(self, secret: CkksSecret, combination: Combination, tau: float) -> None:
        """Take ``tau``, in units of the norm bound²: if D_i is at most tau, the site keeps its own row."""
        self._secret = secret
        self._combination = combination
        self._tau = tau

    def protect(self, rows: Rows, site: str, cohort: Cohort) -> Payload:
        """Encrypt rows, with zeros for classes that the site does not hold, and for ``complement`` the correction.

        Raises :class:`crypto.errors.MalformedError` for rows that are too long or not finite, and
        :class:`crypto.errors.PrecisionError` if tau is too small for this number of sites.
        """
        check_cohort_size(len(cohort.sites))
        check_tau(self._tau, len(cohort.sites))
        packing = Packing(cohort.classes, cohort.dim)
        # Zeros for a class that the site lacks: a peer's distance to them is its own ‖C‖², which the peer subtracts.
        sent = rows_to_send(rows, site, cohort)
        vectors: list[Complex | Float] = [*packing.pack(sent)]
        if self._combination is Combination.COMPLEMENT:
            vectors.append(packing.replicate(_correction(sent, site, cohort)))
        shapes = upload_shapes(self._combination, packing.parts)
        blobs = [self._secret.encrypt(vector, shape) for vector, shape in zip(vectors, shapes, strict=True)]
        return Payload(SCHEME, blobs=tuple(blobs))

    def unprotect(self, answer: Payload, rows: Rows, site: str, cohort: Cohort) -> Rows:
        """Return the combination of peers, within :func:`crypto.ckks.parameters.peer_error`.

        The site keeps its own row for a class that it does not hold, holds alone, or in which it agrees with all its
        peers (D_i ≤ tau). ``rows`` must be the rows that were protected.

        Raises :class:`crypto.errors.MalformedError` for an answer of another form than prescribed, which the
        coordinator can see too, and :class:`ImplausibleError` for a fault that only decryption shows. The caller must
        hide the second from the coordinator, which could otherwise compare an encrypted value with a bound of its
        choice (:mod:`crypto.ckks.secret_key`).
        """
        sent = rows_to_send(rows, site, cohort)
        packing = Packing(cohort.classes, cohort.dim)
        ciphertexts = read_payload(answer, answer_shapes(self._combination, packing.parts))
        vectors = [self._secret.decrypt(ciphertext) for ciphertext in ciphertexts]
        holds = cohort.held_by(site)
        combined = self._combination_of_peers(vectors, sent, holds, cohort)
        result = np.where((holds & (cohort.counts > 1))[:, None], combined, rows)
        # A longer row is no convex combination of rows of norm 1. "Not within" refuses NaN, from a divisor of 0, too.
        if not (np.linalg.norm(result[holds], axis=1) <= _LONGEST).all():
            raise ImplausibleError("a decrypted row is not a number, or far longer than any peer's")
        return result

    def _combination_of_peers(
        self, vectors: list[Complex], sent: Rows, holds: NDArray[np.bool_], cohort: Cohort
    ) -> Rows:
        """Return the rows in an answer's decrypted ``vectors``, meaningless for classes that the site does not hold."""
        packing, counts = Packing(cohort.classes, cohort.dim), cohort.counts
        if self._combination is Combination.UNIFORM:
            return packing.unpack(vectors) / np.maximum(counts - 1, 1)[:, None]
        *numerators, denominator = vectors
        # Divide slot by slot: d_im has the same error in a slot of the numerator and in that slot of the denominator.
        total = packing.replicas(denominator) - _absent_norms(sent, cohort)[:, None]
        mean_total = total.real.mean(axis=1)
        # ``complement`` gives a single peer weight 1, whatever its distance.
        compared = counts > (2 if self._combination is Combination.COMPLEMENT else 1)
        # D_i is a sum of n − 1 squared distances of rows of norm 1, and tau is above its error (``check_tau``). Without
        # this check a wrong value below 0 would pass as agreement.
        totals, largest = mean_total[compared & holds], 4.0 * (len(cohort.sites) - 1)
        if not ((totals >= -self._tau) & (totals <= largest + self._tau)).all():
            raise ImplausibleError("a decrypted sum of squared distances is out of range")
        agree = compared & (mean_total <= self._tau)
        divisor = self._divisor(total, counts)
        # A dishonest answer can make the divisor 0; the caller refuses what follows from it.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            quotients = [packing.replicas(part) / divisor for part in numerators]
        return np.where(agree[:, None], sent, packing.join(quotients))

    def _divisor(self, total: Complex, counts: Counts) -> Complex:
        """Return the numerators' divisor for a convex combination: D, or (cnt − 2)·D, or −1 (:func:`_correction`)."""
        if self._combination is Combination.DISTANCE:
            return total
        holders = counts[:, None]
        return np.where(holders == 2, -1.0, (holders - 2) * total)


def _absent_norms(sent: Rows, cohort: Cohort) -> Float:
    """Return (n − cnt)·‖C_i‖² for each class, (K,): the zeros of absent sites add this to Σ_m ‖C_i − C_m‖²."""
    absent = len(cohort.sites) - cohort.counts
    return np.asarray(absent * np.square(sent).sum(axis=1), dtype=np.float64)


def _correction(sent: Rows, site: str, cohort: Cohort) -> Float:
    """Return the correction (K,) that the coordinator subtracts from the denominator: the absent sites' share.

    With two holders D − d_im is 0 for the only peer, whose weight is 1. The correction is then larger by 1, so that
    (D − 1)·C_m − D·C_m leaves −C_m and no division by D is needed. For classes that the site lacks the correction is 0,
    like the row.
    """
    single = cohort.held_by(site) & (cohort.counts == 2)
    return np.asarray(_absent_norms(sent, cohort) + single, dtype=np.float64)
