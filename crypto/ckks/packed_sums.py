"""Sums over the slots of many ciphertexts at once, with about two key switches per sum instead of one per doubling.

A sum over a class's slots is a trace, which lies in a subring with few coefficients, and the monomials X^e shift such
sums beside each other (Chen, Dai, Kim, Song 2021, eprint 2020/015, who pack and so save a rotation for each).

    pack    t_e = a + X^e·b, whose rotation g with g(X^e) = −X^e takes one step of the sum for both:
            (a + X^e·b) + g(a − X^e·b) = (a + g(a)) + X^e·(b + g(b))
    sum     the remaining rotations, once for all packed ciphertexts
    unpack  the same rotations, backwards: y + g(y) = 2·a,  X^-e·(y − g(y)) = 2·b

The summands are real in every slot, so that two fit in one ciphertext as a + i·b, which is relinearised, rescaled and
rotated once. The conjugate separates the two at the end. **Until then a ciphertext has other sites' sums beside a
site's own**, and no such ciphertext may be returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from crypto.ckks.circuit import IMAGINARY_UNIT, Circuit
from crypto.ckks.packing import Packing
from crypto.ckks.parameters import DOUBLINGS, POLY_DEGREE, Ciphertext

Product = Callable[[], Ciphertext]
"""Function that computes a product of three polynomials, real in every slot, when the product is needed."""

_DOUBLED = 2.0**DOUBLINGS


class PackedSums:
    """Summation over the slots of each class, with the result in all of the class's slots."""

    def __init__(self, circuit: Circuit, packing: Packing) -> None:
        self._circuit, self._rotations = circuit, packing.rotations
        self._levels = min(DOUBLINGS - 1, len(self._rotations))

    def sums(self, products: Sequence[Product]) -> Iterator[Ciphertext]:
        """Yield each product's sum, in order, lowered from level 3 to level 2, the scale 2^DOUBLINGS times as large.

        At most ``2·DOUBLINGS`` intermediate ciphertexts are in memory at a time.
        """
        size = 2 << self._levels
        for start in range(0, len(products), size):
            some = products[start : start + size]
            yield from self._unpacked(self._summed(some), len(some), self._levels)

    def _summed(self, products: Sequence[Product]) -> Ciphertext:
        total = self._packed(products, self._levels)
        for step in self._rotations[self._levels :]:
            total = self._circuit.add(total, self._circuit.rotate(total, step))
        for _ in range(DOUBLINGS - 1 - self._levels):
            total = self._circuit.add(total, total)
        return total

    def _packed(self, products: Sequence[Product], levels: int) -> Ciphertext:
        """Pack up to 2^(levels + 1) products into one ciphertext, which takes ``levels`` steps of the sum."""
        if levels == 0:
            return self._couple(*products)
        circuit, half = self._circuit, 1 << levels
        step, exponent = self._shift(levels)
        left = right = self._packed(products[:half], levels - 1)
        if len(products) > half:
            shifted = circuit.multiply_by_monomial(self._packed(products[half:], levels - 1), exponent)
            left, right = circuit.add(left, shifted), circuit.subtract(left, shifted)
        return circuit.add(left, circuit.rotate(right, step))

    def _couple(self, first: Product, second: Product | None = None) -> Ciphertext:
        """Return one real product, or two as real and imaginary part, in two polynomials."""
        circuit, total = self._circuit, first()
        if second:
            circuit.add_to(total, circuit.multiply_by_monomial(second(), IMAGINARY_UNIT))
        # Rescaling three polynomials first makes the key switch a third cheaper; its error, 2^-50, then counts.
        couple = circuit.relinearise(circuit.rescale(total))
        couple.scale *= _DOUBLED
        return couple

    def _unpacked(self, packed: Ciphertext, count: int, levels: int) -> Iterator[Ciphertext]:
        """Yield the ``count`` sums in a ciphertext, each 2^(levels + 1) times as large."""
        half = 1 << levels
        if count <= half:
            doubled = self._circuit.add(packed, packed)
            yield from self._unpacked(doubled, count, levels - 1) if levels else (doubled,)
            return
        left, right = self._halves(packed, levels)
        if levels == 0:
            yield from (left, right)
            return
        yield from self._unpacked(left, half, levels - 1)
        yield from self._unpacked(right, count - half, levels - 1)

    def _halves(self, packed: Ciphertext, levels: int) -> tuple[Ciphertext, Ciphertext]:
        """Separate both halves of the sums by an operation that only changes the sign of the second half."""
        circuit = self._circuit
        if levels == 0:
            flipped, exponent = circuit.conjugate(packed), IMAGINARY_UNIT
        else:
            step, exponent = self._shift(levels)
            flipped = circuit.rotate(packed, step)
        shifted = circuit.subtract(packed, flipped)
        return circuit.add(packed, flipped), circuit.multiply_by_monomial(shifted, -exponent)

    def _shift(self, levels: int) -> tuple[int, int]:
        """Return a rotation's step s, and the exponent e for which the rotation maps X^e to −X^e.

        3^s = 1 + 4s·(an odd number) for powers of two s ≥ 2, so that e = N/4s. The rotation leaves X^e of smaller s
        unchanged.
        """
        step = self._rotations[levels - 1]
        return step, POLY_DEGREE // (4 * step)
