"""Identity of a run's folder: the ``agreement.json`` that a party keeps in it.

The databases in the folder decide whether a run may resume there; this file explains a refusal.
"""

from __future__ import annotations

import json
from pathlib import Path

from agreement.agreement import Agreement
from agreement.differences import changed_fields, in_one_line
from crypto import durable_files

AGREEMENT = "agreement.json"


def keep_agreement(folder: Path, agreement: Agreement) -> None:
    """Write the agreement into the folder, unless the folder has it."""
    if not holds(folder, agreement):
        durable_files.write(folder / AGREEMENT, f"{agreement.to_json()}\n".encode())


def holds(folder: Path, agreement: Agreement) -> bool:
    """Return whether the folder was begun under this very agreement."""
    return _kept(folder) == agreement.to_json()


def describe_owner(folder: Path, agreement: Agreement) -> str:
    """Return what the folder belongs to, as the end of a sentence: another run, or one whose agreement has changed."""
    kept = _kept(folder)
    run = None if kept is None else json.loads(kept)["run"]
    if kept is None:
        return "another run, agreement or version of protoseal"
    if run != agreement.run:
        return f"run {run!r}, but the agreement is for run {agreement.run!r}"
    changed = changed_fields(kept, agreement)
    if not changed:
        return f"another party of run {run!r}, or another version of protoseal"
    return f"run {run!r} under another agreement ({in_one_line(changed)})"


def _kept(folder: Path) -> str | None:
    """Return the canonical text in the folder; None without one, or for a file that is no agreement."""
    try:
        content = json.loads((folder / AGREEMENT).read_text(encoding="utf-8"))
        if isinstance(content["run"], str):
            return json.dumps(content, sort_keys=True, separators=(",", ":"))
    except (OSError, KeyError, TypeError, ValueError):
        pass
    return None
