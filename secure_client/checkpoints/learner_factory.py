"""Factory of a site's learner from the agreement, and the checks that the site's model can do what was agreed.

Deployments, simulations and controls share it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from torch import nn

from agreement import Agreement, ModelPart, Protection
from privacy.errors import BudgetError
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.data import SiteData
from secure_client.errors import ModelError
from secure_client.models.pretrained import load_pretrained
from secure_client.models.prototype_model import PrototypeModel, build_model, copy_model, hash_weights
from secure_client.models.wrapped_models import project
from secure_client.privacy.bounds import PrototypeBounds, check_initial_bounds
from secure_client.privacy.noisy_prototypes import NoisyPrototypes
from secure_client.privacy.releases import Releases, with_owners
from secure_client.protocol.journal import Journal
from secure_client.training.averaged_parameters import AveragedPart
from secure_client.training.job import Schedule, has_batch_norm
from secure_client.training.learner import Learner, choose_device
from secure_client.training.recipes import build_recipe, site_method

_log = logging.getLogger("protoseal.site")


def build_initial_model(agreement: Agreement, spec: str, pretrained: Path | None) -> PrototypeModel:
    """Return the initial model, on the CPU; sites with the same ``spec`` get the same model.

    ``pretrained`` is the file of the agreement's ``pretrained_sha256``, for the agreed model: a site with its own model
    begins from the seed. Raises :class:`ModelError` if the file is missing, unused or does not fit.
    """
    agreed = agreement.training
    wanted = agreed.pretrained_sha256 if spec == agreed.model else None
    if wanted and pretrained is None:
        raise ModelError(
            "the agreed model begins from pretrained weights: set pretrained to the file of SHA-256 " + wanted
        )
    if pretrained is not None and not wanted:
        raise ModelError(
            f"pretrained is set, but {spec} begins from the seed: remove it, or agree on that model and on"
            " pretrained_sha256 in [training]"
        )
    return build_agreed_model(agreement, spec, pretrained)


def build_agreed_model(agreement: Agreement, spec: str, pretrained: Path | None = None) -> PrototypeModel:
    """Return a model like the initial one, on the CPU; with the initial weights if ``pretrained`` is as agreed."""
    section, seed = agreement.preprocessing, agreement.training.init_seed
    model = build_model(
        spec,
        classes=len(agreement.classes),
        dim=agreement.feature_dim,
        channels=section.channels if section else 1,
        image_size=section.image_size if section else 1,
        seed=seed,
        norm=agreement.training.norm,
        inputs=len(agreement.table.features) if agreement.table else 0,
    )
    if pretrained is not None:
        load_pretrained(model, pretrained, agreement.training.pretrained_sha256 or "")
    if agreement.feature_dim != agreement.dim:
        return project(model, agreement.feature_dim, agreement.dim, seed=seed)
    change = site_method(agreement.method).model
    if change is None:
        return model
    return change(agreement.settings_of(agreement.method), model, agreement.dim, seed)


def build_checked_model(agreement: Agreement, model: str, pretrained: Path | None) -> PrototypeModel:
    """Return the initial model, on the CPU; raise unless it can do what was agreed."""
    built = build_initial_model(agreement, model, pretrained)
    check_averaged(agreement, built)
    check_private(agreement, built)
    check_frozen(agreement, built)
    return built


def build_learner(
    agreement: Agreement,
    site: str,
    data: SiteData,
    *,
    model: str,
    device: str,
    pretrained: Path | None = None,
    accept_dark_or_constant_inputs: bool = False,
    initial: PrototypeModel | None = None,
) -> Learner:
    """Return the learner that the agreement prescribes.

    ``initial`` is the result of :func:`build_checked_model`, of which the learner trains a copy.

    Raises a :class:`secure_client.errors.SiteError`: :class:`secure_client.errors.DataError` if all images are dark or
    constant, or all records equal, without ``accept_dark_or_constant_inputs``.
    """
    training = agreement.training
    # What is wrong with the model alone is said before the data are read, which may take minutes.
    built = build_checked_model(agreement, model, pretrained) if initial is None else copy_model(initial)
    learner = Learner(
        built,
        with_owners(data, agreement),
        build_recipe(agreement),
        Schedule(
            lr=training.lr,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            batch_size=training.batch_size,
            local_epochs=training.local_epochs,
            optimiser=training.optimiser,
        ),
        site=site,
        seed=training.init_seed,
        classes=len(agreement.classes),
        dim=agreement.dim,
        device=choose_device(device),
        private=agreement.privacy is not None,
        agreed=agreement.inputs,
    )
    if not accept_dark_or_constant_inputs:
        for ranges in learner.ranges:
            ranges.check()
    if ":" in model:  # of the site's own code
        learner.check_training()
    check_rows_change(agreement, learner)
    return learner


def build_checkpointed_learner(
    agreement: Agreement,
    learner: Learner,
    journal: Journal,
    releases: Releases | None = None,
) -> CheckpointedLearner:
    """Return the learner with its checkpoints, and with its releases where the agreement has noise.

    Raises :class:`BudgetError` for an agreement with noise without releases, and for more samples than sums with
    shared noise have room for.
    """
    warn_of_weight(agreement, learner)
    samples, most_samples = int(learner.counts.sum()), agreement.averaging.most_samples
    if agreement.distributed_noise and samples > most_samples:
        raise BudgetError(
            f"this site has more training samples than the {most_samples} that sums with shared noise have room for:"
            " agree on a larger most_samples in [averaging]"
        )
    if agreement.privacy is not None and releases is None:
        raise BudgetError(
            "the agreement has noisy prototypes, but no privacy budget was given to release them"
        )
    bounds = prototype_bounds(agreement)
    noisy = None
    if releases is not None:
        releases.begin_with(hash_weights(learner.state()))
        if releases.kept is not None:
            releases.kept.model = lambda: learner.embedding_model().state_dict()
            learner.record_steps(releases.kept.folder)
        owners, clustered = learner.owners, agreement.clusters
        noisy = NoisyPrototypes(releases, bounds, len(agreement.classes), clustered=clustered, owners=owners)
    averaging = agreement.averaging
    return CheckpointedLearner(learner, journal, bounds, averaging=averaging, noisy=noisy)


def warn_of_weight(agreement: Agreement, learner: Learner) -> None:
    """Log a warning where the site's model weighs less than its samples."""
    samples, most_samples = int(learner.counts.sum()), agreement.averaging.most_samples
    # With noise, the site's weight is its noisy count, so an exact number would be misleading.
    if agreement.method.traits.weighted and agreement.privacy is None and samples > most_samples:
        _log.warning(
            "%s: has %d training samples and counts as %d in every sum, most_samples of the agreement, which should "
            "allow for them",
            learner.site,
            samples,
            most_samples,
        )


