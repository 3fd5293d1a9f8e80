"""Who an answer is for: how the slots of classes that a site does not hold are drowned in it.

Where presence is public the coordinator knows the classes. Where it is hidden it multiplies noise by what the site sent
of its absences, encrypted, so that it need not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from crypto.ckks import drowning
from crypto.ckks.circuit import IMAGINARY_UNIT, Circuit, Parts
from crypto.ckks.hidden import ABSENCE, COUNT_SCALE
from crypto.ckks.packing import Complex, Float, Packing
from crypto.ckks.parameters import SCALE, Ciphertext, Level, dropped_prime


class Receiver(Protocol):
    """One site's side of an answer."""

    @property
    def lacks(self) -> NDArray[np.bool_]:
        """The classes (K,) that it is known to lack, of which its row's lengths are needed."""
        ...

    @property
    def correction(self) -> Ciphertext | None:
        """What absent sites added to Σ_m d_im, for ``complement``."""
        ...

    def sums(self, parts: Parts) -> list[Ciphertext]:
        """Bare sums, from the level of products to that of answers."""
        ...

    def numerators(self, products: Parts, lengths: Parts, /) -> list[Ciphertext]:
        """Return products of two polynomials, rescaled. ``lengths`` grow with the receiver's rows of what it lacks."""
        ...

    def denominator(self, product: Ciphertext, lengths: Parts, /) -> Ciphertext:
        """Return the same of what stands in all slots of a class."""
        ...

    def counts(self) -> list[Ciphertext]:
        """What comes after all that."""
        ...


@dataclass(frozen=True)
class KnownClasses:
    """A site that told which classes it holds: those that are ``drowned`` (K,) are noise.

    It may have sent anything of these: noise is multiplied by what it sent, and added to noise of a fixed size.
    """

    circuit: Circuit
    packing: Packing
    drowned: NDArray[np.bool_]
    correction: Ciphertext | None

    @property
    def lacks(self) -> NDArray[np.bool_]:
        """See :class:`Receiver`, here and below."""
        return self.drowned

    def sums(self, parts: Parts) -> list[Ciphertext]:
        """Nothing that the receiver sent is in them: its own row is subtracted as it came."""
        return self._noisy([self.circuit.lower(part, Level.ANSWER) for part in parts])

    def numerators(self, products: Parts, lengths: Parts) -> list[Ciphertext]:
        """Noise of a fixed size comes last, at the scale of answers; the other before rescaling."""
        amplified = list(products)
        for factor in (*lengths, *([] if self.correction is None else [self.correction])):
            if self.drowned.any():
                noise = drowning.drown_rows(self.packing, self.drowned)
                amplified = [
                    self._amplified(part, factor, slots) for part, slots in zip(amplified, noise, strict=True)
                ]
        return self._noisy([self.circuit.rescale(part) for part in amplified])

    def denominator(self, product: Ciphertext, lengths: Parts) -> Ciphertext:
        """All slots of a class get the same noise."""
        for factor in lengths:
            noise = drowning.drown_replicated(self.packing, self.drowned)
            product = self._amplified(product, factor, noise)
        noise = drowning.drown_replicated(self.packing, self.drowned)
        return self.circuit.add_values(self.circuit.rescale(product), noise)

    def counts(self) -> list[Ciphertext]:
        """None: everyone can count."""
        return []

    def _amplified(self, product: Ciphertext, factor: Ciphertext, noise: Float | Complex) -> Ciphertext:
        """product + AMPLIFIED·noise·factor, where what the receiver sent stands in the factor."""
        scale = product.scale / factor.scale
        return self.circuit.add(
            product, self.circuit.multiply_values(factor, drowning.AMPLIFIED * noise, scale)
        )

    def _noisy(self, parts: Parts) -> list[Ciphertext]:
        noise = drowning.drown_rows(self.packing, self.drowned)
        return [self.circuit.add_values(part, slots) for part, slots in zip(parts, noise, strict=True)]


@dataclass(frozen=True)
class Absences:
    """Sums over all sites: of their absences, and for ``complement`` of what they sent of norms and absences."""

    absent: Ciphertext
    norms: Ciphertext | None

    @classmethod
    def of(cls, circuit: Circuit, absent: Sequence[Ciphertext], norms: Sequence[Ciphertext]) -> Absences:
        """From what each site sent; ``norms`` may be empty."""
        return cls(circuit.add_all(absent), circuit.add_all(norms) if norms else None)


@dataclass(frozen=True)
class UnknownClasses:
    """A site that told nobody: ``absent`` are its encrypted absences, ``norms`` its norms for ``complement``.

    ``drowned`` (K,) are the classes that are noise if the site lacks them: all of them.
    """

    circuit: Circuit
    packing: Packing
    drowned: NDArray[np.bool_]
    absent: Ciphertext
    norms: Ciphertext | None
    everyone: Absences

    @property
    def lacks(self) -> NDArray[np.bool_]:
        """See :class:`Receiver`, here and below. Nobody knows."""
        return np.zeros_like(self.drowned)

    @property
    def correction(self) -> Ciphertext | None:
        """A·‖C_i‖² where the site holds the class; what is there elsewhere is drowned in what comes of it."""
        if self.norms is None or self.everyone.norms is None:
            return None
        circuit = self.circuit
        product = circuit.rescale(circuit.multiply(self.norms, self.everyone.norms))
        product = circuit.relinearise(product)
        twice = circuit.subtract(product, circuit.conjugate(product))
        imaginary = circuit.multiply_by_monomial(twice, -IMAGINARY_UNIT)
        imaginary.scale *= 2.0
        return imaginary

    def sums(self, parts: Parts) -> list[Ciphertext]:
        """Bare sums and noise at their scale."""
        scale = SCALE * dropped_prime(Level.PRODUCT)
        noise = [self.circuit.rescale(self._noise(slots, scale)) for slots in self._rows()]
        low = [self.circuit.lower(part, Level.ANSWER) for part in parts]
        return [self.circuit.add(part, each) for part, each in zip(low, noise, strict=True)]

    def numerators(self, products: Parts, _lengths: Parts = (), /) -> list[Ciphertext]:
        """Noise comes before rescaling, which has to be done once.

        No noise is multiplied by the receiver's row: a site that lies about a class says that it has it.
        """
        pairs = zip(products, self._rows(), strict=True)
        return [self._noisy(part, slots) for part, slots in pairs]

    def denominator(self, product: Ciphertext, _lengths: Parts = (), /) -> Ciphertext:
        """All slots of a class get the same noise."""
        return self._noisy(product, drowning.drown_replicated(self.packing, self.drowned))

    def counts(self) -> list[Ciphertext]:
        """In how many sites each class is absent, of those classes that the receiver holds."""
        return [self.denominator(self.circuit.scale_up(self.everyone.absent, COUNT_SCALE))]

    def _rows(self) -> Iterable[Complex]:
        return drowning.drown_rows(self.packing, self.drowned)

    def _noisy(self, product: Ciphertext, slots: Float | Complex) -> Ciphertext:
        noise = self._noise(slots, product.scale)
        return self.circuit.rescale(self.circuit.add(product, noise))

    def _noise(self, slots: Float | Complex, scale: float) -> Ciphertext:
        """slots·a_i at a scale."""
        return self.circuit.multiply_values(self.absent, slots, scale / ABSENCE.scale)
