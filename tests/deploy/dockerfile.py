"""A Dockerfile's instructions, and what is wrong with an image that they describe."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click

from tests.deploy.commands import parse_command
from tests.deploy.walkthrough import ROOT

BUILD_NEEDS = {"pyproject.toml", "README.md", "LICENSE"}
"""Files that pip reads besides the packages."""
_SECRETS = re.compile(r"passphrase|password|passwd|token|secret|\.pem|private", re.I)


class Instruction(NamedTuple):
    """``COPY``, say, and the rest of its logical line."""

    name: str
    text: str


def read_dockerfile(text: str) -> list[Instruction]:
    """Return the instructions, continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [Instruction(name.upper(), rest) for name, rest in pairs]


def image_problems(text: str, extra: str) -> list[str]:
    """Return the problems of a Dockerfile that should install the project with ``extra`` (``[site]``, or nothing)."""
    instructions = read_dockerfile(text)
    copied = context_sources(instructions)
    return [
        *_base_problems(instructions),
        *(f"copies {each}, which does not exist" for each in copied if not (ROOT / each).exists()),
        *(f"copies {each}, which .dockerignore leaves out" for each in copied if is_ignored(each)),
        *(f"does not copy {each}" for each in sorted(_needed() - set(copied))),
        *_install_problems(instructions, extra),
        *_user_problems(instructions),
        *_start_problems(instructions),
        *(f"holds a secret: {each.text}" for each in instructions if _is_secret(each)),
        *(
            f"{each.name} is not to be used"
            for each in instructions
            if each.name in ("ADD", "VOLUME", "HEALTHCHECK")
        ),
        *(["names a host"] if "://" in "".join(each.text for each in instructions) else []),
    ]


def context_sources(instructions: Sequence[Instruction]) -> list[str]:
    """Return the paths that COPY takes from the build context."""
    words = [each.text.split() for each in instructions if each.name == "COPY"]
    return [source for each in words if not each[0].startswith("--from") for source in each[:-1]]


def is_ignored(path: str, ignore: str | None = None) -> bool:
    """Return True if ``.dockerignore`` excludes the path: the last pattern that matches decides."""
    ignored = False
    for excludes, pattern in _patterns(ignore):
        if excludes != ignored and any(pattern.fullmatch(each) for each in _ancestry(path)):
            ignored = excludes
    return ignored


def build_context() -> set[str]:
    """Return every file that ``.dockerignore`` lets into a build, relative to the project's root.

    A folder that is left out is not entered, as in Docker's older builder and in Buildah; a pattern that would take
    a file out of it again does so in BuildKit alone.
    """
    waiting, found = sorted(ROOT.iterdir()), set[str]()
    while waiting:
        path = waiting.pop()
        name = path.relative_to(ROOT).as_posix()
        if not is_ignored(name):
            waiting += path.iterdir() if path.is_dir() else ()
            found |= {name} if path.is_file() else set()
    return found


def _patterns(ignore: str | None) -> list[tuple[bool, re.Pattern[str]]]:
    """Return for each line, in order, whether it excludes, and the paths that it matches."""
    text = (ROOT / ".dockerignore").read_text(encoding="utf-8") if ignore is None else ignore
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(not line.startswith("!"), _expression(line.removeprefix("!").strip("/"))) for line in lines]


def _expression(pattern: str) -> re.Pattern[str]:
    """Translate a pattern as Docker does: ``**/`` is any folders or none, ``*`` and ``?`` stay within a name."""
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    return re.compile("".join(wild.get(part, re.escape(part)) for part in parts))


def _ancestry(path: str) -> list[str]:
    """Return the path and every folder above it, which a pattern matches as well."""
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _needed() -> set[str]:
    """Return the source roots and packages of pyproject.toml, and what pip reads."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {
        name.removesuffix("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    return {name for name in packages if (ROOT / name).is_dir()} | {"proto"} | BUILD_NEEDS


def _base_problems(instructions: Sequence[Instruction]) -> list[str]:
    defaults = dict(
        each.text.split("=", 1) for each in instructions if each.name == "ARG" and "=" in each.text
    )
    images = [each.text.split()[0] for each in instructions if each.name == "FROM"]
    resolved = [re.sub(r"\$\{(\w+)\}", lambda name: defaults.get(name[1], ""), image) for image in images]
    return [
        *(
            f"base image {each!r} is not pinned"
            for each in resolved
            if not re.search(r":\d+\.\d+\.\d+-slim-\w+$", each)
        ),
        *([] if len(set(resolved)) == 1 else [f"stages of different bases: {resolved}"]),
    ]


def _install_problems(instructions: Sequence[Instruction], extra: str) -> list[str]:
    installs = [each.text for each in instructions if each.name == "RUN" and "pip install" in each.text]
    wanted = f"'.{extra}'" if extra else "."
    if len(installs) != 1 or installs[0].split()[-1] != wanted:
        return [f"does not install exactly {wanted}: {installs}"]
    return (
        ["installs with options that change where from"] if re.search(r"index|--trusted", installs[0]) else []
    )


def _user_problems(instructions: Sequence[Instruction]) -> list[str]:
    users = [each.text for each in instructions[_last_stage(instructions) :] if each.name == "USER"]
    numeric = [re.fullmatch(r"([1-9]\d*):[1-9]\d*", user) for user in users]
    return [] if users and all(numeric) else [f"may run as root: USER {users}"]


def _last_stage(instructions: Sequence[Instruction]) -> int:
    return max(index for index, each in enumerate(instructions) if each.name == "FROM")


def _start_problems(instructions: Sequence[Instruction]) -> list[str]:
    last = {each.name: each.text for each in instructions}
    entry, arguments = json.loads(last["ENTRYPOINT"]), json.loads(last["CMD"])
    try:
        parse_command(arguments)
    except click.ClickException as error:
        return [f"starts what is no command: {error.message}"]
    return [] if entry == ["protoseal"] else [f"starts {entry}"]


def _is_secret(instruction: Instruction) -> bool:
    return instruction.name in ("ENV", "ARG", "COPY", "LABEL") and bool(_SECRETS.search(instruction.text))


def dockerfile(name: str) -> str:
    """Return the text of one of the project's."""
    return (ROOT / "deploy" / "docker" / f"{name}.Dockerfile").read_text(encoding="utf-8")


def context_path(relative: str) -> Path:
    """Return the path that compose reads: paths in its file are relative to the file's folder."""
    return (ROOT / "deploy" / relative).resolve()
