"""Command ``protoseal simulate``: runs a federation without sockets, in one process or as tasks of Ray."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from agreement import PROTECTIONS
from protoseal.commands.options import FILE, example, parse_words
from protoseal.commands.terminal_output import one_line_errors, print_warnings

if TYPE_CHECKING:
    from protoseal.reports.result_files import RunResult
    from protoseal.reports.sweep_table import SweepResult
    from protoseal.simulation.config import SimulationConfig
    from protoseal.simulation.ray_runs import RayRuns
    from secure_client.diagnosis.diagnoses import Diagnosis

# Options have no defaults of their own: None leaves a setting to the file of --config, then to SimulationConfig.
_SUMMARIES = "; ".join(f"{protection.name} ({protection.summary})" for protection in PROTECTIONS.values())


def _parse_seeds(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Parse ``0,1,5``, ``0-4``, or a mix."""
    if value is None:
        return None
    seeds: list[int] = []
    for part in value.split(","):
        first, dash, last = part.partition("-")
        try:
            # A single number is a range of one.
            seeds += range(int(first), int(last if dash else first) + 1)
        except ValueError as error:
            raise click.BadParameter(f"{part!r} is not a number or a range such as 0-4") from error
    if not seeds:
        raise click.BadParameter(f"{value!r} has no seed; write a range upwards, such as 0-4")
    return tuple(seeds)


