"""``protoseal server``: the coordinator."""

from __future__ import annotations

import json
from pathlib import Path

import click

from protoseal.commands.logs import start_log
from protoseal.commands.passphrase import IN_CONFIG, read_passphrase
from protoseal.commands.reporting import one_line_errors
from protoseal.config import load_coordinator


@click.group()
def server() -> None:
    """The coordinator."""


@server.command()
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="The coordinator's file (coordinator.toml).",
)
@click.option("--json", "as_json", is_flag=True, help="Print how the run ended as JSON.")
@one_line_errors
def run(config: Path, as_json: bool) -> None:
    """Serve one run until it ends. Started again on the same state_dir, it goes on where it was."""
    from secure_server.app import run_coordinator
    from secure_server.rounds import Stage

    loaded = load_coordinator(config)
    start_log(loaded.log_level)
    passphrase = read_passphrase(loaded.passphrase_file, what="the coordinator's key", remedy=IN_CONFIG)
    state = run_coordinator(loaded, passphrase)
    if as_json:
        click.echo(
            json.dumps(
                {"run": state.run, "stage": state.stage.value, "round": state.round, "reason": state.reason}
            )
        )
    if state.stage is not Stage.FINISHED:
        raise click.ClickException(
            f"the run is at {state.stage.value} of round {state.round}: {state.reason or 'stopped by a signal'};"
            " start again to go on"
        )
    click.echo(f"The run is complete after {state.round} rounds.", err=as_json)
