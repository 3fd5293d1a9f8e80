"""Reference of the command line, from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from protoseal.cli import main
from scripts.documentation.text import escaped, table


def command_line() -> str:
    """Return a section for each command, in the order of ``--help``."""
    return "\n\n".join(_sections(main, click.Context(main, info_name="protoseal"), 2))


def _sections(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    path = context.command_path
    if context.parent is not None:
        yield f"{'#' * level} {path}"
        level += 1
    yield _paragraphs(command.help or "")
    if not isinstance(command, click.Group):
        yield f"```text\n{path} {' '.join(command.collect_usage_pieces(context))}\n```"
        yield _options(command, context)
    yield _paragraphs(command.epilog or "")
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        if below is not None:
            yield from _sections(below, click.Context(below, info_name=name, parent=context), level)


def _paragraphs(text: str) -> str:
    """Return help text with its paragraphs; those that click prints as they stand become blocks."""
    parts = (_paragraph(part.lstrip(" ")) for part in re.split(r"\n\s*\n", text.strip()))
    return "\n\n".join(parts)


def _paragraph(text: str) -> str:
    if text.startswith("\b"):
        return f"```text\n{text[1:].strip()}\n```"
    return escaped(" ".join(text.split()))


def _options(command: click.Command, context: click.Context) -> str:
    records = [each.get_help_record(context) for each in command.get_params(context) if each.name != "help"]
    rows = ((f"`{record[0]}`".replace("|", r"\|"), escaped(record[1])) for record in records if record)
    return table(("option", "meaning"), rows)
