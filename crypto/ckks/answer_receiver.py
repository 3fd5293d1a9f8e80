"""Receiver of an answer: noise floods the slots of the classes that the receiving site does not hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.ckks import noise_flooding
from crypto.ckks.circuit import Ciphertexts, Circuit
from crypto.ckks.packing import Complex, Float, Packing
from crypto.ckks.parameters import Ciphertext, CkksLevel


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
        return self._noisy([self.circuit.lower(part, CkksLevel.ANSWER) for part in parts])

    def numerators(self, products: Ciphertexts, lengths: Ciphertexts) -> list[Ciphertext]:
        """Return rescaled products of two polynomials, with noise.

        ``lengths`` (:meth:`crypto.ckks.peer_combination.Combining.lengths`) grow with the receiver's rows of classes it
        lacks. Noise times these is added before rescaling, noise of a fixed size last, at the scale of answers.
        """
        amplified = list(products)
        for factor in (*lengths, *([] if self.correction is None else [self.correction])):
            if self.lacks.any():
                noise = noise_flooding.flood_rows(self.packing, self.lacks)
                amplified = [
                    self._amplified(part, factor, slots) for part, slots in zip(amplified, noise, strict=True)
                ]
        return self._noisy([self.circuit.rescale(part) for part in amplified])

    def denominator(self, product: Ciphertext, lengths: Ciphertexts) -> Ciphertext:
        """Return the rescaled denominator with noise, equal in all slots of a class, as the denominator is."""
        for factor in lengths:
            noise = noise_flooding.flood_replicated(self.packing, self.lacks)
            product = self._amplified(product, factor, noise)
        noise = noise_flooding.flood_replicated(self.packing, self.lacks)
        return self.circuit.add_values(self.circuit.rescale(product), noise)

    def _amplified(self, product: Ciphertext, factor: Ciphertext, noise: Float | Complex) -> Ciphertext:
        """Return product + AMPLIFIED·noise·factor, where the factor comes from the receiver's upload."""
        scale = product.scale / factor.scale
        return self.circuit.add(
            product, self.circuit.multiply_values(factor, noise_flooding.AMPLIFIED * noise, scale)
        )

    def _noisy(self, parts: Ciphertexts) -> list[Ciphertext]:
        noise = noise_flooding.flood_rows(self.packing, self.lacks)
        return [self.circuit.add_values(part, slots) for part, slots in zip(parts, noise, strict=True)]
