"""What a third party adds, as data and functions: a method, or a protection (docs/how-to/extending.md).

Both are named by what an entry point is called (:mod:`agreement.extensions.entry_points`). Their code is the operator's
to trust like protoseal's own: it runs with all rights of a site or coordinator, and sees what these see.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agreement.extensions.recipe import BatchLoss, Recipe
from agreement.method_traits import Family, Part, Traits
from agreement.toml_loading import Section
from crypto.plain import Weights
from crypto.protection import Offer, PayloadForm, ServerHalf, SiteHalf
from crypto.sum_protection import SumFacts, SumServerHalf, SumSiteHalf

NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
"""A method's or protection's: part of names of runs and files."""
MOST_SECRET_BYTES = 1 << 16
_CONTROL = "self-"
_MADE_FOR = {
    Family.GROUPS: "its steps are FedPC's: sites are grouped once by their prototypes and groups mixed by cosines",
    Family.CLUSTERS: "its steps are FedPLCC's: local prototypes are clustered by their directions",
    Family.ALONE: "a site that trains alone exchanges nothing",
}


class NoSettings(Section):
    """Of what has none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Named:
    """What a method and a protection have in common."""

    name: str
    settings: type[Section] = NoSettings
    deployable: bool = False

    def __post_init__(self) -> None:
        _check_name(self.name)

    def __str__(self) -> str:
        return self.name

    @property
    def value(self) -> str:
        """Its name, as of :class:`agreement.methods.Method` and :class:`agreement.protections.Protection`."""
        return self.name


@dataclass(frozen=True, kw_only=True, eq=False)
class AddedMethod(_Named):
    """A method of a third party, in the family ``PEERS`` or ``SUMS``. ``ValueError`` for what cannot run.

    ``objective`` makes the loss of a batch, ``weights`` those by which each site's answer is combined, for ``PEERS``:
    from Gram matrices (K, n, n) and who holds what (n, K) to (K, n, n), convex over the holders, the receiver among
    them. Without ``weights`` a method of ``PEERS`` weighs its peers as ``[pfpl]`` says. ``recipe`` changes what a site
    does besides. All three are given the method's own ``settings``, ``[extension.NAME]`` in the agreement; only
    ``weights`` is called at a coordinator, which has no torch: a module that defines a method imports torch, and what
    imports it, inside functions. ``deployable``: it may run between institutions, and not in a simulation alone.
    """

    traits: Traits
    objective: Callable[[Any], BatchLoss]
    weights: Callable[[Any], Weights] | None = None
    recipe: Callable[[Any, Recipe], Recipe] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        traits = self.traits
        if traits.family in _MADE_FOR:
            raise ValueError(
                f"a method of the family {traits.family.value!r} cannot be added: {_MADE_FOR[traits.family]}; choose"
                f" {Family.PEERS.value!r} or {Family.SUMS.value!r}"
            )
        if traits.family is Family.PEERS:
            if not traits.prototypes or traits.averaged is not Part.NOTHING or traits.weighted:
                raise ValueError("a method of the family 'peers' exchanges prototypes, and nothing else")
        elif self.weights is not None:
            raise ValueError("weights belong to the family 'peers': a sum is over all sites alike")
        elif not (traits.prototypes or traits.averaged is not Part.NOTHING):
            raise ValueError("a method of the family 'sums' exchanges prototypes, a part of models, or both")

    @property
    def is_grouped(self) -> bool:
        """Whether sites are grouped before training."""
        return False

    @property
    def averages(self) -> bool:
        """Whether any part of sites' models is exchanged."""
        return self.traits.averaged is not Part.NOTHING


@dataclass(frozen=True, kw_only=True, eq=False)
class PeersHalves:
    """How a protection serves ``PEERS``: the coordinator sees inner products, and combines by any weights.

    Each is given the protection's settings. ``site`` makes a site's half of the secret that the sites share and of a
    context that no other attempt has; ``server`` the coordinator's of the method's weights. ``form`` says of K classes
    and d features what a payload, up or down, consists of: it is enforced as a payload is decoded.
    """

    site: Callable[[Any, bytes, bytes], SiteHalf]
    server: Callable[[Any, Weights], ServerHalf]
    form: Callable[[Any, int, int], PayloadForm]


@dataclass(frozen=True, kw_only=True, eq=False)
class SumHalves:
    """How a protection serves ``SUMS``, in one step. Each is given the protection's settings and a sum's public facts.

    ``site`` is given the secret that the sites share, too. ``form`` is that of a payload, up or down; it is asked for
    as an agreement is loaded, and raises :class:`crypto.errors.PrecisionError` for sums that it has no room for.
    """

    site: Callable[[Any, bytes, SumFacts], SumSiteHalf]
    server: Callable[[Any, SumFacts], SumServerHalf]
    form: Callable[[Any, SumFacts], PayloadForm]


@dataclass(frozen=True, kw_only=True, eq=False)
class AddedProtection(_Named):
    """A protection of a third party, for ``PEERS``, ``SUMS`` or both. ``ValueError`` for one that serves nothing.

    ``secret_bytes``: how many random bytes all sites share and the coordinator has not. One of the sites makes them,
    and seals them to each other site, as it does rotations' seeds. The limit: one site that helps the coordinator gives
    them away. ``settings`` and ``deployable`` are as of :class:`AddedMethod`.
    """

    peers: PeersHalves | None = None
    sums: SumHalves | None = None
    secret_bytes: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.peers is None and self.sums is None:
            raise ValueError("a protection serves peers, sums, or both")
        if not 0 <= self.secret_bytes <= MOST_SECRET_BYTES:
            raise ValueError(f"a secret has from 0 to {MOST_SECRET_BYTES} bytes, not {self.secret_bytes}")

    @property
    def offers(self) -> frozenset[Offer]:
        """What the coordinator's half can compute, as far as there is one."""
        served = ((self.peers, Offer.GRAM), (self.sums, Offer.SUM))
        return frozenset(offer for halves, offer in served if halves is not None)


Added = AddedMethod | AddedProtection


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name: lower-case letters, digits and hyphens, 32 at most, a letter first"
        )
    if name.startswith(_CONTROL):
        raise ValueError(f"{name!r} is no name: {_CONTROL!r} begins those of a control's results")
