"""Training objective and recipe of the agreed method."""

from __future__ import annotations

from dataclasses import replace

from agreement import Agreement, Extractor
from agreement.recipe import BatchLoss, ClusteredPrototypes, Recipe, Stage, Trains
from secure_client.training.built_in_methods import site_method


def build_recipe(agreement: Agreement) -> Recipe:
    """Return the agreed method's recipe at a site; controls without a method train as PFPL does."""
    method = agreement.method
    recipe = Recipe(
        build_objective(agreement),
        averages=method.traits.averaged,
        predicts=method.traits.predicts,
        prototypes=method.traits.prototypes or agreement.clusters,
    )
    if agreement.extractor_is_frozen:
        recipe = replace(recipe, stages=(Stage(Trains.CLASSIFIER),), initial_features=True)
    if agreement.privacy is not None and agreement.privacy.extractor is Extractor.PRIVATE:
        recipe = replace(recipe, dp_sgd=agreement.privacy.dp_sgd)
    if agreement.clusters:
        own = agreement.clustering
        recipe = replace(recipe, clustered=ClusteredPrototypes(own.single, own.literal_norms, own.most_local))
    change = site_method(method).recipe
    return recipe if change is None else change(agreement.settings_of(method), recipe)


def build_objective(agreement: Agreement) -> BatchLoss:
    """Return the loss of a batch under the agreed method."""
    return site_method(agreement.method).objective(agreement.settings_of(agreement.method))
