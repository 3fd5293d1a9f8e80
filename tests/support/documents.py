"""The project's documents: their code, links and names, and the commands in them."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks import ckks, frameworks, pairwise, ray_sweep, rotation, samples, secagg, train
from benchmarks import round as whole_round
from benchmarks.gpu.__main__ import main as gpu
from protoseal.cli import main

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
)
PACKAGES = ("algorithms", "crypto", "proto", "protoseal", "protoseal_files", "secure_client", "secure_server")
BENCHMARKS = {
    module.__name__: module.main
    for module in (ckks, frameworks, pairwise, ray_sweep, rotation, whole_round, samples, secagg, train)
} | {"benchmarks.gpu": gpu}
"""Commands of the checkout, by their modules."""
_OURS = re.compile(rf"(?:nohup )?(?:OMP_NUM_THREADS=1 )?(?:protoseal|python -m (?:{'|'.join(BENCHMARKS)})) ")
_FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.M | re.S)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4,}\S.*\n|\n(?= {4}))+")
_SHELLS = {"sh", "bash", "console", "shell"}
_PROGRAM = re.compile(
    r"(?:\w+=\S* |nohup |sudo )*(?:[\w./-]*/)?(?:protoseal|make|python[\d.]*|pip|pytest|openssl|systemctl|journalctl"
    r"|docker|podman|curl|git|install|useradd|chown|sed|for \w+ in|[\w-]+\.sh)\b(?![-=.])"
)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str) -> list[str]:
    """Fenced and indented blocks of code."""
    return [body for _, body in _code(text)]


def python_in(text: str) -> list[str]:
    """Return the fenced Python of a page."""
    return [body for language, body in _code(text) if language == "python"]


def _code(text: str) -> list[tuple[str, str]]:
    """Blocks of code, each with its language, which is empty where none is given."""
    fenced = [(language, textwrap.dedent(body)) for language, body in _FENCED.findall(text)]
    return fenced + [("", textwrap.dedent(body)) for body in _INDENTED.findall(_FENCED.sub("", text))]


def spans(text: str) -> list[str]:
    """Code within sentences, in one line each."""
    return [re.sub(r"\s+", " ", each) for each in _SPAN.findall(_FENCED.sub("", text))]


def commands(text: str) -> list[str]:
    """Return every command line of ``protoseal`` and of a benchmark, of blocks and of spans."""
    lines = [line.strip() for block in blocks(text) for line in re.sub(r"\\\n\s*", " ", block).splitlines()]
    return [line for line in (*lines, *spans(text)) if _OURS.match(line)]


@dataclass(frozen=True)
class MarkedBlock:
    """Command lines of one block, and who runs them: ``run by FILE``, ``not run by tests``, or nothing."""

    lines: list[str]
    mark: str

    @property
    def runner(self) -> str:
        """The test that runs the block, empty if none is named."""
        return self.mark.removeprefix("run by ") if self.mark.startswith("run by ") else ""


def marked_blocks(text: str) -> list[MarkedBlock]:
    """Return every block with commands; a mark in its first line counts before that of the page."""
    page = page_mark(text)
    return [
        MarkedBlock(lines, _mark(re.findall(r"\A# (run by \S+|not run by tests)", body)) or page)
        for language, body in _code(text)
        if (lines := command_lines(language, body))
    ]


def page_mark(text: str) -> str:
    """Return who runs the commands of a page by its own sentence, empty if no sentence says so."""
    sentence = r"Commands on this page are (run by `[^`]+`|not run by tests)"
    return _mark(re.findall(sentence, re.sub(r"\s+", " ", text)))


def _mark(found: list[str]) -> str:
    return found[0].replace("`", "") if found else ""


def command_lines(language: str, body: str) -> list[str]:
    """Return a block's command lines: after prompts, if it has any; all, if it is a shell's; else of known programs."""
    lines = [line.strip() for line in re.sub(r"\\\n\s*", " ", body).splitlines()]
    if prompted := [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]:
        return prompted
    lines = [line for line in lines if line and not line.startswith("#")]
    if language in _SHELLS:
        return lines
    return [line for line in lines if not language and _PROGRAM.match(line)]


def problem_of(line: str) -> str | None:
    """Say what is wrong with a command line's commands and options, or None; values are not looked at."""
    words = shlex.split(re.sub(r"[\[\]…]|\.\.\.|[|>&].*", " ", line), comments=True)
    words = [word for word in words if word not in ("nohup", "OMP_NUM_THREADS=1")]
    command: click.Command = main if words[0] == "protoseal" else BENCHMARKS[words[2]]
    words = words[1:] if command is main else words[3:]
    context = click.Context(command)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        if found is None:
            return f"{line}: no command {words[0]!r}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context)
    known = {
        name
        for parameter in command.get_params(context)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    return f"{line}: no option {unknown}" if unknown else None


def options(command: click.Command = main, context: click.Context | None = None) -> set[str]:
    """Return every option of the command and of all below it."""
    context = context or click.Context(command)
    found = {name for each in command.get_params(context) for name in (*each.opts, *each.secondary_opts)}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            found |= options(below, click.Context(below, parent=context))
    return found


def source_files() -> Iterator[Path]:
    """Yield every file of code and configuration that a document could name something of."""
    for pattern in (
        "*.py",
        "*.toml",
        "*.html",
        "*.proto",
        "*.service",
        "*.yaml",
        "*.sh",
        "Makefile",
        "*.Dockerfile",
    ):
        for path in ROOT.rglob(pattern):
            parts = path.relative_to(ROOT).parts
            if parts[0] not in ("build", "dist") and not any(part.startswith(".") for part in parts):
                yield path
