"""PFPL: a site that vanishes in the middle of a round: the others go on without it, protected as under `plain`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from algorithms.pfpl import Weighting
from protoseal.config import Agreement, Protection
from protoseal.federation import LocalFederation
from protoseal_wire.messages import Phase
from tests.conformance.expected import check_predictions, excess
from tests.conformance.runs import Record, agreement_for, data_for, holdings, recording_federation, run
from tests.conformance.turns import SECONDS, Clock, Loss, play, set_deadlines


def lose_a_site(agreement: Agreement, sites: int, folder: Path) -> tuple[Record, LocalFederation]:
    """Run it, the last site vanishing for good after it answered PRESENCE of round 1."""
    record: Record = {}
    data = data_for(agreement, holdings(sites, len(agreement.classes)))
    clock = Clock()
    with recording_federation(agreement, data, folder, record) as federation:
        set_deadlines(federation, folder / "keys.bin", clock)
        last = federation.sites[-1].name
        play(federation, clock, [Loss(last, 1, Phase.VALUES), Loss(last, 2, Phase.PRESENCE)])
    assert clock.now > SECONDS  # everyone waited for it
    return record, federation


@pytest.mark.parametrize("protection", [Protection.MASKED, Protection.CKKS])
def test_the_others_get_what_plain_gives_without_it(tmp_path: Path, protection: Protection) -> None:
    agreement = agreement_for(protection, Weighting.COMPLEMENT, classes=3, dim=8)
    record, federation = lose_a_site(agreement, 4, tmp_path)
    plain = Agreement.model_validate({**dict(agreement), "protection": Protection.PLAIN})
    data = data_for(plain, holdings(4, 3))
    del data["site-4"]
    without = run(plain, data, tmp_path)
    assert [(each.round, each.attempt, each.sites) for each in federation.rounds] == [
        (1, 2, ("site-1", "site-2", "site-3")),
        (2, 1, ("site-1", "site-2", "site-3")),
    ]
    assert sorted(record) == sorted(without)
    for number in (1, 2):
        assert excess(agreement, record, number) <= 1.0
    for key, taken in record.items():
        check_predictions((taken, without[key]))
        if key[0] == 1:
            np.testing.assert_array_equal(taken.prototypes.local, without[key].prototypes.local)


def test_the_lost_site_would_have_made_a_difference(tmp_path: Path) -> None:
    agreement = agreement_for(Protection.PLAIN, Weighting.COMPLEMENT, classes=3, dim=8, rounds=1)
    data = data_for(agreement, holdings(4, 3))
    complete, without = (
        run(agreement, data, tmp_path),
        run(agreement, {name: data[name] for name in ("site-1", "site-2", "site-3")}, tmp_path),
    )
    first = (1, "site-1")
    gap = np.abs(complete[first].prototypes.personal - without[first].prototypes.personal)
    assert gap[0].max() > 0.01
