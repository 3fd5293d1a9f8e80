"""``[extension.NAME]``: settings of third parties' methods and protections, and the distributions that provide them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import SerializeAsAny, ValidationInfo

from agreement.extensions.entry_points import Extension, distribution_of
from agreement.toml_loading import Section, nearest, validate

ExtensionTables = dict[str, SerializeAsAny[Section]]
"""Settings of third parties' methods and protections, by their names."""


def used_so_far(info: ValidationInfo) -> list[Extension]:
    """Return the method and protection validated so far; errors in the others are reported elsewhere."""
    return [info.data[name] for name in ("method", "protection") if name in info.data]


def extensions_among(used: Iterable[Extension]) -> list[Extension]:
    """Return those that are not built in."""
    return [each for each in used if not each.built_in]


def extension_settings(
    tables: Mapping[str, object], used: Iterable[Extension], source: str
) -> dict[str, Section]:
    """Return the settings of all third parties' objects among those ``used``, by name, with every default.

    A table is the content of a file, or settings that were read before. Raises ``ConfigError`` for settings that
    their owner refuses, ``ValueError`` for a table that belongs to no used object, or for one name of two objects.
    """
    extensions = _by_name(used)
    for name in tables:
        if name not in extensions:
            raise ValueError(
                f"no third-party method or protection {name!r} is in use{nearest(name, extensions)}"
            )
    return {name: _settings(each, tables.get(name, {}), source) for name, each in extensions.items()}


def extension_distributions(stated: Mapping[str, str], used: Iterable[Extension]) -> dict[str, str]:
    """Return name and version of the distribution of each third party's object among those ``used``, by its name.

    Raises ``ValueError`` where another distribution is ``stated``, or one for an object that is not used: parties
    with the same text then run the same distributions. The limit: a version is what a distribution says of itself.
    """
    found = {name: distribution_of(each) for name, each in _by_name(used).items()}
    for name, agreed in stated.items():
        if name not in found:
            raise ValueError(f"no third-party method or protection {name!r} is in use: remove the entry")
        if agreed != found[name]:
            raise ValueError(
                f"the agreement has {name!r} of {agreed!r}, but {found[name]!r} is installed: install the agreed"
                " version, or change the agreement"
            )
    return found


def _by_name(used: Iterable[Extension]) -> dict[str, Extension]:
    """Return objects by name; raise ``ValueError`` if a method and a protection share one, and so their settings."""
    extensions: dict[str, Extension] = {}
    for each in extensions_among(used):
        if extensions.setdefault(each.name, each) is not each:
            raise ValueError(f"a method and a protection are both called {each.name!r}: use only one of them")
    return extensions


def _settings(extension: Extension, table: object, source: str) -> Section:
    if isinstance(table, extension.settings):
        return table
    if not isinstance(table, dict):
        raise ValueError(f"the settings of {extension.name!r} must be a table, [extension.{extension.name}]")
    return validate(
        extension.settings, table, source=f"{source}: extension.{extension.name}", directory=Path()
    )
