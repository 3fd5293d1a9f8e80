"""``rotation``: a secret isometry. The server computes on Q·C as ``plain`` does on C, and its answers turn back.

Sites share a seed that the server does not have. Each class of each attempt has an orthogonal matrix Q of its own,
drawn from the Haar measure by a key derived from the seed. Inner products survive Q, and linear combinations commute
with it, so the server's half is :class:`crypto.plain.PlainServer` with this scheme.

What the server sees of a class is distributed as Q'·C' for *any* C' with the same Gram matrix and a Q' of its own
making: it learns **the Gram matrix and nothing more**, up to the rounding of float64. The limits:

- The Gram matrix shows the dimension, the norms, which rows are zero, and how near sites are to each other.
- Gram matrices of successive rounds can be compared, and so can those of all classes: the sites' names stay.
- Any output that the server sees in the clear adds to it: each row's projection on that output.
- **One site that colludes with the server undoes it all**, for every site and every round of the run.
- A context used twice gives the same Q twice, and the inner products *between* the two uses.

Haar measure by Stewart (1980, *The efficient generation of random orthogonal matrices with an application to
condition estimators*, section 3); why the signs are needed: Mezzadri (2007, *How to generate random matrices from the
classical compact groups*, sections 4 and 5).
"""

from __future__ import annotations

import math

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from crypto.errors import MalformedError
from crypto.keys import KEY_BYTES, derive
from crypto.plain import received
from crypto.protection import Cohort, Payload, Rows
from crypto.rows import check_values, contributed

Float = NDArray[np.float64]

SCHEME = "rotation/1"

_COUNTER = bytes(4)
"""Each reflection has a nonce of its own and begins its keystream at block 0."""
_UNIFORM_BITS = 52


class RotationSite:
    """The site's half: rows out under Q, answers back under its inverse. The server's half is ``PlainServer``."""

    scheme = SCHEME

    def __init__(self, seed: bytes, context: bytes) -> None:
        """``seed``: the group's 32 *secret* bytes. ``context``: the same at all sites, and never used again.

        It has to name run, round, attempt and phase: see the module's limits. Raises :class:`MalformedError` for a
        seed of another length, ``ValueError`` for an empty context.
        """
        _check_key(seed)
        if not context:
            raise ValueError("a rotation's context names the run, the round, the attempt and the phase")
        self._seed = seed
        self._context = context

    def protect(self, rows: Rows, site: str, cohort: Cohort) -> Payload:
        """Q·C for each class, with zeros for classes that the site does not hold. Raises :class:`MalformedError`."""
        sent = contributed(rows, site, cohort)
        return Payload(SCHEME, arrays=(self._turned(sent, site, cohort, inverse=False),))

    def turned(self, rows: Rows, classes: NDArray[np.int64]) -> Rows:
        """Q·v for each row v of ``rows`` (M, d), Q being that of the row's class, ``classes`` (M,).

        Rows of one class keep the inner products with each other, at one site and over all of them. What is shown is
        also how many rows of a class a site has. Raises :class:`MalformedError` for a row that is longer than 1.
        """
        check_values(rows)
        result = np.zeros_like(rows)
        for k in np.unique(classes):
            own = classes == k
            result[own] = rotate(class_key(self._seed, self._context, int(k)), rows[own])
        return result

    def unprotect(self, answer: Payload, rows: Rows, site: str, cohort: Cohort) -> Rows:
        """The combination of peers; the site's own row for a class it does not hold.

        Raises :class:`MalformedError` for what the server could see to be wrong as well: the form, a value that is
        not finite, a row longer than 1. An answer that is another vector of that length cannot be told.
        """
        turned = received(answer, SCHEME, cohort)
        holds = cohort.holds[cohort.index(site)]
        return np.where(holds[:, None], self._turned(turned, site, cohort, inverse=True), rows)

    def _turned(self, rows: Rows, site: str, cohort: Cohort, *, inverse: bool) -> Rows:
        """Zeros for a class that the site does not hold: who holds what is public, and Q·0 = 0."""
        result = np.zeros_like(rows)
        for k in np.flatnonzero(cohort.holds[cohort.index(site)]):
            result[k] = rotate(class_key(self._seed, self._context, int(k)), rows[k : k + 1], inverse)[0]
        return result

    def __repr__(self) -> str:
        return "RotationSite(<redacted>)"


