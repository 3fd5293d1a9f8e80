"""Compare ``protoseal simulate`` with other frameworks' simulations on the same work, by turns.

    python -m benchmarks.frameworks --before TREE --flwr-python PYTHON --pfl-python PYTHON --blazefl-python PYTHON \
        --json frameworks.json

Every contestant (:mod:`benchmarks.contestants`) is a process of its own that averages the same network, from the same
initial weights, over the same images of the same sites in the same order of batches, and evaluates nothing. The clock
is here: a contestant only says that a round is over. CPU seconds are those of all its processes. The first round, in
which processes start and memory is allocated, does not count. PFLlib's loop runs with all cores and with one thread;
the faster of the two is the baseline. Threads that wait are busy, as torch has them: where anything else runs, all
cores together are many times slower, unless the environment has ``OMP_WAIT_POLICY=passive``.

The check: final weights equal those of PFLlib's loop to within half of what one step fewer in each epoch makes, and a
tenth of their way, or the comparison ends in an error. The record has the distances, most of which are rounding.

Needs Linux, whose ``/proc`` tells the times of processes.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from torch import Tensor, fx, nn

from agreement.errors import UserError
from benchmarks.contestants.work import Work
from benchmarks.record import Case, Spent, Value, as_record, json_option, machine, write_record
from benchmarks.workloads import CLASSES, WORKLOADS, Workload
from protoseal.commands.options import COUNT, parse_counts, parse_words
from protoseal.commands.terminal_output import one_line_errors
from protoseal.simulation.site_datasets import divide
from secure_client.models.prototype_model import PrototypeModel
from secure_client.training.job import training_seed

ROOT = Path(__file__).parents[1]
FEDAVG, SPLIT, LR = "fedavg", "iid", 0.005
PLAIN = "PFLlib's loop"
LOOPS = (PLAIN, f"{PLAIN}, one thread")
WORKS: Mapping[str, Workload] = {
    "small-cnn": replace(WORKLOADS["small-cnn"], steps=20),
    "fedpc-cnn": replace(WORKLOADS["fedpc-cnn"], steps=10),
    "resnet10": replace(WORKLOADS["resnet10"], batch=10, steps=2),
    "tiny": Workload("small-cnn", dim=64, channels=1, side=8, sites=1000, batch=10, steps=2),
}
"""Work by name. Few steps, so that what is no training shows."""


@dataclass(frozen=True)
class Contestant:
    """A system by name, and its command before the folder of the work, the file for weights and ``arguments``.

    With ``threads`` torch uses so many in each process; otherwise as many as there are cores.
    """

    name: str
    command: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    threads: int | None = None

    @property
    def is_protoseal(self) -> bool:
        """True for protoseal, which has other methods as well."""
        return self.name.startswith("protoseal")


class Round(NamedTuple):
    """One round of a contestant: its time, seconds of training if told, and peak memory of its processes, bytes."""

    spent: Spent
    train: float | None
    peak: int


@dataclass
class Cell:
    """Work of one number of sites, and what each contestant did.

    ``turns`` have the rounds that count, ``stopped`` the limit that ended a run, and ``distances`` how far final
    weights are from the plain loop's.
    """

    name: str
    work: Workload
    turns: dict[str, list[list[Round]]] = field(default_factory=dict)
    stopped: dict[str, float] = field(default_factory=dict)
    distances: dict[str, float] = field(default_factory=dict)

    def cases(self, method: str) -> Iterator[Case]:
        """Yield a case for each contestant, with the faster of the plain loops as the baseline."""
        loops = [name for name in LOOPS if name in self.turns]
        plain = min(loops, key=self._seconds, default=PLAIN)
        facts: dict[str, Value] = {"model": self.name, "method": method, "sites": self.work.sites}
        facts |= {"steps": self.work.steps, "batch": self.work.batch}
        for name in {**self.turns, **self.stopped}:
            turns = self.turns.get(name, [])
            what = {"case": name, **facts, "stopped_after": self.stopped.get(name)}
            what["distance"] = self.distances.get(name)
            rounds = [measured for turn in turns for measured in turn]
            shares = [train / spent.wall for spent, train, _ in rounds if train is not None]
            what["training_share"] = statistics.median(shares) if shares else None
            what["cpu_seconds"] = statistics.median(spent.cpu for spent, *_ in rounds) if rounds else None
            what["peak_rss_bytes"] = max((peak for *_, peak in rounds), default=None)
            # A turn of both sides, one after the other, gives a pair for each round.
            pairs = [
                pair
                for ours, theirs in zip(turns, self.turns.get(plain, []), strict=False)
                for pair in zip(ours, theirs, strict=False)
            ]
            if pairs and name != plain:
                yield Case(what, [ours.spent for ours, _ in pairs], [theirs.spent for _, theirs in pairs])
            else:
                yield Case(what, [spent for spent, *_ in rounds])

    def _seconds(self, name: str) -> float:
        return statistics.median(spent.wall for turn in self.turns[name] for spent, *_ in turn)


class PlainNetwork(nn.Module):
    """Network that maps inputs to logits, of a built-in model's backbone and classifier."""

    def __init__(self, model: PrototypeModel) -> None:
        super().__init__()
        self.backbone = model.get_submodule("backbone")
        self.classifier = model.classifier

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits (B, K)."""
        logits: Tensor = self.classifier(self.backbone(inputs))
        return logits


def write_network(model: PrototypeModel, folder: Path) -> None:
    """Write a built-in model as plain torch: ``network.py`` with a class ``Network``, ``initial.pt`` with its weights.

    Weights have the model's names with underscores for dots before the last.
    """
    graph = fx.symbolic_trace(PlainNetwork(model)).graph
    layers = {}
    for node in graph.nodes:
        if node.op == "call_module":
            layer, node.target = model.get_submodule(node.target), flat_name(node.target)
            layers[node.target] = layer
    lines = ["from __future__ import annotations", "", "import torch", "from torch import nn", "", ""]
    lines += ["class Network(nn.Module):", "    def __init__(self):", "        super().__init__()"]
    lines += [f"        self.{name} = nn.{layer!r}" for name, layer in layers.items()]
    lines += ["", *(f"    {line}" for line in graph.python_code("self").src.strip().splitlines())]
    (folder / "network.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    torch.save({flat_name(name): value for name, value in model.state_dict().items()}, folder / "initial.pt")


def flat_name(name: str) -> str:
    """Return the name that a weight or a layer has in the plain network."""
    layer, dot, weight = name.rpartition(".")
    is_weight = weight in {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    return f"{layer.replace('.', '_')}{dot}{weight}" if is_weight else name.replace(".", "_")


def write_work(workload: Workload, method: str, rounds: int, folder: Path) -> Work:
    """Write the work for every contestant, as protoseal divides the data that it gets as a file."""
    # As many of each class at every site, so that all sites have equally many samples.
    labels = np.arange(workload.sites * workload.samples) % CLASSES
    noise, patterns = workload.images(len(labels)), workload.images(CLASSES, seed=1)
    # Images that can be learnt: on noise alone weights go hardly anywhere, and rounding shows.
    images = ((noise.tensors[0] + patterns.tensors[0][labels]) / 2).permute(0, 2, 3, 1).numpy()
    tests = slice(CLASSES)  # nothing is evaluated but at the end, where a simulation tests
    np.savez(folder / "data.npz", x_train=images, y_train=labels, x_test=images[tests], y_test=labels[tests])
    sites = divide(f"npz:{folder}/data.npz", SPLIT, sites=workload.sites, seed=0).sites
    orders = [
        [_order(workload.samples, site.name, number) for site in sites] for number in range(1, rounds + 1)
    ]
    np.save(folder / "inputs.npy", np.stack([site.train.inputs for site in sites]).transpose(0, 1, 4, 2, 3))
    np.save(folder / "labels.npy", np.stack([site.train.labels for site in sites]))
    np.save(folder / "orders.npy", np.array(orders))
    write_network(workload.build(), folder)
    (folder / "simulation.toml").write_text(_settings(workload, method, rounds), encoding="utf-8")
    work = Work(folder, workload.sites, workload.batch, rounds, LR)
    work.save()
    return work


def _order(samples: int, site: str, number: int) -> list[int]:
    """Return the order of a site's samples in a round, as protoseal draws it from the run's seed 0."""
    generator = torch.Generator().manual_seed(training_seed(0, site, number, 0))
    return torch.randperm(samples, generator=generator).tolist()


def _settings(workload: Workload, method: str, rounds: int) -> str:
    zeros, ones = [0.0] * workload.channels, [1.0] * workload.channels
    return f"""\
