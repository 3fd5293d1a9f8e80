"""The layout's rules: who imports whom, what the coordinator can do without, whose the installed names are."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "algorithms": ROOT / "algorithms",
    "crypto": ROOT / "crypto",
    "protoseal_wire": ROOT / "proto" / "protoseal_wire",
    "secure_client": ROOT / "secure_client",
    "secure_server": ROOT / "secure_server",
    "protoseal": ROOT / "protoseal",
}
MAY_IMPORT = {
    "algorithms": set(),
    "crypto": set(),
    "protoseal_wire": {"crypto"},
    "secure_client": {"algorithms", "crypto", "protoseal_wire", "protoseal"},
    "secure_server": {"algorithms", "crypto", "protoseal_wire", "protoseal"},
    "protoseal": set(PACKAGES),
}
SHARED = {
    *("protoseal.config", "protoseal.terms", "protoseal.files", "protoseal.anchors"),
    *("protoseal.means", "protoseal.encrypted", "protoseal.databases", "protoseal.agreed_fields"),
    "protoseal.begun_run",
}
"""All that the two sides may take from the package on top of them."""
SITE_EXTRA = {
    *("torch", "torchvision", "sklearn", "matplotlib", "safetensors", "jinja2", "PIL"),
    *("dp_accounting", "opacus"),
}
"""What a coordinator's machine need not have."""


def imported_modules(folder: Path) -> set[str]:
    """Every module that a package's files name in an import, anywhere in them."""
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
    return found


def owned(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules} & set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_only_what_lies_below_them(package: str) -> None:
    assert owned(imported_modules(PACKAGES[package])) <= MAY_IMPORT[package] | {package}


@pytest.mark.parametrize("side", ["secure_client", "secure_server"])
def test_the_two_sides_share_only_the_agreement_and_what_follows_from_it(side: str) -> None:
    taken = {name for name in imported_modules(PACKAGES[side]) if name.partition(".")[0] == "protoseal"}
    assert all(any(name == each or name.startswith(each + ".") for each in SHARED) for name in taken), taken


def test_the_scan_sees_an_import_that_breaks_the_rule(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def f():\n    from crypto.plain import PlainSite\n", encoding="utf-8")
    assert owned(imported_modules(tmp_path)) == {"crypto"}


@pytest.mark.parametrize(
    "module",
    [
        *("secure_server.app", "secure_server.serve", "protoseal.cli", "algorithms.averaging"),
        *("algorithms.pfpl", "algorithms.fedpc", "algorithms.feddbp"),
    ],
)
def test_the_coordinator_needs_nothing_of_the_site_extra(module: str) -> None:
    assert loaded_by(module, SITE_EXTRA) == []


@pytest.mark.parametrize("module", ["secure_client.app", "protoseal.prediction", "protoseal.report"])
def test_a_site_imports_what_takes_seconds_only_where_it_is_used(module: str) -> None:
    assert loaded_by(module, {"torchvision", "torch._dynamo", "dp_accounting", "opacus", "sklearn"}) == []


def test_an_import_of_torchvision_would_be_seen() -> None:
    assert loaded_by("secure_client.photo_networks", {"torchvision", "opacus"}) == ["torchvision"]


def loaded_by(module: str, among: set[str]) -> list[str]:
    """Return which of the modules ``among`` a fresh process has once it has imported ``module``."""
    code = f"import sys, {module}; print(*sorted({among!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.parametrize("name", PACKAGES)
def test_this_distribution_alone_owns_its_top_level_names(name: str) -> None:
    assert set(packages_distributions()[name]) == {"protoseal"}


def test_no_package_is_called_proto() -> None:
    assert not (ROOT / "proto" / "__init__.py").exists()
    assert "protoseal" not in packages_distributions().get("proto", [])
