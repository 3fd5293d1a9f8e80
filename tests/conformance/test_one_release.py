"""Frozen features by default: the rows of one noisy release enter one sum, and no later message carries any."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, FeddbpSection, Method, PrivacySection, Protection
from agreement.derived.payload_shapes import limits_of
from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire import codec
from protoseal_wire.messages import Phase
from secure_client.privacy.kept_releases import read_kept
from tests.conformance.federations import data_for, private_agreement
from tests.support.marks import full_but
from tests.support.served import served_pairs

ROUNDS, DIM, CLASSES = 3, 12, 3
PRIVACY = PrivacySection(clip=3.0, noise_multiplier=0.2, min_count=2.0)
METHODS: dict[Method, dict[str, Any]] = {
    Method.PFPL: {},
    Method.FEDPC: {},
    Method.FEDDBP: {"feddbp": FeddbpSection(own=0.75, top_channels=5, decision=False)},
    Method.FEDPROTO: {},
}
RUNS = served_pairs(METHODS)
KEPT = ((Method.PFPL, Protection.CKKS), (Method.FEDPC, Protection.PLAIN), (Method.FEDPC, Protection.MASKED))


@pytest.fixture
def federation(tmp_path: Path, method: Method, protection: Protection) -> Iterator[LocalFederation]:
    """Return a federation after its run, with what its sites kept and its coordinator received."""
    agreement = private_agreement(
        protection,
        method,
        classes=CLASSES,
        dim=DIM,
        rounds=ROUNDS,
        privacy=PRIVACY,
        norm_bound=40.0,
        **METHODS[method],
    )
    data = data_for(agreement, np.ones((4, CLASSES), dtype=np.bool_))
    with LocalFederation(agreement, data, record=True, keep_releases=True, state=tmp_path) as played:
        played.run()
        yield played


@pytest.mark.parametrize(("method", "protection"), full_but(RUNS, *KEPT))
def test_frozen_features_rows_of_one_release_enter_one_sum(federation: LocalFederation) -> None:
    agreement = federation.agreement
    first = 0 if agreement.method.is_grouped else 1
    with_rows = set[int]()
    for site in federation.sites:
        assert site.learner.releases is not None
        assert site.learner.releases.kept is not None
        drawn, sent = read_kept(site.learner.releases.kept.folder)
        assert [draw.release.round for draw in drawn] == [first]
        assert {values.released for values in sent} == {first}
        values_sent = [values for values in sent if values.phase is Phase.VALUES]
        rows = {values.round: prototypes_in(agreement, values.arrays[0]) for values in values_sent}
        with_rows |= {number for number, of_round in rows.items() if of_round.any()}
        assert site.learner.predictor.prototypes().has_personal.all()
    assert with_rows == {first, 1}
    check_messages(federation)


def prototypes_in(agreement: Agreement, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the prototypes among the values that a site's half of the protection got in a round."""
    return values.ravel()[: agreement.layout.prototypes or None]


def check_messages(federation: LocalFederation) -> None:
    """Search the coordinator's messages: no class is stated after round 1, and no number of a noisy row is in any."""
    agreement, limits = federation.agreement, limits_of(federation.agreement)
    numbers = {
        np.float64(number).tobytes()
        for site in federation.sites
        for number in site.learner.values.latest()[0].ravel()
        if number
    }
    stating, showing = set[int](), set[int]()
    for message in federation.store.received():
        if message.key is None:
            continue
        if message.key.phase is Phase.PRESENCE:
            stating |= (
                {message.key.round} if codec.decode_presence(message.content, limits).holds.any() else set()
            )
        if any(number in message.content for number in numbers):
            showing.add(message.key.round)
    assert stating == ({0, 1} if agreement.method.is_grouped else {1})
    # The search has power under `plain`, where sums are of rows in the clear.
    assert showing == ({1} if agreement.protection is Protection.PLAIN and agreement.sums else set())