def check_private(agreement: Agreement, model: PrototypeModel) -> None:
    """Raise :class:`ModelError` for a model that cannot train as ``[privacy]`` prescribes.

    Batch statistics follow every record that trains, even in a frozen extractor.
    """
    if agreement.privacy is not None and has_batch_norm(model):
        raise ModelError(
            '[privacy] allows no batch normalisation, whose statistics follow the records; set norm = "group" in'
            " [training], or use a model with nn.GroupNorm"
        )


def check_frozen(agreement: Agreement, model: PrototypeModel) -> None:
    """Raise :class:`ModelError` for a model whose classifier cannot train alone, where the agreement prescribes it.

    The classifier must be a module with parameters of its own, and batch statistics would change frozen features.
    """
    if not agreement.extractor_is_frozen:
        return
    if not isinstance(model.classifier, nn.Module):
        raise ModelError("a frozen extractor leaves only the classifier: make model.classifier an nn.Module")
    if not any(parameter.requires_grad for parameter in model.classifier.parameters()):
        raise ModelError("a frozen extractor leaves only the classifier, of which no parameter trains")
    if has_batch_norm(model):
        raise ModelError(
            'a frozen extractor allows no batch normalisation, whose statistics change in training; set norm = "group"'
            " in [training], or use torchvision.ops.FrozenBatchNorm2d"
        )


def check_rows_change(agreement: Agreement, learner: Learner) -> None:
    """Raise :class:`ModelError` for features that no training changes, if several rounds would send prototypes of them.

    Sums or combinations of the same prototypes of different sites differ by the prototypes of single sites, which
    drop-outs thereby give away, also those of other sites. Under ``plain`` nothing is hidden. Limit: features that
    could change and hardly do are not noticed.
    """
    hidden = agreement.protection is not Protection.PLAIN and (
        agreement.method.traits.prototypes or agreement.clusters
    )
    # With noise, rounds between releases repeat one release; with one period, all rounds repeat one sum.
    if not hidden or agreement.privacy is not None or agreement.row_period == agreement.rounds:
        return
    if learner.has_fixed_features:
        raise ModelError(
            "no parameter before the model's classifier trains, so that prototypes are the same in every round and two"
            " rounds' results give away those of a site that misses one of them: set frozen_extractor = true in"
            " [training], by which one round's results serve the run, or let a part of the extractor train"
        )


def prototype_bounds(agreement: Agreement) -> PrototypeBounds:
    """Return the agreed bounds of prototypes."""
    return PrototypeBounds(
        agreement.norm_bound,
        # FedPC weighs by cosines, which must not be negative.
        clip_at_zero=agreement.method.is_grouped,
        most_of_class=agreement.clustering.most_local if agreement.clusters else None,
    )


def check_averaged(agreement: Agreement, model: PrototypeModel) -> None:
    """Raise unless the averaged part of an untrained model has the agreed size and bounds.

    Raises :class:`ModelError` for another size, :class:`crypto.errors.BoundError` for values beyond the agreed bounds,
    which a pretrained model may have.
    """
    if not agreement.method.averages:
        return
    averaged = AveragedPart(model, agreement.method.traits.averaged)
    _check_sizes(agreement, *averaged.sizes)
    check_initial_bounds(averaged.vector(), agreement.averaging)


def warn_of_fedavg(agreement: Agreement, learner: Learner) -> None:
    """Log a warning if FedBN would keep no layer at the sites, since the model has no normalisation layers."""
    if agreement.method.traits.averaged is not ModelPart.NOT_NORMS:
        return
    if learner.averaged_sizes == AveragedPart(learner.predictor, ModelPart.MODEL).sizes:
        _log.warning(
            "%s equals fedavg for this model, which has no normalisation layers: the whole model is averaged",
            agreement.method.value,
        )


def _check_sizes(agreement: Agreement, parameters: int, buffers: int) -> None:
    if not parameters:
        raise ModelError(
            f"the part of the model that {agreement.method.value} would average has no parameters; use a model "
            "with trainable layers before its classifier"
        )
    averaging = agreement.averaging
    if (parameters, buffers) != (averaging.parameters, averaging.buffers):
        settings = f"parameters = {parameters}"
        if buffers or averaging.buffers:
            settings += f" and buffers = {buffers}"
        raise ModelError(
            f"the averaged part of the model has {parameters:,} parameters and {buffers:,} buffers: set "
            f"{settings} in [averaging]"
        )
