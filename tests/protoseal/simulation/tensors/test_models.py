"""Models as rows of one tensor do what models do that share none: saturated sums, undone training, finite sites."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agreement import Method
from protoseal.simulation.site_pool import ONE_BY_ONE
from protoseal.simulation.tensors.models import ModelRows, SiteModels, UnboundModels
from secure_client.training.learner import Learner
from tests.support.small import small_data
from tests.support.summed import method_agreement

WEIGHTS = (18, 17, 12, 13)


def build_models(kind: type[ModelRows | UnboundModels], method: Method) -> tuple[SiteModels, list[Learner]]:
    """Build the small federation's models, which differ by site."""
    agreement = method_agreement(method)
    learners = ONE_BY_ONE.learners(agreement, small_data(agreement))
    for seed, learner in enumerate(learners):
        generator = torch.Generator().manual_seed(seed)
        for parameter in learner.predictor.parameters():
            parameter.data += torch.randn(parameter.shape, generator=generator)
    return kind(learners, agreement.averaging), learners


@pytest.mark.parametrize(
    ("method", "name", "number"),
    [
        (Method.FEDAVG, "backbone.1.weight", 60.1),  # the bound is 60
        (Method.FEDBN, "backbone.1.weight", -torch.inf),
        (Method.FEDAVG, "backbone.1.bias", torch.nan),
        (Method.FEDAVG, "backbone.2.running_var", 900.0),  # the bound of buffers is 10⁶
        (Method.FEDAVG, "backbone.2.running_var", 1.1e6),
    ],
)
def test_add_up_number_beyond_its_bound_saturates_alike(method: Method, name: str, number: float) -> None:
    sums = []
    for kind in (ModelRows, UnboundModels):
        models, learners = build_models(kind, method)
        learners[1].predictor.state_dict()[name].view(-1)[0] = number
        before = learners[1].state()
        for sites in ([0, 1, 2, 3], [3, 2, 1], [0, 2]):
            chosen = [learners[site].site for site in sites]
            sums.append(models.add_up(chosen, WEIGHTS[: len(sites)]))
        for key, value in learners[1].state().items():
            assert torch.equal(value, before[key]) or name == key
    np.testing.assert_array_equal(sums[:3], sums[3:])


@pytest.mark.parametrize("kind", [ModelRows, UnboundModels])
def test_undo_restores_one_site_or_all(kind: type[ModelRows | UnboundModels]) -> None:
    models, learners = build_models(kind, Method.FEDAVG)
    for sites in (learners, learners[1:3]):  # other sites in the second round
        before = [learner.state() for learner in sites]
        models.begin([learner.site for learner in sites])
        for site in (sites[1].site, None):
            for learner in learners:
                for value in learner.predictor.state_dict().values():
                    value.add_(1)
            models.undo(site)
            for learner, state in zip(sites, before, strict=True):
                is_restored = site in {None, learner.site}
                for name, value in learner.state().items():
                    assert torch.equal(value, state[name]) is is_restored


@pytest.mark.parametrize("kind", [ModelRows, UnboundModels])
def test_finite_sites_lack_sites_with_another_number(kind: type[ModelRows | UnboundModels]) -> None:
    models, learners = build_models(kind, Method.FEDAVG)
    for learner, number in zip(learners, (torch.nan, torch.inf, -torch.inf), strict=False):
        learner.predictor.state_dict()["backbone.2.running_mean"][3] = number
    assert models.finite_sites == {learners[3].site}