def class_key(seed: bytes, context: bytes, number: int) -> bytes:
    """The 32-byte key of one class in one context; ``number`` is the class's index, from 0."""
    return derive(seed, "rotation", context, number.to_bytes(4, "big"))


def rotate(key: bytes, vectors: Float, inverse: bool = False) -> Float:
    """Q·v for each row v of ``vectors`` (m, D), or Qᵀ·v; Q is Haar-distributed over keys on O(D).

    With x_k a vector of k independent normal values and T_k the orthogonal matrix of size k that :func:`_turn`
    applies, whose first column is x_k/‖x_k‖, Stewart's theorem says that

        Q = T_D · (I_1 ⊕ T_{D−1}) · … · (I_{D−1} ⊕ T_1)

    is Haar-distributed. It is the Q of the QR decomposition with positive diagonal of a Gaussian matrix, but never
    formed: O(m·D²) time, dominated by the D²/2 normal values, and O(m·D) memory. Each x_k has a keystream of its own
    (:func:`_normals`), so that the inverse can take them in the other order.

    Inner products and the inverse are exact to rounding (1e-15 for unit vectors up to D = 2000). The keystream is
    the same to the bit everywhere; logarithms and cosines of different builds of numpy differ in the last place, and
    so do the Q of their sites. Zeros stay zeros, without a sign. Raises :class:`MalformedError` for a key that is not
    32 bytes, or vectors that are not float64 of two axes.
    """
    _check_key(key)
    if vectors.dtype != np.float64 or vectors.ndim != 2:
        raise MalformedError(f"vectors are float64 of shape (m, D), not {vectors.dtype} of {vectors.shape}")
    dim = vectors.shape[1]
    turned = vectors.copy()
    for size in range(dim, 0, -1) if inverse else range(1, dim + 1):
        _turn(turned[:, dim - size :], _normals(key, dim, size), inverse)
    # A zero row keeps nothing but signs of the reflections in its zeros. They would tell D bits of the key's stream.
    return turned + 0.0


def _turn(part: Float, x: Float, inverse: bool) -> None:
    """T = (I − 2uuᵀ/‖u‖²)·diag(s, 1, …, 1), or its transpose, on the rows of ``part`` (m, k) in place.

    s = −sign(x_0) and u = x − s‖x‖e_0, free of cancellation: the reflection takes s·e_0 to x/‖x‖. Without s the
    first entry of T's first column would always be negative: no Haar measure.
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
    """x_k for k = ``size``: independent draws from N(0, 1), shape (size,), by Box and Muller (1958).

    Nothing is rejected, so that each value comes from a known place of the stream. No draw lies beyond 8.6.
    """
    half = (size + 1) // 2
    uniform = _uniform(_words(key, dim, size))
    radius = np.sqrt(-2.0 * np.log(uniform[:half]))
    angle = 2.0 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]


def _uniform(words: NDArray[np.uint64]) -> Float:
    """Midpoints of the grid of 2^-52 in (0, 1): no logarithm is infinite, and none is 0."""
    return np.asarray(((words >> np.uint64(64 - _UNIFORM_BITS)) + 0.5) * 2.0**-_UNIFORM_BITS)


def _words(key: bytes, dim: int, size: int) -> NDArray[np.uint64]:
    """An even number of little-endian words, ``size`` or one more: the keystream of ChaCha20 (RFC 8439).

    The nonce is the dimension and the size, 6 bytes each, little-endian: Q of another dimension under the same key
    has no reflection in common with this one.
    """
    nonce = dim.to_bytes(6, "little") + size.to_bytes(6, "little")
    stream = Cipher(ChaCha20(key, _COUNTER + nonce), mode=None).encryptor()
    return np.frombuffer(stream.update(bytes(16 * ((size + 1) // 2))), dtype="<u8")


def _check_key(key: bytes) -> None:
    if len(key) != KEY_BYTES:
        raise MalformedError(f"a rotation's seed or key has {KEY_BYTES} bytes, not {len(key)}")
