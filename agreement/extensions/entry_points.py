"""Registry of third parties' methods and protections, found by name among the installed entry points.

Only a name that is not built in is looked up, and only the module of that name is imported: the import runs code of
the distribution that registers it, with the rights of this process. :func:`distribution_of` returns the distribution
and its version, which are part of the agreement's text (:class:`agreement.agreement.Agreement`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeAlias, TypeVar

from agreement.methods import Method
from agreement.protections import Protection

Extension: TypeAlias = Method | Protection
"""Method or protection of a third party."""
ExtensionT = TypeVar("ExtensionT", Method, Protection)


@dataclass(frozen=True)
class Registry(Generic[ExtensionT]):
    """Group of entry points, whose objects are of one ``kind``; none of them may have a ``built_in`` name."""

    group: str
    kind: type[ExtensionT]
    built_in: Collection[str]

    def find(self, name: str) -> ExtensionT | None:
        """Return the object registered by that name, the same object each time; None if there is none.

        Raises ``ValueError``, naming distribution and entry point, for a name that two distributions register or that
        is built in, and for an entry point that cannot be imported, is of another kind, or has another name than its
        object.
        """
        known = _FOUND.get((self.group, name))
        if known is None:
            point = self._point(name)
            if point is None:
                return None
            known = _FOUND.setdefault((self.group, name), (self._loaded(point), _distribution(point)))
        found, _ = known
        if not isinstance(found, self.kind):
            raise TypeError(f"{found!r} is registered in the wrong group of entry points")
        return found

    def names(self) -> list[str]:
        """Return all registered names, for messages; nothing is imported."""
        return sorted({point.name for point in entry_points(group=self.group)})

    def _point(self, name: str) -> EntryPoint | None:
        points = tuple(entry_points(group=self.group))
        for point in points:
            if point.name in self.built_in:
                raise ValueError(
                    f"{_describe(point)} registers the built-in name {point.name!r}: rename or uninstall that"
                    " extension"
                )
        found = [point for point in points if point.name == name]
        if len(found) > 1:
            raise ValueError(
                f"{name!r} is registered more than once, by {' and '.join(_describe(each) for each in found)}: remove"
                " all but one"
            )
        return found[0] if found else None

    def _loaded(self, point: EntryPoint) -> ExtensionT:
        try:
            found = point.load()
        except Exception as error:  # a third party's module may raise anything
            raise ValueError(
                f"{_describe(point)} cannot be loaded ({type(error).__name__}: {error})"
            ) from error
        if not isinstance(found, self.kind):
            raise ValueError(f"{_describe(point)} must be a {self.kind.__name__}, not {type(found)}")
        if found.name != point.name:
            raise ValueError(
                f"{_describe(point)} loads an object named {found.name!r}: both names must be equal"
            )
        try:
            found.check_complete()
        except ValueError as error:
            raise ValueError(f"{_describe(point)} cannot be used: {error}") from error
        return found


_FOUND: dict[tuple[str, str], tuple[Extension, str]] = {}
"""Loaded objects and the distributions that register them, by group and name."""


def distribution_of(extension: Extension) -> str:
    """Return name and version of the distribution that registers the object; raise ``ValueError`` if none does."""
    for found, distribution in _FOUND.values():
        if found is extension:
            return distribution
    raise ValueError(
        f"no entry point registers {extension.name!r}: install the distribution that defines it"
        " (docs/how-to/extending.md)"
    )


def _distribution(point: EntryPoint) -> str:
    return "no distribution" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _describe(point: EntryPoint) -> str:
    return f"{_distribution(point)}, entry point {point.name} = {point.value!r} of {point.group}"
