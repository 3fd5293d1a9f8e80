"""What is in this version, what is refused by name, and which protection can serve which method."""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import StrEnum
from typing import Annotated, assert_never

from pydantic import BeforeValidator

from algorithms.linear import Need
from algorithms.pfpl import Weighting, served_by
from crypto.protection import Offer
from protoseal.config.reading import nearest


class Method(StrEnum):
    """How sites learn from each other."""

    PFPL = "pfpl"
    """Personalised prototypes, weighted by distance."""
    FEDPC = "fedpc"
    """Sites grouped by their prototypes; extractor and prototypes averaged within groups and between them."""
    AVERAGE = "average"
    """Control: ``fedpc`` with one group and no alignment, so that the extractor is plainly averaged."""
    LOCAL = "local"
    """Control: each site trains alone."""
    SELF = "self"
    """Control: each site is aligned with its own prototypes alone, with the same budget as ``pfpl``."""

    @property
    def is_grouped(self) -> bool:
        """Whether sites are grouped before training, and prototypes and extractors averaged in each group."""
        match self:
            case Method.FEDPC | Method.AVERAGE:
                return True
            case Method.PFPL | Method.LOCAL | Method.SELF:
                return False
            case _:
                assert_never(self)


class Protection(StrEnum):
    """How prototypes are kept from the coordinator."""

    PLAIN = "plain"
    """Not at all: the coordinator sees every site's prototypes."""
    MASKED = "masked"
    """Vectors turned by a secret rotation, of which the coordinator sees the inner products; sums under pairwise
    masks, of which it sees the sum."""
    CKKS = "ckks"
    """The coordinator computes on ciphertexts and sees no values, inner products or sample counts."""


class Presence(StrEnum):
    """Who learns which site has which class."""

    PUBLIC = "public"
    """The coordinator and every site of the run."""


CONTROLS = frozenset({Method.LOCAL, Method.SELF})
"""What a site does alone, without a federation."""
SIMULATED = CONTROLS | {Method.AVERAGE}
"""What only a simulation runs."""
BUILT_IN_MODELS = ("small-cnn", "fedpc-cnn", "resnet18")

OFFERS = {
    Protection.PLAIN: frozenset({Offer.GRAM, Offer.SUM}),
    Protection.MASKED: frozenset({Offer.GRAM, Offer.SUM}),
    Protection.CKKS: frozenset({Offer.DISTANCE_WEIGHTS}),
}
"""What the coordinator's half of each protection can compute."""
FEDPC_NEEDS = frozenset({Need.GRAM, Need.SUM})
"""Inner products for the clustering, sums for the groups."""

_LATER = "is not in this version"
LATER_METHODS = dict.fromkeys(
    (
        *("feddbp", "fedplcc"),
        *("fedavg", "fedprox", "fedproto", "fedbn", "fedper", "fedrep", "ditto", "fpl", "fedplvm"),
    ),
    _LATER,
)
_PART_OF_MASKED = "is a part of 'masked', which uses it where the method needs it"
LATER_PROTECTIONS = {"pairwise": _PART_OF_MASKED, "rotation": _PART_OF_MASKED}
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
    match method:
        case Method.LOCAL | Method.SELF:
            return
        case Method.PFPL:
            _check_pfpl_served(weighting, squared, protection)
        case Method.FEDPC | Method.AVERAGE:
            _check_fedpc_served(method, protection)
        case _:
            assert_never(method)


def _check_fedpc_served(method: Method, protection: Protection) -> None:
    if not _values(FEDPC_NEEDS) <= _values(OFFERS[protection]):
        raise ValueError(
            f"method {method.value} needs {_names(FEDPC_NEEDS, 'and')}, and protection {protection.value!r} offers"
            f" {_names(OFFERS[protection])}; choose protection 'masked' or 'plain'"
        )


def _check_pfpl_served(weighting: Weighting, squared: bool, protection: Protection) -> None:
    needs, offers = served_by(weighting, squared=squared), OFFERS[protection]
    if _values(needs).isdisjoint(_values(offers)):
        form = weighting.value if squared else f"{weighting.value}, unsquared"
        raise ValueError(
            f"method pfpl with weighting {form!r} needs {_names(needs)}, and protection"
            f" {protection.value!r} offers {_names(offers)}; choose weighting 'complement', 'distance' or"
            " 'uniform', squared, or protection 'plain' or 'masked'"
        )


def _values(names: Set[StrEnum]) -> frozenset[str]:
    """Methods' needs and protections' offers are enumerations of packages that do not know each other."""
    return frozenset(str(name) for name in names)


def _names(names: Set[StrEnum], link: str = "or") -> str:
    return f" {link} ".join(sorted(repr(str(name)) for name in names))
