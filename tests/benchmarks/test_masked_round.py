"""Whole masked rounds through sessions and the coordinator, as ``python -m benchmarks.pairwise`` plays them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import crypto.pairwise.shares
import protoseal_wire.class_presence
from agreement import Agreement, MaskingSection
from benchmarks import masked_round
from benchmarks.masked_round import Float, MaskedRound, play
from protoseal_wire import codec
from protoseal_wire.messages import Phase

PHASES = {Phase.PRESENCE, Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK, Phase.RESULT}
COMPLETE = MaskingSection()
SPARSE = MaskingSection(complete_up_to=6)
BY_SITES = ("presence", "shares_made", "payload", "survivor_signature", "released_shares")
SAME_FOR_ALL = ("round_start", "active_list", "survivor_set", "signed_survivors")


@pytest.mark.parametrize("masking", [COMPLETE, SPARSE], ids=["complete", "sparse"])
def test_sixteen_sites_add_up_though_a_quarter_drops_out(masking: MaskingSection) -> None:
    """Played to the mean over those who stayed, which it checks."""
    assert masking.graph(16, 16).sparse is (masking is SPARSE)
    played = play(16, 2, 3, 4, masking)
    assert played.sites.keys() == played.coordinator.keys() == PHASES
    assert {phase: len(of) for phase, of in played.sites.items()} == dict.fromkeys(PHASES, 12)
    assert len(played.sent_by) == len(played.received_by) == 12


def test_bytes_are_those_of_the_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median site's bytes are those of all that sites and coordinator encode in round 1, by kind."""
    sites, made = 5, defaultdict[str, list[int]](list)

    def counting(kind: str) -> Callable[[Any], bytes]:
        real = getattr(codec, f"encode_{kind}")

        def encode(value: Any) -> bytes:
            content: bytes = real(value)
            made[kind].append(len(content))
            return content

        return encode

    for kind in (*BY_SITES, *SAME_FOR_ALL, "received_shares"):
        monkeypatch.setattr(codec, f"encode_{kind}", counting(kind))
    played = play(sites, 2, 3, 0, COMPLETE)
    sent = sum(sum(made[kind][:sites]) for kind in BY_SITES) / sites
    shares = sum(made["received_shares"]) / len(
        made["received_shares"]
    )  # encoded as often as they are asked for
    received = shares + sum(made[kind][0] for kind in SAME_FOR_ALL)
    rest = sites * 2  # signatures are a byte longer or shorter from site to site
    assert played.sent == pytest.approx(sent, abs=rest)
    assert played.received == pytest.approx(received, abs=rest)


def test_a_result_that_is_another_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = masked_round._check_mean

    def over_one(agreement: Agreement, played: MaskedRound, rows: Sequence[Float]) -> None:
        real(agreement, played, rows[:1])

    monkeypatch.setattr(masked_round, "_check_mean", over_one)
    with pytest.raises(RuntimeError, match="is not the mean"):
        play(4, 2, 3, 0, COMPLETE)


def test_each_signature_is_checked_once_by_whoever_goes_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site goes by its list of n members in four steps, and by the shares made for it in three."""
    sites, checked = 5, {"presence": 0, "share": 0}

    def counting(kind: str, verify: Callable[..., None]) -> Callable[..., None]:
        def counted(*arguments: Any) -> None:
            checked[kind] += 1
            verify(*arguments)

        return counted

    for kind, module in (("presence", protoseal_wire.class_presence), ("share", crypto.pairwise.shares)):
        monkeypatch.setattr(module, "verify", counting(kind, module.verify))
    play(sites, 2, 3, 0, COMPLETE)
    by_the_coordinator = {"presence": sites, "share": sites * (sites - 1)}
    by_sites = {"presence": sites * sites, "share": sites * (sites - 1)}
    # All have been told the second round's start when the play ends, and some have answered it.
    assert checked["presence"] in range(sum(d["presence"] for d in (by_the_coordinator, by_sites)), 40)
    assert checked["share"] == by_the_coordinator["share"] + by_sites["share"]
