"""The built-in protections, and what the coordinator can compute under each."""

from __future__ import annotations

from enum import StrEnum

from crypto.protection import Offer


class Protection(StrEnum):
    """How prototypes are kept from the coordinator."""

    PLAIN = "plain"
    """Not at all: the coordinator sees every site's prototypes."""
    MASKED = "masked"
    """Vectors turned by a secret rotation, of which the coordinator sees the inner products; sums under pairwise
    masks, of which it sees the sum."""
    CKKS = "ckks"
    """The coordinator computes on ciphertexts and sees no values or sample counts; inner products of turned vectors
    where a method clusters."""


_OF_ALL = (Offer.SUM, Offer.CLUSTERING, Offer.COSINE_WEIGHTS)
OFFERS = {
    Protection.PLAIN: frozenset({Offer.GRAM, *_OF_ALL}),
    Protection.MASKED: frozenset({Offer.GRAM, *_OF_ALL}),
    Protection.CKKS: frozenset({Offer.DISTANCE_WEIGHTS, *_OF_ALL}),
}
"""What the coordinator's half of each protection can compute."""
