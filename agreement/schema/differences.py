"""Fields of an agreement one by one, so that two parties whose agreements differ can see where.

A field is named by its keys from the top, joined by dots (``training.lr``), and its value is canonical JSON. Lists
are one field; so are the settings of a third party's method or protection. The columns of a table are counted from 0
(``table.columns.0.scale``), unless there are too many for a reply.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from agreement.schema.agreement import Agreement
from protoseal_wire.messages import AgreementField

_WHOLE = "extension."
_COLUMNS, _MOST_COLUMNS = "table.columns", 50
_SHOWN = 60
_MOST_NAMED = 5
_ABSENT = "absent"


def agreed_fields(text: str) -> dict[str, str]:
    """Return each field's canonical JSON by its path, from :meth:`Agreement.to_json`'s text."""
    return dict(_flat(json.loads(text), ""))


def fields_of(agreement: Agreement) -> tuple[AgreementField, ...]:
    """Return the fields as Check sends them, each with its whole text."""
    return tuple(
        AgreementField(path, _digest(text), text) for path, text in agreed_fields(agreement.to_json()).items()
    )


def differing_fields(agreement: Agreement, others: Iterable[AgreementField]) -> list[str]:
    """Return a line for each field in which ``others``, the coordinator's, differ: ``rounds: here 5, there 6``."""
    here, theirs = agreed_fields(agreement.to_json()), {field.path: field for field in others}
    differing = []
    for path in sorted(here.keys() | theirs.keys()):
        text, other = here.get(path), theirs.get(path)
        # Hashes are compared, because a field's text may be the beginning of its value alone.
        if (text and _digest(text)) != (other and other.sha256):
            told = _shown(other.text if other else None)
            differing.append(f"{path}: here {_shown(text)}, at the coordinator {told}")
    return differing


def changed_fields(before: str, agreement: Agreement) -> list[str]:
    """Return a line for each field that differs from an earlier agreement's text: ``rounds: was 5, is 6``."""
    old, new = agreed_fields(before), agreed_fields(agreement.to_json())
    return [
        f"{path}: was {_shown(old.get(path))}, is {_shown(new.get(path))}"
        for path in sorted(old.keys() | new.keys())
        if old.get(path) != new.get(path)
    ]


def in_one_line(lines: list[str]) -> str:
    """Join the first few lines and count the rest."""
    more = len(lines) - _MOST_NAMED
    return "; ".join(lines[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def _flat(table: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        path = above + key
        if isinstance(value, dict) and value and not above.startswith(_WHOLE):
            yield from _flat(value, f"{path}.")
        elif path == _COLUMNS and len(value) <= _MOST_COLUMNS:
            for position, column in enumerate(value):
                yield from _flat(column, f"{path}.{position}.")
        else:
            yield path, json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("ascii")).digest()


def _shown(text: str | None) -> str:
    if text is None:
        return _ABSENT
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
