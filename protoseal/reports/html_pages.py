"""Self-contained HTML pages: templates of this package in the frame and style of ``page.html``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

Filters = Mapping[str, Callable[..., object]]


def template(name: str, filters: Filters) -> Template:
    """Return the page's template; values are escaped, and a missing value raises.

    No page loads a resource from elsewhere: figures are embedded, and the page's content policy forbids loading.
    """
    environment = Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(name)


def _text(name: str) -> str:
    return (files("protoseal.reports") / name).read_text(encoding="utf-8")
