"""Command ``protoseal budget evaluate``: simulates a configuration and reports its accuracy at each ε."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from protoseal.commands.options import example, parse_epsilons, parse_words
from protoseal.commands.simulate import simulate
from protoseal.commands.terminal_output import one_line_errors

if TYPE_CHECKING:
    from protoseal.audit.accuracy_report import AccuracyReport
    from protoseal.simulation.config import SimulationConfig
    from protoseal.simulation.experiment import Watcher

NOISES = ("local", "distributed")
_WITHOUT_MEANING = {
    *("early_stopping", "tensorboard", "fresh", "as_json"),
    *("sweeps", "address", "cpus_per_run", "gpus_per_run"),
}
"""Options of ``simulate`` that ``evaluate`` does not have."""
_NOT_AT_INFINITY = {"privacy", "seeds", "out"}
"""Sections and settings that ``--at-inf`` must not name: the runs at ∞ lack them, or share them with the others."""


def _parse_noises(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, ...]:
    noises = tuple(dict.fromkeys(parse_words(context, option, value) or ()))
    if value is not None and (not noises or not set(noises) <= set(NOISES)):
        raise click.BadParameter(f"{value!r} is not local, distributed or both")
    return noises


def _check_at_infinity(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    for setting in value:
        name, separator, _value = setting.partition("=")
        if not separator:
            raise click.BadParameter(f"{setting!r} is not of the form SECTION.KEY=VALUE")
        if name.partition(".")[0].strip() in _NOT_AT_INFINITY:
            raise click.BadParameter(f"{name} cannot differ at ∞: leave it out")
    return value


@click.command(
    "evaluate",
    epilog=example(
        "protoseal budget evaluate --config private.toml --epsilons 1,8,inf --seeds 0-2 --out runs/evaluate"
    ),
)
@click.option(
    "--epsilons",
    callback=parse_epsilons,
    default="1,3,8,inf",
    show_default=True,
    help="Values of ε to evaluate, with commas between; inf is without noise.",
)
@click.option(
    "--noise",
    "noises",
    callback=_parse_noises,
    help="Who adds the noise: local (each site its own), distributed (shares that add up), or both with a comma"
    " between.  [default: as the configuration has it]",
)
@click.option(
    "--at-inf",
    "at_inf",
    multiple=True,
    callback=_check_at_infinity,
    metavar="SECTION.KEY=VALUE",
    help="Setting of the runs at ε = inf only, such as a learning rate that suits them; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print evaluate.json instead of a table.")
@one_line_errors
def evaluate_command(
    *,
    config: Path | None,
    out: Path | None,
    settings: tuple[str, ...],
    epsilons: tuple[float, ...],
    noises: tuple[str, ...],
    at_inf: tuple[str, ...],
    as_json: bool,
    **flags: object,
) -> None:
    """Simulate a configuration at several ε, with the noise that each needs, and report the accuracies.

    The configuration is a file of `protoseal simulate` with a [privacy] section. All its noise multipliers, of releases
    and of DP-SGD, are scaled by one factor until a run's ε at δ = 1e-5 is at most the wanted one. At ε = inf there is
    no [privacy] section, and --at-inf may change other settings. An extractor that [privacy] keeps frozen is trained at
    inf; add 100 to --epsilons to see it frozen with hardly any noise.

    Each run is a simulation in its own folder under --out, which then has evaluate.json and evaluate.html. Runs that
    are finished are not repeated.
    """
    from protoseal.audit.accuracy_report import write_accuracy_page
    from protoseal.audit.budget_curve import BudgetCurve, request_runs
    from protoseal.commands.simulation_progress import show_progress
    from protoseal.simulation.config import load_simulation

    if at_inf and math.inf not in epsilons:
        raise click.BadParameter("--at-inf needs a run at ∞: add inf to --epsilons", param_hint="--at-inf")
    loaded = load_simulation(config, {**flags, "out": out}, settings)
    # At the noisy runs' learning rate a run without noise could end worse, and the loss at small ε would look small.
    exact = load_simulation(config, {**flags, "out": out}, (*settings, *at_inf)) if at_inf else None
    curve = BudgetCurve(loaded, loaded.out, exact)
    requests = request_runs(epsilons, noises or (curve.noise,), loaded.seeds)

    def announce_and_watch(run: SimulationConfig) -> AbstractContextManager[Watcher]:
        click.echo(f"{run.out}:", err=True)
        return show_progress(run)

    # The page is written after each run, so that a long evaluation can be looked at, or interrupted.
    for evaluation in curve.run(requests, announce_and_watch):
        write_accuracy_page(loaded.out, evaluation)
    if as_json:
        click.echo(evaluation.model_dump_json(by_alias=True, indent=2))
        return
    Console().print(_table(evaluation))
    click.echo(f"Everything is in {loaded.out}")


def _table(evaluation: AccuracyReport) -> Table:
    from protoseal.audit.accuracy_report import FREEZING, epsilon_text, spread_text
    from protoseal.reports.tables import NO_PROTOTYPE, add_columns, new_table, paired_text

    title = f"{evaluation.method} under {evaluation.protection}, {evaluation.dataset}, δ = {evaluation.delta:g}, %"
    table = new_table(title)
    notes = [FREEZING] * evaluation.freezes + [NO_PROTOTYPE] * evaluation.lacks_prototypes
    table.caption = Text("\n".join(notes)) if notes else None
    table.caption_justify = "left"
    heads = ["ε", "noise", "features", "accuracy", "by classifier", "by prototype", "loss, points"]
    add_columns(table, heads, [])
    measures = ("accuracy", "accuracy_classifier", "accuracy_prototype")
    for level in evaluation.levels:
        loss = level.loss.get("accuracy")
        cells = [spread_text(level, measure) for measure in measures]
        table.add_row(
            epsilon_text(level),
            level.noise,
            level.features,
            *cells,
            "-" if loss is None else paired_text(loss),
        )
    return table


evaluate_command.params.extend(option for option in simulate.params if option.name not in _WITHOUT_MEANING)
