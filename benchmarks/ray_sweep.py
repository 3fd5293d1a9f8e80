"""Sweep on a Ray cluster of two machines, of which one is lost in the middle, beside the same sweep without Ray.

    OMP_NUM_THREADS=1 python -m benchmarks.ray_sweep --out runs/ray_sweep --json ray_sweep.json

Machines are processes of this machine. The tables have to be equal to the last bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import click
import torch

from benchmarks.ray_machines import start_machines
from benchmarks.record import Value, json_option, machine, write_record
from protoseal.commands.options import COUNT
from protoseal.commands.terminal_output import one_line_errors
from protoseal.reports.sweep_table import CSV, JSON
from protoseal.simulation.run_folder import RUNS, STATE

CONFIG = """
method = "pfpl"
compare = ["local", "fedavg"]
dataset = "digits"
split = "dirichlet:0.5,per=60"
sites = 4
dim = 8
norm_bound = 100.0
device = "cpu"
[training]
model = "small-cnn"
batch_size = 8
local_epochs = 1
"""
SWEEP = ("--sweep", "training.lr=0.001,0.003", "--sweep", "dim=8,16")
"""Four combinations; with three methods and two seeds these are 24 runs."""


def run_sweep(out: Path, words: Sequence[str]) -> float:
    """Run one sweep as a process; return its seconds. Raises ``CalledProcessError`` if it fails."""
    start = time.monotonic()
    _wait(_start_sweep(out, words, os.environ))
    return time.monotonic() - start


def run_sweep_and_lose_machine(out: Path, words: Sequence[str], *, after: int) -> dict[str, Value]:
    """Run one sweep on two machines of one CPU each, and kill one when ``after`` runs have ended.

    Returns the seconds, the numbers of runs that had ended and that were running at the loss, and how many of the
    former were run again. Raises ``CalledProcessError`` if the sweep fails.
    """
    with start_machines(2, cpus=1) as machines:
        start = time.monotonic()
        sweep = _start_sweep(out, [*words, "--ray", machines.address], machines.environment)
        ended, running = _records(out), _running(out)
        # Each machine has a run then, so that one is cut off.
        while sweep.poll() is None and (len(ended) < after or len(running) < 2):
            time.sleep(0.02)
            ended, running = _records(out), _running(out)
        machines.lose_one()
        _wait(sweep)
        now = _records(out)
    return {
        "seconds": time.monotonic() - start,
        "runs": len(now),
        "ended_at_loss": len(ended),
        "running_at_loss": len(running),
        "repeated": sum(now[path] != written for path, written in ended.items()),
    }


def _start_sweep(out: Path, words: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "protoseal", "simulate", "--out", str(out), *words]
    return subprocess.Popen(  # noqa: S603 (our own interpreter and module)
        command, env=dict(environment), stdout=subprocess.DEVNULL
    )


def _wait(sweep: subprocess.Popen[bytes]) -> None:
    if code := sweep.wait():
        raise subprocess.CalledProcessError(code, sweep.args)


def tables_equal(out: Path, other: Path) -> bool:
    """Return whether two sweeps have the same tables, bit for bit."""
    return all((out / name).read_bytes() == (other / name).read_bytes() for name in (CSV, JSON))


def _records(out: Path) -> dict[Path, tuple[int, int]]:
    """Return the records of runs that have ended; a run that is repeated writes another file of that name."""
    stats = {path: path.stat() for path in out.glob(f"**/{RUNS}/*.json")}
    return {path: (stat.st_ino, stat.st_mtime_ns) for path, stat in stats.items()}


def _running(out: Path) -> list[Path]:
    """Return the folders of runs that have begun and not ended."""
    return [path for path in out.glob(f"*/{STATE}/seed-*/*") if path.is_dir()]


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New folder for both sweeps.")
@click.option("--rounds", type=COUNT, default=8, show_default=True, help="Number of rounds of each run.")
@click.option("--lose-after", type=COUNT, default=8, show_default=True, help="Ended runs before the loss.")
@json_option
@one_line_errors
def main(out: Path, rounds: int, lose_after: int, path: Path | None) -> None:
    """Run 24 runs without Ray, then on two machines of which one is lost, and compare."""
    out = out.absolute()
    out.mkdir(parents=True)
    config = out / "sweep.toml"
    config.write_text(CONFIG, encoding="utf-8")
    words = ("--config", str(config), "--rounds", str(rounds), "--seeds", "0,1", *SWEEP)
    facts: dict[str, Value] = {"rounds": rounds, "seconds_without_ray": run_sweep(out / "here", words)}
    facts |= run_sweep_and_lose_machine(out / "ray", words, after=lose_after)
    facts["tables_equal"] = tables_equal(out / "here", out / "ray")
    on = machine(ray=version("ray"), torch=torch.__version__, threads=torch.get_num_threads())
    record = {"schema": 1, "name": "ray_sweep", "machine": on, "cases": [facts]}
    if path is not None:
        write_record(path, record)
    click.echo(json.dumps(record, indent=2))
    if not facts["tables_equal"] or facts["repeated"]:
        raise click.ClickException("the tables differ, or finished runs were repeated")


if __name__ == "__main__":
    main()
