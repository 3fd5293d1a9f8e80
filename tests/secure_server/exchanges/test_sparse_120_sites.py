"""A hundred and twenty sites: both halves of a masked sum, from SHARES to the mean, while some drop out on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, Method, Protection
from agreement.derived.cohorts import group_cohort
from agreement.derived.payload_shapes import limits_of
from crypto.keys import StorageKey
from crypto.roster import Roster
from protoseal_wire import codec
from protoseal_wire.class_presence import sign_presence
from protoseal_wire.messages import ActiveList, Phase, PhaseKey, PresenceStatement
from secure_client.protocol.journal import Journal
from secure_client.protocol.secure_aggregation import Group, SecureAggregation
from secure_client.protocol.sent_values import Answer, encode_answer
from secure_server.exchanges.exchange import Attempt, ExchangeParts, build_half
from tests.crypto.masked_group import credentials, member, names, sha256
from tests.support.summed import method_agreement

N = 120
MEMBERS = names(N)
STEPS = (Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK)
ROSTER = Roster({name: member(name) for name in MEMBERS}, sha256("roster"))


class Site:
    """A site's half, as the session asks it, over a journal on disk; others verify the list of members."""

    def __init__(self, name: str, agreement: Agreement, folder: Path) -> None:
        self.name = name
        self.journal = Journal(
            folder / f"{name}.sqlite",
            run=agreement.run,
            agreement_hash=agreement.hash(),
            site=name,
            storage=StorageKey(sha256(name)),
            durable=False,
        )
        party: Any = SimpleNamespace(name=name, credentials=credentials(name))
        setup: Any = SimpleNamespace(roster=lambda: ROSTER)
        self._agreement = agreement
        self._masks = SecureAggregation(agreement, party, setup, self.journal)

    def state(self, key: PhaseKey) -> PresenceStatement:
        """PRESENCE."""
        holds = np.ones(3, dtype=np.bool_)
        keys = self._masks.fresh_keys(key)
        return sign_presence(credentials(self.name), key, ROSTER.hash, holds, base=sha256("base"), keys=keys)

    def answer(self, key: PhaseKey, group: Group, request: bytes, vector: np.ndarray) -> bytes:
        """Answer one step."""
        answer: Answer
        match key.phase:
            case Phase.SHARES:
                answer = self._masks.shares(key, group)
            case Phase.VALUES:
                answer = self._masks.values(key, group, request, vector)
            case Phase.SURVIVORS:
                answer = self._masks.survivors(key, group, request)
            case _:
                answer = self._masks.unmask(key, group, request)
        content = encode_answer(self._agreement, key, answer)
        self.journal.record(key, request, content)
        return content


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[dict[str, Site]]:
    agreement = method_agreement(Method.FEDPROTO, Protection.MASKED, masking={"ring_bits": 64})
    with ExitStack() as stack:
        made = {name: Site(name, agreement, tmp_path) for name in MEMBERS}
        for site in made.values():
            stack.callback(site.journal.close)
        yield made


@pytest.mark.full
def test_a_hundred_and_twenty_sites_add_up_though_an_eleventh_goes_after_each_step(
    sites: dict[str, Site], tmp_path: Path
) -> None:
    """Any 14 of the 39 holders open a site's secret. Without 30 sites a secret has too few left once in 8·10^9."""
    agreement = method_agreement(Method.FEDPROTO, Protection.MASKED, masking={"ring_bits": 64})
    begun = PhaseKey(agreement.run, 1, 1, Phase.PRESENCE)
    active = ActiveList(tuple(sites[name].state(begun) for name in MEMBERS))
    keys = {each.site: each.keys for each in active.statements if each.keys is not None}
    group = Group(group_cohort(active, MEMBERS, agreement), keys, sha256("base"))
    server = build_half(ExchangeParts(agreement, limits_of(agreement), tmp_path))
    answers: dict[tuple[Phase, str], bytes] = {}
    attempt = Attempt(begun, ROSTER, active, (MEMBERS,), {}, lambda phase, site: answers[phase, site])
    generator = np.random.default_rng(3)
    vectors = {name: generator.uniform(-0.5, 0.5, agreement.layout.length) for name in MEMBERS}
    staying = MEMBERS
    for number, phase in enumerate(STEPS):
        key = PhaseKey(begun.run, 1, 1, phase)
        for name in staying:
            request = server.request(attempt, phase, name)
            answers[phase, name] = sites[name].answer(key, group, request, vectors[name])
            server.check(attempt, phase, name, answers[phase, name])
        attempt.survivors[phase] = staying  # type: ignore[index]
        staying = tuple(name for i, name in enumerate(staying) if number == len(STEPS) - 1 or i % 11)
    made = codec.decode_shares_made(answers[Phase.SHARES, MEMBERS[0]], limits_of(agreement)).shares
    assert len(made) == 39
    outcome = server.outcome(attempt)
    assert not outcome.failures
    survivors = attempt.survivors[Phase.VALUES]
    assert len(attempt.survivors[Phase.UNMASK]) == 90
    expected = np.mean([vectors[name] for name in survivors], axis=0)
    for name in MEMBERS:
        mean = outcome.results[name].arrays[0] if name in outcome.results else None
        assert mean is not None
        np.testing.assert_allclose(mean, expected, atol=1e-9)
