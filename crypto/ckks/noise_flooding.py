"""Noise flooding of the slots in a site's answer that belong to classes the site does not hold.

The noise is Gaussian with sigma = 2^17, redrawn beyond 2^19. In the numerators both parts of each slot get their own
draw. In the denominator all slots of a class have the same value and get the same draw, because independent draws
could be averaged.

A site that lacks a class sends zeros for it. A site that sends a nonzero row instead, which nobody can see, would
multiply its peers' values, and exceed noise of a fixed size. So an answer gets further draws, each multiplied by
:data:`AMPLIFIED` and by the site's own ciphertexts: the squared norm of its row, its correction, and its row's inner
product with a random row that the site cannot know. A site that amplifies values then amplifies noise with them; for a
site that sends zeros these draws are multiplied by zero. The squared norm alone would not suffice: it is computed
modulo q, and there are rows of norm 2^30 for which it is 0 while inner products with the peers' rows are not.

Guarantee: let Δ be the difference of two possible inputs of the peers in the flooded slots, a denominator counted once.
The distributions of the decrypted slots then differ in total variation by at most

    TV ≤ ‖Δ‖₂ / (√(2π)·sigma·Z) + 1.4e-4·‖Δ‖₁/sigma,      Z = (1 − 6.4e-5)^(number of draws)

(the second term and Z come from truncation); ``ckks-error.md`` in docs has values for common sizes and for rows of any
length. Over several rounds the Δ form one longer vector. Limit: the bound is about values, and does not cover the
ciphertext's randomness, which is not redrawn: CKKS has no circuit privacy against the holder of the key.

:class:`Receiver` adds the noise to one site's answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.ckks.circuit import Ciphertexts, Circuit
from crypto.ckks.packing import Complex, Packing
from crypto.ckks.parameters import Ciphertext, CkksLevel
from crypto.fixed_point import Float
from crypto.randomness import gaussian, truncated_gaussian

SIGMA = 2.0**17
BOUND = 2.0**19
AMPLIFIED = 16.0
"""Ratio of the noise of a row of norm 1 to the noise of a row of zeros."""


def flood_rows(packing: Packing, flooded: NDArray[np.bool_]) -> list[Complex]:
    """Draw noise for both parts of each slot of the flooded classes (bool, (K,)): a vector (4096,) per ciphertext."""
    return [_draw_slots(packing, flooded) for _ in range(packing.parts)]


def flood_replicated(packing: Packing, flooded: NDArray[np.bool_]) -> Float:
    """Draw one noise value for each flooded class, for all of its slots: a vector (4096,)."""
    values = np.zeros(packing.classes)
    values[flooded] = truncated_gaussian(int(flooded.sum()), SIGMA, BOUND)
    return packing.replicate(values)


def random_rows(packing: Packing, flooded: NDArray[np.bool_]) -> list[Complex]:
    """Draw a standard Gaussian row of each flooded class (bool, (K,)), zeros of the others: a vector (4096,) per part.

    All of a class's slots have a draw in both parts, even slots beyond the d features, because a site may use them.
    """
    slots = np.zeros((packing.parts, packing.copies, packing.stride), dtype=np.complex128)
    classes = np.flatnonzero(flooded)
    draws = gaussian(2 * packing.parts * packing.copies * classes.size, 1.0).view(np.complex128)
    slots[:, :, classes] = draws.reshape(packing.parts, packing.copies, classes.size)
    return list(slots.reshape(packing.parts, -1))


def _draw_slots(packing: Packing, flooded: NDArray[np.bool_]) -> Complex:
    slots = np.zeros((packing.copies, packing.stride), dtype=np.complex128)
    classes = np.flatnonzero(flooded)
    draws = truncated_gaussian(2 * packing.copies * classes.size, SIGMA, BOUND).view(np.complex128)
    slots[:, classes] = draws.reshape(packing.copies, classes.size)
    return slots.reshape(-1)


@dataclass(frozen=True)
class Receiver:
    """Site that does not hold the classes ``lacks`` (K,), which are noise in its answer.

    The site may have sent anything for these classes, so noise that is multiplied by the site's own ciphertexts is
    added to noise of a fixed size. ``correction``, for ``complement``, is the site's encrypted correction: the absent
    sites' share of Σ_m d_im.
    """

    circuit: Circuit
    packing: Packing
    lacks: NDArray[np.bool_]
    correction: Ciphertext | None

    def sums(self, parts: Ciphertexts) -> list[Ciphertext]:
        """Return bare sums with noise, lowered from the level of products to that of answers.

        The sums have no part of the receiver's upload, because its own row is subtracted as it was sent.
        """
        # Noise of a fixed size suffices: without a product, nothing that the receiver sent amplifies its peers' values.
        return self._add_noise([self.circuit.lower(part, CkksLevel.ANSWER) for part in parts])

    def numerators(self, products: Ciphertexts, lengths: Ciphertexts) -> list[Ciphertext]:
        """Return rescaled products of two polynomials, with noise.

        ``lengths`` (:meth:`crypto.ckks.peer_combination.Combining.lengths`) grow with the receiver's rows of classes it
        lacks. Noise times these is added before rescaling, noise of a fixed size last, at the scale of answers.
        """
        amplified = list(products)
        factors = list(lengths) if self.correction is None else [*lengths, self.correction]
        for factor in factors:
            if self.lacks.any():
                noise = flood_rows(self.packing, self.lacks)
                amplified = [
                    self._add_amplified(part, factor, slots)
                    for part, slots in zip(amplified, noise, strict=True)
                ]
        # Values and noise keep their ratio when rescaled; this draw has no factor, so it is added once, at the
        # answer's scale.
        return self._add_noise([self.circuit.rescale(part) for part in amplified])

    def denominator(self, product: Ciphertext, lengths: Ciphertexts) -> Ciphertext:
        """Return the rescaled denominator with noise, equal in all slots of a class, as the denominator is."""
        # The correction is no factor here: the denominator has the sum of distances, and no product with a correction.
        for factor in lengths:
            noise = flood_replicated(self.packing, self.lacks)
            product = self._add_amplified(product, factor, noise)
        noise = flood_replicated(self.packing, self.lacks)
        return self.circuit.add_values(self.circuit.rescale(product), noise)

    def _add_amplified(self, product: Ciphertext, factor: Ciphertext, noise: Float | Complex) -> Ciphertext:
        """Return product + AMPLIFIED·noise·factor, where the factor comes from the receiver's upload."""
        # Encoded at the quotient of the scales, noise·factor has the product's scale, as an addition needs.
        scale = product.scale / factor.scale
        return self.circuit.add(product, self.circuit.multiply_values(factor, AMPLIFIED * noise, scale))

    def _add_noise(self, parts: Ciphertexts) -> list[Ciphertext]:
        noise = flood_rows(self.packing, self.lacks)
        return [self.circuit.add_values(part, slots) for part, slots in zip(parts, noise, strict=True)]
