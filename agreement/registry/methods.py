"""Methods: the built-in ones, and the type of built-in and third parties' methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from agreement.registry.named_component import Named
from agreement.registry.recipe import BatchLoss, Recipe
from agreement.sections.methods import (
    BaselinesSection,
    Family,
    FeddbpSection,
    FedpcSection,
    FedplccSection,
    Inference,
    ModelPart,
    PfplSection,
    Predicts,
    Traits,
)
from crypto.plain import Weights

_MADE_FOR = {
    Family.GROUPS: "its steps are FedPC's: sites are grouped once by their prototypes and groups mixed by cosines",
    Family.CLUSTERS: "its steps are FedPLCC's: local prototypes are clustered by their directions",
    Family.ALONE: "a site that trains alone exchanges nothing",
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Method(Named):
    """Method by which sites learn from each other. Raises ``ValueError`` for a third party's method that cannot run.

    A third party's method is of the family ``PEERS`` or ``SUMS`` and states its ``objective``, which makes the loss
    of a batch. ``weights`` makes the weights of each site's combination, for ``PEERS``: from Gram matrices (K, n, n)
    and the holders of classes (n, K) to (K, n, n), convex over the holders, the receiver among them. Without
    ``weights`` a method of ``PEERS`` weighs its peers as ``[pfpl]`` says. ``recipe`` changes the rest of a site's
    training. All three functions get the method's own ``settings``, ``[extension.NAME]`` in the agreement. Only
    ``weights`` is called at a coordinator, which has no torch: a module that defines a method imports torch, and
    modules that need it, inside functions.

    A built-in method is of any family, and its ``settings`` are a section of the agreement. It states no functions,
    because a site has these in a table of its own (``secure_client/training/recipes.py``). It alone may be
    ``private``: ``[privacy]`` serves it, since it releases only noisy prototypes and what trains with them, or
    nothing. ``projection_unsupported`` is the reason why ``project_from`` does not serve it, or None for a method whose
    features may have any sign and that computes them in no layer of its own.

    ``deployable`` methods may run between institutions, others in a simulation alone.
    """

    PFPL: ClassVar[Method]
    """Personalised prototypes, weighted by distance."""
    FEDPC: ClassVar[Method]
    """Sites grouped by their prototypes; extractor and prototypes averaged within groups and between them."""
    FEDDBP: ClassVar[Method]
    """A shared and a decision branch; each site keeps the channels of its own prototypes that matter most to it."""
    FEDPLCC: ClassVar[Method]
    """Several weighted prototypes for each class, clustered at the sites and over them; models averaged."""
    AVERAGE: ClassVar[Method]
    """Control: ``fedpc`` with one group and no alignment, so that the extractor is plainly averaged."""
    LOCAL: ClassVar[Method]
    """Control: each site trains alone, by cross entropy."""
    SELF: ClassVar[Method]
    """Control: a site's own prototypes of its last round are its targets, in PFPL α = 1, withheld or not."""
    FEDAVG: ClassVar[Method]
    """Models averaged."""
    FEDPROX: ClassVar[Method]
    """Models averaged, each held near the average while it trains."""
    FEDPROTO: ClassVar[Method]
    """Class prototypes averaged, and nothing else exchanged."""
    FEDPROTO_AVERAGED: ClassVar[Method]
    """``fedproto`` with models averaged besides, which is what FPL's authors, and others after them, call FedProto."""
    FEDBN: ClassVar[Method]
    """Models averaged but for the layers that normalise."""
    FEDPER: ClassVar[Method]
    """Models averaged but for the classifier."""
    FEDREP: ClassVar[Method]
    """Models averaged but for the classifier, which trains first, by itself."""
    DITTO: ClassVar[Method]
    """Models averaged, and a second model at each site that is held near the average."""
    FPL: ClassVar[Method]
    """One prototype a class and site, clustered over the sites; models averaged."""
    FEDPLVM: ClassVar[Method]
    """Several prototypes for each class, clustered at the sites and over them; models averaged."""

    traits: Traits
    objective: Callable[[Any], BatchLoss] | None = None
    weights: Callable[[Any], Weights] | None = None
    recipe: Callable[[Any, Recipe], Recipe] | None = None
    private: bool = False
    projection_unsupported: str | None = "it is not known to work with projected features"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective is not None:
            self._check_extension()

    def check_complete(self) -> None:
        """Raise ``ValueError`` if a third party's method has no loss to train with."""
        if self.objective is None:
            raise ValueError(f"method {self.name!r} states no objective, which makes the loss of a batch")

    def _check_extension(self) -> None:
        traits = self.traits
        if traits.family in _MADE_FOR:
            raise ValueError(
                f"a method of the family {traits.family.value!r} cannot be added: {_MADE_FOR[traits.family]}; choose"
                f" {Family.PEERS.value!r} or {Family.SUMS.value!r}"
            )
        if self.private:
            raise ValueError("private methods are built in: of others nobody has checked what leaves a site")
        if traits.family is Family.PEERS:
            if not traits.prototypes or traits.averaged is not ModelPart.NOTHING or traits.weighted:
                raise ValueError("a method of the family 'peers' exchanges prototypes, and nothing else")
        elif self.weights is not None:
            raise ValueError("weights belong to the family 'peers': a sum is over all sites alike")
        elif not (traits.prototypes or traits.averaged is not ModelPart.NOTHING):
            raise ValueError("a method of the family 'sums' exchanges prototypes, a part of models, or both")

    @property
    def built_in(self) -> bool:
        """Return whether this is one of :data:`METHODS`, and not a third party's."""
        return METHODS.get(self.name) is self

    @property
    def is_grouped(self) -> bool:
        """Return whether sites are grouped before training, and prototypes and extractors averaged in each group."""
        return self.traits.family is Family.GROUPS

    @property
    def averages(self) -> bool:
        """Return whether any part of sites' models is exchanged."""
        return self.traits.averaged is not ModelPart.NOTHING


