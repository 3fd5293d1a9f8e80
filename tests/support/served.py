"""Built-in protections by the methods that they serve, for tests that go over all of them."""

from __future__ import annotations

from collections.abc import Iterable

from agreement import PROTECTIONS, Method, Protection


def served_pairs(methods: Iterable[Method]) -> list[tuple[Method, Protection]]:
    """Return the pairs of these methods and built-in protections that can run."""
    return [
        (method, protection)
        for method in methods
        for protection in PROTECTIONS.values()
        if method.traits.family in protection.families
    ]


def protections_for(methods: Iterable[Method]) -> list[Protection]:
    """Return the built-in protections that serve every one of these methods."""
    families = {method.traits.family for method in methods}
    return [protection for protection in PROTECTIONS.values() if families <= protection.families]
