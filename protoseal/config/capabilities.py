"""What is in this version, what is refused by name, and which protection can serve which method."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator

from algorithms.pfpl import Weighting, served_by
from crypto.protection import Offer
from protoseal.config.reading import nearest


class Method(StrEnum):
    """How sites learn from each other."""

    PFPL = "pfpl"
    """Personalised prototypes, weighted by distance."""
    LOCAL = "local"
    """Control: each site trains alone."""
    SELF = "self"
    """Control: each site is aligned with its own prototypes alone, with the same budget as ``pfpl``."""


class Protection(StrEnum):
    """How prototypes are kept from the coordinator."""

    PLAIN = "plain"
    """Not at all: the coordinator sees every site's prototypes."""
    CKKS = "ckks"
    """The coordinator computes on ciphertexts and sees no values, inner products or sample counts."""


class Presence(StrEnum):
    """Who learns which site has which class."""

    PUBLIC = "public"
    """The coordinator and every site of the run."""


CONTROLS = frozenset({Method.LOCAL, Method.SELF})
BUILT_IN_MODELS = ("small-cnn", "resnet18")

OFFERS = {Protection.PLAIN: frozenset({Offer.GRAM}), Protection.CKKS: frozenset({Offer.DISTANCE_WEIGHTS})}
"""What the coordinator's half of each protection can compute."""

_LATER = "is not in this version"
LATER_METHODS = dict.fromkeys(
    (
        *("fedpc", "feddbp", "fedplcc"),
        *("fedavg", "fedprox", "fedproto", "fedbn", "fedper", "fedrep", "ditto", "fpl", "fedplvm"),
    ),
    _LATER,
)
LATER_PROTECTIONS = {"masked": _LATER, "pairwise": _LATER, "rotation": _LATER}
LATER_PRESENCES = {
    "hidden": f"{_LATER}: it needs differential privacy, or the returned counts would give presence away",
}


def known_name(value: object, kind: str, known: type[StrEnum], later: Mapping[str, str]) -> object:
    """The value unchanged if it is one of ``known`` (or no text at all: its type is checked elsewhere).

    Raises ``ValueError`` with the reason for a name of a later version, and the nearest known name for any
    other.
    """
    names = [member.value for member in known]
    if not isinstance(value, str) or value in names:
        return value
    if value.lower() in later:
        raise ValueError(f"{kind} {value!r} {later[value.lower()]}; choose {' or '.join(names)}")
    raise ValueError(f"unknown {kind} {value!r}{nearest(value, names)}")


KnownMethod = Annotated[
    Method, BeforeValidator(lambda value: known_name(value, "method", Method, LATER_METHODS))
]
KnownProtection = Annotated[
    Protection, BeforeValidator(lambda value: known_name(value, "protection", Protection, LATER_PROTECTIONS))
]
KnownPresence = Annotated[
    Presence, BeforeValidator(lambda value: known_name(value, "presence", Presence, LATER_PRESENCES))
]


def check_protection_serves(
    method: Method, weighting: Weighting, squared: bool, protection: Protection
) -> None:
    """Raise ``ValueError``, naming both sides, unless the protection can compute what the method needs."""
    if method in CONTROLS:
        return
    needs = served_by(weighting, squared=squared)
    offers = OFFERS[protection]
    if {str(need) for need in needs}.isdisjoint({str(offer) for offer in offers}):
        form = weighting.value if squared else f"{weighting.value}, unsquared"
        raise ValueError(
            f"method {method.value} with weighting {form!r} needs {_names(needs)}, and protection"
            f" {protection.value!r} offers {_names(offers)}; choose weighting 'complement', 'distance' or"
            " 'uniform', squared, or protection 'plain'"
        )


def _names(names: frozenset[StrEnum] | frozenset[Offer]) -> str:
    return " or ".join(sorted(repr(str(name)) for name in names))