_BELOW_ZERO = "its features must not be negative, but projected features may be"
_BRANCHES = "its branches compute features in linear layers, after which no projection can follow"
_ALONE = Traits(Family.ALONE)
_AVERAGED = Traits(Family.SUMS, ModelPart.MODEL, weighted=True, predicts=Predicts.AGGREGATED)
_GROUPED = Traits(Family.GROUPS, ModelPart.EXTRACTOR, prototypes=True)
_OWN_HEAD = Traits(Family.SUMS, ModelPart.EXTRACTOR, weighted=True)
_CLUSTERED = Traits(Family.CLUSTERS, ModelPart.MODEL, weighted=True, predicts=Predicts.AGGREGATED)
_PROTOTYPES = Traits(Family.SUMS, prototypes=True, inference=Inference.PROTOTYPE)
# Ditto predicts with a site's second model, not with the average.
_SECOND_MODEL = replace(_AVERAGED, predicts=Predicts.TRAINED)

Method.PFPL = Method(
    name="pfpl",
    traits=Traits(Family.PEERS, prototypes=True),
    settings=PfplSection,
    deployable=True,
    private=True,
    projection_unsupported=None,
)
Method.FEDPC = Method(
    name="fedpc",
    traits=_GROUPED,
    settings=FedpcSection,
    deployable=True,
    private=True,
    projection_unsupported=_BELOW_ZERO,
)
Method.FEDDBP = Method(
    name="feddbp",
    traits=_PROTOTYPES,
    settings=FeddbpSection,
    deployable=True,
    private=True,
    projection_unsupported=_BRANCHES,
)
Method.FEDPLCC = Method(
    name="fedplcc",
    traits=replace(_CLUSTERED, predicts=Predicts.TRAINED),
    settings=FedplccSection,
    deployable=True,
    private=True,
    projection_unsupported=None,
)
Method.AVERAGE = Method(
    name="average", traits=_GROUPED, settings=FedpcSection, private=True, projection_unsupported=_BELOW_ZERO
)
Method.LOCAL = Method(
    name="local", traits=_ALONE, settings=PfplSection, private=True, projection_unsupported=None
)
Method.SELF = Method(
    name="self", traits=_ALONE, settings=PfplSection, private=True, projection_unsupported=None
)
Method.FEDAVG = Method(name="fedavg", traits=_AVERAGED)
Method.FEDPROX = Method(name="fedprox", traits=_AVERAGED, settings=BaselinesSection)
Method.FEDPROTO = Method(
    name="fedproto", traits=_PROTOTYPES, settings=BaselinesSection, private=True, projection_unsupported=None
)
Method.FEDPROTO_AVERAGED = Method(
    name="fedproto-averaged", traits=replace(_AVERAGED, prototypes=True), settings=BaselinesSection
)
Method.FEDBN = Method(name="fedbn", traits=replace(_AVERAGED, averaged=ModelPart.NOT_NORMS))
Method.FEDPER = Method(name="fedper", traits=_OWN_HEAD)
Method.FEDREP = Method(name="fedrep", traits=_OWN_HEAD, settings=BaselinesSection)
Method.DITTO = Method(name="ditto", traits=_SECOND_MODEL, settings=BaselinesSection)
Method.FPL = Method(name="fpl", traits=replace(_CLUSTERED, single=True), settings=BaselinesSection)
Method.FEDPLVM = Method(name="fedplvm", traits=_CLUSTERED, settings=BaselinesSection)

METHODS: Mapping[str, Method] = {
    method.name: method for method in vars(Method).values() if isinstance(method, Method)
}
"""The built-in methods, by name."""
DEPLOYABLE = frozenset(method for method in METHODS.values() if method.deployable)
"""Built-in methods that run between institutions. All others serve as comparisons in a simulation."""
CONTROLS = frozenset(method for method in METHODS.values() if method.traits.family is Family.ALONE)
"""Methods of a site alone, without a federation."""
SIMULATED = frozenset(METHODS.values()) - DEPLOYABLE
"""Built-in methods that only a simulation runs."""


def simulated_only(method: Method) -> str:
    """Return why a method that is not deployable cannot run between institutions."""
    return (
        f"method {method.value!r} is a comparison that runs in `protoseal simulate` only;"
        f" choose {', '.join(sorted(map(str, DEPLOYABLE)))}"
    )
