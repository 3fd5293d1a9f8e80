"""Command ``protoseal simulate``: runs a federation in one process, without sockets."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from agreement import PROTECTIONS
from protoseal.commands.options import FILE, example, parse_words
from protoseal.commands.terminal_output import one_line_errors, print_warnings

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
    "--batched",
    help="Train sites as one batched program: auto (where it pays), always or never.  [default: auto]",
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
    "--out", type=click.Path(path_type=Path), help="Folder for results.  [default: runs/simulation]"
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Delete what the folder of --out has, of all seeds, and start again instead of resuming.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Any setting of the file, such as training.lr=0.01; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json instead of tables.")
@one_line_errors
def simulate(
    config: Path | None, as_json: bool, fresh: bool, settings: tuple[str, ...], **flags: object
) -> None:
    """Run a federation in this process, with the code of a deployment but without sockets.

    An interrupted simulation resumes when the same command is started again; finished runs are not repeated. The result
    is the same as without the interruption: bit for bit on a CPU with --batched never, else up to rounding.
    """
    from protoseal.commands.simulation_progress import show_progress
    from protoseal.reports.report import write_report
    from protoseal.reports.tables import result_tables
    from protoseal.simulation.config import load_simulation
    from protoseal.simulation.experiment import simulate as run

    loaded = load_simulation(config, flags, settings)
    with show_progress(loaded) as watcher:
        result = run(loaded, watcher, fresh=fresh)
    write_report(loaded.out)
    if as_json:
        click.echo(result.model_dump_json(by_alias=True, indent=2))
    else:
        for table in result_tables(result):
            Console().print(table)
        click.echo(f"Everything is in {loaded.out}")
    print_warnings(result.diagnoses)
