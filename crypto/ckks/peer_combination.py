"""Combination of a site's peers on ciphertexts: Σ_m d_im·C_m and Σ_m d_im, with d_im = ‖C_i − C_m‖² for each class.

Each distance is used for both of its sites and dropped, so that memory grows with the number of sites, not of pairs.

:class:`PackedSums` sums over the slots of many ciphertexts at once, with about two key switches per sum instead of one
per doubling. A sum over a class's slots is a trace, which lies in a subring with few coefficients, and the monomials
X^e shift such sums beside each other (Chen, Dai, Kim, Song 2021, eprint 2020/015, who pack and so save a rotation for
each).

    pack    t_e = a + X^e·b, whose rotation g with g(X^e) = −X^e takes one step of the sum for both:
            (a + X^e·b) + g(a − X^e·b) = (a + g(a)) + X^e·(b + g(b))
    sum     the remaining rotations, once for all packed ciphertexts
    unpack  the same rotations, backwards: y + g(y) = 2·a,  X^-e·(y − g(y)) = 2·b

The summands are real in every slot, so that two fit in one ciphertext as a + i·b, which is relinearised, rescaled and
rotated once. The conjugate separates the two at the end. **Until then a ciphertext has other sites' sums beside a
site's own**, and no such ciphertext may be returned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from crypto.ckks import noise_flooding
from crypto.ckks.circuit import IMAGINARY_UNIT, Ciphertexts, Circuit
from crypto.ckks.noise_flooding import Receiver
from crypto.ckks.packing import Complex, Packing
from crypto.ckks.parameters import DOUBLINGS, POLY_DEGREE, SCALE, UNIT_SCALE, Ciphertext, CkksLevel
from crypto.protection import Combination

Product = Callable[[], Ciphertext]
"""Function that computes a product of three polynomials, real in every slot, when the product is needed."""

_DOUBLED = 2.0**DOUBLINGS


class PackedSums:
    """Summation over the slots of each class, with the result in all of the class's slots."""

    def __init__(self, circuit: Circuit, packing: Packing) -> None:
        self._circuit = circuit
        self._rotations = packing.rotations
        self._levels = min(DOUBLINGS - 1, len(self._rotations))

    def sums(self, products: Sequence[Product]) -> Iterator[Ciphertext]:
        """Yield each product's sum, in order, lowered from level 3 to level 2, the scale 2^DOUBLINGS times as large.

        At most ``2·DOUBLINGS`` intermediate ciphertexts are in memory at a time.
        """
        size = 2 << self._levels
        for start in range(0, len(products), size):
            some = products[start : start + size]
            yield from self._unpack(self._sum_packed(some), len(some), self._levels)

    def _sum_packed(self, products: Sequence[Product]) -> Ciphertext:
        total = self._pack(products, self._levels)
        # Packing took the first ``levels`` steps of each sum; these are the others, for all sums at once.
        for step in self._rotations[self._levels :]:
            total = self._circuit.add(total, self._circuit.rotate(total, step))
        # Unpacking doubles once per level. Where there are fewer levels the sum is doubled here, so that the factor is
        # 2^DOUBLINGS everywhere and is covered by the scale.
        for _ in range(DOUBLINGS - 1 - self._levels):
            total = self._circuit.add(total, total)
        return total

    def _pack(self, products: Sequence[Product], levels: int) -> Ciphertext:
        """Pack up to 2^(levels + 1) products into one ciphertext, which takes ``levels`` steps of the sum."""
        if levels == 0:
            return self._couple(*products)
        circuit, half = self._circuit, 1 << levels
        step, exponent = self._shift(levels)
        # a + X^e·b and a − X^e·b: the rotation turns the sign of X^e, so both summands take their step of the sum.
        left = right = self._pack(products[:half], levels - 1)
        if len(products) > half:
            shifted = circuit.multiply_by_monomial(self._pack(products[half:], levels - 1), exponent)
            left, right = circuit.add(left, shifted), circuit.subtract(left, shifted)
        return circuit.add(left, circuit.rotate(right, step))

    def _couple(self, first: Product, second: Product | None = None) -> Ciphertext:
        """Return one real product, or two as real and imaginary part, in two polynomials."""
        circuit, total = self._circuit, first()
        if second:
            circuit.add_to(total, circuit.multiply_by_monomial(second(), IMAGINARY_UNIT))
        # Rescaling three polynomials first makes the key switch a third cheaper; its error, 2^-50, then counts.
        couple = circuit.relinearise(circuit.rescale(total))
        # Unpacking will double the values; a scale 2^DOUBLINGS times as large divides them by as much.
        couple.scale *= _DOUBLED
        return couple

    def _unpack(self, packed: Ciphertext, count: int, levels: int) -> Iterator[Ciphertext]:
        """Yield the ``count`` sums in a ciphertext, each 2^(levels + 1) times as large."""
        half = 1 << levels
        if count <= half:
            doubled = self._circuit.add(packed, packed)
            yield from self._unpack(doubled, count, levels - 1) if levels else (doubled,)
            return
        left, right = self._halves(packed, levels)
        if levels == 0:
            yield from (left, right)
            return
        yield from self._unpack(left, half, levels - 1)
        yield from self._unpack(right, count - half, levels - 1)

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