@click.command(
    epilog=example("protoseal simulate --method fedpc --compare local,fedavg --sites 10 --rounds 20")
)
@click.option(
    "--config",
    type=FILE,
    help="TOML file with the settings; options on the command line override it.",
)
@click.option(
    "--method",
    help="Method to run: pfpl, fedpc, feddbp or fedplcc; a baseline (fedavg, fedprox, fedproto, fedproto-averaged,"
    " fedbn, fedper, fedrep, ditto, fpl, fedplvm, average); or a control without a federation (local, self). "
    " [default: pfpl]",
)
@click.option(
    "--protection",
    help=f"Protection of what sites send: {_SUMMARIES}.  [default: plain]",
)
@click.option(
    "--dataset",
    help="Data set: digits (bundled); mnist, fashion-mnist, usps, svhn, cifar10, cifar100 or flowers102 (files in"
    " --data-root); npz:PATH, folder:PATH, table:PATH, sites:DIR or module:function; several joined by +."
    "  [default: digits]",
)
@click.option(
    "--split",
    help="How the data are divided: iid, domains, mixed:n=6.5,max=25, shots:n=3,k=100 or dirichlet:0.3. Options"
    " follow with commas: domains=2 (domains of a site, for shots), test=0.25 (share of its samples that a site"
    " tests on), per=200 (samples of a site), pool=1 (divide the data's own test part too), val=0.1 (share for"
    " early stopping), subject=8 (samples of a made-up subject).  [default: mixed:n=6.5,max=25]",
)
@click.option("--sites", type=int, help="Number of sites.  [default: 5]")
@click.option("--rounds", type=int, help="Number of rounds.  [default: 5]")
@click.option(
    "--seeds",
    callback=_parse_seeds,
    help="Seeds of split, initial model and training, one run each, such as 3 or 0,1,2 or 0-4.  [default: 0]",
)
@click.option(
    "--compare",
    callback=parse_words,
    help="Further methods and controls to run on the same data, such as local,self,fedavg.  [default: none]",
)
@click.option(
    "--models",
    callback=parse_words,
    help="Models of the sites, by turns, such as small-cnn,resnet10.  [default: training.model at every site]",
)
@click.option(
    "--tests", type=int, help="Number of test samples of each class and domain that are used.  [default: all]"
)
@click.option(
    "--device", help="Device of training: auto (a GPU if there is one), cpu, cuda:N or mps.  [default: auto]"
)
@click.option(
    "--engine",
    help="Engine: tensors computes all sites together in the clear, sessions runs the sites and the coordinator of a"
    " deployment; auto takes tensors under plain without [privacy].  [default: auto]",
)
@click.option(
    "--batched",
    help="Train sites as one batched program: auto (where it pays), always or never.  [default: auto]",
)
@click.option(
    "--precision",
    help="Precision of products: float32; tf32 (NVIDIA GPUs, 10 bits, prototypes and tests too); or bf16 (7 bits,"
    " training only; not with --batched never).  [default: float32]",
)
@click.option(
    "--evaluate-every",
    type=int,
    help="Number of rounds between tests; the last round is always tested.  [default: 1]",
)
@click.option(
    "--per-class", is_flag=True, default=None, help="Report the accuracy of each class at each site as well."
)
@click.option(
    "--early-stopping",
    type=int,
    help="Number of rounds without better validation after which a run stops; needs val= in --split.  [default: never]",
)
@click.option(
    "--tensorboard", is_flag=True, default=None, help="Write scalars for TensorBoard to OUT/tensorboard."
)
@click.option(
    "--keep-releases",
    is_flag=True,
    default=None,
    help="Keep each noisy release and its model, for `protoseal budget audit run`; needs [privacy].",
)
@click.option("--data-root", type=click.Path(path_type=Path), help="Folder with torchvision's data files.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for results.  [default: runs/NAME for --config NAME.toml, else runs/simulation]",
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Delete earlier results of this simulation in --out, of all seeds, and start again instead of resuming.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="[SECTION.]KEY=VALUE",
    help="Any setting of the file, such as training.lr=0.01, or schedule.participation=0.1 for a tenth of the sites in"
    " each round; may be repeated.",
)
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="[SECTION.]KEY=A,B,C",
    help="Values of a setting, or a TOML array of them, of which each is simulated in a folder of its own below --out;"
    " may be repeated for all combinations.",
)
@click.option(
    "--ray",
    "address",
    is_flag=False,
    flag_value="local",
    metavar="[ADDRESS]",
    help="Run methods, seeds and combinations side by side as tasks of Ray: on this machine, or on the cluster at"
    " ADDRESS, whose machines share the folder of --out. For your own machines only: whoever reaches Ray's ports can"
    " run programs.",
)
@click.option(
    "--cpus-per-run",
    type=click.FloatRange(min=0, min_open=True),
    help="CPUs that --ray reserves for one run.  [default: the number of torch's threads]",
)
@click.option(
    "--gpus-per-run",
    type=click.FloatRange(min=0, max=1),
    help="GPUs that --ray reserves for one run: 0.25 lets four runs share one.  [default: 1 where a machine has a GPU]",
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json or sweep.json instead of tables.")
@one_line_errors
def simulate(
    config: Path | None,
    as_json: bool,
    fresh: bool,
    settings: tuple[str, ...],
    sweeps: tuple[str, ...],
    address: str | None,
    cpus_per_run: float | None,
    gpus_per_run: float | None,
    **flags: object,
) -> None:
    """Simulate a federation without sockets, in this process or as tasks of Ray.

    The same command started again resumes an interrupted simulation and repeats no finished run. Its result equals that
    of an uninterrupted one: bit for bit on a CPU on tensors or with --batched never, else up to rounding.
    """
    from protoseal.commands.simulation_progress import RayLines, Reports, show_progress
    from protoseal.reports.report import write_report
    from protoseal.reports.sweep_table import sweep_table
    from protoseal.reports.tables import result_tables
    from protoseal.simulation.experiment import simulate as run
    from protoseal.simulation.ray_runs import start_ray_runs
    from protoseal.simulation.sweep import load_sweep, open_sweep, run_sweep

    if address is None and (cpus_per_run, gpus_per_run) != (None, None):
        raise click.UsageError("--cpus-per-run and --gpus-per-run need --ray")
    points = load_sweep(config, flags, settings, sweeps)
    configs = [point.config for point in points]
    diagnoses: list[Diagnosis] = []
    with ExitStack() as stack:
        if sweeps:
            stack.enter_context(open_sweep(configs[0].out.parent))
        runs: RayRuns | None = None
        if address is not None:
            on_end = RayLines(sum(len(loaded.seeds) * len(loaded.methods) for loaded in configs))
            started = start_ray_runs(
                configs, address, cpus=cpus_per_run, gpus=gpus_per_run, fresh=fresh, on_end=on_end
            )
            runs = stack.enter_context(started)

        def simulate_point(loaded: SimulationConfig) -> RunResult:
            if runs is None:
                with show_progress(loaded) as watcher:
                    result = run(loaded, watcher, fresh=fresh)
            else:
                runs.wait(loaded)
                result = run(loaded, Reports())  # reads the runs, which have ended
            write_report(loaded.out)
            diagnoses.extend(result.diagnoses)
            return result

        result: RunResult | SweepResult
        if sweeps:
            result, out = run_sweep(points, simulate_point), configs[0].out.parent
            tables = [sweep_table(result.rows)]
        else:
            result, out = simulate_point(configs[0]), configs[0].out
            tables = result_tables(result)
    if as_json:
        click.echo(result.model_dump_json(by_alias=True, indent=2))
    else:
        for table in tables:
            Console().print(table)
        click.echo(f"Everything is in {out}")
    print_warnings(diagnoses)
