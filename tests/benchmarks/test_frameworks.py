"""The comparison of frameworks, with the contestants that need no Python of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from agreement.errors import UserError
from benchmarks.contestants import plain_loop
from benchmarks.contestants.work import Work
from benchmarks.frameworks import (
    LOOPS,
    PLAIN,
    WORKS,
    Cell,
    Comparison,
    Contestant,
    PlainNetwork,
    Round,
    check_weights,
    find_processes,
    main,
    markdown,
    run_contestant,
    tree_usage,
    write_network,
    write_work,
)
from benchmarks.record import Spent

SITES, STEPS, ROUNDS = 3, 2, 2


def write_tiny(folder: Path) -> Work:
    """Write work of three sites with two batches each."""
    return write_work(replace(WORKS["tiny"], sites=SITES, steps=STEPS), "fedavg", ROUNDS, folder)


@pytest.mark.full
def test_frameworks_protoseal_does_the_work_of_the_plain_loop(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # the machine may be shared
    out = tmp_path / "frameworks.json"
    options = ("--models", "tiny", "--sites", SITES, "--rounds", ROUNDS, "--turns", 1, "--json", out)
    done = CliRunner().invoke(main, [*map(str, options)])
    assert done.exit_code == 0, done.output
    *loops, tensors, sessions = json.loads(out.read_text(encoding="utf-8"))["cases"]
    assert [loop["case"] for loop in loops] == [*LOOPS]
    assert [loop["ratio"] for loop in loops].count(None) == 1
    engines = [tensors, sessions]
    assert [case["case"] for case in engines] == ["protoseal, tensors", "protoseal, sessions"]
    for case in engines:
        assert (case["sites"], case["repeats"]) == (SITES, ROUNDS - 1)
        assert 0 < case["training_share"] < 1
        assert 0 < case["distance"] < 1e-3
        assert case["peak_rss_bytes"] > 2**24
    assert f"| tiny | {SITES} sites, s |" in done.stdout


def test_frameworks_another_method_runs_no_plain_loop() -> None:
    cell = Cell("tiny", WORKS["tiny"], {"protoseal": [[Round(Spent(2.0, 3.0), 1.0, 10**6)]]})
    (case,) = cell.cases("pfpl")
    assert (case.as_json()["seconds"], case.what["training_share"], case.ratio) == (2.0, 0.5, None)


def test_markdown_has_a_row_for_each_contestant_and_names_stopped_runs() -> None:
    times = {PLAIN: (2.5, 4), LOOPS[1]: (2, 3), "pfl": (6, 9)}
    turns = {name: [[Round(Spent(*spent), None, 1)]] for name, spent in times.items()}
    cell = Cell("tiny", replace(WORKS["tiny"], sites=5), turns, {"BlazeFL": 60.0})
    assert markdown([*cell.cases("fedavg")]).splitlines() == [
        "| tiny | 5 sites, s | CPU s | times the faster loop |",
        "|---|---|---|---|",
        f"| {PLAIN} | 2.5 | 4 | 1.2 |",
        f"| {LOOPS[1]} | 2 | 3 | 1 |",
        "| pfl | 6 | 9 | 3 |",
        "| BlazeFL | run stopped after 60 s |  |  |",
    ]


def test_check_weights_other_work_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    work, order = write_tiny(tmp_path), Work.order
    whole, short, slow = (tmp_path / f"{name}.npz" for name in ("whole", "short", "slow"))
    plain_loop.main(tmp_path, whole)
    assert check_weights("same", whole, whole, work, STEPS) == 0.0
    with monkeypatch.context() as patch:
        # One site of three has a step fewer.
        end = STEPS * work.batch - work.batch
        patch.setattr(Work, "order", lambda *which: order(*which)[: None if which[1] else end])
        plain_loop.main(tmp_path, short)
    replace(work, lr=0.8 * work.lr).save()
    plain_loop.main(tmp_path, slow)
    for weights in (short, slow):
        with pytest.raises(UserError, match="did other work"):
            check_weights("other", weights, whole, work, STEPS)


@pytest.mark.parametrize("name", WORKS)
def test_write_network_computes_what_the_model_does(name: str, tmp_path: Path) -> None:
    model = WORKS[name].build()
    write_network(model, tmp_path)
    network = Work(tmp_path, sites=1, batch=1, rounds=1, lr=0.1).network()
    network.load_state_dict(torch.load(tmp_path / "initial.pt", weights_only=True))
    inputs, _ = WORKS[name].images(3).tensors
    assert torch.equal(network(inputs), PlainNetwork(model)(inputs))


TELL = "import json\nfor n in (1, 2): print(json.dumps({'round': n, 'train': n / 8}), flush=True)\n"
"""Lines of Python that report two rounds."""
SAVE = "import sys\nopen(sys.argv[2], 'w').close()\n"
"""Lines of Python that leave a file where weights belong."""
ORPHAN = """
import os, signal, subprocess, sys, time
wait = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(wait, start_new_session=True)
"""
"""Lines of Python that start a process in a session of its own, which holds the standard output."""


def script(lines: str) -> Contestant:
    """Return a contestant that runs these lines of Python."""
    return Contestant("script", (sys.executable, "-c", lines))


def run_script(lines: str, folder: Path, limit: float = 60.0) -> list[Round]:
    """Run a script as a contestant whose work has two rounds."""
    return run_contestant(script(lines), Work(folder, 1, 1, ROUNDS, 0.1), folder / "w.npz", limit)


def test_run_contestant_counts_rounds_after_the_first(tmp_path: Path) -> None:
    rounds = run_script("print('a banner')\nprint(3)\nprint('{}')\n" + TELL + SAVE, tmp_path)
    assert [measured.train for measured in rounds] == [0.25]


def test_run_contestant_beyond_the_limit_leaves_no_process_and_no_weights(tmp_path: Path) -> None:
    assert run_script(SAVE + ORPHAN, tmp_path, limit=0.5) == []
    assert not find_processes(tmp_path)
    assert not (tmp_path / "w.npz").exists()


def test_run_contestant_interrupted_leaves_no_process(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            run_script(ORPHAN + "os.kill(os.getppid(), signal.SIGINT)\ntime.sleep(600)", tmp_path)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not find_processes(tmp_path)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("raise SystemExit('no such thing')", "no such thing"),
        (TELL, "said nothing"),
        (SAVE, "said nothing"),
    ],
    ids=["exit status", "no weights", "no rounds"],
)
def test_run_contestant_failure_is_named(lines: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=named):
        run_script(lines, tmp_path)


def test_run_contestant_reports_nothing_to_makers(tmp_path: Path) -> None:
    names = ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED")
    with pytest.raises(UserError, match="0 0"):
        run_script(f"import os; raise SystemExit(' '.join(map(os.environ.get, {names})))", tmp_path)


def test_comparison_without_weights_of_the_loop_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    failing = replace(script("raise SystemExit('no such thing')"), name=PLAIN)
    cell = Cell("tiny", replace(WORKS["tiny"], sites=SITES, steps=STEPS))
    with pytest.raises(UserError, match="no such thing"):
        list(Comparison([failing, script(TELL + SAVE)], rounds=ROUNDS, turns=1).measure([cell]))
    assert "script: PFLlib's loop has no weights to compare with" in capsys.readouterr().err


def test_tree_usage_counts_children_that_ended() -> None:
    seconds, peak = tree_usage(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    with subprocess.Popen([sys.executable, "-c", burn]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is still to be waited for
        assert tree_usage(os.getpid())[0] >= seconds + 0.15
    assert peak > 2**24
