"""Command group ``protoseal client``: takes part in a run as a site, or checks that the site could."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agreement import LogLevel
from crypto.errors import KeyStoreError
from protoseal.commands.options import FILE, example
from protoseal.commands.passphrase_input import IN_CONFIG, read_passphrase
from protoseal.commands.terminal_output import one_line_errors, printable, start_log
from secure_client.config import SiteConfig, load_site

if TYPE_CHECKING:
    from secure_client.output.site_log import SiteRound

_VERBOSITY = "GRPC_VERBOSITY"
config_option = click.option(
    "--config",
    type=FILE,
    required=True,
    help="Configuration file of the site (site.toml).",
)


@click.group(epilog=example("protoseal client check --config site.toml"))
def client() -> None:
    """Take part in a run as a site, or check that the site could."""


@client.command(epilog=example("protoseal client run --config site.toml"))
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the site's log (site.json) at the end.")
@one_line_errors
def run(config: Path, as_json: bool) -> None:
    """Take part in the run until it ends. Started again, it resumes.

    At the end it prints where the results are, among them privacy-statement.html, which is also written if the run ends
    early. Each run needs its own state_dir and out: a folder that holds another run is refused and left unchanged.
    """
    loaded = load_site(config)
    start_log(loaded.log_level)
    _load_grpc(loaded)
    from secure_client.app import run_site

    try:
        log = run_site(loaded, _passphrase(loaded), on_round=_print_round)
    except KeyboardInterrupt as error:
        raise click.ClickException("stopped by a signal; start the same command again to resume") from error
    finally:  # what was spent before a failure is spent
        _write_privacy_statement(loaded)
    if as_json:
        click.echo(log.model_dump_json(by_alias=True, indent=2))
    else:
        # A site that was away at the end has an earlier round's result: say so, or its model is taken for the run's.
        last = max((record.round for record in log.rounds), default=0)
        rounds = loaded.agreement.rounds
        missed = f" (this site's last result is of round {last} of {rounds})" if last < rounds else ""
        click.echo(
            f"The run is complete; the model, prototypes and privacy statement are in {loaded.out}{missed}"
        )


@client.command(epilog=example("protoseal client check --config site.toml"))
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@one_line_errors
def check(config: Path, as_json: bool) -> None:
    """Try everything that a run needs, and compare the agreement with the coordinator's. No data is sent.

    One line, ok or FAILED, for each check here: agreement, model, data, privacy budget, folders, certificate and stored
    state; and for each at the coordinator: reachable, site listed, same agreement, run open. The exit code is 0 if all
    are ok, else 1.
    """
    loaded = load_site(config)
    if loaded.log_level is LogLevel.DEBUG:  # tracebacks of the site's code; the findings say the rest
        start_log(loaded.log_level)
    _load_grpc(loaded)
    from secure_client.site_check import check_site

    findings = []
    # The certificate and the stored state need the passphrase: it is asked for once.
    for finding in check_site(loaded, cache(partial(_passphrase_to_check, loaded))):
        findings.append(finding)
        if not as_json:
            click.echo(f"{'ok    ' if finding.ok else 'FAILED'}  {finding.what}: {printable(finding.detail)}")
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    failed = [finding.what for finding in findings if not finding.ok]
    if failed:
        raise click.ClickException(f"not ready: {', '.join(failed)}")


def _load_grpc(config: SiteConfig) -> None:
    """Import gRPC without its own lines on standard error, which repeat in other words what errors say in one line.

    At the level debug, or if GRPC_VERBOSITY is set, the lines appear. gRPC reads the variable as it is imported.
    """
    if _VERBOSITY in os.environ or config.log_level is LogLevel.DEBUG:
        return
    os.environ[_VERBOSITY] = "NONE"
    try:
        import grpc  # noqa: F401
    finally:
        del os.environ[_VERBOSITY]


def _write_privacy_statement(config: SiteConfig) -> None:
    """Write the privacy statement into ``out`` if this run began there; an error is logged and ends nothing."""
    from agreement.storage.run_files import belongs_to
    from protoseal.commands.budget_statement import read_site_facts
    from protoseal.reports.statement_files import write_statement
    from secure_client.error_containment import run_or_fallback

    if belongs_to(config.out, config.agreement):
        run_or_fallback(
            lambda: write_statement(config.out, read_site_facts(config)),
            lambda: None,
            "writing the privacy statement",
        )


def _passphrase(config: SiteConfig) -> bytes:
    return read_passphrase(config.passphrase_file, what=f"the key of {config.name}", remedy=IN_CONFIG)


def _passphrase_to_check(config: SiteConfig) -> bytes:
    """Return the passphrase as :func:`_passphrase` does; a missing passphrase counts as a failed check."""
    try:
        return _passphrase(config)
    except click.ClickException as error:
        raise KeyStoreError(error.message) from error


def _print_round(figures: SiteRound) -> None:
    from protoseal.reports.tables import accuracy_text, epsilon_text

    parts = [f"round {figures.round} with {figures.sites} sites"]
    if not figures.trained:
        parts.append("training failed: see the log")
    if figures.accuracy_classifier is not None:
        parts.append(f"accuracy {accuracy_text(figures)}")
    parts += [f"{phase} {seconds:.1f} s" for phase, seconds in figures.seconds.items()]
    if figures.withheld:
        parts.append(f"withheld: {', '.join(figures.withheld)}")
    if figures.epsilon is not None:
        parts.append(f"epsilon {epsilon_text(figures)}")
    click.echo(", ".join(parts))
