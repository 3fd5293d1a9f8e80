"""Write the software bill of materials of protoseal's distributions, in CycloneDX's JSON form.

The components are the versions that are installed beside this script's interpreter, as far as a coordinator's or a
site's installation requires them. A component's scope is "required" where a coordinator needs the component, and
"optional" where only the extra ``site`` does. Limit: another environment may resolve to other versions.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_DISTRIBUTION = "protoseal"


def installed_for(distribution: str, extras: frozenset[str]) -> set[str]:
    """Return the canonical names of all distributions that ``distribution[extras]`` requires on this platform."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [(canonicalize_name(distribution), extras)]
    while waiting:
        name, asked = current = waiting.pop()
        if current not in seen:
            seen.add(current)
            waiting += [
                (canonicalize_name(each.name), frozenset(each.extras))
                for each in map(Requirement, requires(name) or ())
                if each.marker is None
                or any(each.marker.evaluate({"extra": extra}) for extra in ("", *asked))
            ]
    return {name for name, _ in seen} - {canonicalize_name(distribution)}


def describe_environment(pyproject: Path) -> Any:
    """Return the bill of materials of the whole environment, as CycloneDX's own tool makes it."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON"]
    completed = subprocess.run(  # noqa: S603 (a fixed command)
        [*command, "--mc-type", "application", "--pyproject", str(pyproject), sys.executable],
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(completed.stdout)


def keep_required(bom: Any) -> Any:
    """Return the bill without the components that neither a coordinator nor a site installs."""
    base = installed_for(_DISTRIBUTION, frozenset())
    whole = installed_for(_DISTRIBUTION, frozenset({"site"}))
    kept = [each for each in bom["components"] if canonicalize_name(each["name"]) in whole]
    for each in kept:
        each["scope"] = "required" if canonicalize_name(each["name"]) in base else "optional"
    root = bom["metadata"]["component"]["bom-ref"]
    references = {root, *(each["bom-ref"] for each in kept)}
    dependencies = [
        each | {"dependsOn": [on for on in each.get("dependsOn", ()) if on in references]}
        for each in bom["dependencies"]
        if each["ref"] in references
    ]
    return bom | {"components": kept, "dependencies": dependencies}


def main() -> None:
    """Write the bill to the path that the first argument names."""
    root = Path(__file__).resolve().parent.parent
    bom = keep_required(describe_environment(root / "pyproject.toml"))
    Path(sys.argv[1]).write_text(json.dumps(bom, indent=1) + "\n")


if __name__ == "__main__":
    main()
