"""Supported methods and protections, names that are refused with a reason, and which pairs are compatible."""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated

from pydantic_core import core_schema

from algorithms.linear import Need
from algorithms.pfpl import Weighting, served_by
from crypto.protection import Offer
from protoseal.config.added import AddedMethod, AddedProtection
from protoseal.config.entry_points import AddedT, Registry
from protoseal.config.reading import ConfigError, nearest
from protoseal.config.traits import Family, Inference, Part, Predicts, Traits


class Method(StrEnum):
    """How sites learn from each other."""

    PFPL = "pfpl"
    """Personalised prototypes, weighted by distance."""
    FEDPC = "fedpc"
    """Sites grouped by their prototypes; extractor and prototypes averaged within groups and between them."""
    FEDDBP = "feddbp"
    """A shared and a decision branch; each site keeps the channels of its own prototypes that matter most to it."""
    FEDPLCC = "fedplcc"
    """Several weighted prototypes for each class, clustered at the sites and over them; models averaged."""
    AVERAGE = "average"
    """Control: ``fedpc`` with one group and no alignment, so that the extractor is plainly averaged."""
    LOCAL = "local"
    """Control: each site trains alone, by cross entropy."""
    SELF = "self"
    """Control: a site's own prototypes of its last round are its targets, in PFPL α = 1, withheld or not."""
    FEDAVG = "fedavg"
    """Models averaged."""
    FEDPROX = "fedprox"
    """Models averaged, each held near the average while it trains."""
    FEDPROTO = "fedproto"
    """Class prototypes averaged, and nothing else exchanged."""
    FEDPROTO_AVERAGED = "fedproto-averaged"
    """``fedproto`` with models averaged besides, which is what FPL's authors, and others after them, call FedProto."""
    FEDBN = "fedbn"
    """Models averaged but for the layers that normalise."""
    FEDPER = "fedper"
    """Models averaged but for the classifier."""
    FEDREP = "fedrep"
    """Models averaged but for the classifier, which trains first, by itself."""
    DITTO = "ditto"
    """Models averaged, and a second model at each site that is held near the average."""
    FPL = "fpl"
    """One prototype a class and site, clustered over the sites; models averaged."""
    FEDPLVM = "fedplvm"
    """Several prototypes for each class, clustered at the sites and over them; models averaged."""

    @property
    def traits(self) -> Traits:
        """What its rounds are made of."""
        return _TRAITS[self]

    @property
    def is_grouped(self) -> bool:
        """Whether sites are grouped before training, and prototypes and extractors averaged in each group."""
        return self.traits.family is Family.GROUPS

    @property
    def averages(self) -> bool:
        """Whether any part of sites' models is exchanged."""
        return self.traits.averaged is not Part.NOTHING


_AVERAGED = Traits(Family.SUMS, Part.MODEL, weighted=True, predicts=Predicts.AGGREGATED)
_GROUPED = Traits(Family.GROUPS, Part.EXTRACTOR, prototypes=True)
_OWN_HEAD = Traits(Family.SUMS, Part.EXTRACTOR, weighted=True)
_CLUSTERED = Traits(Family.CLUSTERS, Part.MODEL, weighted=True, predicts=Predicts.AGGREGATED)
_PROTOTYPES = Traits(Family.SUMS, prototypes=True, inference=Inference.PROTOTYPE)
_TRAITS = {
    Method.PFPL: Traits(Family.PEERS, prototypes=True),
    Method.FEDPC: _GROUPED,
    Method.AVERAGE: _GROUPED,
    Method.FEDDBP: _PROTOTYPES,
    Method.FEDPROTO: _PROTOTYPES,
    Method.FEDPLCC: _CLUSTERED,
    Method.FPL: _CLUSTERED,
    Method.FEDPLVM: _CLUSTERED,
    Method.FEDAVG: _AVERAGED,
    Method.FEDPROTO_AVERAGED: replace(_AVERAGED, prototypes=True),
    Method.FEDPROX: _AVERAGED,
    Method.FEDBN: replace(_AVERAGED, averaged=Part.NOT_NORMS),
    Method.FEDPER: _OWN_HEAD,
    Method.FEDREP: _OWN_HEAD,
    # What Ditto averages is not what it predicts with: the site's second model is.
    Method.DITTO: replace(_AVERAGED, predicts=Predicts.TRAINED),
    Method.LOCAL: Traits(Family.ALONE),
    Method.SELF: Traits(Family.ALONE),
}


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


