"""Methods of third parties, as data and functions (docs/how-to/extending.md).

An entry point's name is that of its method or protection (:mod:`agreement.extensions.entry_points`). The operator
trusts their code like protoseal's own: it runs with all rights of a site or coordinator, and sees what these see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agreement.extensions.recipe import BatchLoss, Recipe
from agreement.method_traits import Family, Part, Traits
from agreement.named import Named
from agreement.protections import Protection
from crypto.plain import Weights

_MADE_FOR = {
    Family.GROUPS: "its steps are FedPC's: sites are grouped once by their prototypes and groups mixed by cosines",
    Family.CLUSTERS: "its steps are FedPLCC's: local prototypes are clustered by their directions",
    Family.ALONE: "a site that trains alone exchanges nothing",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class AddedMethod(Named):
    """Method of a third party, in the family ``PEERS`` or ``SUMS``. Raises ``ValueError`` for a method that cannot run.

    ``objective`` makes the loss of a batch, ``weights`` the weights of each site's combination, for ``PEERS``: from
    Gram matrices (K, n, n) and the holders of classes (n, K) to (K, n, n), convex over the holders, the receiver
    among them. Without ``weights`` a method of ``PEERS`` weighs its peers as ``[pfpl]`` says. ``recipe`` changes the
    rest of a site's training. All three functions get the method's own ``settings``, ``[extension.NAME]`` in the
    agreement. Only ``weights`` is called at a coordinator, which has no torch: a module that defines a method imports
    torch, and modules that need it, inside functions. ``deployable`` methods may run between institutions, others in
    a simulation alone.
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
    def built_in(self) -> bool:
        """Return False: the method is a third party's."""
        return False

    @property
    def is_grouped(self) -> bool:
        """Return whether sites are grouped before training."""
        return False

    @property
    def averages(self) -> bool:
        """Return whether any part of sites' models is exchanged."""
        return self.traits.averaged is not Part.NOTHING


Added = AddedMethod | Protection
