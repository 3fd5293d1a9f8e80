"""Traces of faults that once ended badly: each is a plan, and what must hold of it beside all promises."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from secure_server.rounds.state import RoundStage
from tests.states.disks import LEDGER
from tests.states.faults import FaultPlan
from tests.states.federations import casts_of
from tests.states.play import play, play_in

_BOTH = frozenset({(1, 1), (2, 1)})
_FIRST_REPEATED = frozenset({(1, 2), (2, 1)})


@dataclass(frozen=True)
class Trace:
    """A plan of faults; ``results`` are the round and attempt of each result."""

    plan: str
    results: frozenset[tuple[int, int]] = _BOTH
    federation: str = "feddbp"
    stage: RoundStage = RoundStage.FINISHED
    left_out: tuple[str, ...] = field(default=())


TRACES = {
    # A site that left by an error of its own is back while the attempt's step is open, and waits for the next one.
    "back in SHARES": Trace("order:0 error:clinic-c:2:1 paused:clinic-d:10:25", _FIRST_REPEATED),
    "back in VALUES": Trace("order:0 error:clinic-c:3:1 paused:clinic-d:13:25", _FIRST_REPEATED),
    "back in UNMASK": Trace("order:0 error:clinic-c:5:1 paused:clinic-d:19:25", frozenset({(2, 1)})),
    # With another gone for good it is counted on: three of four are enough.
    "back, and another gone": Trace("order:0 error:clinic-c:2:1 gone:clinic-a:10:0", _FIRST_REPEATED),
    # It signs no survivors without the secrets to unmask them, so that the round is attempted again.
    "signs no survivors": Trace("order:0 error:clinic-c:4:1 gone:clinic-a:15:0", _FIRST_REPEATED),
    # The last result reaches a site that was down at its deadline, and needs nobody where it was acknowledged.
    "down at the last deadline": Trace("order:0 killed:clinic-c:40:25"),
    "has the last result": Trace("order:0 killed:clinic-c:41:1 killed:coordinator:41:60"),
    # A first site that starts slowly costs nobody the run, and is taken in until the set-up is over.
    "slow maker": Trace("order:0 killed:clinic-a:4:15", federation="fedplcc", left_out=("clinic-a",)),
    "slow maker, still alive": Trace(
        "order:0 deadline::6:0 deadline::13:0 reply-lost:clinic-a:1:1", federation="fedplcc"
    ),
    "slow maker, another gone": Trace("order:0 killed:clinic-a:4:15 gone:clinic-c:9:0", federation="fedplcc"),
    # A maker whose reply was lost sends its keys again when another one is the maker, and is not refused.
    "maker before": Trace(
        "order:0 killed:clinic-a:2:3 deadline::3:0 reply-lost:clinic-b:3:1", federation="fedplcc"
    ),
    # The file of evaluation keys is mended before the computation begins, which costs no attempt.
    "torn keys": Trace(
        "order:0 killed-after-write:coordinator:23:0 keys-torn:coordinator:14:1", federation="ckks"
    ),
    # A site that was killed after an answer left, and is asked again, gives the same bytes.
    "SHARES again": Trace("order:0 request-lost:clinic-c:9:1 killed:clinic-c:12:1", federation="sparse"),
    "SURVIVORS again": Trace("order:0 request-lost:clinic-c:15:1 killed:clinic-c:18:1", federation="sparse"),
    "PRESENCE again": Trace(
        "order:0 request-lost:clinic-c:15:1 killed:clinic-c:18:1", federation="shared-noise"
    ),
    # A coordinator that is killed before its own part in a step does it when it is started again, in the same attempt.
    "killed in PLANNING": Trace("order:0 killed-after-write:coordinator:16:0"),
    "killed in COMPUTING": Trace("order:0 killed-after-write:coordinator:33:0"),
    # A journal that is put back while the values are on their way, or their receipt is, seals no other vector.
    "put back, values late": Trace("order:0 late:clinic-c:12:9 put-back:clinic-c:15:1"),
    "put back, receipt lost": Trace("order:0 reply-lost:clinic-c:12:1 put-back:clinic-c:15:1"),
    "put back, noisy values late": Trace(
        "order:0 late:clinic-c:21:9 put-back:clinic-c:24:1", federation="shared-noise"
    ),
    # A ledger that lost the line of exact values is refused, and the others go on.
    "exact values forgotten": Trace("order:0 line-lost:clinic-c:9:1", _FIRST_REPEATED, "exact"),
    # A Leave that is late, lost or doubled harms nobody who has joined since; nor does one before the first step.
    "a late Leave": Trace("order:0 error:clinic-c:3:1 late:clinic-c:12:4", federation="plain"),
    "a Leave that comes twice": Trace(
        "order:0 error:clinic-c:3:1 duplicated:clinic-c:12:4", federation="plain"
    ),
    "a Leave that is lost": Trace(
        "order:0 error:clinic-c:2:1 request-lost:clinic-c:9:1", federation="fedavg"
    ),
    "leaves in PRESENCE": Trace(
        "order:0 killed-after-write:clinic-c:4:0 error:clinic-c:2:1", federation="fedavg"
    ),
}


@pytest.mark.parametrize("name", TRACES)
def test_trace_of_faults_ends_as_stated(name: str) -> None:
    trace = TRACES[name]
    ending = play(casts_of(trace.federation), FaultPlan.parse(trace.plan))
    assert not ending.violations
    assert (ending.stage, ending.results, ending.left_out) == (trace.stage, trace.results, trace.left_out)
    assert not ending.unused


def test_ledger_without_its_last_line_is_refused_in_the_next_run(tmp_path: Path) -> None:
    """A site whose ledger lost its last line between two runs is refused, and the others end the run."""
    second, first = casts_of("two-runs")
    ledgers = tmp_path / "ledgers"
    assert not play_in(tmp_path / "first", [first], FaultPlan(()), ledgers).violations
    ledger = ledgers / "clinic-c" / LEDGER
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    ending = play_in(tmp_path / "second", [second], FaultPlan(()), ledgers)
    assert ending.stage is RoundStage.FINISHED
    refused = [each.text for each in ending.violations if "RolledBackError" in each.text]
    assert refused
    assert all(text.startswith("clinic-c: ") for text in refused)
