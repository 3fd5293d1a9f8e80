"""The distribution that docs/how-to/extending.md makes, taken out of its page, and others like it."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path

from agreement import PeersHalves, Protection
from agreement.registry import extensions
from crypto.keys import KEY_BYTES
from crypto.plain import PlainServer
from crypto.protection import PayloadShape
from crypto.rotation import SCHEME, RotationSite
from tests.support.processes import environment

DOCUMENT = Path(__file__).parents[2] / "docs/how-to/extending.md"
METHODS, PROTECTIONS = "protoseal.methods", "protoseal.protections"
_FILE = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```\n", re.DOTALL)
_COMMANDS = re.compile(r"<!-- commands -->\n```sh\n(.*?)```\n", re.DOTALL)

EntryPoints = Mapping[str, Mapping[str, str]]
"""Entry points ``module:object`` by group and name."""


def documented_files() -> dict[str, str]:
    """Return the document's files, by name."""
    return dict(_FILE.findall(DOCUMENT.read_text(encoding="utf-8")))


def documented_commands() -> list[list[str]]:
    """Return the document's commands, in words, without the first, which is ``protoseal``."""
    (block,) = _COMMANDS.findall(DOCUMENT.read_text(encoding="utf-8"))
    return [shlex.split(line)[1:] for line in block.splitlines()]


def install_documented(folder: Path) -> None:
    """Put into ``folder`` what ``pip install`` would of the document's three files."""
    files = documented_files()
    project = tomllib.loads(files["pyproject.toml"])
    for module in project["tool"]["setuptools"]["py-modules"]:
        (folder / f"{module}.py").write_text(files[f"{module}.py"], encoding="utf-8")
    about = project["project"]
    install(folder, about["entry-points"], name=about["name"], version=about["version"])


def install(folder: Path, points: EntryPoints, *, name: str, version: str = "1.0") -> None:
    """Write a distribution's metadata; its modules are whatever lies in ``folder``."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8"
    )
    groups = [
        f"[{group}]\n" + "".join(f"{each} = {value}\n" for each, value in named.items())
        for group, named in points.items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(groups), encoding="utf-8")


def as_installed(folder: Path) -> dict[str, str]:
    """Return the environment of a process that finds what lies in the folder."""
    found = environment()
    return {**found, "PYTHONPATH": os.pathsep.join((found["PYTHONPATH"], str(folder)))}


@contextmanager
def installed(*folders: Path) -> Iterator[None]:
    """Make the distributions in the folders importable and found inside the block, and forget them afterwards."""
    known, modules, path = dict(extensions._LOADED), set(sys.modules), list(sys.path)
    sys.path[:0] = [str(folder) for folder in folders]
    invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = path
        extensions._LOADED.clear()
        extensions._LOADED.update(known)
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).parent in folders:
                del sys.modules[name]
        invalidate_caches()


rotated = Protection(
    name="rotated",
    secret_bytes=KEY_BYTES,
    peers=PeersHalves(
        site=lambda settings, secret, context: RotationSite(secret, context),
        server=lambda settings, weights: PlainServer(weights, SCHEME),
        form=lambda settings, classes, dim: PayloadShape(arrays=((classes, dim),)),
    ),
)
