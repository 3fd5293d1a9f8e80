"""``[extension.NAME]``: the settings of what third parties add, and which distributions a run takes it from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import SerializeAsAny, ValidationInfo

from agreement.extensions.entry_points import distribution_of
from agreement.extensions.lookup import AnyMethod
from agreement.extensions.types import Added
from agreement.methods import Method
from agreement.protections import Protection
from agreement.toml_loading import Section, nearest, validate

ExtensionTables = dict[str, SerializeAsAny[Section]]
"""The settings of third parties' methods and protections, by their names."""


def used_so_far(info: ValidationInfo) -> list[AnyMethod | Protection]:
    """What of method and protection is known so far: what is wrong with the others is told elsewhere."""
    return [info.data[name] for name in ("method", "protection") if name in info.data]


def added_among(used: Iterable[AnyMethod | Protection]) -> list[Added]:
    """Return those that are not built in."""
    return [each for each in used if not isinstance(each, Method) and not each.built_in]


def extension_settings(
    tables: Mapping[str, object], used: Iterable[AnyMethod | Protection], source: str
) -> dict[str, Section]:
    """The settings of all that is added among what is ``used``, by name, with every default.

    A table is what a file has, or settings that were read before. Raises ``ConfigError`` for settings that their owner
    refuses, ``ValueError`` for a table that belongs to nothing that is used, or for one name of two.
    """
    added = _by_name(used)
    for name in tables:
        if name not in added:
            raise ValueError(
                f"{name!r} is no method or protection of a third party in use{nearest(name, added)}"
            )
    return {name: _settings(each, tables.get(name, {}), source) for name, each in added.items()}


def extension_distributions(
    stated: Mapping[str, str], used: Iterable[AnyMethod | Protection]
) -> dict[str, str]:
    """Name and version of the distribution that each added one among ``used`` comes from, by its name.

    Raises ``ValueError`` where another is ``stated``, or one for what is not in use: parties that agree on a text run
    what is called the same. The limit: a version is what a distribution says of itself.
    """
    found = {name: distribution_of(each) for name, each in _by_name(used).items()}
    for name, agreed in stated.items():
        if name not in found:
            raise ValueError(f"{name!r} is no method or protection of a third party in use")
        if agreed != found[name]:
            raise ValueError(
                f"{name!r} is agreed to be of {agreed!r}, and {found[name]!r} is installed: install the agreed one, or"
                " agree on this one"
            )
    return found


def _by_name(used: Iterable[AnyMethod | Protection]) -> dict[str, Added]:
    """``ValueError`` where a method and a protection have one name: they would share settings and a distribution."""
    added: dict[str, Added] = {}
    for each in added_among(used):
        if added.setdefault(each.name, each) is not each:
            raise ValueError(
                f"a method and a protection are both called {each.name!r}: use one of them alone"
            )
    return added


def _settings(added: Added, table: object, source: str) -> Section:
    if isinstance(table, added.settings):
        return table
    if not isinstance(table, dict):
        raise ValueError(f"the settings of {added.name!r} are a table, [extension.{added.name}]")
    return validate(added.settings, table, source=f"{source}: extension.{added.name}", directory=Path())
