"""Parser that accepts only command lines of protoseal, without running them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from protoseal.cli import main


def parse_command(arguments: Sequence[str]) -> dict[str, object]:
    """Return the options of ``protoseal ARGUMENTS``; raise :class:`click.ClickException` for an unknown command."""
    command: click.Command = main
    context, rest = click.Context(main), list(arguments)
    while isinstance(command, click.Group):
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None  # else it would have raised
        command, context = found, click.Context(found, parent=context)
    return command.make_context(command.name, rest).params
