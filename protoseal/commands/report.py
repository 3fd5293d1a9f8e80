"""Command ``protoseal report``: writes a run's results as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from protoseal.commands.options import EXISTING_FOLDER, example
from protoseal.commands.terminal_output import one_line_errors


@click.command(epilog=example("protoseal report runs/demo"))
@click.argument("run_dir", type=EXISTING_FOLDER)
@click.option(
    "--class",
    "class_name",
    help="Name of the class whose prototypes are drawn.  [default: the class that most sites got an answer for]",
)
@click.option(
    "--against",
    type=EXISTING_FOLDER,
    help="Folder of another run: print how RUN_DIR's method differs from it, seed by seed, and write no page.",
)
@one_line_errors
def report(run_dir: Path, class_name: str | None, against: Path | None) -> None:
    """Write RUN_DIR/report.html, a self-contained page, from RUN_DIR/result.json and the sites' folders."""
    from protoseal.reports.report import write_report
    from protoseal.reports.result_files import read_result
    from protoseal.reports.run_results import between_runs
    from protoseal.reports.tables import pairs_table

    if against is None:
        click.echo(write_report(run_dir, class_name))
        return
    title = f"{run_dir} less {against}, points by seed"
    Console().print(pairs_table(title, between_runs(read_result(run_dir), read_result(against))))
