"""From the agreement to a site's learner: the same in deployment, in simulation and for the controls."""

from __future__ import annotations

from algorithms.fedpc.objective import Objective as FedpcObjective
from algorithms.pfpl.objective import Objective as PfplObjective
from protoseal.config import Agreement, Method
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
    """The learner with its memory. FedPC's prototypes have no negative component, so that no cosine is negative."""
    clip = agreement.method is Method.FEDPC
    return Trainee(learner, journal, agreement.norm_bound, clip_at_zero=clip)


def build_objective(agreement: Agreement) -> BatchLoss:
    """What a batch's loss is under the agreed method."""
    if agreement.method is Method.FEDPC:
        return FedpcObjective(agreement.fedpc.alignment)
    return PfplObjective(agreement.pfpl.alignment, literal=agreement.pfpl.literal_regulariser)


def check_extractor(agreement: Agreement, model: PrototypeModel) -> None:
    """:class:`ModelError` unless what the method averages of this model is of the agreed size."""
    if agreement.method is not Method.FEDPC:
        return
    parameters, buffers = Extractor(model).sizes
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
