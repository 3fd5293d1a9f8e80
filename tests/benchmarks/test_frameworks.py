"""The comparison of frameworks, with the contestants that need no Python of their own."""

from __future__ import annotations

import json
import os
import sys
import time
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
    PLAIN,
    WORKS,
    Cell,
    Contestant,
    PlainNetwork,
    Round,
    check_weights,
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
def test_frameworks_protoseal_does_the_work_of_the_plain_loop(tmp_path: Path) -> None:
    out = tmp_path / "frameworks.json"
    options = ("--models", "tiny", "--sites", SITES, "--rounds", ROUNDS, "--turns", 1, "--json", out)
    done = CliRunner().invoke(main, [*map(str, options)])
    assert done.exit_code == 0, done.output
    plain, *engines = json.loads(out.read_text(encoding="utf-8"))["cases"]
    assert (plain["case"], plain["ratio"]) == (PLAIN, None)
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
    turns = {PLAIN: [[Round(Spent(2.0, 3.0), None, 1)]], "pfl": [[Round(Spent(6.0, 9.0), None, 1)]]}
    cell = Cell("tiny", replace(WORKS["tiny"], sites=5), turns, {"BlazeFL": 60.0})
    assert markdown([*cell.cases("fedavg")]).splitlines() == [
        "| tiny | 5 sites, s | CPU s | times the loop |",
        "|---|---|---|---|",
        f"| {PLAIN} | 2 | 3 | 1 |",
        "| pfl | 6 | 9 | 3 |",
        "| BlazeFL | run stopped after 60 s |  |  |",
    ]


def test_check_weights_one_step_fewer_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    work, order = write_tiny(tmp_path), Work.order
    for name, steps in (("whole", STEPS), ("short", STEPS - 1)):
        monkeypatch.setattr(
            Work,
            "order",
            lambda self, site, number, steps=steps: order(self, site, number)[
                : None if site else steps * self.batch
            ],
        )
        plain_loop.main(tmp_path, tmp_path / f"{name}.npz")
    whole, short = tmp_path / "whole.npz", tmp_path / "short.npz"
    assert check_weights("same", whole, whole, work, STEPS) == 0.0
    with pytest.raises(UserError, match="did other work"):
        check_weights("short", short, whole, work, STEPS)


@pytest.mark.parametrize("name", WORKS)
def test_write_network_computes_what_the_model_does(name: str, tmp_path: Path) -> None:
    model = WORKS[name].build()
    write_network(model, tmp_path)
    network = Work(tmp_path, sites=1, batch=1, rounds=1, lr=0.1).network()
    network.load_state_dict(torch.load(tmp_path / "initial.pt", weights_only=True))
    inputs, _ = WORKS[name].images(3).tensors
    assert torch.equal(network(inputs), PlainNetwork(model)(inputs))


def script(lines: str) -> Contestant:
    """Return a contestant that runs these lines of Python."""
    return Contestant("script", (sys.executable, "-c", lines))


def test_run_contestant_counts_rounds_after_the_first(tmp_path: Path) -> None:
    tell = "import json, time\nfor n in (1, 2): print(json.dumps({'round': n, 'train': n / 8}), flush=True)"
    rounds = run_contestant(
        script("print('a banner')\n" + tell), write_tiny(tmp_path), tmp_path / "w.npz", 60.0
    )
    assert [each.train for each in rounds] == [0.25]


def test_run_contestant_beyond_the_limit_is_stopped(tmp_path: Path) -> None:
    work = write_tiny(tmp_path)
    assert run_contestant(script("import time; time.sleep(600)"), work, tmp_path / "w.npz", 0.2) == []


def test_run_contestant_failure_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such thing"):
        run_contestant(
            script("raise SystemExit('no such thing')"), write_tiny(tmp_path), tmp_path / "w.npz", 60.0
        )


def test_tree_usage_counts_this_process() -> None:
    seconds, peak = tree_usage(os.getpid())
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert tree_usage(os.getpid())[0] >= seconds + 0.05
    assert peak > 2**24
