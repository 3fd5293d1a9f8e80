"""Check that no docstring opens with a word that hides its subject or its verb.

ruff's pydocstyle rules see a docstring's form but not a missing subject, and they skip the string below an
attribute. This script reads every docstring of the folders in ``DONE`` and ``DONE_TESTS``, attributes' included. In
tests a docstring may be any sentence: a longer list of refused openings stands in for the demand for a verb. The limit:
only the first words are read.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DONE = (
    "agreement",
    "algorithms",
    "benchmarks",
    "crypto",
    "privacy",
    "proto",
    "protoseal",
    "protoseal_files",
    "scripts",
    "secure_client",
    "secure_server",
)
"""Folders whose docstrings follow the rule; add the next once its docstrings do, here and in pyproject.toml."""
DONE_TESTS = ("tests",)
"""Folders of tests, whose docstrings follow the rule for tests."""
HIDING = re.compile(
    r"(And|As|By|For|From|How|In|Not|Of|On|That|The same|To|What|Where|Whether|Which|Whose|With)\b",
    re.IGNORECASE,
)
"""Openings without a subject, in any docstring."""
HIDING_IN_TESTS = re.compile(
    r"(Also|At|Inside|Into|It|Or|So|These|They|Under|Until|Whatever|Who|Without)\b",
    re.IGNORECASE,
)
"""Further openings without a subject or a verb, in any docstring of a test's file."""
NO_VERB = re.compile(r"(A|All|An|Any|Each|Every|Everything|No|One|The|This)\b", re.IGNORECASE)
"""Openings without a verb, in the docstring of a function that is not a property."""

_Owner = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def faults(source: str, *, of_tests: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the line and the opening of every docstring in ``source`` that breaks the rule, or that for tests."""
    for line, text, needs_verb in _docstrings(ast.parse(source)):
        further = HIDING_IN_TESTS.match(text) if of_tests else needs_verb and NO_VERB.match(text)
        if found := HIDING.match(text) or further:
            yield line, found[0]


def main(root: Path) -> int:
    """Print every fault in the folders that are done, and return the exit code: 1 if there was a fault."""
    files = [
        (file, folders is DONE_TESTS)
        for folders in (DONE, DONE_TESTS)
        for folder in folders
        for file in sorted((root / folder).rglob("*.py"))
    ]
    if not files:
        raise SystemExit(f"no Python file in {', '.join(DONE)}: run this script in the project's root")
    lines = [
        f"{file.relative_to(root)}:{line}: docstring opens with {opening!r}; begin with a noun, in a function a verb"
        for file, of_tests in files
        if not file.stem.endswith(("_pb2", "_pb2_grpc"))
        for line, opening in faults(file.read_text(), of_tests=of_tests)
    ]
    for each in lines:
        print(each, file=sys.stderr)  # noqa: T201
    return 1 if lines else 0


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of every string that stands alone, and True for those that must begin with a verb."""
    for owner in ast.walk(tree):
        if isinstance(owner, _Owner):
            for at, statement in enumerate(owner.body):
                match statement:
                    case ast.Expr(ast.Constant(str(text))):
                        yield statement.lineno, text.lstrip(), at == 0 and _needs_verb(owner)


def _needs_verb(owner: _Owner) -> bool:
    if isinstance(owner, ast.Module | ast.ClassDef):
        return False
    return not any(ast.unparse(each).endswith("property") for each in owner.decorator_list)


if __name__ == "__main__":
    sys.exit(main(Path.cwd()))
