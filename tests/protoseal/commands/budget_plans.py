"""``protoseal budget plan`` as tests run it."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from protoseal.cli import main


def plan(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["budget", "plan", *map(str, arguments)])


def planned(*arguments: object) -> dict[str, Any]:
    """Return the plan that the command prints with ``--json``."""
    done = plan(*arguments, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refusal(*arguments: object) -> str:
    """Return the lines for a person that the command prints if it plans nothing, without a traceback."""
    done = plan(*arguments)
    assert done.exit_code in (1, 2)
    assert "Traceback" not in done.output
    assert isinstance(done.exception, SystemExit)
    return done.output
