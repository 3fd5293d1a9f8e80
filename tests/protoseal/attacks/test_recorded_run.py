"""Rounds of a recorded run: the model that each round's rows come from, at every site."""

from __future__ import annotations

import numpy as np

from protoseal.attacks.recorded_run import compute_features
from tests.protoseal.attacks.recorded import record_anew, recorded_in_groups

SITE = "site-2"


def test_each_rounds_model_gives_the_prototypes_that_the_site_sent() -> None:
    run = record_anew("pfpl", "plain", rounds=2)
    train, models = run.sites[SITE].train, run.models(SITE)
    sent = {run.last_round: run.sites[SITE].received, 1: run.earlier[SITE][0].received}
    assert [*models] == [1, 2]
    for number, model in models.items():
        features = compute_features(model, train.inputs)
        means = [features[train.labels == k].mean(axis=0) for k in range(len(run.agreement.classes))]
        np.testing.assert_allclose(means, sent[number].local, atol=1e-5)


def test_round_zero_has_the_initial_model() -> None:
    run = recorded_in_groups("plain")
    assert [*run.models(SITE)] == [0, 1]
    assert run.upload(SITE, number=0).key != run.upload(SITE).key
