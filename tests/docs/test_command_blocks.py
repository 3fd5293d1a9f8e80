"""Every command in a block of code: run by a named test or by CI, or marked on its page as not run.

A mark is the sentence "Commands on this page are run by `tests/FILE`." or "... are not run by tests", or, for one
block, its first line: ``# run by tests/FILE`` or ``# not run by tests``. A page with ``protoseal ...`` in a sentence
or a table's cell needs the page's mark. Two kinds need no mark: ``make TARGET``, if ``.ci/run`` calls the target, and
``pytest tests/...``, since CI runs every test.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from protoseal.cli import main
from tests.support.documents import PAGES, ROOT, marked_blocks, page_mark, spans, text_of

HERE = "tests/docs/test_command_blocks.py"
MAKE_TARGETS = {"demo": "tests/e2e/test_demo.py"}
"""Targets that CI does not call, and the test of the one command in their recipe."""
PLANNED = [
    line
    for page in PAGES
    for block in marked_blocks(text_of(page))
    if block.runner == HERE
    for line in block.lines
]


def is_run_by_ci(line: str) -> bool:
    """Return whether CI runs the command without a mark on its page."""
    program, *words = [word for word in line.split() if not re.match(r"\w+=", word)] or [""]
    if Path(program).name == "make":
        return f"make {words[0]}\n" in text_of(".ci/run") or words[0] in MAKE_TARGETS
    paths = [word for word in words if word.startswith("tests/")]
    return Path(program).name == "pytest" and bool(paths) and all((ROOT / path).exists() for path in paths)


def problems_of(page: str, text: str) -> list[str]:
    """Return what is missing or wrong about the marks of a page's commands."""
    problems = []
    inline = [span for span in spans(text) if span.startswith("protoseal ")]
    if inline and not page_mark(text):
        problems.append(
            f"{page}: nothing says who runs `{inline[0]}`: say of the page 'Commands on this page are run by "
            "`tests/FILE`.' or 'Commands on this page are not run by tests.'"
        )
    for block in marked_blocks(text):
        unmarked = [line for line in block.lines if not is_run_by_ci(line)]
        if unmarked and not block.mark:
            problems.append(
                f"{page}: nothing says who runs `{unmarked[0]}`. Begin its block with `# run by tests/FILE` or "
                "`# not run by tests`, or say it of the whole page: 'Commands on this page are run by "
                "`tests/FILE`.' or 'Commands on this page are not run by tests.'"
            )
        elif block.runner and not (ROOT / block.runner).is_file():
            problems.append(f"{page}: {block.runner}, which is said to run `{block.lines[0]}`, is no file")
        elif block.runner not in ("", HERE) and Path(page).name not in text_of(block.runner):
            problems.append(
                f"{page}: {block.runner} is said to run `{block.lines[0]}`, and does not name the page"
            )
    return problems


def test_every_command_is_run_or_marked_as_not_run() -> None:
    assert sum(len(block.lines) for page in PAGES for block in marked_blocks(text_of(page))) > 150
    assert [problem for page in PAGES for problem in problems_of(page, text_of(page))] == []


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ("    systemctl start x\n", "nothing says who runs `systemctl start x`"),
        ("```sh\nanything --at all\n```\n", "nothing says who runs `anything --at all`"),
        ("1. First:\n\n    ```\n    $ curl localhost\n    output\n    ```\n", "who runs `curl localhost`"),
        ("| run | `protoseal client run` |\n", "nothing says who runs `protoseal client run`"),
        ("    make nothing\n", "who runs `make nothing`"),
        ("    pytest tests/none\n", "who runs `pytest tests/none`"),
        ("    # run by tests/none.py\n    pip install x\n", "tests/none.py, which is said to run"),
        ("    # run by tests/conftest.py\n    pip install x\n", "does not name the page"),
    ],
)
def test_a_command_that_nobody_runs_is_found(block: str, found: str) -> None:
    (problem,) = problems_of("docs/page.md", f"# Page\n\n{block}")
    assert found in problem


@pytest.mark.parametrize(
    "text",
    [
        "    # not run by tests\n    pip install x\n",
        "Commands on this page are not run by\ntests: they take hours.\n\n    pip install x\n",
        "    A_B=1 make test\n    .venv/bin/pytest -q tests/docs\n",
        "```text\npip install x\n```\n",
    ],
)
def test_a_command_that_is_run_or_marked_is_accepted(text: str) -> None:
    assert problems_of("docs/page.md", f"# Page\n\n{text}") == []


def test_what_make_runs_is_what_the_test_runs() -> None:
    for target, path in MAKE_TARGETS.items():
        assert re.search(rf"^{target}:.*\n\t\$\(BIN\)/protoseal {target} ", text_of("Makefile"), re.M)
        assert f'"{target}"' in text_of(path)


@pytest.mark.parametrize("line", PLANNED)
def test_a_plan_on_a_page_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = shlex.split(line, comments=True)
    assert words[:3] == ["protoseal", "budget", "plan"]
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "docs/figures").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, words[1:])
    assert done.exit_code == 0, done.output