DEPLOYABLE = frozenset({Method.PFPL, Method.FEDPC, Method.FEDDBP, Method.FEDPLCC})
"""What runs between institutions. All else is what these are compared with, and runs in a simulation."""
CONTROLS = frozenset(method for method in Method if method.traits.family is Family.ALONE)
"""What a site does alone, without a federation."""
SIMULATED = frozenset(Method) - DEPLOYABLE
"""What only a simulation runs."""
BUILT_IN_MODELS = (
    *("small-cnn", "fedpc-cnn", "tanh-cnn", "scatternet"),
    *("resnet10", "resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("googlenet", "mobilenet-v2"),
)

_OF_ALL = (Offer.SUM, Offer.CLUSTERING, Offer.COSINE_WEIGHTS)
OFFERS = {
    Protection.PLAIN: frozenset({Offer.GRAM, *_OF_ALL}),
    Protection.MASKED: frozenset({Offer.GRAM, *_OF_ALL}),
    Protection.CKKS: frozenset({Offer.DISTANCE_WEIGHTS, *_OF_ALL}),
}
"""What the coordinator's half of each protection can compute."""
NEEDS = {
    Family.GROUPS: frozenset({Need.CLUSTERING, Need.SUM, Need.COSINE_WEIGHTS}),
    Family.SUMS: frozenset({Need.SUM}),
    Family.CLUSTERS: frozenset({Need.CLUSTERING, Need.SUM}),
    Family.ALONE: frozenset[Need](),
}
"""All of them. Of what serves ``PEERS``, which depends on the weighting, one is enough."""


AnyMethod = Method | AddedMethod
AnyProtection = Protection | AddedProtection
_METHODS = Registry("protoseal.methods", AddedMethod, tuple(Method))
_PROTECTIONS = Registry("protoseal.protections", AddedProtection, tuple(Protection))


def method_named(name: str) -> AnyMethod:
    """The built-in method, or a third party's. Raises ``ConfigError``."""
    try:
        return _method(name)
    except ValueError as error:
        raise ConfigError("method", [str(error)]) from error


def _method(value: object) -> AnyMethod:
    if isinstance(value, str) and value in tuple(Method):
        return Method(value)
    return _added(value, "method", _METHODS, tuple(Method))


def _protection(value: object) -> AnyProtection:
    if isinstance(value, str) and value in tuple(Protection):
        return Protection(value)
    return _added(value, "protection", _PROTECTIONS, tuple(Protection))


def _added(value: object, kind: str, registry: Registry[AddedT], built_in: Collection[str]) -> AddedT:
    """What a third party registers by that name. Raises ``ValueError`` for a name that nobody does."""
    name = value.name if isinstance(value, registry.kind) else value
    if not isinstance(name, str):
        raise ValueError(f"a {kind} is named by text, not {value!r}")
    found = registry.find(name)
    if found is not None and value in (name, found):
        return found
    known = [*map(str, built_in), *registry.names()]
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}{nearest(name, known)}")
    raise ValueError(f"{kind} {name!r} is not what is registered by that name")


@dataclass(frozen=True)
class _ByName:
    """Read by name, or as the very object; written by name."""

    read: Callable[[object], object]

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> core_schema.CoreSchema:
        written = core_schema.plain_serializer_function_ser_schema(str, when_used="json")
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)


KnownMethod = Annotated[AnyMethod, _ByName(_method)]
KnownProtection = Annotated[AnyProtection, _ByName(_protection)]


def offers_of(protection: AnyProtection) -> frozenset[Offer]:
    """What the coordinator's half of a protection can compute."""
    return protection.offers if isinstance(protection, AddedProtection) else OFFERS[protection]


def check_protection_serves(
    method: AnyMethod, weighting: Weighting, squared: bool, protection: AnyProtection
) -> None:
    """Raise ``ValueError``, naming both sides, unless the protection can compute what the method needs."""
    family = method.traits.family
    by_own_weights = isinstance(method, AddedMethod) and method.weights is not None
    if family is Family.PEERS and not by_own_weights:
        _check_weighting_served(method, weighting, squared, protection)
        return
    needs = frozenset({Need.GRAM}) if by_own_weights else NEEDS[family]
    if not _values(needs) <= _values(offers_of(protection)):
        raise ValueError(
            f"method {method.value} needs {_names(needs, 'and')}, and protection {protection.value!r} offers"
            f" {_names(offers_of(protection))}"
        )


def check_noise_is_shared(method: AnyMethod, protection: AnyProtection, *, personal: bool) -> None:
    """Raise ``ValueError`` unless all that leaves a site with distributed noise leaves it in a masked sum.

    ``personal``: whether FedDBP's targets have channels of a site's own prototypes, of which there is no release.
    """
    traits = method.traits
    if protection is not Protection.MASKED:
        raise ValueError(
            f"noise = 'distributed' needs sums that show nothing of their terms: protection 'masked', not"
            f" {protection.value!r}; choose noise = 'local'"
        )
    if traits.family not in (Family.GROUPS, Family.SUMS) or not traits.prototypes or traits.weighted:
        why = (
            "it sends more than sums of prototypes"
            if traits.family in (Family.PEERS, Family.CLUSTERS)
            else "its sums are not of prototypes, or weigh models by sample counts"
        )
        raise ValueError(
            f"noise = 'distributed' does not serve method {method.value}: {why}; choose noise = 'local'"
        )
    if method is Method.FEDDBP and personal:
        raise ValueError(
            "with noise = 'distributed' no site has released prototypes of its own, which FedDBP's targets are made of:"
            " set personal = false in [feddbp], so that they are the means, or choose noise = 'local'"
        )


def _check_weighting_served(
    method: AnyMethod, weighting: Weighting, squared: bool, protection: AnyProtection
) -> None:
    needs, offers = served_by(weighting, squared=squared), offers_of(protection)
    if _values(needs).isdisjoint(_values(offers)):
        form = weighting.value if squared else f"{weighting.value}, unsquared"
        others = "weighting 'complement', 'distance' or 'uniform', squared, or "
        raise ValueError(
            f"method {method.value} with weighting {form!r} needs {_names(needs)}, and protection"
            f" {protection.value!r} offers {_names(offers)}; choose"
            f" {others if Offer.DISTANCE_WEIGHTS in offers else ''}protection 'plain' or 'masked'"
        )


def _values(names: Set[StrEnum]) -> frozenset[str]:
    """Methods' needs and protections' offers are enumerations of packages that do not know each other."""
    return frozenset(str(name) for name in names)


def _names(names: Set[StrEnum], link: str = "or") -> str:
    return f" {link} ".join(sorted(repr(str(name)) for name in names))
