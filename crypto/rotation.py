"""``rotation``: a secret isometry Q; the server computes on Q·C as ``plain`` does on C, and sites invert Q.

Sites share a seed that the server does not have. Each class of each attempt has its own orthogonal matrix Q, drawn
from the Haar measure by a key derived from the seed. Q preserves inner products and commutes with linear combinations,
so the server half is :class:`crypto.plain.PlainServer` with this scheme.

Guarantee: the server's view of a class is distributed as Q'·C' for *any* C' with the same Gram matrix and an
independent Q', so that the server learns **the Gram matrix and nothing more**, up to the rounding of float64. Limits:

- The Gram matrix shows the dimension, the norms, which rows are zero, and how near sites are to each other.
  **A row that is one record's features is told by its norm** to whoever can compute the features of candidates.
- The server can compare the Gram matrices of successive rounds and of all classes, because the sites' names are known.
- Any output that the server sees in the clear reveals each row's projection on that output.
- **One site that colludes with the server breaks the protection** of every site and every round of the run.
- What the sites do with the results in common is not limited: see :mod:`algorithms.pfpl`.
- A context used twice gives the same Q twice, and the inner products *between* the two uses.

Haar sampling follows Stewart (1980, *The efficient generation of random orthogonal matrices with an application to
condition estimators*, section 3). Mezzadri (2007, *How to generate random matrices from the classical compact groups*,
sections 4 and 5) shows why the signs are needed.
"""

from __future__ import annotations

import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from crypto.errors import MalformedError
from crypto.keys import KEY_BYTES, derive
from crypto.plain import read_rows
from crypto.protection import Cohort, Payload, Rows, check_values, rows_to_send

Float = NDArray[np.float64]

SCHEME = "rotation/1"

_COUNTER = bytes(4)
"""Initial block counter 0 of each reflection's keystream, which has its own nonce."""
_UNIFORM_BITS = 52


class RotationSite:
    """Site half: rows are sent under Q, answers are read under Q's inverse. The server half is ``PlainServer``."""

    scheme = SCHEME

    def __init__(self, seed: bytes, context: bytes) -> None:
        """Take the group's 32 *secret* bytes ``seed`` and a ``context`` that is equal at all sites and never reused.

        The context must name run, round, attempt and phase, because of the module's last limit. Raises
        :class:`MalformedError` for a seed of another length, ``ValueError`` for an empty context.
        """
        _check_key(seed)
        if not context:
            raise ValueError("a rotation's context must name the run, the round, the attempt and the phase")
        self._seed = seed
        self._context = context

    def protect(self, rows: Rows, site: str, cohort: Cohort) -> Payload:
        """Return Q·C for each class, with zeros for classes the site does not hold; raise :class:`MalformedError`."""
        sent = rows_to_send(rows, site, cohort)
        return Payload(SCHEME, arrays=(self._rotated(sent, site, cohort, inverse=False),))

    def rotate_rows(self, rows: Rows, classes: NDArray[np.int64]) -> Rows:
        """Return Q·v for each row v of ``rows`` (M, d), where Q is that of the row's class, ``classes`` (M,).

        Rows of one class keep their inner products with each other, at one site and across sites. The server also
        learns how many rows of each class a site has. Raises :class:`MalformedError` for a row longer than 1.
        """
        check_values(rows)
        result = np.zeros_like(rows)
        for k in np.unique(classes):
            of_class = classes == k
            result[of_class] = rotate(class_key(self._seed, self._context, int(k)), rows[of_class])
        return result

    def unprotect(self, answer: Payload, rows: Rows, site: str, cohort: Cohort) -> Rows:
        """Return the combination of peers, or the site's own row for a class that it does not hold.

        Raises :class:`MalformedError` for faults that the server can see too: a wrong form, a value that is not finite,
        a row longer than 1. Limit: an answer of another vector within these bounds is not detected.
        """
        # The norm is checked before rotating back, so that the refusal says nothing that the server cannot see.
        rotated = read_rows(answer, SCHEME, cohort)
        holds = cohort.held_by(site)
        return np.where(holds[:, None], self._rotated(rotated, site, cohort, inverse=True), rows)

    def _rotated(self, rows: Rows, site: str, cohort: Cohort, *, inverse: bool) -> Rows:
        """Rotate rows; classes that the site does not hold, which is public, stay zero, since Q·0 = 0."""
        result = np.zeros_like(rows)
        for k in np.flatnonzero(cohort.held_by(site)):
            result[k] = rotate(class_key(self._seed, self._context, int(k)), rows[k : k + 1], inverse)[0]
        return result

    def __repr__(self) -> str:
        return "RotationSite(<redacted>)"


