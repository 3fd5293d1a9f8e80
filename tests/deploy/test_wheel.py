"""The wheel as the images install it: built under their ignore rules, beside nothing but what it declares.

No container engine takes part, and nothing is downloaded: the declared dependencies are links to those that are
installed here, without whatever else is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from protoseal.commands.terminal_output import SITE_EXTRA
from tests.deploy.container_files import build_context, context_sources, dockerfile, read_dockerfile
from tests.deploy.walkthrough import ROOT
from tests.support.marks import full_but

EXTRAS = {"coordinator": frozenset[str](), "site": frozenset({"site"})}
WITHOUT_TORCH = ("protoseal_files", "crypto", "protoseal_wire", "secure_server", "agreement")
"""Packages that a coordinator's installation has to import whole."""
_TRY = """
import importlib, json, os, sys
import click
from protoseal.cli import main

failed, helps = {}, {}
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = error.name or str(error)

def ask(command, path, parent):
    context = click.Context(command, parent=parent, info_name=path[-1])
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            ask(command.get_command(context, name), (*path, name), context)
    try:
        command.main([*path[1:], "--help"] if parent is None else ["--help"], prog_name=" ".join(path))
    except SystemExit as end:
        helps[" ".join(path)] = end.code

real, sys.stdout = sys.stdout, open(os.devnull, "w")
ask(main, ("protoseal",), None)
print(json.dumps({"failed": failed, "helps": helps}), file=real, flush=True)
"""


class Installed(NamedTuple):
    """An environment's Python, and the modules of the site extra that the environment lacks."""

    python: Path
    absent: frozenset[str]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that pip makes of what the images copy, of the files that reach them."""
    folder = tmp_path_factory.mktemp("images")
    copied = set(context_sources(read_dockerfile(dockerfile("site"))))
    assert copied == set(context_sources(read_dockerfile(dockerfile("coordinator"))))
    for path in build_context():
        if path.split("/")[0] in copied:
            (folder / "source" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / "source" / path)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "source")
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module", params=full_but(EXTRAS, "coordinator"))
def installed(
    request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """An environment with the wheel and the dependencies that it declares for one image."""
    folder = tmp_path_factory.mktemp(request.param)
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    _pip("--python", python, "install", "--no-deps", "--no-compile", wheel)
    (packages,) = folder.glob("lib/python*/site-packages")
    (own,) = map(PathDistribution, packages.glob("protoseal-*.dist-info"))
    declared = _declared(own, EXTRAS[request.param])
    for path in declared:
        (packages / path.name).symlink_to(path)
    absent = {path.name.partition(".")[0] for path in _declared(own, EXTRAS["site"]) - declared}
    return Installed(python, frozenset(absent))


def _pip(*arguments: object) -> None:
    _run(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", *arguments)


def _run(*command: object, status: int = 0) -> str:
    """Run a command that reads nothing of the tests' own environment, and return what it prints."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([*map(str, command)], env=own, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def _declared(root: Distribution, extras: frozenset[str]) -> set[Path]:
    """Return the files and folders of all distributions that pip would install with ``root``."""
    waiting, seen, found = [(root, extras)], set[tuple[str, frozenset[str]]](), set[Path]()
    while waiting:
        needing, asked = waiting.pop()
        for requirement in map(Requirement, needing.requires or ()):
            key = canonicalize_name(requirement.name), frozenset(requirement.extras)
            if key not in seen and _applies(requirement, asked):
                seen.add(key)
                waiting.append((distribution(requirement.name), key[1]))
                found |= _top(waiting[-1][0])
    return found


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""})


def _top(package: Distribution) -> set[Path]:
    """Return what a distribution put directly into its site-packages."""
    names = {each.parts[0] for each in package.files or ()} - {"..", "__pycache__"}
    return {path for name in names if (path := Path(str(package.locate_file(name)))).exists()}


def _modules(wheel: Path) -> list[str]:
    names = [name.removesuffix(".py") for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")]
    modules = {name.removesuffix("/__init__").replace("/", ".") for name in names}
    return sorted(modules - {"protoseal.__main__"})  # which is a command's start, not a module to import


def test_wheel_has_every_file_of_its_packages(wheel: Path) -> None:
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    roots = [ROOT / name for name in context_sources(read_dockerfile(dockerfile("site"))) if "." not in name]
    written = {
        path.relative_to(root.parent).as_posix().removeprefix("proto/")
        for root in roots
        for pattern in ("*.py", *tables["package-data"]["*"])
        for path in root.rglob(pattern)
    }
    assert {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} == written


def test_wheel_imports_every_module_and_prints_every_help(installed: Installed, wheel: Path) -> None:
    seen: dict[str, Any] = json.loads(_run(installed.python, "-I", "-c", _TRY, json.dumps(_modules(wheel))))
    failed = {module: name for module, name in seen["failed"].items() if name not in installed.absent}
    assert failed == {}
    assert not [module for module in seen["failed"] if module.startswith(WITHOUT_TORCH)]
    assert {"protoseal client check", "protoseal server run"} <= set(seen["helps"])
    assert set(seen["helps"].values()) == {0}


def test_wheel_command_without_its_extra_names_the_extra(installed: Installed, tmp_path: Path) -> None:
    """Every distribution of the extra is known by its module, so that none of them ends in a traceback."""
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for text in extra["optional-dependencies"]["site"]:
        assert {path.name for path in _top(distribution(Requirement(text).name))} & SITE_EXTRA, text
    if "torch" in installed.absent:
        done = _run(installed.python, "-I", "-m", "protoseal", "report", tmp_path, status=1)
        assert "protoseal[site]" in done
