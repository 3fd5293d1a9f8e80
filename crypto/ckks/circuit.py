"""The arithmetic on ciphertexts, one method a step. It holds public keys only.

Vectors that need several ciphertexts are lists of parts. No method changes its arguments: SEAL's ciphertexts
cannot be copied, and a sum may be shared by two receivers.
"""

from __future__ import annotations

from collections.abc import Sequence

from tenseal import sealapi

from crypto.ckks.evaluation_keys import LoadedKeys
from crypto.ckks.packing import Float
from crypto.ckks.parameters import Ciphertext, Level, context, level_id

Parts = Sequence[Ciphertext]


class Circuit:
    """Evaluates on ciphertexts with one group's public keys."""

    def __init__(self, keys: LoadedKeys) -> None:
        self._keys = keys
        self._evaluator = sealapi.Evaluator(context())
        self._encoder = sealapi.CKKSEncoder(context())

    def squared_distance(self, left: Parts, right: Parts, rotations: Sequence[int]) -> Ciphertext:
        """‖x − y‖² for each class, in all of its slots; from level 3 to level 2.

        The parts' squares are added before the one relinearisation, so its cost does not grow with d.
        """
        squares = [self.square(self.subtract(x, y)) for x, y in zip(left, right, strict=True)]
        total = self.rescale(self.relinearise(self.add_all(squares)))
        for step in rotations:
            total = self.add(total, self.rotate(total, step))
        return total

    def add(self, left: Ciphertext, right: Ciphertext) -> Ciphertext:
        """x + y."""
        result = sealapi.Ciphertext()
        self._evaluator.add(left, right, result)
        return result

    def add_all(self, terms: Sequence[Ciphertext]) -> Ciphertext:
        """The sum of at least one ciphertext."""
        result = sealapi.Ciphertext()
        self._evaluator.add_many(list(terms), result)
        return result

    def add_values(self, ciphertext: Ciphertext, slots: Float) -> Ciphertext:
        """x + slots, with the vector (4096,) encoded at the ciphertext's own level and scale."""
        plaintext = sealapi.Plaintext()
        self._encoder.encode(slots.tolist(), ciphertext.parms_id(), ciphertext.scale, plaintext)
        result = sealapi.Ciphertext()
        self._evaluator.add_plain(ciphertext, plaintext, result)
        return result

    def subtract(self, left: Ciphertext, right: Ciphertext) -> Ciphertext:
        """x − y."""
        result = sealapi.Ciphertext()
        self._evaluator.sub(left, right, result)
        return result

    def square(self, ciphertext: Ciphertext) -> Ciphertext:
        """x², slot by slot, three polynomials long."""
        result = sealapi.Ciphertext()
        self._evaluator.square(ciphertext, result)
        return result

    def multiply(self, left: Ciphertext, right: Ciphertext) -> Ciphertext:
        """x·y, slot by slot, three polynomials long."""
        result = sealapi.Ciphertext()
        self._evaluator.multiply(left, right, result)
        return result

    def relinearise(self, ciphertext: Ciphertext) -> Ciphertext:
        """Back to two polynomials."""
        result = sealapi.Ciphertext()
        self._evaluator.relinearize(ciphertext, self._keys.relinearisation, result)
        return result

    def rescale(self, ciphertext: Ciphertext) -> Ciphertext:
        """One level down, the scale divided by the prime that is dropped."""
        result = sealapi.Ciphertext()
        self._evaluator.rescale_to_next(ciphertext, result)
        return result

    def rotate(self, ciphertext: Ciphertext, step: int) -> Ciphertext:
        """Slots shifted by a power of two."""
        result = sealapi.Ciphertext()
        self._evaluator.rotate_vector(ciphertext, step, self._keys.rotation, result)
        return result

    def lower(self, ciphertext: Ciphertext, level: Level) -> Ciphertext:
        """The same values at the same scale, with fewer primes."""
        result = sealapi.Ciphertext()
        self._evaluator.mod_switch_to(ciphertext, level_id(level), result)
        return result
