"""The ceiling on the product's size (``scripts/size.py``)."""

from __future__ import annotations

import ast

from scripts.size import code_lines, count_settings

SOURCE = '''"""Docstring
over two lines."""

class Mine(Section):
    """Docstring."""

    a: int = 1  # counted
    # A comment alone.
    b: ClassVar[int] = 2
    """What b is."""
    c: str = """two
lines"""


class Below(Mine):
    d: int = (
        3
    )
'''


def test_code_lines_comments_docstrings_and_blanks_are_none() -> None:
    assert code_lines(SOURCE) == 9


def test_count_settings_inherited_sections_count_and_constants_do_not() -> None:
    assert count_settings([ast.parse(SOURCE)]) == 3
