"""Writer of self-contained HTML pages from templates in one frame and style, with embedded SVG figures.

A report renders a template of this package, which extends ``page.html``::

    write_page(folder / "report.html", "report.html", filters, result=result, curves=data_uri(svg))

No page loads a resource from elsewhere: figures are embedded, and the page's content policy forbids loading. The same
values give the same bytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from agreement.storage.run_files import write_text

Filters = Mapping[str, Callable[..., object]]


def write_page(path: Path, template: str, filters: Filters, **values: object) -> Path:
    """Render a template with ``values``, write the page to ``path`` and return the path.

    Values are escaped, and a missing value raises ``jinja2.UndefinedError``.
    """
    environment = Environment(
        loader=FunctionLoader(_read_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return write_text(path, environment.get_template(template).render(**values))


def _read_template(name: str) -> str:
    return (files("protoseal.reports") / name).read_text(encoding="utf-8")


def json_text(table: Mapping[str, Any]) -> str:
    """Return settings as indented JSON, to be shown on a page."""
    return json.dumps(table, indent=2, ensure_ascii=False, default=str)


def data_uri(svg: str) -> str:
    """Return the SVG as a data URI for ``img``: no scripts run, and identifiers cannot collide."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii")
