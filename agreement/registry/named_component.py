"""Base class of methods and protections: a name, a section of settings, and whether institutions may deploy it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agreement.toml_loading import Section

NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
"""Pattern of the name of a method or protection, which is part of names of runs and files."""
_CONTROL = "self-"


class NoSettings(Section):
    """Settings of a method or protection that has none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Named:
    """Named method or protection."""

    name: str
    settings: type[Section] = NoSettings
    deployable: bool = False

    def __post_init__(self) -> None:
        _check_name(self.name)

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        """Return the built-in object's place in its module: it is compared by identity, so that no copy may be made.

        Copies are the object itself; a third party's object cannot be pickled.
        """
        return f"{type(self).__name__}.{self.name.upper().replace('-', '_')}"

    def check_complete(self) -> None:
        """Raise ``ValueError`` if a third party's object lacks what only built-in ones may leave out."""

    @property
    def value(self) -> str:
        """Return the name."""
        return self.name


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(
            f"name {name!r} must be 1 to 32 lower-case letters, digits and hyphens, and begin with a letter"
        )
    if name.startswith(_CONTROL):
        raise ValueError(f"name {name!r} must not begin with {_CONTROL!r}, which marks results of a control")
