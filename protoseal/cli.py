"""Command ``protoseal`` and its overview. A subcommand is imported when it is used: a coordinator has no torch."""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper

import click

from protoseal.commands.options import example

COMMANDS = {
    "attack": "Try attacks on a configuration, beside the same system undefended.",
    "budget": "Plan, evaluate, audit, show, state, verify or change a data set's privacy budget.",
    "client": "Take part in a run as a site, or check that the site could.",
    "demo": "Run a whole federation on this machine, as processes with real certificates.",
    "pki": "Keys and certificates of a federation.",
    "predict": "Predict classes with a site's trained model.",
    "report": "Write the HTML page of a run.",
    "server": "Serve a run as the coordinator, or check that the coordinator could.",
    "simulate": "Run a federation in one process, for research.",
}


class _OnDemand(click.Group):
    """Knows the subcommands' names and help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        # Only the command that runs is imported: PyTorch takes a second, and a coordinator lacks it.
        command: click.Command = getattr(import_module(f"protoseal.commands.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(cls=_OnDemand, epilog=example("protoseal demo --out runs/demo --rounds 3"))
@click.version_option(package_name="protoseal")
def main() -> None:
    """Federated prototype learning between institutions that must not show each other their data."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # letters that a terminal lacks, and names that are not UTF-8
            stream.reconfigure(errors="backslashreplace")
