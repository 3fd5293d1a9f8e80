"""Controls come to what a script comes to that trains each site by torch alone, without a federation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import TensorDataset

from agreement import METHODS, Agreement, Method
from protoseal.simulation.batched.training import Batching
from protoseal.simulation.site_pool import SiteTraining
from protoseal.simulation.tensors.federation import TensorFederation, run_control
from secure_client.checkpoints import learner_factory
from secure_client.training.job import training_seed
from tests.protoseal.simulation.tensors.engines import double_data
from tests.support.marks import full_but
from tests.support.small import small_agreement, small_data

CLOSE = 1e-9
"""Of numbers in float64, after three rounds, the order of whose sums differs."""
ROUNDS, BOUND = 3, 1.2
"""A bound that some prototypes are longer than, and others not."""


def train_by_script(
    agreement: Agreement, site: str, train: TensorDataset, *, aligns: bool
) -> tuple[dict[str, Tensor], list[float]]:
    """Return a site's model after all rounds, and the mean loss of each, of PFPL without peers.

    With ``aligns`` the site is drawn to its own prototypes of the round before (FedProto's term, as PFPL has it).
    """
    settings = agreement.training
    model = learner_factory.build_agreed_model(agreement, settings.model)
    inputs, labels = train.tensors
    rows: Tensor | None = None
    losses = []
    for number in range(1, agreement.rounds + 1):
        optimiser = torch.optim.SGD(
            model.parameters(), settings.lr, settings.momentum, weight_decay=settings.weight_decay
        )
        seed = training_seed(settings.init_seed, site, number, 0)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        batches = torch.split(order, settings.batch_size)
        total = 0.0
        for batch in batches:
            features = model.features(inputs[batch])
            loss = functional.cross_entropy(model.classifier(features), labels[batch])
            if aligns and rows is not None:
                loss = loss + agreement.pfpl.alignment * functional.mse_loss(features, rows[labels[batch]])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
            total += float(loss.detach())
        losses.append(total / len(batches))
        with torch.no_grad():
            features = model.features(inputs)
        rows = torch.zeros(len(agreement.classes), agreement.dim)
        for k in set(labels.tolist()):
            rows[k] = features[labels == k].mean(dim=0)
        rows *= (BOUND / rows.norm(dim=1, keepdim=True)).clamp(max=1.0)
    return model.state_dict(), losses


@pytest.mark.parametrize(
    ("control", "batching"),
    full_but(
        [(control, batching) for control in ("local", "self") for batching in ("never", "always")],
        ("local", "never"),
        ("self", "always"),
    ),
)
def test_run_control_equals_a_script_without_a_federation(control: str, batching: str, float64: None) -> None:
    agreement = small_agreement(rounds=ROUNDS)
    agreement = Agreement.model_validate({**dict(agreement), "norm_bound": BOUND})
    data, models = double_data(small_data(agreement)), {}

    def copy_models(run: TensorFederation, number: int) -> None:
        for site in run.sites:
            models[site.name] = {
                name: value.clone() for name, value in site.learner.predictor.state_dict().items()
            }

    training, method = SiteTraining(batching=Batching(batching)), METHODS[control]
    outcome = run_control(agreement, method, data, training=training, on_completed=copy_models)
    for site, rounds in outcome.site_rounds.items():
        train = data[site].train
        assert isinstance(train, TensorDataset)
        model, losses = train_by_script(agreement, site, train, aligns=method is Method.SELF)
        torch.testing.assert_close(models[site], model, rtol=CLOSE, atol=CLOSE)
        assert [done.loss for done in rounds] == pytest.approx(losses, abs=CLOSE)
        assert [(done.round, done.sites, done.withheld) for done in rounds] == [
            (number, 1, ()) for number in range(1, ROUNDS + 1)
        ]
