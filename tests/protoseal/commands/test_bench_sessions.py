"""Whole masked rounds through sessions and the coordinator, as ``protoseal bench pairwise --sessions`` plays them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import crypto.pairwise.shares
import protoseal_wire.presence
from agreement import Agreement, MaskingSection
from protoseal.bench import pairwise_run
from protoseal.bench.pairwise import Plan, measure
from protoseal.bench.pairwise_parties import Float
from protoseal.bench.pairwise_run import Round, play
from protoseal_wire.messages import Phase

STEPS = {Phase.PRESENCE, Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK, Phase.RESULT}
COMPLETE = MaskingSection()
SPARSE = MaskingSection(complete_up_to=6)


@pytest.mark.parametrize("masking", [COMPLETE, SPARSE], ids=["complete", "sparse"])
def test_sixteen_sites_add_up_though_a_quarter_drops_out(masking: MaskingSection) -> None:
    """Played to the mean over those who stayed, which it checks."""
    assert masking.graph(16, 16).sparse is (masking is SPARSE)
    played = play(16, 2, 3, 4, masking)
    assert played.sites.keys() == played.coordinator.keys() == STEPS
    assert {phase: len(of) for phase, of in played.sites.items()} == dict.fromkeys(STEPS, 12)
    assert len(played.bytes_of) == 12


def test_a_result_that_is_another_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = pairwise_run._check_mean

    def over_one(agreement: Agreement, played: Round, rows: Sequence[Float]) -> None:
        real(agreement, played, rows[:1])

    monkeypatch.setattr(pairwise_run, "_check_mean", over_one)
    with pytest.raises(RuntimeError, match="is not the mean"):
        play(4, 2, 3, 0, COMPLETE)


def test_sessions_are_recorded_as_cases_of_their_own() -> None:
    *_, case = measure(Plan(sites=4, classes=2, dim=3, dropped=1, repeats=1, growth=(), sessions=(8,)))
    assert (case.what["case"], case.what["sites"], case.what["dropped"]) == ("sessions", 8, 2)
    assert all(float(str(case.what[name])) > 0 for name in ("coordinator_seconds", "coordinator_unmask"))


def test_each_signature_is_checked_once_by_whoever_goes_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site goes by its list of n members in four steps, and by the shares made for it in three."""
    sites, checked = 5, {"presence": 0, "share": 0}

    def counting(kind: str, verify: Callable[..., None]) -> Callable[..., None]:
        def counted(*arguments: Any) -> None:
            checked[kind] += 1
            verify(*arguments)

        return counted

    for kind, module in (("presence", protoseal_wire.presence), ("share", crypto.pairwise.shares)):
        monkeypatch.setattr(module, "verify", counting(kind, module.verify))
    play(sites, 2, 3, 0, COMPLETE)
    by_the_coordinator = {"presence": sites, "share": sites * (sites - 1)}
    by_sites = {"presence": sites * sites, "share": sites * (sites - 1)}
    # All have been told the second round's start when the play ends, and some have answered it.
    assert checked["presence"] in range(sum(d["presence"] for d in (by_the_coordinator, by_sites)), 40)
    assert checked["share"] == by_the_coordinator["share"] + by_sites["share"]
