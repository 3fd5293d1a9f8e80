"""Recipes of the methods at a site: how each one trains, beside what the agreement says of it.

Each row of :data:`BUILT_IN` has the functions that a third party states in its :class:`agreement.Method`. They stand
here because the agreement, which the coordinator loads too, has no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from agreement import (
    Agreement,
    Extractor,
    FeddbpSection,
    FedpcSection,
    FedplccSection,
    Method,
    PfplSection,
)
from agreement.registry.recipe import BatchLoss, ClusteredPrototypes, Recipe, Stage, Trains
from algorithms.feddbp import FeddbpLoss, fuse
from algorithms.gram_matrix import Bool, Float
from algorithms.method_losses import (
    CrossEntropyLoss,
    FedpcLoss,
    FedplccLoss,
    FedplvmLoss,
    FedprotoLoss,
    FplLoss,
    PfplLoss,
)
from secure_client.models.prototype_model import PrototypeModel
from secure_client.models.wrapped_models import add_branches

Prototypes = tuple[Float, Bool]
"""Rows (K, d), and the classes (K,) that have one."""


@dataclass(frozen=True, kw_only=True)
class SiteMethod:
    """Functions of a method at a site. Each gets the method's settings first.

    ``objective`` makes the loss of a batch; ``recipe`` changes the rest of a site's training. ``model`` changes the
    initial model, from the model, its feature dimension and the seed. ``targets`` makes the targets of a site's
    features, for ``SUMS``, from its own prototypes, their scores (K, d) and the means; without it these are the means.
    """

    objective: Callable[[Any], BatchLoss]
    recipe: Callable[[Any, Recipe], Recipe] | None = None
    model: Callable[[Any, PrototypeModel, int, int], PrototypeModel] | None = None
    targets: Callable[[Any, Prototypes, Float, Prototypes], Prototypes] | None = None


def site_method(method: Method) -> SiteMethod:
    """Return the functions of a built-in or a third party's method; raise ``ValueError`` for a method without any."""
    if method.objective is not None:
        return SiteMethod(objective=method.objective, recipe=method.recipe)
    built_in = BUILT_IN.get(method)
    if built_in is None:
        raise ValueError(f"method {method} has no objective")
    return built_in


def _pfpl_loss(settings: PfplSection) -> BatchLoss:
    return PfplLoss(settings.alignment, literal=settings.literal)


def _fedpc_loss(settings: FedpcSection) -> BatchLoss:
    return FedpcLoss(settings.alignment, literal=settings.literal)


def _feddbp_loss(settings: FeddbpSection) -> BatchLoss:
    return FeddbpLoss(
        decision_weight=settings.decision_weight,
        alignment_weight=settings.shared_alignment,
        contrast_weight=settings.decision_alignment,
        temperature=settings.temperature,
        share=settings.share,
        decision=settings.decision,
        hard=settings.hard,
        literal=settings.literal,
    )


def _fuse_feddbp_targets(
    settings: FeddbpSection, own: Prototypes, scores: Float, means: Prototypes
) -> Prototypes:
    return fuse(*own, scores, *means, eta=settings.own, top=settings.top_channels, personal=settings.personal)


def _fedplcc_loss(settings: FedplccSection) -> BatchLoss:
    return FedplccLoss(
        settings.contrast,
        settings.correlation,
        alpha=settings.sparsity,
        temperature=settings.temperature,
        share=settings.nearest,
        weights_one=not settings.weighted,
    )


def _predict_as_set(settings: FedpcSection | FedplccSection, recipe: Recipe) -> Recipe:
    return replace(recipe, predicts=settings.predicts)


# Methods of one loss share a row; which part of the model is averaged is in their traits.
_FEDPROTO = SiteMethod(objective=lambda settings: FedprotoLoss(settings.fedproto))
_CROSS_ENTROPY = SiteMethod(objective=lambda _: CrossEntropyLoss())
BUILT_IN: Mapping[Method, SiteMethod] = {
    Method.PFPL: SiteMethod(objective=_pfpl_loss),
    Method.LOCAL: SiteMethod(objective=_pfpl_loss),
    Method.SELF: SiteMethod(objective=_pfpl_loss),
    Method.FEDPC: SiteMethod(objective=_fedpc_loss, recipe=_predict_as_set),
    Method.AVERAGE: SiteMethod(objective=_fedpc_loss),
    Method.FEDDBP: SiteMethod(
        objective=_feddbp_loss,
        # Fisher scores of channels decide which of them a site takes from others (FedDBP's fusion).
        recipe=lambda _, recipe: replace(recipe, scores=True),
        model=lambda settings, model, dim, seed: add_branches(
            model, dim, seed=seed, share=settings.share, decision=settings.decision
        ),
        targets=_fuse_feddbp_targets,
    ),
    Method.FEDPLCC: SiteMethod(objective=_fedplcc_loss, recipe=_predict_as_set),
    Method.FEDPROTO: _FEDPROTO,
    Method.FEDPROTO_AVERAGED: _FEDPROTO,
    Method.FPL: SiteMethod(objective=lambda _: FplLoss()),
    Method.FEDPLVM: SiteMethod(objective=lambda settings: FedplvmLoss(settings.fedplvm)),
    Method.FEDAVG: _CROSS_ENTROPY,
    Method.FEDPROX: replace(
        _CROSS_ENTROPY, recipe=lambda settings, recipe: replace(recipe, proximal=settings.fedprox)
    ),
    Method.FEDBN: _CROSS_ENTROPY,
    Method.FEDPER: _CROSS_ENTROPY,
    # One epoch of the head as in PFLlib (plocal_epochs = 1); FedRep's authors train the head for about ten.
    Method.FEDREP: replace(
        _CROSS_ENTROPY,
        recipe=lambda _, recipe: replace(
            recipe, stages=(Stage(Trains.CLASSIFIER, epochs=1), Stage(Trains.EXTRACTOR))
        ),
    ),
    Method.DITTO: replace(
        _CROSS_ENTROPY, recipe=lambda settings, recipe: replace(recipe, personal=settings.ditto)
    ),
}
"""Built-in methods at a site. Controls alone train as PFPL does."""


def build_recipe(agreement: Agreement) -> Recipe:
    """Return the agreed method's recipe at a site; controls without a method train as PFPL does."""
    method = agreement.method
    recipe = Recipe(
        build_objective(agreement),
        averages=method.traits.averaged,
        predicts=method.traits.predicts,
        prototypes=method.traits.prototypes or agreement.clusters,
    )
    # A frozen extractor's features are the initial model's, so that one release of prototypes serves all rounds.
    if agreement.extractor_is_frozen:
        recipe = replace(recipe, stages=(Stage(Trains.CLASSIFIER),), initial_features=True)
    if agreement.privacy is not None and agreement.privacy.extractor is Extractor.PRIVATE:
        recipe = replace(recipe, dp_sgd=agreement.privacy.dp_sgd)
    if agreement.clusters:
        clustering = agreement.clustering
        recipe = replace(
            recipe,
            clustered=ClusteredPrototypes(clustering.single, clustering.literal, clustering.most_local),
        )
    change = site_method(method).recipe
    return recipe if change is None else change(agreement.settings_of(method), recipe)


def build_objective(agreement: Agreement) -> BatchLoss:
    """Return the loss of a batch under the agreed method."""
    return site_method(agreement.method).objective(agreement.settings_of(agreement.method))
