"""Command group ``protoseal server``: serves a run as the coordinator, or checks that the coordinator could."""

from __future__ import annotations

import json
from pathlib import Path

import click

from protoseal.commands.options import FILE, example
from protoseal.commands.passphrase_input import IN_CONFIG, read_passphrase
from protoseal.commands.terminal_output import Facts, one_line_errors, print_facts, start_log
from secure_server.config import CoordinatorConfig, load_coordinator


class RunAbandoned(click.ClickException):
    """A run stopped because every site left or fell silent: a restart at once would find no site either."""

    exit_code = 3


config_option = click.option(
    "--config",
    type=FILE,
    required=True,
    help="Configuration file of the coordinator (coordinator.toml).",
)


@click.group(epilog=example("protoseal server check --config coordinator.toml"))
def server() -> None:
    """Serve a run as the coordinator, or check that the coordinator could."""


@server.command(epilog=example("protoseal server check --config coordinator.toml"))
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
@one_line_errors
def check(config: Path, as_json: bool) -> None:
    """Check that the coordinator could serve the run, and print the agreement's hash for sites to compare.

    The command opens the configuration, the certificate and the key. It listens on nothing and writes nothing.
    """
    from crypto.pki.identity import load_certificate
    from secure_server.app import open_identity

    loaded = load_coordinator(config)
    agreement = loaded.agreement
    credentials, _ = open_identity(loaded, _passphrase(loaded))
    ends = load_certificate(credentials.certificate_pem).not_valid_after_utc
    facts: Facts = {
        "identity": credentials.identity.uri,
        "valid_until": f"{ends:%Y-%m-%dT%H:%M:%SZ}",
        "run": agreement.run,
        "terms": agreement.summary,
        "sites": list(loaded.sites),
        "agreement": agreement.hash().hex(),
    }
    print_facts(facts, as_json=as_json)


@server.command(epilog=example("protoseal server run --config coordinator.toml"))
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print how the run ended as JSON.")
@one_line_errors
def run(config: Path, as_json: bool) -> None:
    """Serve one run until it ends. Started again on the same state_dir, it resumes.

    Started again after the end, it answers late sites for a while (for deadlines.result seconds if they lack the last
    result) and ends. Each run needs its own state_dir: a folder that holds another run is refused and left unchanged.

    The exit code is 0 if the run is complete, 3 if it stopped because every site left or fell silent, 2 for a wrong
    command line, and 1, with a reason, for anything else.
    """
    from secure_server.app import run_coordinator
    from secure_server.rounds.state import RoundStage

    loaded = load_coordinator(config)
    start_log(loaded.log_level)
    state = run_coordinator(loaded, _passphrase(loaded))
    if as_json:
        click.echo(
            json.dumps(
                {"run": state.run, "stage": state.stage.value, "round": state.round, "reason": state.reason}
            )
        )
    if state.stage is not RoundStage.FINISHED:
        is_over = state.round > loaded.agreement.rounds
        where = "over" if is_over else f"at {state.stage.value} of round {state.round}"
        remedy = "start another run" if is_over else "start the same command again to resume"
        why = f"the run is {where}: {state.reason or 'stopped by a signal'}; {remedy}"
        # A service unit restarts on exit code 1, and not on 3: a restart at once would find no site either.
        raise RunAbandoned(why) if state.over and state.is_empty else click.ClickException(why)
    click.echo(f"The run is complete after {state.round} rounds.", err=as_json)  # JSON stands alone


def _passphrase(config: CoordinatorConfig) -> bytes:
    return read_passphrase(config.passphrase_file, what="the coordinator's key", remedy=IN_CONFIG)
