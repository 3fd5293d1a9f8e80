"""Explanations of TOML's syntax errors: one line with the place, and with the remedy where the cause is certain."""

from __future__ import annotations

import re
import tomllib

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_QUOTES = re.compile("[\u201c\u201d\u201e\u201f\u2018\u2019\u201a\u00ab\u00bb]")
_SPACES = re.compile("[\u00a0\u2000-\u200b\u202f\u2060\u3000\ufeff]")
_KEY = re.compile(r"\s*((?:[\w.-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*[\w-]+)*)\s*=")
_TABLE = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]")
_WORD = re.compile(r"=\s*([A-Za-z_/~.\\][^\s,#\]]*)")

_REASONS = {
    (
        "Unescaped '\\'",
        "Invalid hex value",
        "Escaped character",
    ): "a backslash in \"...\" begins an escape: write text with backslashes in single quotes, 'C:\\data'",
    ("Illegal character '\\n'", "Unterminated string"): "a text has no closing quotation mark",
}
"""Remedies by the beginnings of the parser's reasons."""


def explain(text: str, error: tomllib.TOMLDecodeError) -> str:
    """Return a phrase that follows the file's name: the line of an error, what is wrong there, and the remedy."""
    lines = text.splitlines() or [""]
    place = _PLACE.search(str(error))
    reason = str(error)[: place.start()] if place else str(error)
    last = max((number for number, line in enumerate(lines, 1) if line.strip()), default=1)
    number = min(int(place[1]), last) if place and place[1] else last
    column = f", column {place[2]}" if place and place[1] else ""
    if not lines[number - 1].strip():  # TOML's parser reports some errors behind the line's end
        number, column = number - 1, ""
    return f"line {number}{column}: {_cause(lines, number, reason)}"


def _cause(lines: list[str], number: int, reason: str) -> str:
    line = lines[number - 1]
    outside = _without_strings(line)
    if quote := _QUOTES.search(outside):
        return f'{quote[0]} is a typographic quotation mark: put text between straight ones, "..."'
    if space := _SPACES.search(outside):
        return f"the space U+{ord(space[0]):04X} is not one of TOML's: replace it by an ordinary space"
    if reason.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate")):
        return _repeated(lines, number)
    if reason.startswith("Invalid value") and (word := _WORD.search(line)):
        return _unquoted(word[1])
    if reason.startswith("Expected '=' after a key") and ":" in outside:
        return "TOML separates key and value by =, not by a colon"
    explained = (text for beginnings, text in _REASONS.items() if reason.startswith(beginnings))
    return next(explained, f"is not TOML: {reason[:1].lower()}{reason[1:]}")


def _unquoted(word: str) -> str:
    if word.lower() in {"true", "false"}:
        return f"write {word.lower()}, in small letters, for {word}"
    return f"{word} is no number, true or false: put text between quotation marks, such as '{word}'"


def _repeated(lines: list[str], number: int) -> str:
    """Name the key or table that is there twice, and the first of its two lines."""
    line, start = lines[number - 1], 0
    if table := _TABLE.match(line):
        noun, pattern, name = "table", _TABLE, table[1]
    elif key := _KEY.match(line):
        noun, pattern, name = "key", _KEY, key[1]
        start = max((place for place in range(number) if _TABLE.match(lines[place])), default=0)
    else:
        return "a key is there twice: remove one of the two"
    before = [
        place for place in range(start, number - 1) if (m := pattern.match(lines[place])) and m[1] == name
    ]
    first = f", first in line {before[0] + 1}" if before else ""
    return f"the {noun} {name} is there twice{first}: remove one of the two, or unite them"


def _without_strings(line: str) -> str:
    """Return a line without its quoted texts and its comment, in which every letter is allowed."""
    return re.sub(r"\"(?:[^\"\\]|\\.)*\"|'[^']*'", "", line).partition("#")[0]
