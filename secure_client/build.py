"""From the agreement to a site's learner: the same in deployment, in simulation and for the controls."""

from __future__ import annotations

from algorithms.pfpl.objective import Objective
from protoseal.config import Agreement
from secure_client.data import SiteData
from secure_client.learner import Learner, Schedule, choose_device
from secure_client.models import PrototypeModel, build_model


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
    return Learner(
        build_agreed_model(agreement, model),
        data,
        Objective(agreement.pfpl.alignment, literal=agreement.pfpl.literal_regulariser),
        Schedule(
            lr=training.lr,
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            batch_size=training.batch_size,
            local_epochs=training.local_epochs,
        ),
        site=site,
        seed=training.init_seed,
        classes=len(agreement.classes),
        dim=agreement.dim,
        device=choose_device(device),
    )
