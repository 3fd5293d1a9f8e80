"""Uploads under shared noise, without their masks: they depend on records by the noisy sums alone.

Twice: with noisy sums that follow from no record, all that leaves is the same bytes whatever the site has; and with the
same draws, a record more or less is what the query says of it, in its class's numbers, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import Subset

from agreement import (
    Agreement,
    DpSgdSection,
    Extractor,
    FeddbpSection,
    MaskingSection,
    Method,
    Noise,
    PrivacySection,
    Protection,
)
from crypto.pairwise.attempt import threshold
from protoseal.simulation.local_federation import LocalFederation
from secure_client import session
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.exchanged_values import ExchangedValues
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.data import SiteData
from secure_client.exchanges.sums import SumExchange
from secure_client.models.prototype_model import compute_outputs
from secure_client.output.site_log import SiteRound
from secure_client.training.learner import Learner
from secure_server.upload_checks import AnswerCheck
from tests.conformance.federations import data_for, private_agreement
from tests.secure_client.privacy.unmasked_uploads import Sent, Traces, differing, kept_by, moved_by_the_seed
from tests.support.marks import full_but
from tests.support.replayed_noise import replayed_answers, replayed_noise

CLASSES, DIM, ROUNDS, SITES, SITE = 4, 8, 2, 4, "site-1"
LOST_CLASS = 2
SHARED = PrivacySection(clip=3.0, noise_multiplier=0.3, min_count=2.0, noise=Noise.DISTRIBUTED, colluding=1)
METHODS: dict[Method, dict[str, Any]] = {
    Method.FEDPC: {},
    Method.FEDDBP: {"feddbp": FeddbpSection(personal=False, decision=False)},
    Method.FEDPROTO: {},
}
EXTRACTORS: dict[Extractor, dict[str, Any]] = {
    Extractor.FROZEN: {},
    Extractor.PRIVATE: {"dp_sgd": DpSgdSection(noise_multiplier=1.0, clip=1.0, sampling_rate=0.5)},
}
Double = Callable[[pytest.MonkeyPatch], None]

each_method = pytest.mark.parametrize("method", full_but(METHODS, Method.FEDPC))
each_extractor = pytest.mark.parametrize("extractor", EXTRACTORS)


def agreement_of(method: Method, extractor: Extractor = Extractor.FROZEN) -> Agreement:
    privacy = SHARED.model_copy(update={"extractor": extractor, **EXTRACTORS[extractor]})
    return private_agreement(
        Protection.MASKED,
        method,
        classes=CLASSES,
        dim=DIM,
        rounds=ROUNDS,
        privacy=privacy,
        masking=MaskingSection(),
        **METHODS[method],
    )


# Data of the first site


def labels_of(data: SiteData) -> list[int]:
    dataset: Any = data.train
    return [int(dataset[i][1]) for i in range(len(dataset))]


def without(data: SiteData, records: list[int]) -> SiteData:
    kept = [i for i in range(len(labels_of(data))) if i not in records]
    return SiteData(Subset(data.train, kept), data.test)


def as_it_is(agreement: Agreement) -> SiteData:
    return data_for(agreement, np.ones((SITES, CLASSES), dtype=np.bool_))[SITE]


def less_a_record(agreement: Agreement) -> SiteData:
    found = as_it_is(agreement)
    return without(found, [labels_of(found).index(LOST_CLASS)])


def less_a_class(agreement: Agreement) -> SiteData:
    found = as_it_is(agreement)
    return without(found, [i for i, label in enumerate(labels_of(found)) if label == LOST_CLASS])


def others(agreement: Agreement) -> SiteData:
    """Return records that the site does not have, of one class alone."""
    holds = np.zeros((SITES + 1, CLASSES), dtype=np.bool_)
    holds[:, 1] = True
    return data_for(agreement, holds)[f"site-{SITES + 1}"]


Has = Callable[[Agreement], SiteData]
CHANGED: dict[str, Has] = {"a record less": less_a_record, "no such class": less_a_class, "others": others}
each_change = pytest.mark.parametrize("change", CHANGED)


# What leaves, and what stays

DOCUMENTS = ("model", "base")
NOT_OF_RECORDS = {"round", "attempt", "sites", "withheld", "epsilon", "guaranteed"}
"""Entries of a site's round that do not depend on records; accuracies and losses are exact, and seconds vary."""


@dataclass(frozen=True)
class Run:
    sent: Sent
    kept: Traces


def run_of(agreement: Agreement, has: Has) -> Run:
    data = data_for(agreement, np.ones((SITES, CLASSES), dtype=np.bool_))
    sent, kept = Sent(agreement), Traces()

    def told(site: str, figures: SiteRound) -> None:
        said = figures.model_dump_json(include=NOT_OF_RECORDS)
        kept[f"{site} tells itself of round {figures.round}"] = said.encode()

    data[SITE] = has(agreement)
    with LocalFederation(agreement, data, on_round=told) as federation, sent.noted(federation):
        federation.run()
        for site in federation.sites:
            assert all(site.learner._journal.get(document) is not None for document in DOCUMENTS)
            found = kept_by(site.learner, *DOCUMENTS)
            kept |= {f"{site.name} keeps {name}": each for name, each in found.items()}
    return Run(sent, kept)


