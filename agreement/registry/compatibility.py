"""Pairs of method and protection that can run, and the rounds of each pair."""

from __future__ import annotations

from collections.abc import Set
from enum import StrEnum

from agreement.registry.methods import Method
from agreement.registry.protections import PROTECTIONS, Protection
from agreement.registry.round_plan import RoundPlan
from agreement.sections.methods import Family
from algorithms.gram_matrix import Need
from algorithms.pfpl import Weighting, sufficient_needs
from crypto.protection import Offer

NEEDS = {
    Family.GROUPS: frozenset({Need.CLUSTERING, Need.SUM, Need.COSINE_WEIGHTS}),
    Family.SUMS: frozenset({Need.SUM}),
    Family.CLUSTERS: frozenset({Need.CLUSTERING, Need.SUM}),
    Family.ALONE: frozenset[Need](),
}
"""Needs of each family, all of which a protection must offer. For ``PEERS``, which has alternatives, one is enough."""


def plan_for(method: Method, protection: Protection, weighting: Weighting) -> RoundPlan:
    """Return the rounds of a method under a protection; ``ValueError`` for a pair that has none.

    ``weighting`` is that of peers, for a method of ``PEERS`` without weights of its own.
    """
    uniform = method.weights is None and weighting is Weighting.UNIFORM
    plan = protection.plan(method.traits.family, uniform=uniform)
    if plan is None:
        raise ValueError(f"method {method.value} has no rounds under protection {protection.value!r}")
    return plan


def check_protection_serves(method: Method, weighting: Weighting, protection: Protection) -> None:
    """Raise ``ValueError``, naming both sides, unless the protection can compute what the method needs."""
    family = method.traits.family
    by_own_weights = method.weights is not None
    if family is Family.PEERS and not by_own_weights:
        _check_weighting_served(method, weighting, protection)
        return
    needs = frozenset({Need.GRAM}) if by_own_weights else NEEDS[family]
    if not _values(needs) <= _values(protection.offers):
        raise ValueError(
            f"method {method.value} needs {_names(needs, 'and')}, but protection {protection.value!r} offers"
            f" {_names(protection.offers)}: choose another protection"
        )


def check_noise_is_shared(method: Method, protection: Protection, *, personal: bool) -> None:
    """Raise ``ValueError`` unless a site with distributed noise sends nothing but terms that sums hide.

    ``personal``: FedDBP's targets have channels of a site's own prototypes, which are never released.
    """
    traits = method.traits
    if not (protection.built_in and protection.sums_hide_terms):
        hiding = " or ".join(repr(name) for name, built_in in PROTECTIONS.items() if built_in.sums_hide_terms)
        raise ValueError(
            f"noise = 'distributed' needs protection {hiding}, whose sums hide their terms, not"
            f" {protection.value!r}: choose noise = 'local', or protection {hiding}"
        )
    if traits.family not in (Family.GROUPS, Family.SUMS) or not traits.prototypes or traits.weighted:
        why = {
            Family.PEERS: "its targets use a site's own released prototypes, which no site has then",
            Family.CLUSTERS: "it sends more than sums of prototypes",
        }.get(traits.family, "its sums are not of prototypes, or weigh models by sample counts")
        raise ValueError(
            f"noise = 'distributed' does not serve method {method.value}: {why}; choose noise = 'local'"
        )
    if method is Method.FEDDBP and personal:
        raise ValueError(
            "FedDBP's personal targets use a site's own released prototypes, which noise = 'distributed' does not"
            " provide: set personal = false in [feddbp], or choose noise = 'local'"
        )


def _check_weighting_served(method: Method, weighting: Weighting, protection: Protection) -> None:
    needs, offers = sufficient_needs(weighting), protection.offers
    if _values(needs).isdisjoint(_values(offers)):
        others = "weighting 'complement', 'distance' or 'uniform', or "
        raise ValueError(
            f"method {method.value} with weighting {weighting.value!r} needs {_names(needs)}, but protection"
            f" {protection.value!r} offers {_names(offers)}; choose"
            f" {others if Offer.DISTANCE_WEIGHTS in offers else ''}protection 'plain' or 'masked'"
        )


def _values(names: Set[StrEnum]) -> frozenset[str]:
    """Return the values of enumeration members, because methods' needs and protections' offers are separate types."""
    return frozenset(str(name) for name in names)


def _names(names: Set[StrEnum], link: str = "or") -> str:
    return f" {link} ".join(sorted(repr(str(name)) for name in names))
