"""Combination of a site's peers on ciphertexts: Σ_m d_im·C_m and Σ_m d_im, with d_im = ‖C_i − C_m‖² for each class.

Each distance is used for both of its sites and dropped, so that memory grows with the number of sites, not of pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from crypto.ckks import noise_flooding
from crypto.ckks.circuit import Ciphertexts, Circuit
from crypto.ckks.noise_flooding import Receiver
from crypto.ckks.packed_sums import PackedSums, Product
from crypto.ckks.packing import Complex, Packing
from crypto.ckks.parameters import SCALE, UNIT_SCALE, Ciphertext, CkksLevel
from crypto.protection import Combination

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
                    self._add_to(sums[receiver], [*terms, distance])
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
            drawn = noise_flooding.random_rows(self._packing, classes)
            products += [partial(self._square, sites[i]), partial(self._projected, sites[i], drawn)]
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

    def _projected(self, site: Site, drawn: Sequence[Complex]) -> Ciphertext:
        """Return x·conj(w) + conj(x)·w, real in each slot; two polynomials."""
        circuit, terms = self._circuit, []
        for x, conjugate, w in zip(site.high, site.conjugates, drawn, strict=True):
            terms.append(circuit.multiply_values(x, w.conj(), SCALE))
            terms.append(circuit.multiply_values(conjugate, w, SCALE))
        return circuit.add_all(terms)

    def _add_to(self, sums: Ciphertexts, terms: Ciphertexts) -> None:
        for total, term in zip(sums, terms, strict=True):
            self._circuit.add_to(total, term)

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
