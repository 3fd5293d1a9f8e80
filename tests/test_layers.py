"""The packages' layers: import-linter's contracts refuse what breaks them, and a count of circles by other means."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
PACKAGES: dict[str, Path] = {
    name: ROOT / "proto" / name if name == "protoseal_wire" else ROOT / name
    for name in LINTER["root_packages"]
}
NOT_INSTALLED = {"benchmarks"}
"""Packages of the checkout alone; opacus installs a package of that name."""
Graph = dict[str, set[str]]


def lint(folder: Path) -> tuple[int, str]:
    """Run import-linter on a checkout; return its status and what it says."""
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", command, "--no-cache"],
        cwd=folder,
        env={"PYTHONPATH": f"{folder}:{folder / 'proto'}", "PATH": "/usr/bin:/bin", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the packages and their contracts."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for path in PACKAGES.values():
        kept = shutil.ignore_patterns("__pycache__")
        shutil.copytree(path, folder / path.relative_to(ROOT), ignore=kept)
    return folder


def test_the_packages_keep_to_their_contracts(copy: Path) -> None:
    status, said = lint(copy)
    assert status == 0, said


@pytest.mark.parametrize(
    ("place", "line", "broken"),
    [
        ("agreement/added.py", "import secure_client.errors", "lies below them"),
        ("secure_client/added.py", "import secure_server.errors", "lies below them"),
        ("algorithms/added.py", "import crypto.errors", "lies below them"),
        ("protoseal_files/added.py", "import privacy.accounting.events", "lies below them"),
        ("proto/protoseal_wire/added.py", "def late() -> None:\n    import agreement", "lies below them"),
        ("crypto/errors.py", "import crypto.keys", "no circle"),
        ("secure_server/rounds/state.py", "import secure_server.coordinator", "no circle"),
        ("secure_server/added.py", "import algorithms.inference", "trains or accounts"),
        ("agreement/added.py", "import privacy.accounting.accountant", "trains or accounts"),
    ],
)
def test_an_import_that_breaks_a_contract_is_refused(copy: Path, place: str, line: str, broken: str) -> None:
    path = copy / place
    before = path.read_text("utf-8") if path.exists() else None
    path.write_text(f"{before or ''}\n{line}\n", encoding="utf-8")
    try:
        status, said = lint(copy)
    finally:
        if before is None:
            path.unlink()
        else:
            path.write_text(before, encoding="utf-8")
    assert status == 1
    assert [each for each in said.splitlines() if broken in each and "BROKEN" in each], said


def imports_of(packages: dict[str, Path]) -> Graph:
    """Return which of their modules each module names in an import, wherever it stands."""
    modules = {
        ".".join((name, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__"): path
        for name, folder in packages.items()
        for path in folder.rglob("*.py")
    }
    return {name: _named(path) & set(modules) - {name} for name, path in modules.items()}


def _named(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def circle(graph: Graph) -> list[str]:
    """Return the members of a circle, none if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def children(graph: Graph, package: str) -> Graph:
    """Return which children of a package import which, each with all that is in it."""
    start = f"{package}."
    found: Graph = {}
    for name, imported in graph.items():
        if name.startswith(start):
            child = name[len(start) :].partition(".")[0]
            others = {other[len(start) :].partition(".")[0] for other in imported if other.startswith(start)}
            found.setdefault(child, set()).update(others - {child})
    return found


def parents(names: Iterable[str]) -> set[str]:
    return {name.rpartition(".")[0] for name in names if "." in name}


def test_there_is_no_circle_of_modules_or_packages() -> None:
    graph = imports_of(PACKAGES)
    # A package's own file imports its modules, and loading a module loads its package's file: that is no circle here.
    apart = {
        name: {other for other in imported if not name.startswith(f"{other}.")}
        for name, imported in graph.items()
    }
    assert circle(apart) == []
    assert {package: found for package in parents(graph) if (found := circle(children(graph, package)))} == {}


def test_the_count_of_circles_sees_one() -> None:
    graph = {"a.x.one": {"a.y.two"}, "a.y.two": set(), "a.y.three": {"a.x.one"}}
    assert circle(graph) == []
    assert circle(children(graph, "a"))
    assert circle({**graph, "a.y.two": {"a.y.three"}})


@pytest.mark.parametrize(
    "module",
    [
        *("secure_server.app", "secure_server.service.server", "protoseal.cli", "algorithms.averaging"),
        *("algorithms.pfpl", "algorithms.fedpc", "algorithms.fedplcc"),
    ],
)
def test_the_coordinator_needs_nothing_of_the_site_extra(module: str) -> None:
    extra = {
        "torch",
        "torchvision",
        "sklearn",
        "matplotlib",
        "safetensors",
        "jinja2",
        "PIL",
        "dp_accounting",
        "opacus",
    }
    code = f"import sys, {module}; print(*sorted({extra!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_site_that_trains_loads_nothing_that_takes_a_second_and_may_not_be_needed() -> None:
    late = {
        *("torch._dynamo", "torchvision", "dp_accounting", "opacus", "sklearn", "scipy", "sympy", "pandas"),
        "matplotlib",
    }
    code = f"""
import sys, secure_client.app, torch
from agreement import Optimiser
from secure_client.training.job import Schedule
weights = torch.nn.Parameter(torch.zeros(2))
for each in Optimiser:
    optimiser = Schedule(0.1, 0.9, 0.0, 8, 1, each).optimise([weights])
    weights.grad = torch.ones(2)
    optimiser.step()
    optimiser.zero_grad()
print(*sorted({late!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_help_of_commands_loads_no_numpy() -> None:
    code = """
import sys
from click.testing import CliRunner
from protoseal.cli import main
for command in ("demo", "predict", "report"):
    assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0
print(*sorted({"numpy", "grpc", "pydantic"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", sorted(PACKAGES.keys() - NOT_INSTALLED))
def test_this_distribution_alone_owns_its_top_level_names(name: str) -> None:
    assert set(packages_distributions()[name]) == {"protoseal"}


def test_no_package_is_called_proto() -> None:
    assert not (ROOT / "proto" / "__init__.py").exists()
    assert "protoseal" not in packages_distributions().get("proto", [])


@pytest.mark.parametrize("name", sorted(NOT_INSTALLED))
def test_this_distribution_does_not_install_what_is_of_the_checkout_alone(name: str) -> None:
    assert "protoseal" not in packages_distributions().get(name, [])
