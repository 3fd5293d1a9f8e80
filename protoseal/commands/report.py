"""``protoseal report``."""

from __future__ import annotations

from pathlib import Path

import click

from protoseal.commands.reporting import one_line_errors


@click.command()
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--class", "class_name", help="Class whose prototypes are drawn.  [default: the most answered]")
@one_line_errors
def report(run_dir: Path, class_name: str | None) -> None:
    """Write RUN_DIR/report.html, one self-contained page, from RUN_DIR/result.json and the sites' folders."""
    from protoseal.report import write_report

    click.echo(write_report(run_dir, class_name))
