"""The comparison with Flower's SecAgg+, with a process in Flower's place that says what Flower's would."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks.secagg import main

TINY = ("--sites", 5, "--classes", 2, "--dim", 3, "--repeats", 1)
FAKE_FLOWER = """\
#!/bin/sh
echo '{"flwr": "1.0", "sent": {"setup": 40, "unmask": 8}, "received": {"setup": 24}}'
while read -r task; do echo '{"wall": 5.0, "cpu": 4.0}'; done
"""


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, (*TINY, *arguments))])


def cases_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    found = defaultdict(list)
    for case in json.loads(path.read_text(encoding="utf-8"))["cases"]:
        found[case["case"]].append(case)
    return found


def test_secagg_baseline_is_flowers_figures(tmp_path: Path) -> None:
    python, out = tmp_path / "python", tmp_path / "secagg.json"
    python.write_text(FAKE_FLOWER, encoding="utf-8")
    python.chmod(0o755)
    done = invoke("--json", out, "--flwr-python", python)
    assert done.exit_code == 0, done.output
    cases = cases_of(out)
    told = [
        (each["dropped"], each["baseline_shares"], each["baseline_threshold"]) for each in cases["unmask"]
    ]
    assert told == [(0, 5, 4), (0, 3, 2), (1, 5, 4), (1, 3, 2)]
    for case in (*cases["unmask"], *cases["site shares"], *cases["site values"]):
        assert case["baseline_seconds"] == 4.0  # of a core, as ours are
        assert case["ratio"] == pytest.approx(4.0 / case["seconds"])
        assert case["baseline"] == "flwr 1.0"
    for traffic in cases["bytes"]:
        assert (traffic["baseline_sent_of_float32"], traffic["baseline_of_float32"]) == (2.0, 3.0)
        assert traffic["of_float32"] > traffic["sent_of_float32"] > 1


def test_secagg_python_without_flower_is_refused() -> None:
    done = invoke("--flwr-python", sys.executable)
    assert done.exit_code == 1
    assert "pip install flwr" in done.stderr
    assert "No module named 'flwr'" in done.stderr