class RotatedDirections:
    """Site half of a clustering's directions: rows are sent under Q with their classes, and no answer is read."""

    scheme = SCHEME

    def __init__(self, seed: bytes, context: bytes) -> None:
        """Take what :class:`RotationSite` takes, and raise as it does."""
        self._rotation = RotationSite(seed, context)

    def protect(self, rows: Rows, classes: NDArray[np.int64]) -> Payload:
        """Return :meth:`RotationSite.rotate_rows`, and the classes (M,) as float64, which the server reads."""
        rotated = self._rotation.rotate_rows(rows, classes)
        return Payload(SCHEME, arrays=(rotated, classes.astype(np.float64)))


def class_key(seed: bytes, context: bytes, number: int) -> bytes:
    """Return the 32-byte key of one class in one context; ``number`` is the class's index, from 0."""
    return derive(seed, "rotation", context, number.to_bytes(4, "big"))


def rotate(key: bytes, vectors: Float, inverse: bool = False) -> Float:
    """Return Q·v for each row v of ``vectors`` (m, D), or Qᵀ·v; over random keys, Q is Haar-distributed on O(D).

    With x_k a vector of k independent normal values and T_k the orthogonal matrix of size k that :func:`_reflect`
    applies, whose first column is x_k/‖x_k‖, Stewart's theorem says that

        Q = T_D · (I_1 ⊕ T_{D−1}) · … · (I_{D−1} ⊕ T_1)

    is Haar-distributed. Q is the Q of the QR decomposition with positive diagonal of a Gaussian matrix, but is never
    formed: O(m·D²) time, dominated by the D²/2 normal values, and O(m·D) memory. Each x_k has its own keystream
    (:func:`_normals`), so that the inverse can apply the factors in reverse order.

    Inner products and the inverse are exact to rounding (1e-15 for unit vectors up to D = 2000). The keystream is
    bit-identical everywhere; logarithms and cosines of different builds of numpy, and so the sites' Q, differ in the
    last place. Zeros stay zeros, without a sign. Raises :class:`MalformedError` for a key that is not 32 bytes, or
    vectors that are not float64 with two axes.
    """
    _check_key(key)
    if vectors.dtype != np.float64 or vectors.ndim != 2:
        raise MalformedError(
            f"vectors must be float64 of shape (m, D), not {vectors.dtype} of {vectors.shape}"
        )
    dim = vectors.shape[1]
    rotated = vectors.copy()
    # Q = T_D · … · T_1 applied right to left, each factor on the last ``size`` coordinates; Qᵀ is the reverse.
    for size in range(dim, 0, -1) if inverse else range(1, dim + 1):
        _reflect(rotated[:, dim - size :], _normals(key, dim, size), inverse)
    # The zeros of a zero row carry the signs of the reflections, which would leak D bits of the key's stream.
    return rotated + 0.0


def _reflect(part: Float, x: Float, inverse: bool) -> None:
    """Apply T = (I − 2uuᵀ/‖u‖²)·diag(s, 1, …, 1), or its transpose, to the rows of ``part`` (m, k) in place.

    s = −sign(x_0) and u = x − s‖x‖e_0, free of cancellation: the reflection takes s·e_0 to x/‖x‖. Without s the
    first entry of T's first column would always be negative, and Q would not be Haar-distributed.
    """
    sign = -math.copysign(1.0, x[0])
    normal = x.copy()
    normal[0] -= sign * math.sqrt(x @ x)
    if not inverse:
        part[:, 0] *= sign
    part -= np.outer(part @ normal, (2.0 / (normal @ normal)) * normal)
    if inverse:
        part[:, 0] *= sign


def _normals(key: bytes, dim: int, size: int) -> Float:
    """Return x_k for k = ``size``: independent draws from N(0, 1), shape (size,), by Box and Muller (1958).

    No draw is rejected, so that each value comes from a known position of the stream. No draw lies beyond 8.6.
    """
    half = (size + 1) // 2
    uniform = _uniform(_words(key, dim, size))
    radius = np.sqrt(-2.0 * np.log(uniform[:half]))
    angle = 2.0 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


def _uniform(words: NDArray[np.uint64]) -> Float:
    """Return midpoints of the grid of 2^-52 in (0, 1), whose logarithms are finite and not 0."""
    return np.asarray(((words >> np.uint64(64 - _UNIFORM_BITS)) + 0.5) * 2.0**-_UNIFORM_BITS)


def _words(key: bytes, dim: int, size: int) -> NDArray[np.uint64]:
    """Return ``size`` little-endian words of the ChaCha20 keystream (RFC 8439), or one more to make an even number.

    The nonce is the dimension and the size, 6 bytes each, little-endian, so that matrices Q of different dimensions
    under one key have no reflection in common.
    """
    nonce = dim.to_bytes(6, "little") + size.to_bytes(6, "little")
    stream = Cipher(ChaCha20(key, _COUNTER + nonce), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(16 * ((size + 1) // 2))), dtype="<u8")


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise MalformedError(f"a rotation's seed or key has {KEY_BYTES} bytes, not {len(key)}")