def answered_alike(method: Method, extractor: Extractor, has: Has) -> Run:
    """Replay releases; models move by the seed, as if by DP-SGD, except classifiers over frozen features."""
    moved = nullcontext() if extractor is Extractor.FROZEN else moved_by_the_seed()
    with replayed_answers(records=6), moved:
        return run_of(agreement_of(method, extractor), has)


@cache
def usual(method: Method, extractor: Extractor) -> Run:
    return answered_alike(method, extractor, as_it_is)


MODEL_OF_RECORDS = ("keeps model: ",)


@each_change
@each_extractor
@each_method
def test_same_noisy_sums_give_the_same_bytes(method: Method, extractor: Extractor, change: str) -> None:
    found = answered_alike(method, extractor, CHANGED[change])
    assert differing(usual(method, extractor).sent.traces, found.sent.traces) == []
    but = MODEL_OF_RECORDS if extractor is Extractor.FROZEN else ()
    assert differing(usual(method, extractor).kept, found.kept, but) == []


@each_method
def test_classifier_trains_on_the_records(method: Method) -> None:
    """The finding that nothing of the classifier leaves would mean little if it did not train."""
    found = answered_alike(method, Extractor.FROZEN, others)
    assert any("classifier" in name for name in differing(usual(method, Extractor.FROZEN).kept, found.kept))


@each_extractor
@each_method
def test_transcript_has_every_phase_round_and_site(method: Method, extractor: Extractor) -> None:
    """Each phase of each round by each site; sites differ, rounds do, and a trained model's part does."""
    found = usual(method, extractor).sent
    for number in range(1, ROUNDS + 1):
        for site in (f"site-{i + 1}" for i in range(SITES)):
            for phase in ("PRESENCE", "SHARES", "VALUES", "SURVIVORS", "UNMASK", "RESULT"):
                assert f"{site} sent {phase} of round {number}, attempt 1" in found.traces
            assert (
                found.traces[f"{site} sent PRESENCE of round {number}, attempt 1: classes"] == b"\1" * CLASSES
            )
    assert (f"{SITE} sent VALUES of round 0, attempt 1" in found.traces) == (method is Method.FEDPC)
    assert len({each.tobytes() for each in found.words.values()}) == SITES * ROUNDS


@each_method
def test_no_site_keeps_prototypes_of_its_own(method: Method) -> None:
    kept = usual(method, Extractor.FROZEN).kept
    for what in ("file: local", "file: counts"):
        assert not any(kept[f"{SITE} keeps {what}"])


# A record more or less


@cache
def with_the_same_draws(method: Method, change: str | None) -> Run:
    with replayed_noise():
        return run_of(agreement_of(method), as_it_is if change is None else CHANGED[change])


def query_of(agreement: Agreement, data: SiteData) -> NDArray[np.int64]:
    """Return the query of the records in whole steps, (K, d + 1): features of the initial model, and counts."""
    dataset: Any = data.train
    model = build_agreed_model(agreement, agreement.training.model)
    model.eval()
    with torch.no_grad():
        given = compute_outputs(model, torch.stack([dataset[i][0] for i in range(len(dataset))]))
    grid = agreement.noisy_sum(SITES).grid
    found = np.zeros((CLASSES, DIM + 1), dtype=np.int64)
    for row, label in zip(grid.clip_records(given.features.double().numpy()), labels_of(data), strict=True):
        found[label] += [*row, grid.weight]
    return found


