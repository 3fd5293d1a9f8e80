"""A site that an answer is for: noise floods the slots of the classes that it does not hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crypto.ckks import noise_flooding
from crypto.ckks.circuit import Circuit, Parts
from crypto.ckks.packing import Complex, Float, Packing
from crypto.ckks.parameters import Ciphertext, Level


@dataclass(frozen=True)
class Receiver:
    """A site that does not hold the classes ``lacks`` (K,), which are noise in its answer.

    The site may have sent anything of these classes: noise is multiplied by what it sent, and added to noise of a fixed
    size. ``correction``: what absent sites added to Σ_m d_im, as the site sent it, for ``complement``.
    """

    circuit: Circuit
    packing: Packing
    lacks: NDArray[np.bool_]
    correction: Ciphertext | None

    def sums(self, parts: Parts) -> list[Ciphertext]:
        """Return bare sums, lowered from the level of products to that of answers.

        Nothing that the receiver sent is in them: its own row is subtracted as it came.
        """
        return self._noisy([self.circuit.lower(part, Level.ANSWER) for part in parts])

    def numerators(self, products: Parts, lengths: Parts) -> list[Ciphertext]:
        """Return products of two polynomials, rescaled. ``lengths`` grow with the receiver's rows of what it lacks.

        Noise of a fixed size comes last, at the scale of answers; the other before rescaling.
        """
        amplified = list(products)
        for factor in (*lengths, *([] if self.correction is None else [self.correction])):
            if self.lacks.any():
                noise = noise_flooding.drown_rows(self.packing, self.lacks)
                amplified = [
                    self._amplified(part, factor, slots) for part, slots in zip(amplified, noise, strict=True)
                ]
        return self._noisy([self.circuit.rescale(part) for part in amplified])

    def denominator(self, product: Ciphertext, lengths: Parts) -> Ciphertext:
        """Return the same of what stands in all slots of a class, which all get the same noise."""
        for factor in lengths:
            noise = noise_flooding.drown_replicated(self.packing, self.lacks)
            product = self._amplified(product, factor, noise)
        noise = noise_flooding.drown_replicated(self.packing, self.lacks)
        return self.circuit.add_values(self.circuit.rescale(product), noise)

    def _amplified(self, product: Ciphertext, factor: Ciphertext, noise: Float | Complex) -> Ciphertext:
        """Return product + AMPLIFIED·noise·factor, where what the receiver sent stands in the factor."""
        scale = product.scale / factor.scale
        return self.circuit.add(
            product, self.circuit.multiply_values(factor, noise_flooding.AMPLIFIED * noise, scale)
        )

    def _noisy(self, parts: Parts) -> list[Ciphertext]:
        noise = noise_flooding.drown_rows(self.packing, self.lacks)
        return [self.circuit.add_values(part, slots) for part, slots in zip(parts, noise, strict=True)]
