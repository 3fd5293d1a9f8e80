"""Independence of a site's bytes from its records, with the same releases and the same training.

What training makes of records is not looked at here: models are moved by the seed alone, as if DP-SGD had moved them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, Extractor, FeddbpSection, Method, PrivacySection, Protection
from agreement.derived.payload_shapes import limits_of
from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.data import SiteData
from secure_client.training.learner import Learner
from tests.conformance.federations import data_for, private_agreement
from tests.secure_client.privacy.unmasked_uploads import Traces, kept_by, moved_by_the_seed
from tests.support.replayed_noise import replayed_answers

CLASSES, DIM, ROUNDS = 4, 8, 3
PRIVACY = PrivacySection(
    clip=3.0, noise_multiplier=0.2, min_count=2.0, release_every=2, extractor=Extractor.TRAINED
)
METHODS = (Method.PFPL, Method.FEDPC, Method.FEDDBP, Method.FEDPROTO, Method.FEDPLCC)
SITE = "site-1"
Double = Callable[[pytest.MonkeyPatch], None]

each_method = pytest.mark.parametrize("method", METHODS)


def agreement_of(method: Method) -> Agreement:
    return private_agreement(
        Protection.PLAIN,
        method,
        classes=CLASSES,
        dim=DIM,
        rounds=ROUNDS,
        privacy=PRIVACY,
        feddbp=FeddbpSection(own=0.75, top_channels=3),
    )


def records(agreement: Agreement, *, other: bool) -> dict[str, SiteData]:
    """Return the records of three sites; the first has others, in another number and of other classes."""
    holds = np.ones((3, CLASSES), dtype=np.bool_)
    first = data_for(agreement, holds)
    if not other:
        return first
    holds[:, 2] = False
    return {**first, SITE: data_for(agreement, np.vstack([holds, holds]))["site-6"]}


def traces(method: Method, *, other: bool) -> Traces:
    """Return the bytes that each site sent, and those that stay in its journal, by name."""
    agreement, found = agreement_of(method), Traces()
    with (
        replayed_answers(records=6),
        moved_by_the_seed(),
        LocalFederation(agreement, records(agreement, other=other), record=True) as federation,
    ):
        federation.run()
        for each in federation.store.received():
            if each.key is not None and each.key.phase in (Phase.PRESENCE, Phase.VALUES):
                name = f"{each.site} sent {each.key.phase.name} of round {each.key.round}"
                found[name] = _without_signature(agreement, each.key.phase, each.content)
        for site in federation.sites:
            found |= {
                f"{site.name} keeps {name}": kept
                for name, kept in kept_by(site.learner, "model", "targets", "base").items()
            }
    return found


def _without_signature(agreement: Agreement, phase: Phase, content: bytes) -> bytes:
    if phase is not Phase.PRESENCE:
        return content
    statement = codec.decode_presence(content, limits_of(agreement))
    return statement.holds.tobytes() + statement.base


def differing(one: Traces, other: Traces) -> list[str]:
    assert one.keys() == other.keys()
    return sorted(name for name in one if one[name] != other[name])


@cache
def usual(method: Method) -> Traces:
    return traces(method, other=False)


@each_method
def test_nothing_but_releases_and_training_depends_on_records(method: Method) -> None:
    assert differing(usual(method), traces(method, other=True)) == []


@each_method
def test_exact_prototypes_depend_on_records(method: Method) -> None:
    """Classes are absent by noisy counts, sites differ, and rounds with a release do from those before."""
    found = usual(method)
    sent = {name: hashlib.sha256(each).hexdigest() for name, each in found.items() if "sent VALUES" in name}
    assert len(set(sent.values())) >= 3 * 2
    assert len({each for name, each in found.items() if "sent PRESENCE" in name}) > 1


# Doubles from which something exact does leave


def _after_each_round(change: Callable[[Learner], dict[str, Any]]) -> Double:
    def double(patch: pytest.MonkeyPatch) -> None:
        finish = CheckpointedLearner.finish

        def changed(self: CheckpointedLearner, *given: Any) -> None:
            finish(self, *given)
            self.values.last = replace(self.values.require_last(), **change(self._learner))
            self._save_model()

        patch.setattr(CheckpointedLearner, "finish", changed)

    return double


def _exact_counts(learner: Learner) -> dict[str, Any]:
    return {"counts": learner.counts}


def _exact_rows(learner: Learner) -> dict[str, Any]:
    return {"rows": learner.prototypes()[0]}


def _exact_clusters(learner: Learner) -> dict[str, Any]:
    return {"local": learner.local_clusters(learner.embed()), "counts": learner.counts}


def _exact_weights(patch: pytest.MonkeyPatch) -> None:
    trained = CheckpointedLearner.train_round
    patch.setattr(
        CheckpointedLearner,
        "train_round",
        lambda self, number: (trained(self, number)[0], self._learner.counts),
    )


def _exact_scores(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Learner, "scores_at", lambda self, *_: self.scores(self.embed()))


DOUBLES: dict[str, tuple[Method, Double, str]] = {
    "exact counts say which classes there are": (
        Method.PFPL,
        _after_each_round(_exact_counts),
        "sent PRESENCE of round 1",
    ),
    "exact counts weigh models": (Method.FEDPLCC, _exact_weights, "sent VALUES of round 1"),
    "exact means are what is clustered": (
        Method.FEDPC,
        _after_each_round(_exact_rows),
        "sent VALUES of round 0",
    ),
    "exact means are fused": (Method.FEDDBP, _after_each_round(_exact_rows), "keeps base: rows"),
    "scores over records choose channels": (Method.FEDDBP, _exact_scores, "keeps base: rows"),
    "clusters of a class's own": (
        Method.FEDPLCC,
        _after_each_round(_exact_clusters),
        "sent VALUES of round 1",
    ),
}


@pytest.mark.parametrize("double", DOUBLES)
def test_comparison_finds_exact_values_that_leave(double: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, weaken, where = DOUBLES[double]
    weaken(monkeypatch)
    found = {False: traces(method, other=False), True: traces(method, other=True)}
    names = found[False].keys() & found[True].keys()
    assert f"{SITE} {where}" in {name for name in names if found[False][name] != found[True][name]}