def numbers(sent: Sent, number: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return parts of the site's vector: sums and weights (K, d + 1) in whole steps, and the model's part."""
    agreement = sent.agreement
    vector = agreement.fixed_point().decode_sum(sent.words[SITE, number, 1], 1)
    vectors, weights = agreement.layout.noisy_parts(vector)
    whole = np.concatenate([vectors, weights[:, None]], axis=1).astype(np.int64)
    return whole, agreement.layout.split(vector)[1]


@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
@pytest.mark.parametrize("change", ["a record less", "no such class"])
@each_method
def test_same_draws_words_differ_by_the_query(method: Method, change: str, number: int) -> None:
    agreement = agreement_of(method)
    full, less = (with_the_same_draws(method, each).sent for each in (None, change))
    (before, model), (after, other) = numbers(full, number), numbers(less, number)
    expected = query_of(agreement, as_it_is(agreement)) - query_of(agreement, CHANGED[change](agreement))
    assert (before - after).tolist() == expected.tolist()
    assert np.flatnonzero(expected.any(axis=1)).tolist() == [LOST_CLASS]
    np.testing.assert_array_equal(model, other)
    records = 1 if change == "a record less" else 6
    grid = agreement.noisy_sum(SITES).grid
    assert int(expected[LOST_CLASS, DIM]) == records * grid.weight
    assert int(np.square(expected).sum()) <= records**2 * grid.sensitivity_squared


@pytest.mark.parametrize("change", ["a record less", "no such class"])
@each_method
def test_same_draws_nothing_else_differs(method: Method, change: str) -> None:
    """But for that class's row in FedPC's clustering, which has noise of its own."""
    full, less = (with_the_same_draws(method, each).sent for each in (None, change))
    words = [f"{SITE} sent VALUES of round {number}, attempt 1" for number in range(1, ROUNDS + 1)]
    shown = [f"{SITE} sent VALUES of round 0, attempt 1"] if method is Method.FEDPC else []
    assert differing(full.traces, less.traces) == shown + words
    if shown:
        rows = [each.shown[SITE].reshape(CLASSES, DIM) for each in (full, less)]
        assert np.flatnonzero((rows[0] != rows[1]).any(axis=1)).tolist() == [LOST_CLASS]


def test_every_class_has_a_share_of_noise() -> None:
    """The words without the query are the draw: some 2^20 steps in all numbers."""
    sent = with_the_same_draws(Method.FEDPROTO, "no such class").sent
    agreement = sent.agreement
    found = numbers(sent, 1)[0] - query_of(agreement, less_a_class(agreement))
    assert found.all()
    assert 2**18 < np.abs(found[LOST_CLASS]).mean() < 2**22
    assert threshold(SITES) == 3  # less one that colludes: each has 1/√2 of the agreed noise


# Doubles from which something exact does leave, or is kept


def _exact_classes(patch: pytest.MonkeyPatch) -> None:
    """State the exact classes to a coordinator that does not refuse them."""
    patch.setattr(ExchangedValues, "held_classes", lambda self: self._learner.counts > 0)
    patch.setattr(session, "stated_classes", lambda agreement, number, held: held)
    patch.setattr(AnswerCheck, "_check_presence", lambda *_: None)


def _exact_counts(patch: pytest.MonkeyPatch) -> None:
    term = CheckpointedLearner.noisy_sum_term

    def exact(self: CheckpointedLearner, *given: Any) -> Any:
        vectors, weights = term(self, *given)
        return vectors, weights + self._learner.counts

    patch.setattr(CheckpointedLearner, "noisy_sum_term", exact)


def _noise_where_there_is_something(patch: pytest.MonkeyPatch) -> None:
    term = CheckpointedLearner.noisy_sum_term

    def some(self: CheckpointedLearner, *given: Any) -> Any:
        vectors, weights = term(self, *given)
        there = self._learner.counts > 0
        return np.where(there[:, None], vectors, 0), np.where(there, weights, 0)

    patch.setattr(CheckpointedLearner, "noisy_sum_term", some)


def _exact_means(patch: pytest.MonkeyPatch) -> None:
    def own(self: SumExchange, rows: Any, has: Any) -> Any:
        return (rows + self._learner._learner.prototypes()[0]) / 2.0, has

    patch.setattr(SumExchange, "_targets", own)


def _a_classifier_in_the_average(patch: pytest.MonkeyPatch) -> None:
    averaged = Learner.averaged_vector

    def more(self: Learner) -> Any:
        bias: Any = self.predictor.classifier.bias
        return averaged(self) + float(bias.detach().abs().sum())

    patch.setattr(Learner, "averaged_vector", more)


def _exact_counts_kept(patch: pytest.MonkeyPatch) -> None:
    last = ExchangedValues.require_last
    patch.setattr(
        ExchangedValues,
        "require_last",
        lambda self: replace(last(self), counts=self._learner.counts),
    )


DOUBLES: dict[str, tuple[Method, Double, str, Has]] = {
    "states the classes that it has": (
        Method.FEDPROTO,
        _exact_classes,
        "sent PRESENCE of round 1, attempt 1: classes",
        less_a_class,
    ),
    "adds its exact counts": (
        Method.FEDPROTO,
        _exact_counts,
        "sent VALUES of round 1, attempt 1",
        less_a_record,
    ),
    "adds noise to classes that it has": (
        Method.FEDPROTO,
        _noise_where_there_is_something,
        "sent VALUES of round 1, attempt 1",
        less_a_class,
    ),
    "trains towards its own means": (Method.FEDDBP, _exact_means, "keeps base: rows", less_a_record),
    "averages something of its classifier": (
        Method.FEDPC,
        _a_classifier_in_the_average,
        "sent VALUES of round 1, attempt 1",
        less_a_record,
    ),
    "keeps its exact counts": (Method.FEDPC, _exact_counts_kept, "keeps file: counts", less_a_record),
}


@pytest.mark.parametrize("double", DOUBLES)
def test_comparison_finds_exact_values_under_shared_noise(
    double: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, weaken, where, has = DOUBLES[double]
    weaken(monkeypatch)
    runs = [answered_alike(method, Extractor.FROZEN, each) for each in (as_it_is, has)]
    one, other = ({**each.sent.traces, **each.kept} for each in runs)
    assert f"{SITE} {where}" in differing(one, other)
