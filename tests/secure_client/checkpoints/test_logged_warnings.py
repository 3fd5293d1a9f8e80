"""Warnings in a site's log: agreements whose settings have no effect, or that its data do not fit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from agreement import Agreement, AveragingSection, Method
from protoseal.simulation.site_pool import SiteTraining
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.learner_factory import build_checkpointed_learner, build_learner
from secure_client.protocol.journal import Journal
from tests.secure_client.journals import journal_at
from tests.support.small import short_training, small_data
from tests.support.summed import method_agreement

PLAIN, WITH_NORM = "tests.support.small:build", "tests.support.summed:build"
"""But for the layer that normalises, the second is as large as the first."""


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with journal_at(tmp_path / "journal.sqlite") as opened:
        yield opened


def trainee(agreement: Agreement, journal: Journal) -> CheckpointedLearner:
    data = small_data(agreement)["clinic-a"]
    learner = build_learner(agreement, "clinic-a", data, model=agreement.training.model, device="cpu")
    return build_checkpointed_learner(agreement, learner, journal)


@pytest.mark.parametrize("method", [Method.FEDBN, Method.FEDAVG])
@pytest.mark.parametrize("model", [PLAIN, WITH_NORM])
def test_fedbn_without_norms_is_said_to_be_fedavg_once(
    caplog: pytest.LogCaptureFixture, method: Method, model: str
) -> None:
    parameters = 563 if (method, model) == (Method.FEDAVG, WITH_NORM) else 547
    buffers = 16 if parameters == 563 else 0
    agreement = method_agreement(
        method,
        training=short_training(model),
        averaging=AveragingSection(parameters=parameters, buffers=buffers),
    )
    with caplog.at_level(logging.WARNING):
        for position, (name, data) in enumerate(small_data(agreement).items()):
            SiteTraining().learner(agreement, name, data, position)
    said = [record.getMessage() for record in caplog.records]
    expected = (
        "fedbn equals fedavg for this model, which has no normalisation layers: the whole model is averaged"
    )
    assert said == ([expected] if (method, model) == (Method.FEDBN, PLAIN) else [])


@pytest.mark.parametrize("method", [Method.FEDAVG, Method.FEDPLCC, Method.FEDPC])
@pytest.mark.parametrize("most", [17, 18])
def test_a_site_says_that_it_counts_as_fewer_samples(
    caplog: pytest.LogCaptureFixture, journal: Journal, method: Method, most: int
) -> None:
    """The site has 18 samples. FedPC weighs no models by samples."""
    plain = method_agreement(method)
    averaging = plain.averaging.model_copy(update={"most_samples": most})
    with caplog.at_level(logging.WARNING):
        trainee(method_agreement(method, averaging=averaging), journal)
    said = [record.getMessage() for record in caplog.records]
    if method is Method.FEDPC or most == 18:
        assert not said
    else:
        assert len(said) == 1
        assert said[0].startswith("clinic-a: has 18 training samples and counts as 17 in every sum")


@pytest.mark.parametrize("method", [Method.PFPL, Method.FEDPROTO, Method.FEDPLCC])
def test_prototypes_that_are_sent_shorter_are_told_of_once_a_round(
    caplog: pytest.LogCaptureFixture, journal: Journal, method: Method
) -> None:
    site = trainee(method_agreement(method, norm_bound=0.01), journal)
    with caplog.at_level(logging.WARNING):
        for number in (1, 1, 2):
            site.train_round(number)
    first, second = [record.getMessage() for record in caplog.records]
    sent = len(site.values.local().labels) if method is Method.FEDPLCC else 3
    assert second.startswith(
        f"clinic-a, round 2: {sent} prototypes were longer than norm_bound = 0.01, the longest "
    )
    assert first.startswith("clinic-a, round 1: ")
