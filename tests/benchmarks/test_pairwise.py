"""``python -m benchmarks.pairwise``, and the whole masked rounds that it plays."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import crypto.pairwise.shares
import protoseal_wire.class_presence
from agreement import Agreement, MaskingSection
from benchmarks import masked_round
from benchmarks.masked_round import Float, MaskedRound, play
from benchmarks.pairwise import main
from protoseal_wire import codec
from protoseal_wire.messages import Phase

TINY = ("--classes", 2, "--dim", 3, "--repeats", 1)
STEPS = ("shares", "values", "survivors", "unmask")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, (*TINY, *arguments))])


def cases_of(path: Path) -> list[dict[str, Any]]:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (record["schema"], record["name"]) == (1, "pairwise")
    assert {"processor", "cores", "load"} <= record["machine"].keys()
    return list(record["cases"])


def test_pairwise_writes_one_record_for_each_case(tmp_path: Path) -> None:
    out, plot = tmp_path / "pairwise.json", tmp_path / "growth.svg"
    done = invoke("--json", out, "--sites", "4,7", "--plot", plot)
    assert done.exit_code == 0, done.output
    cases = cases_of(out)
    assert [(case["sites"], case["dropped"], case["threshold"]) for case in cases] == [(4, 1, 3), (7, 2, 5)]
    for case in cases:
        assert all(case[f"{who}_{step}"] > 0 for who in ("site", "coordinator") for step in STEPS)
        assert 0 < case["sent_of_float32"] < case["of_float32"]
        assert case["coordinator_seconds"] > case["coordinator_unmask"]
        assert (case["values"], case["ring_bits"], case["fraction_bits"]) == (6, 32, 18)
    drawn = plot.read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    assert "mathdefault" not in drawn


def test_pairwise_graph_and_words_are_as_given(tmp_path: Path) -> None:
    out = tmp_path / "pairwise.json"
    more = ("--complete-up-to", 6, "--ring-bits", 64)
    done = invoke("--json", out, "--sites", "6,16", "--dropped", 0.25, *more)
    assert done.exit_code == 0, done.output
    complete, sparse = cases_of(out)
    assert (complete["holders"], complete["dropped"]) == (5, 1)
    assert sparse["holders"] < 15
    assert complete["ring_bits"] == sparse["ring_bits"] == 64


@pytest.mark.parametrize(
    ("more", "code"), [(("--sites", "5", "--dropped", 0.4), 1), (("--sites", "1"), 1), (("--sites", "a"), 2)]
)
def test_pairwise_sizes_that_no_group_has_are_refused(more: tuple[object, ...], code: int) -> None:
    done = invoke(*more)
    assert done.exit_code == code
    assert "Traceback" not in done.output


def test_pairwise_refuses_a_plot_without_sites(tmp_path: Path) -> None:
    assert invoke("--sites", "", "--plot", tmp_path / "x.svg").exit_code == 2


PHASES = {Phase.PRESENCE, Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK, Phase.RESULT}
COMPLETE = MaskingSection()
SPARSE = MaskingSection(complete_up_to=6)
BY_SITES = ("presence", "shares_made", "payload", "survivor_signature", "released_shares")
SAME_FOR_ALL = ("round_start", "active_list", "survivor_set", "signed_survivors")


@pytest.mark.parametrize("masking", [COMPLETE, SPARSE], ids=["complete", "sparse"])
def test_play_quarter_of_sites_drops_out_and_the_mean_holds(masking: MaskingSection) -> None:
    """Played to the mean over those who stayed, which it checks."""
    assert masking.graph(16, 16).sparse is (masking is SPARSE)
    played = play(16, 2, 3, 4, masking)
    assert played.sites.keys() == played.coordinator.keys() == PHASES
    assert {phase: len(of) for phase, of in played.sites.items()} == dict.fromkeys(PHASES, 12)
    assert len(played.sent_by) == len(played.received_by) == 12


def test_play_bytes_are_the_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_play_other_mean_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = masked_round._check_mean

    def over_one(agreement: Agreement, played: MaskedRound, rows: Sequence[Float]) -> None:
        real(agreement, played, rows[:1])

    monkeypatch.setattr(masked_round, "_check_mean", over_one)
    with pytest.raises(RuntimeError, match="mean"):
        play(4, 2, 3, 0, COMPLETE)


def test_play_every_signature_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
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
