"""Command ``protoseal simulate``: runs a federation in one process, without sockets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from protoseal.commands.error_output import one_line_errors

if TYPE_CHECKING:
    from protoseal.reports.result_files import RunResult
    from protoseal.simulation.config import SimulationConfig


def _numbers(_: click.Context, __: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """``0,1,5`` or ``0-4``, or both."""
    if value is None:
        return None
    seeds: list[int] = []
    for part in value.split(","):
        first, dash, last = part.partition("-")
        try:
            seeds += range(int(first), int(last if dash else first) + 1)
        except ValueError as error:
            raise click.BadParameter(f"{part!r} is not a number or a range such as 0-4") from error
    if not seeds:
        raise click.BadParameter(f"{value!r} names no seed; a range goes upwards, such as 0-4")
    return tuple(seeds)


def _words(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    return None if value is None else tuple(word.strip() for word in value.split(",") if word.strip())


@click.command()
@click.option(
    "--config", type=click.Path(dir_okay=False, path_type=Path), help="TOML file; flags win over it."
)
@click.option(
    "--method",
    help="pfpl, fedpc, feddbp or fedplcc; fedavg, fedprox, fedproto, fedproto-averaged, fedbn, fedper, fedrep,"
    " ditto, fpl, fedplvm, average; local or self.",
)
@click.option(
    "--protection",
    help="plain, masked or ckks. One site that helps the coordinator opens all of ckks, and of rows that masked turns.",
)
@click.option(
    "--dataset", help="A name, several joined by +, npz:PATH, folder:PATH, sites:DIR or module:function."
)
@click.option(
    "--split",
    help="mixed:n=6.5,max=25, dirichlet:0.3[,test=0.25,per=200], shots:n=3,k=100, domains or iid; each also with"
    " pool=1, which deals out the data's own test part too, val=0.1, which early stopping needs, and subject=8, which"
    " makes up subjects of so many samples.",
)
@click.option("--sites", type=int, help="Number of sites.")
@click.option("--rounds", type=int, help="Number of rounds.")
@click.option(
    "--seeds", callback=_numbers, help="Seeds of split, initial model and training: 3, 0,1,2 or 0-4."
)
@click.option("--compare", callback=_words, help="Methods and controls beside it: local,self,fedavg.")
@click.option("--models", callback=_words, help="Different models, in turn: small-cnn,resnet10.")
@click.option(
    "--tests", type=int, help="Use so many samples of each class and domain of the data's test part."
)
@click.option("--device", help="auto, cpu or cuda:N.")
@click.option("--batched", help="Whether sites train as one program: auto, always or never.")
@click.option("--evaluate-every", type=int, help="Test after every so many rounds, and after the last.")
@click.option("--per-class", is_flag=True, default=None, help="Accuracies of each class at each site.")
@click.option(
    "--early-stopping",
    type=int,
    help="Stop after so many rounds without better validation; needs val= in --split.",
)
@click.option("--tensorboard", is_flag=True, default=None, help="Scalars for TensorBoard in OUT/tensorboard.")
@click.option("--data-root", type=click.Path(path_type=Path), help="Where torchvision's files are.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for results.")
@click.option("--fresh", is_flag=True, help="Throw away what --out has, of all seeds, instead of going on.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Any setting of the file; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print result.json instead of tables.")
@one_line_errors
def simulate(
    config: Path | None, as_json: bool, fresh: bool, settings: tuple[str, ...], **flags: object
) -> None:
    """Run a federation in this process, with the code of a deployment but without sockets.

    The same command goes on with a simulation that was ended; finished runs are not run again. The result is that of
    one that was not ended, bit for bit on a CPU with --batched never, else up to rounding.
    """
    from protoseal.commands.simulation_progress import watched
    from protoseal.reports.report import write_report
    from protoseal.simulation.config import load_simulation
    from protoseal.simulation.experiment import simulate as run

    loaded = load_simulation(config, flags, settings)
    with watched(loaded) as watcher:
        result = run(loaded, watcher, fresh=fresh)
    write_report(loaded.out)
    if as_json:
        click.echo(result.model_dump_json(by_alias=True, indent=2))
        return
    _print(result, loaded)


def _print(result: RunResult, config: SimulationConfig) -> None:
    from protoseal.reports.tables import result_tables

    for table in result_tables(result):
        Console().print(table)
    click.echo(f"Everything is in {config.out}")
