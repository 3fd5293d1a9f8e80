"""From the agreement to a site's learner: the same in deployment, in simulation and for the controls."""

from __future__ import annotations

from typing import assert_never

from algorithms.fedpc.objective import Objective as FedpcObjective
from algorithms.pfpl.objective import Objective as PfplObjective
from protoseal.config import Agreement, Method
from secure_client.bounds import PrototypeBounds, check_extractor_bounds
from secure_client.data import SiteData
from secure_client.errors import ModelError
from secure_client.extractor import Extractor
from secure_client.journal import Journal
from secure_client.learner import BatchLoss, Learner, Schedule, choose_device
from secure_client.models import PrototypeModel, build_model
from secure_client.trainee import Trainee


def build_agreed_model(agreement: Agreement, spec: str) -> PrototypeModel:
    """The initial model, on the CPU: the same at every site that uses the same ``spec``."""
    section = agreement.preprocessing
    return build_model(
        spec,
        classes=len(agreement.classes),
        dim=agreement.dim,
        channels=section.channels if section else 1,
        image_size=section.image_size if section else 1,
        seed=agreement.training.init_seed,
    )


def build_learner(agreement: Agreement, site: str, data: SiteData, *, model: str, device: str) -> Learner:
    """A learner as the agreement prescribes it. Raises a :class:`secure_client.errors.SiteError`."""
    training = agreement.training
    built = build_agreed_model(agreement, model)
    check_extractor(agreement, built)
    return Learner(
        built,
        data,
        build_objective(agreement),
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
    )


def build_trainee(agreement: Agreement, learner: Learner, journal: Journal) -> Trainee:
    """The learner with its memory."""
    return Trainee(learner, journal, prototype_bounds(agreement))


def prototype_bounds(agreement: Agreement) -> PrototypeBounds:
    """What prototypes are held to. FedPC's have no negative component, so that no cosine is negative."""
    return PrototypeBounds(agreement.norm_bound, clip_at_zero=agreement.method.is_grouped)


def build_objective(agreement: Agreement) -> BatchLoss:
    """What a batch's loss is under the agreed method; controls alone train as PFPL does."""
    match agreement.method:
        case Method.FEDPC | Method.AVERAGE:
            return FedpcObjective(agreement.fedpc.alignment)
        case Method.PFPL | Method.LOCAL | Method.SELF:
            return PfplObjective(agreement.pfpl.alignment, literal=agreement.pfpl.literal_regulariser)
        case _:
            assert_never(agreement.method)


def check_extractor(agreement: Agreement, model: PrototypeModel) -> None:
    """Raise unless what the method averages of an untrained model is what was agreed.

    :class:`ModelError` for another size, :class:`crypto.errors.BoundError` for values beyond the agreed bounds, as
    a pretrained model may have.
    """
    if not agreement.method.is_grouped:
        return
    extractor = Extractor(model)
    _check_sizes(agreement, *extractor.sizes)
    check_extractor_bounds(extractor.vector(), agreement.fedpc, trained=False)


def _check_sizes(agreement: Agreement, parameters: int, buffers: int) -> None:
    if not parameters:
        raise ModelError(
            "the extractor has no parameters, so there is nothing that fedpc could average; use a model with layers"
            " before its classifier"
        )
    agreed = (agreement.fedpc.extractor_parameters, agreement.fedpc.extractor_buffers)
    if (parameters, buffers) != agreed:
        settings = f"extractor_parameters = {parameters}"
        if buffers or agreement.fedpc.extractor_buffers:
            settings += f" and extractor_buffers = {buffers}"
        raise ModelError(
            f"the extractor has {parameters:,} parameters and {buffers:,} buffers: set {settings} in [fedpc]"
        )
