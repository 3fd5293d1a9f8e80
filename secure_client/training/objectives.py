"""Training loss and recipe of the agreed method, from the agreement's sections."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from agreement import AddedMethod, Agreement, Extractor, Method
from agreement.extensions.recipe import BatchLoss, Clustered, Recipe, Stage, Trains
from algorithms.baselines import cross_entropy, fedplvm, fedproto, fpl
from algorithms.feddbp import objective as feddbp
from algorithms.fedpc import objective as fedpc
from algorithms.fedplcc import objective as fedplcc
from algorithms.pfpl import objective as pfpl


def build_recipe(agreement: Agreement) -> Recipe:
    """Return the agreed method's recipe at a site; controls without a method train as PFPL does."""
    method = agreement.method
    recipe = Recipe(
        build_objective(agreement),
        averages=method.traits.averaged,
        predicts=agreement.fedpc.predicts if method is Method.FEDPC else method.traits.predicts,
        prototypes=method.traits.prototypes or agreement.clusters,
    )
    if agreement.privacy is not None and agreement.privacy.extractor is Extractor.FROZEN:
        recipe = replace(recipe, stages=(Stage(Trains.CLASSIFIER),), initial_features=True)
    if agreement.privacy is not None and agreement.privacy.extractor is Extractor.PRIVATE:
        recipe = replace(recipe, dp_sgd=agreement.privacy.dp_sgd)
    if agreement.clusters:
        own = agreement.clustering
        return replace(recipe, clustered=Clustered(own.single, own.literal_norms, own.most_local))
    return _changed(recipe, agreement)


def _changed(recipe: Recipe, agreement: Agreement) -> Recipe:
    """Return the recipe with the method's changes other than loss and exchange."""
    method, baselines = agreement.method, agreement.baselines
    match method:
        case AddedMethod(recipe=change) if change is not None:
            return change(agreement.settings_of(method), recipe)
        case Method.FEDDBP:
            return replace(recipe, scores=True)
        case Method.FEDPROX:
            return replace(recipe, proximal=baselines.fedprox)
        case Method.DITTO:
            return replace(recipe, personal=baselines.ditto)
        case Method.FEDREP:
            head = Stage(Trains.CLASSIFIER, baselines.fedrep_head_epochs)
            return replace(recipe, stages=(head, Stage(Trains.EXTRACTOR)))
        case _:
            return recipe


def build_objective(agreement: Agreement) -> BatchLoss:
    """Return the loss of a batch under the agreed method."""
    if isinstance(agreement.method, AddedMethod):
        return agreement.method.objective(agreement.settings_of(agreement.method))
    build = _OBJECTIVES.get(agreement.method)
    if build is None:
        raise ValueError(f"method {agreement.method} has no objective")
    return build(agreement)


def _pfpl(agreement: Agreement) -> BatchLoss:
    return pfpl.Objective(agreement.pfpl.alignment, literal=agreement.pfpl.literal_regulariser)


def _fedpc(agreement: Agreement) -> BatchLoss:
    return fedpc.Objective(agreement.fedpc.alignment)


def _feddbp(agreement: Agreement) -> BatchLoss:
    section = agreement.feddbp
    return feddbp.Objective(
        decision_weight=section.decision_weight,
        alignment_weight=section.shared_alignment,
        contrast_weight=section.decision_alignment,
        temperature=section.temperature,
        share=section.share,
        decision=section.decision,
        hard=section.hard,
        literal=section.literal,
    )


def _fedplcc(agreement: Agreement) -> BatchLoss:
    section = agreement.fedplcc
    return fedplcc.Objective(
        section.contrast,
        section.correlation,
        alpha=section.sparsity,
        temperature=section.temperature,
        share=section.nearest,
        weights_one=not section.weighted,
    )


def _fedplvm(agreement: Agreement) -> BatchLoss:
    section = agreement.baselines
    return fedplvm.Objective(section.fedplvm, section.fedplvm_sparsity, section.fedplvm_temperature)


def _fedproto(agreement: Agreement) -> BatchLoss:
    return fedproto.Objective(agreement.baselines.fedproto)


def _classification(_: Agreement) -> BatchLoss:
    return cross_entropy.Objective()


_OBJECTIVES: Mapping[Method, Callable[[Agreement], BatchLoss]] = {
    Method.PFPL: _pfpl,
    Method.LOCAL: _pfpl,
    Method.SELF: _pfpl,
    Method.FEDPC: _fedpc,
    Method.AVERAGE: _fedpc,
    Method.FEDDBP: _feddbp,
    Method.FEDPLCC: _fedplcc,
    Method.FEDPROTO: _fedproto,
    Method.FEDPROTO_AVERAGED: _fedproto,
    Method.FPL: lambda agreement: fpl.Objective(agreement.baselines.fpl_temperature),
    Method.FEDPLVM: _fedplvm,
    Method.FEDAVG: _classification,
    Method.FEDPROX: _classification,
    Method.FEDBN: _classification,
    Method.FEDPER: _classification,
    Method.FEDREP: _classification,
    Method.DITTO: _classification,
}
"""Controls alone train as PFPL does."""
