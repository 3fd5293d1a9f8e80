"""Built-in methods, what sites exchange under each, and which run between institutions or in simulation alone."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from agreement.method_traits import Family, Inference, Part, Predicts, Traits


class Method(StrEnum):
    """Method by which sites learn from each other."""

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
        """Traits of the method's rounds."""
        return _TRAITS[self]

    @property
    def is_grouped(self) -> bool:
        """True if sites are grouped before training, and prototypes and extractors averaged in each group."""
        return self.traits.family is Family.GROUPS

    @property
    def averages(self) -> bool:
        """True if any part of sites' models is exchanged."""
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


DEPLOYABLE = frozenset({Method.PFPL, Method.FEDPC, Method.FEDDBP, Method.FEDPLCC})
"""Methods that run between institutions. All others serve as comparisons in a simulation."""
CONTROLS = frozenset(method for method in Method if method.traits.family is Family.ALONE)
"""Methods of a site alone, without a federation."""
SIMULATED = frozenset(Method) - DEPLOYABLE
"""Methods that only a simulation runs."""