method = "{method}"
dataset = "npz:data.npz"
split = "{SPLIT}"
sites = {workload.sites}
rounds = {rounds}
evaluate_every = {rounds}
dim = {workload.dim}

[preprocessing]
image_size = {workload.side}
channels = {workload.channels}
mean = {zeros}
std = {ones}

[training]
model = "{workload.model}"
optimiser = "sgd"
lr = {LR}
momentum = 0.0
weight_decay = 0.0
batch_size = {workload.batch}
local_epochs = 1
"""


def run_contestant(contestant: Contestant, work: Work, weights: Path, limit: float) -> list[Round]:
    """Run all rounds and return those that count: fewer if ``limit`` seconds stop the run, which then has no weights.

    However it ends, none of its processes is left. Raises :class:`UserError` with the last line of its log if it fails.
    """
    command = [*contestant.command, str(work.folder), str(weights), *contestant.arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("OMP_NUM_THREADS", None)
    if contestant.threads is not None:
        environment["OMP_NUM_THREADS"] = str(contestant.threads)
    log, stopped = weights.with_suffix(".log"), threading.Event()
    with (
        log.open("w", encoding="utf-8") as errors,
        subprocess.Popen(  # noqa: S603 (the user names the Python)
            command,
            cwd=work.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):

        def stop() -> None:
            stopped.set()
            kill_processes(work.folder)

        timer = threading.Timer(limit, stop)
        timer.start()
        try:
            rounds = list(_read_rounds(process, stopped))
            process.wait()
        finally:
            timer.cancel()
            timer.join()  # a late stop would kill the next contestant, which has the same folder
            kill_processes(work.folder)
    if stopped.is_set():
        weights.unlink(missing_ok=True)  # possibly a part of the file
        return rounds
    if process.returncode or len(rounds) != work.rounds - 1 or not weights.exists():
        last = log.read_text(encoding="utf-8").strip().splitlines()[-1:] or ["it said nothing"]
        raise UserError(f"{contestant.name} failed: {last[0]}")
    return rounds


def _read_rounds(process: subprocess.Popen[str], stopped: threading.Event) -> Iterator[Round]:
    before: Spent | None = None
    highest = 0
    for line in process.stdout or ():
        try:
            told: Any = json.loads(line)
        except ValueError:
            continue  # a framework's own message
        if not isinstance(told, dict) or "round" not in told:
            continue
        cpu, peak = tree_usage(process.pid)
        highest = max(highest, peak)  # processes that have ended have no peak any more
        now = Spent(time.perf_counter(), cpu)
        if stopped.is_set():
            return  # the CPU seconds of processes that were killed are not in cpu
        if before is not None:
            spent = Spent(now.wall - before.wall, now.cpu - before.cpu)
            yield Round(spent, told.get("train"), highest)
        before = now


def find_processes(folder: Path) -> set[int]:
    """Return the processes that work in a folder and have not ended.

    A contestant's processes keep the folder that it was started in. They need not be of its session, as torchrun's
    workers are not, nor its descendants, as orphans are not.
    """
    pids, place = set(), str(folder.resolve())
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # another user's, or ended meanwhile
            if os.readlink(path) == place:
                pids.add(int(path.parent.name))
    return pids


def kill_processes(folder: Path) -> None:
    """Kill the processes that work in a folder, and those that they start meanwhile; return when all have ended."""
    while pids := find_processes(folder):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def tree_usage(root: int) -> tuple[float, int]:
    """Return CPU seconds of a process and its descendants, ended ones too, and the sum of their peak memory, bytes."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name of the program, in brackets, may hold blanks.
            fields = path.read_text(encoding="utf-8").rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    tree = {pid for pid in parents if root in _ancestry(pid, parents)}
    seconds = sum(ticks[pid] for pid in tree) / os.sysconf("SC_CLK_TCK")
    return seconds, sum(map(_peak, tree))


