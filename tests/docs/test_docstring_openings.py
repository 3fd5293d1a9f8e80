"""Docstrings' first words: scripts/docstring_openings.py, the same check over the pages' Python, and ruff's rules."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.docstring_openings import faults
from tests.support.documents import PAGES, ROOT, python_in, text_of

SCRIPT = ROOT / "scripts" / "docstring_openings.py"

GOOD = '''"""Masks that cancel in a sum."""

THRESHOLD = 3
"""Number of shares that reveal a secret."""


class Mask:
    """Pseudorandom vector of a pair of sites."""

    seed: bytes
    """The seed of the stream."""

    @property
    def length(self) -> int:
        """The number of values."""

    async def apply(self) -> None:
        """Add the mask; whose sign depends on the site's order."""
        "".join(["Of", "What"])
'''

BAD = 'seed: bytes; """Whose seed."""'


def opened(folder: Path, source: str, name: str = "algorithms/masks.py") -> subprocess.CompletedProcess[str]:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(source)
    return subprocess.run([sys.executable, SCRIPT], cwd=folder, capture_output=True, text=True, check=False)


def test_docstrings_that_open_with_a_noun_or_a_verb_pass(tmp_path: Path) -> None:
    done = opened(tmp_path, GOOD)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("good", "bad", "opening", "line"),
    [
        ("Masks that", "What masks cancel", "What", 1),
        ("Number of", "Of how many shares", "Of", 4),
        ("Pseudorandom", "The same", "The same", 8),
        ("The seed", "whose seed", "whose", 11),
        ("The number", "How many", "How", 15),
        ("Add the mask", "As printed", "As", 18),
        ("Number of", "To all shares", "To", 4),
        ("The seed", "By stage the seed", "By", 11),
        ("Add the mask", "The mask", "The", 18),
        ("Add the mask", "One mask", "One", 18),
        ("Add the mask", "\n        Each mask", "Each", 18),
    ],
)
def test_docstrings_without_subject_or_verb_are_reported(
    tmp_path: Path, good: str, bad: str, opening: str, line: int
) -> None:
    done = opened(tmp_path, GOOD.replace(good, bad))
    assert done.returncode == 1
    (report,) = done.stderr.splitlines()
    assert report.startswith(f"algorithms/masks.py:{line}: ")
    assert repr(opening) in report


def test_a_docstring_of_tests_may_be_any_sentence(tmp_path: Path) -> None:
    sentence = GOOD.replace("Add the mask", "The mask is added")
    done = opened(tmp_path, sentence, "tests/docs/test_masks.py")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("opening", ["What", "The same", "By", "It", "With", "In"])
def test_a_docstring_of_tests_without_subject_or_verb_is_reported(tmp_path: Path, opening: str) -> None:
    done = opened(tmp_path, GOOD.replace("Add the", f"{opening} a"), "tests/docs/test_masks.py")
    assert done.returncode == 1
    assert repr(opening) in done.stderr


def test_a_folder_without_the_packages_is_refused(tmp_path: Path) -> None:
    assert (
        subprocess.run([sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, check=False).returncode
        == 1
    )


def test_docstrings_in_the_python_of_pages_open_with_a_noun_or_a_verb() -> None:
    sources = [(page, source) for page in PAGES for source in python_in(text_of(page))]
    assert len(sources) >= 3
    assert [(page, *fault) for page, source in sources for fault in faults(source)] == []
    (source,) = python_in(f"1. Write:\n\n    ```python\n    {BAD}\n    ```\n")
    assert list(faults(source)) == [(1, "Whose")]


@pytest.mark.parametrize(
    ("file", "rules"),
    [("algorithms/x.py", {"D401", "D400"}), ("protoseal/x.py", {"D401", "D400"}), ("tests/x.py", set())],
)
def test_ruff_holds_the_same_packages_to_its_rules(file: str, rules: set[str]) -> None:
    ruff = shutil.which("ruff", path=f"{Path(sys.executable).parent}")
    assert ruff is not None
    source = '"""Masks."""\n\n\ndef added() -> None:\n    """Adds masks"""\n'
    done = subprocess.run(
        [ruff, "check", "--output-format", "concise", "--stdin-filename", file, "-"],
        cwd=ROOT,
        input=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert {word for word in done.stdout.split() if word.startswith("D4")} == rules
