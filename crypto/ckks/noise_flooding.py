"""Noise flooding of the slots whose answer a site may not have: classes that it does not hold.

Gaussian, sigma = 2^17, drawn again beyond 2^19. In the numerators both parts of each slot get a draw of their
own. In the denominator all slots of a class hold the same value, so they get the same draw: independent ones could be
averaged.

A site that lacks a class sends zeros of it. One that sends something else, which nobody can see, would multiply what
its peers sent, and rise above noise of a fixed size. So an answer gets further draws, each multiplied by
:data:`AMPLIFIED` and by what the site itself sent: the squared norm of its row, its correction, and its row's inner
product with a random one, which it cannot know. Whatever a site amplifies, it amplifies noise with it; a site that
sends zeros multiplies these draws by zero. The squared norm alone would not do: it is one modulo q, and a row of norm
2^30 can be chosen for which it is 0 while inner products with the peers' rows are not.

What remains: let Δ be how two possible inputs of the peers differ in the drowned slots, a denominator counted
once. The decrypted slots are then at most

    TV ≤ ‖Δ‖₂ / (√(2π)·sigma·Z) + 1.4e-4·‖Δ‖₁/sigma,      Z = (1 − 6.4e-5)^(number of draws)

apart in total variation (the second term and Z are the price of truncation); ``ckks-error.md`` in docs has it for
common sizes, and for rows of any length. Over several rounds the Δ join to one longer vector. The bound is about
values. It does not cover the randomness of the ciphertext itself, which is not drawn anew: CKKS has no circuit privacy
towards who has the key.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crypto.ckks.packing import Complex, Float, Packing
from crypto.randomness import gaussian, truncated_gaussian

SIGMA = 2.0**17
BOUND = 2.0**19
AMPLIFIED = 16.0
"""The ratio of the noise of a row of norm 1 to the noise of a row of zeros."""


def drown_rows(packing: Packing, drowned: NDArray[np.bool_]) -> list[Complex]:
    """Noise for both parts of each slot of the drowned classes (bool, (K,)); one vector (4096,) for each ciphertext."""
    return [_independent(packing, drowned) for _ in range(packing.parts)]


def drown_replicated(packing: Packing, drowned: NDArray[np.bool_]) -> Float:
    """One draw for each drowned class, in all of its slots; a vector (4096,)."""
    values = np.zeros(packing.classes)
    values[drowned] = truncated_gaussian(int(drowned.sum()), SIGMA, BOUND)
    return packing.replicate(values)


def random_rows(packing: Packing, drowned: NDArray[np.bool_]) -> list[Complex]:
    """A standard Gaussian row of each drowned class (bool, (K,)), zeros of the others; a vector (4096,) for each part.

    All of a class's slots have a draw in both parts, also those of features that there are not: a site may use them.
    """
    slots = np.zeros((packing.parts, packing.copies, packing.stride), dtype=np.complex128)
    classes = np.flatnonzero(drowned)
    draws = gaussian(2 * packing.parts * packing.copies * classes.size, 1.0).view(np.complex128)
    slots[:, :, classes] = draws.reshape(packing.parts, packing.copies, classes.size)
    return list(slots.reshape(packing.parts, -1))


def _independent(packing: Packing, drowned: NDArray[np.bool_]) -> Complex:
    slots = np.zeros((packing.copies, packing.stride), dtype=np.complex128)
    classes = np.flatnonzero(drowned)
    draws = truncated_gaussian(2 * packing.copies * classes.size, SIGMA, BOUND).view(np.complex128)
    slots[:, classes] = draws.reshape(packing.copies, classes.size)
    return slots.reshape(-1)