def _ancestry(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid in parents:
        yield pid
        pid = parents[pid]


def _peak(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:")), 0)


def check_weights(name: str, weights: Path, plain: Path, work: Work, steps: int) -> float:
    """Return the distance of a contestant's weights from the plain loop's, over the way that these went.

    Raises :class:`UserError` if the distance is more than one step fewer in each epoch makes, halved, or more than 0.1,
    where epochs are short: then the contestant did other work. Rounding alone makes up to 1e-2, as initial weights that
    are off by 1e-6 do, and the loop's averages of 1,000 sites in float32 make 4e-2.
    """
    initial = torch.load(work.folder / "initial.pt", weights_only=True)
    with np.load(weights) as ours, np.load(plain) as theirs:
        mine = {flat_name(key): ours[key] for key in ours.files}
        moved = np.concatenate([(theirs[key] - initial[key].numpy()).ravel() for key in theirs.files])
        apart = np.concatenate([(mine[key] - theirs[key]).ravel() for key in theirs.files])
    distance = float(np.linalg.norm(apart) / np.linalg.norm(moved))
    bound = min(0.5 / steps, 0.1)
    if not distance <= bound:
        raise UserError(
            f"{name} did other work than {PLAIN}: weights differ by {distance:.1e} of their way, more than {bound:.1e}"
        )
    return distance


def contestants(
    engines: Sequence[str], before: Path | None, flwr: Path | None, pfl: Path | None, blazefl: Path | None
) -> list[Contestant]:
    """Return the plain loops, protoseal with each engine and of another tree, and the frameworks that have a Python."""
    here = (sys.executable, "-m")
    simulation = (*here, "benchmarks.contestants.simulation")
    loop = (*here, "benchmarks.contestants.plain_loop")
    chosen = [Contestant(name, loop, threads=threads) for name, threads in zip(LOOPS, (None, 1), strict=True)]
    for engine in engines:
        name, settings = f"protoseal, {engine}", (str(ROOT), f"engine={engine}")
        chosen.append(Contestant(name, simulation, settings))
    if before is not None:
        chosen.append(Contestant("protoseal before", simulation, (str(before.absolute()),)))
    cores = str(os.cpu_count() or 1)
    if flwr is not None:
        chosen.append(Contestant("Flower on Ray", (str(flwr), "-m", "benchmarks.contestants.flower_ray")))
    if pfl is not None:
        torchrun = (str(pfl), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", cores, "-m")
        chosen.append(Contestant("pfl", (*torchrun, "benchmarks.contestants.pfl_backend"), threads=1))
    if blazefl is not None:
        pool = (str(blazefl), "-m", "benchmarks.contestants.blazefl_pool")
        chosen.append(Contestant("BlazeFL", pool, (cores,), threads=1))
    return chosen


@dataclass(frozen=True)
class Comparison:
    """Plan: ``rounds`` of each contestant in a turn, the first uncounted, and at most ``turns`` turns.

    Turns after the first are those that fit in ``minutes``. A run that takes more than ``limit`` seconds is stopped and
    has no further turns. Methods other than FedAvg are protoseal's alone, so that nothing is compared.
    """

    contestants: Sequence[Contestant]
    method: str = FEDAVG
    rounds: int = 3
    turns: int = 3
    minutes: float = 12.0
    limit: float = 60.0

    def measure(self, cells: Sequence[Cell]) -> Iterator[Cell]:
        """Yield a cell after each of its turns; raise :class:`UserError` at the end for contestants that failed."""
        end, failures = time.monotonic() + 60 * self.minutes, list[str]()
        seconds = [0.0 for _ in cells]
        for turn in range(self.turns):
            for number, cell in enumerate(cells):
                begin = time.monotonic()
                if turn and begin + seconds[number] > end:
                    continue
                with tempfile.TemporaryDirectory(prefix="protoseal-frameworks-") as folder:
                    failures += self._play(cell, Path(folder))
                seconds[number] = time.monotonic() - begin
                yield cell
        if failures:
            raise UserError("; ".join(dict.fromkeys(failures)))

    def _play(self, cell: Cell, folder: Path) -> Iterator[str]:
        """Run every contestant once, and yield why any failed."""
        work = write_work(cell.work, self.method, self.rounds, folder)
        plain: Path | None = None
        for number, contestant in enumerate(self.contestants):
            if contestant.name in cell.stopped or (self.method != FEDAVG and not contestant.is_protoseal):
                continue
            weights = folder / f"contestant-{number}.npz"
            try:
                rounds = run_contestant(contestant, work, weights, self.limit)
                if rounds:
                    cell.turns.setdefault(contestant.name, []).append(rounds)
                if not weights.exists():
                    cell.stopped[contestant.name] = self.limit
                elif plain is not None:
                    distance = check_weights(contestant.name, weights, plain, work, cell.work.steps)
                    cell.distances[contestant.name] = distance
                elif contestant.name in LOOPS:
                    plain = weights
                elif self.method == FEDAVG:
                    click.echo(f"{contestant.name}: {PLAIN} has no weights to compare with", err=True)
            except UserError as error:
                click.echo(str(error), err=True)
                yield str(error)


def markdown(cases: Sequence[Case]) -> str:
    """Return tables in Markdown, one for each model: a row for each contestant, three columns for each number of sites.

    They have the wall-clock seconds of a round, its CPU seconds, and how many times longer than the faster plain loop
    it takes.
    """
    lines: list[str] = []
    for model in dict.fromkeys(case.what["model"] for case in cases):
        table = {
            (case.what["case"], case.what["sites"]): case for case in cases if case.what["model"] == model
        }
        sizes = list(dict.fromkeys(sites for _, sites in table))
        heads = [head for sites in sizes for head in (f"{sites} sites, s", "CPU s", "times the faster loop")]
        lines += ["", " | ".join([f"| {model}", *heads]) + " |", "|---" * (1 + len(heads)) + "|"]
        for name in dict.fromkeys(name for name, _ in table):
            row = [entry for sites in sizes for entry in _entries(table.get((name, sites)))]
            lines.append(" | ".join([f"| {name}", *row]) + " |")
    shares = [case for case in cases if case.what.get("training_share") is not None]
    if shares:
        lines += [
            "",
            "| share of a round that is training | model | sites | share | peak, MB |",
            "|---" * 5 + "|",
        ]
        for case in shares:
            what = case.what
            share, peak = float(what["training_share"] or 0), float(what["peak_rss_bytes"] or 0) / 1e6
            lines.append(f"| {what['case']} | {what['model']} | {what['sites']} | {share:.2f} | {peak:.0f} |")
    return "\n".join(lines[1:])


def _entries(case: Case | None) -> tuple[str, str, str]:
    if case is None:
        return "", "", ""
    if not case.spent:
        return f"run stopped after {case.what['stopped_after']:.0f} s", "", ""
    seconds, core = (statistics.median(values) for values in zip(*case.spent, strict=True))
    return f"{seconds:.3g}", f"{core:.3g}", "1" if case.ratio is None else f"{1 / case.ratio:.2g}"


PYTHON = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@json_option
@click.option(
    "--models",
    callback=parse_words,
    default="small-cnn,fedpc-cnn,resnet10",
    show_default=True,
    help=f"Networks, with commas between: {', '.join(WORKS)}.",
)
@click.option(
    "--sites", callback=parse_counts, default="5,20,100", show_default=True, help="Numbers of sites."
)
@click.option(
    "--method", default=FEDAVG, show_default=True, help="Method; others than fedavg run protoseal alone."
)
@click.option(
    "--engines",
    callback=parse_words,
    default="tensors,sessions",
    show_default=True,
    help="Engines of protoseal, with commas between.",
)
@click.option(
    "--before",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Another tree of protoseal.",
)
@click.option("--flwr-python", type=PYTHON, help="Python interpreter with flwr[simulation] and torch.")
@click.option("--pfl-python", type=PYTHON, help="Python interpreter with pfl and torch.")
@click.option("--blazefl-python", type=PYTHON, help="Python interpreter with blazefl[contrib] and torch.")
@click.option("--rounds", type=click.IntRange(min=2), default=3, show_default=True, help="Rounds of a turn.")
@click.option("--turns", type=COUNT, default=3, show_default=True, help="Most turns.")
@click.option("--steps", type=COUNT, help="Batches of a site in a round.  [default: by the network]")
@click.option(
    "--minutes",
    type=click.FloatRange(min=0),
    default=12.0,
    show_default=True,
    help="Minutes in which turns after the first end.",
)
@click.option(
    "--limit",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds after which a contestant's run is stopped.",
)
@one_line_errors
def main(
    path: Path | None,
    models: tuple[str, ...],
    sites: tuple[int, ...],
    engines: tuple[str, ...],
    before: Path | None,
    flwr_python: Path | None,
    pfl_python: Path | None,
    blazefl_python: Path | None,
    steps: int | None,
    **plan: Any,
) -> None:
    """Compare federated averaging by protoseal, PFLlib's loop, Flower on Ray, pfl and BlazeFL, by turns."""
    unknown = set(models) - set(WORKS)
    if unknown:
        raise click.BadParameter(f"{min(unknown)!r} is none of {', '.join(WORKS)}", param_hint="--models")
    chosen = contestants(engines, before, flwr_python, pfl_python, blazefl_python)
    works = {name: WORKS[name] if steps is None else replace(WORKS[name], steps=steps) for name in models}
    cells = [Cell(name, replace(work, sites=count)) for count in sites for name, work in works.items()]
    comparison, facts = Comparison(chosen, **plan), machine(torch=torch.__version__)
    for cell in comparison.measure(cells):
        cases = [case for cell in cells for case in cell.cases(comparison.method)]
        click.echo(f"{cell.name}, {cell.work.sites} sites: a turn is done", err=True)
        if path is not None:
            write_record(path, as_record("frameworks", facts, cases))
    click.echo(markdown(cases))


if __name__ == "__main__":
    main()
