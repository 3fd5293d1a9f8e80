"""A site's half of ``ckks``: rows to ciphertexts, the coordinator's answer to a combination of peers.

A site learns its combination of peers and D_i = Σ_m ‖C_i − C_m‖² for the classes it holds. Sites share one secret
key, so nothing here protects a site from a coordinator that colludes with another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.ckks.packing import Complex, Float, Packing
from crypto.ckks.parameters import SCHEME, answer_forms, upload_forms
from crypto.ckks.precision import check_cohort_size, check_tau
from crypto.ckks.secret_key import CkksSecret
from crypto.ckks.serialization import read_payload
from crypto.errors import ImplausibleError
from crypto.protection import Cohort, Combination, Payload, Rows
from crypto.row_checks import contributed

Counts = NDArray[np.int64]

# A convex combination is no longer than 1; more than twice that is no rounding error.
_LONGEST = 2.0


class CkksSite:
    """Protects rows under the group's secret key and reads the answers."""

    scheme = SCHEME

    def __init__(self, secret: CkksSecret, combination: Combination, tau: float) -> None:
        """``tau``: at or below it D_i counts as 0, and the site keeps its own row. In units of the norm bound²."""
        self._secret = secret
        self._combination = combination
        self._tau = tau

    def protect(self, rows: Rows, site: str, cohort: Cohort) -> Payload:
        """Encrypted rows, and for ``complement`` the encrypted correction; zeros where the site holds no class.

        Raises :class:`MalformedError` for rows that are too long or not finite, :class:`PrecisionError` when tau
        is too small for so many sites.
        """
        check_cohort_size(len(cohort.sites))
        check_tau(self._tau, len(cohort.sites))
        packing = Packing(cohort.classes, cohort.dim)
        sent = contributed(rows, site, cohort)
        vectors: list[Complex | Float] = [*packing.pack(sent)]
        if self._combination is Combination.COMPLEMENT:
            vectors.append(packing.replicate(_correction(sent, site, cohort)))
        forms = upload_forms(self._combination, packing.parts)
        blobs = [self._secret.encrypt(vector, form) for vector, form in zip(vectors, forms, strict=True)]
        return Payload(SCHEME, blobs=tuple(blobs))

    def unprotect(self, answer: Payload, rows: Rows, site: str, cohort: Cohort) -> Rows:
        """The combination of peers, within :func:`crypto.ckks.precision.peer_error`.

        The own row stands where the site is the only holder, holds nothing, or agrees with all its peers
        (D_i ≤ tau). ``rows`` are the very rows that were protected.

        Raises :class:`MalformedError` for an answer of another form than prescribed, which the coordinator could
        tell as well, and :class:`ImplausibleError` for what shows only in the decryption. The caller must act on
        the second so that the coordinator cannot tell: whoever learns it can compare a sealed value with a
        bound of his choice (:mod:`crypto.ckks.secret_key`).
        """
        own, packing = contributed(rows, site, cohort), Packing(cohort.classes, cohort.dim)
        ciphertexts = read_payload(answer, answer_forms(self._combination, packing.parts))
        vectors = [self._secret.decrypt(ciphertext) for ciphertext in ciphertexts]
        holds = cohort.holds[cohort.index(site)]
        combined = self._of_peers(vectors, own, holds, cohort)
        result = np.where((holds & (cohort.counts > 1))[:, None], combined, rows)
        check_plausible(result[holds])
        return result

    def _of_peers(self, vectors: list[Complex], own: Rows, holds: NDArray[np.bool_], cohort: Cohort) -> Rows:
        """The rows in an answer's decrypted ``vectors``; of no meaning for classes that the site does not hold."""
        packing, counts = Packing(cohort.classes, cohort.dim), cohort.counts
        if self._combination is Combination.UNIFORM:
            return packing.unpack(vectors) / np.maximum(counts - 1, 1)[:, None]
        *numerators, denominator = vectors
        # Slot by slot: d_im has the same error, real and imaginary, in a slot of the numerator as in the denominator's.
        total = packing.replicas(denominator) - _absent_norms(own, cohort)[:, None]
        mean_total = total.real.mean(axis=1)
        compared = self._compared(counts)
        check_totals(mean_total[compared & holds], self._tau, len(cohort.sites))
        agree = compared & (mean_total <= self._tau)
        divisor = self._divisor(total, counts)
        quotients = [_divide(packing.replicas(part), divisor) for part in numerators]
        return np.where(agree[:, None], own, packing.join(quotients))

    def _compared(self, counts: Counts) -> NDArray[np.bool_]:
        """Classes (K,) whose weights depend on D_i at all: ``complement`` gives a single peer weight 1."""
        return counts > (2 if self._combination is Combination.COMPLEMENT else 1)

    def _divisor(self, total: Complex, counts: Counts) -> Complex:
        """What turns the numerators into a convex combination: D, or (cnt − 2)·D, or −1 (:func:`_correction`)."""
        if self._combination is Combination.DISTANCE:
            return total
        of_each = counts[:, None]
        return np.where(of_each == 2, -1.0, (of_each - 2) * total)


def _absent_norms(own: Rows, cohort: Cohort) -> Float:
    """What the zeros of absent sites add to Σ_m ‖C_i − C_m‖²: (n − cnt)·‖C_i‖² for each class, shape (K,)."""
    absent = len(cohort.sites) - cohort.counts
    return np.asarray(absent * np.square(own).sum(axis=1), dtype=np.float64)


def _correction(own: Rows, site: str, cohort: Cohort) -> Float:
    """What the coordinator subtracts from den, shape (K,): what absent sites added to it.

    With two holders D − d_im is 0 for the one peer, whose weight is 1. One more is subtracted there, so that
    (D − 1)·C_m − D·C_m leaves −C_m, and no division by D is needed. Of classes that the site lacks it is 0, as its row.
    """
    single = cohort.holds[cohort.index(site)] & (cohort.counts == 2)
    return np.asarray(_absent_norms(own, cohort) + single, dtype=np.float64)


def _divide(numerators: Complex, divisor: Complex) -> Complex:
    """A dishonest answer can make the divisor 0; :func:`check_plausible` refuses what comes of it."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(numerators / divisor)


def check_totals(totals: Float, tau: float, sites: int) -> None:
    """Raise :class:`ImplausibleError` unless each D_i is what n − 1 squared distances of rows of norm 1 can be.

    tau is above the error of D_i (:func:`crypto.ckks.precision.check_tau`). Without this check, garbage below 0
    would pass for agreement.
    """
    if not ((totals >= -tau) & (totals <= 4.0 * (sites - 1) + tau)).all():
        raise ImplausibleError("a decrypted sum of squared distances is out of range")


def check_plausible(rows: Rows) -> None:
    """Raise :class:`ImplausibleError` for rows that no convex combination of rows of norm 1 can be."""
    if not (np.linalg.norm(rows, axis=1) <= _LONGEST).all():
        raise ImplausibleError("a decrypted row is not a number, or far longer than any peer's")