Pair = tuple[int, int]
Bool = NDArray[np.bool_]


def needs_distances(combination: Combination) -> bool:
    """Return True if the combination needs distances."""
    return combination is not Combination.UNIFORM


def needs_bare_sum(combination: Combination) -> bool:
    """Return True if the combination needs the bare sum of all sites' prototypes."""
    return combination is not Combination.DISTANCE


@dataclass(frozen=True)
class Site:
    """Prototypes of one site: as uploaded, the conjugate of each part, and at the level of products."""

    high: Ciphertexts
    conjugates: Ciphertexts
    low: Ciphertexts


class Combining:
    """Arithmetic of one combination and layout."""

    def __init__(self, circuit: Circuit, combination: Combination, packing: Packing) -> None:
        self._circuit = circuit
        self._combination = combination
        self._packing = packing

    def answers(
        self, prototypes: Sequence[Ciphertexts], receivers: Sequence[Receiver]
    ) -> Iterator[list[Ciphertext]]:
        """Yield each site's answer, from the prototypes of all sites."""
        sums: dict[int, list[Ciphertext]] = {}
        lengths: dict[int, list[Ciphertext]] = {}
        if needs_distances(self._combination):
            sites = {i: self.prepare(parts) for i, parts in enumerate(prototypes)}
            sums = self.weighted_sums(list(combinations(sites, 2)), sites)
            lengths = self.lengths(sites, {i: receiver.lacks for i, receiver in enumerate(receivers)})
            low = [site.low for site in sites.values()]
            del sites
        else:
            low = [self.lower(parts) for parts in prototypes]
        total = self.sum(low) if needs_bare_sum(self._combination) else []
        for i, prototypes_i in enumerate(low):
            # Σ_{m≠i} C_m: the receiver's row is subtracted as it was sent, so its own upload cancels.
            peers = self.less(total, prototypes_i) if total else []
            yield self.answer(sums.pop(i, []), peers, receivers[i], lengths.pop(i, []))

    def sum(self, vectors: Iterable[Ciphertexts]) -> list[Ciphertext]:
        """Add vectors part by part; without vectors there are no parts."""
        total: list[Ciphertext] = []
        for parts in vectors:
            total = (
                [self._circuit.add(x, y) for x, y in zip(total, parts, strict=True)] if total else [*parts]
            )
        return total

    def less(self, total: Ciphertexts, term: Ciphertexts) -> list[Ciphertext]:
        """Return total − term, part by part."""
        return [self._circuit.subtract(x, y) for x, y in zip(total, term, strict=True)]

    def prepare(self, parts: Ciphertexts) -> Site:
        """Prepare a site's prototypes for :meth:`weighted_sums`, with one key switch for each part."""
        return Site(parts, [self._circuit.conjugate(part) for part in parts], self.lower(parts))

    def lower(self, parts: Ciphertexts) -> list[Ciphertext]:
        """Lower prototypes to the level of products."""
        return [self._circuit.lower(part, CkksLevel.PRODUCT) for part in parts]

    def weighted_sums(self, pairs: Sequence[Pair], sites: Mapping[int, Site]) -> dict[int, list[Ciphertext]]:
        """Return for each site of the pairs {i, m} Σ_m d_im·C_m part by part (three polynomials), then Σ_m d_im."""
        products = [partial(self._squares, sites[i], sites[m]) for i, m in pairs]
        sums: dict[int, list[Ciphertext]] = {}
        distances = PackedSums(self._circuit, self._packing).sums(products)
        for (i, m), distance in zip(pairs, distances, strict=True):
            # d_im = d_mi: one distance, the costly part, serves both of its sites and is then dropped.
            for receiver, peer in ((i, m), (m, i)):
                terms = [self._circuit.multiply(distance, part) for part in sites[peer].low]
                if receiver in sums:
                    for total, term in zip(sums[receiver], [*terms, distance], strict=True):
                        self._circuit.add_to(total, term)
                else:  # copy the distance, which two receivers use
                    sums[receiver] = [*terms, self._circuit.lower(distance, CkksLevel.PRODUCT)]
        return sums

    def lengths(self, sites: Mapping[int, Site], lacks: Mapping[int, Bool]) -> dict[int, list[Ciphertext]]:
        """Return for each site that ``lacks`` classes (K,) two ciphertexts that grow with its rows of these classes.

        The first is ‖C_i‖², the second 2⟨C_i, W⟩ with a fresh random W, which is 0 only if C_i is. Each class has its
        value in all of its slots, at the level and scale of distances.
        """
        lacking = {i: classes for i, classes in lacks.items() if classes.any()}
        products: list[Product] = []
        for i, classes in lacking.items():
            # Drawn anew for each answer and never sent: a receiver that knew W could send a row orthogonal to it.
            drawn = noise_flooding.random_rows(self._packing, classes)
            products += [partial(self._square, sites[i]), partial(self._project, sites[i], drawn)]
        sums = PackedSums(self._circuit, self._packing).sums(products)
        return {i: [next(sums), next(sums)] for i in lacking}

    def answer(
        self,
        sums: Sequence[Ciphertext],
        peers: Ciphertexts,
        receiver: Receiver,
        lengths: Ciphertexts,
    ) -> list[Ciphertext]:
        """Return one site's answer, from its weighted sums and Σ_{m≠i} C_m, as far as the combination needs them.

        ``lengths`` are the receiver's of :meth:`lengths`, if it lacks a class. Classes that the receiver lacks have
        noise; the others have the values that :mod:`crypto.ckks.site` reads, and nothing else.
        """
        circuit = self._circuit
        if self._combination is Combination.UNIFORM:
            return receiver.sums(peers)
        *products, total = sums
        correction = receiver.correction
        if correction is not None:
            products = self._complement(products, total, peers, correction)
        # Relinearise once per answer, not per pair: sums of products keep three polynomials until here.
        numerators = receiver.numerators([circuit.relinearise(part) for part in products], lengths)
        denominator = receiver.denominator(circuit.scale_up(total, UNIT_SCALE), lengths)
        return [*numerators, denominator]

    def _squares(self, left: Site, right: Site) -> Ciphertext:
        """Return (x − y)·conj(x − y), real in each slot; three polynomials.

        Differences are used, not inner products: an error that a key switch adds to all ciphertexts alike cancels,
        and near-equal prototypes lose no precision to cancellation.
        """
        circuit, differences = self._circuit, []
        for side in ("high", "conjugates"):
            parts = zip(getattr(left, side), getattr(right, side), strict=True)
            differences.append([circuit.subtract(x, y) for x, y in parts])
        return circuit.add_all([circuit.multiply(z, c) for z, c in zip(*differences, strict=True)])

    def _square(self, site: Site) -> Ciphertext:
        """Return x·conj(x), real in each slot; three polynomials."""
        pairs = zip(site.high, site.conjugates, strict=True)
        return self._circuit.add_all([self._circuit.multiply(x, c) for x, c in pairs])

    def _project(self, site: Site, drawn: Sequence[Complex]) -> Ciphertext:
        """Return x·conj(w) + conj(x)·w, real in each slot; two polynomials."""
        circuit, terms = self._circuit, []
        for x, conjugate, w in zip(site.high, site.conjugates, drawn, strict=True):
            terms.append(circuit.multiply_values(x, w.conj(), SCALE))
            terms.append(circuit.multiply_values(conjugate, w, SCALE))
        return circuit.add_all(terms)

    def _complement(
        self, products: Ciphertexts, total: Ciphertext, peers: Ciphertexts, correction: Ciphertext
    ) -> list[Ciphertext]:
        """Return (den − corr)·Σ_{m≠i} C_m − Σ_m d_im·C_m; a bare sum would reveal both peers among three holders."""
        circuit = self._circuit
        distance = circuit.subtract(total, correction)
        return [
            circuit.subtract(circuit.multiply(distance, peer), product)
            for peer, product in zip(peers, products, strict=True)
        ]
