"""Whether a command line is one of protoseal's, found out without running it."""

from __future__ import annotations

from collections.abc import Sequence

import click

from protoseal.cli import main


def parse_command(arguments: Sequence[str]) -> dict[str, object]:
    """What the options of ``protoseal ARGUMENTS`` mean; :class:`click.ClickException` where it is no such command."""
    command: click.Command = main
    context, rest = click.Context(main), list(arguments)
    while isinstance(command, click.Group):
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None  # else it would have raised
        command, context = found, click.Context(found, parent=context)
    return command.make_context(command.name, rest).params
