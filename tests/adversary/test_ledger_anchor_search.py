"""A coordinator that searches for the ledger line behind an anchor, and so for the second in which a site paid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agreement import Agreement, Extractor, PrivacySection, Protection
from algorithms.pfpl import Weighting
from privacy.ledger.budget_account import read_account
from privacy.ledger.hash_chain import Anchor
from privacy.ledger.lines import line_to_json
from protoseal_wire.messages import LedgerAnchor
from tests.support.ledgers import is_line
from tests.support.scripted_coordinator import Cast, ScriptedCoordinator
from tests.support.small import small_agreement

NAMES = ("clinic-a", "clinic-b", "clinic-c", "clinic-d")
NOISE = PrivacySection(clip=1.0, noise_multiplier=5.0, extractor=Extractor.FROZEN)


@pytest.fixture
def play(tmp_path: Path, cast: Cast) -> Iterator[ScriptedCoordinator]:
    plain = small_agreement(Protection.PLAIN, Weighting.COMPLEMENT)
    with ScriptedCoordinator(
        tmp_path, Agreement.model_validate({**dict(plain), "privacy": NOISE}), cast
    ) as play:
        play.set_up(*NAMES)
        yield play


def anchor_of(shown: LedgerAnchor | None) -> Anchor:
    assert shown is not None
    return Anchor(shown.seq, shown.head.hex())


def test_the_anchor_in_presence_does_not_say_when_the_site_had_trained(play: ScriptedCoordinator) -> None:
    """All of a payment's line but its second is public. With the salt from the site's disk the search succeeds."""
    before = anchor_of(play.site("clinic-a").session.join_request().anchor)
    start = datetime.now(UTC)
    after = anchor_of(play.presence("clinic-a").anchor)
    seconds = range(int((datetime.now(UTC) - start).total_seconds()) + 2)
    times = [f"{start + timedelta(seconds=second):%Y-%m-%dT%H:%M:%SZ}" for second in seconds]
    path = play.budget("clinic-a").ledger
    (entry,) = read_account(path).entries
    tried = [line_to_json(replace(entry, time=time)) for time in times]
    assert [content["time"] for content in tried if is_line(content, before, after)] == []
    salt = json.loads(path.read_bytes().splitlines()[after.seq])["salt"]
    assert [content["time"] for content in tried if is_line(content, before, after, salt)] == [entry.time]
