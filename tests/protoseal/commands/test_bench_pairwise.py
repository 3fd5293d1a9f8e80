"""``protoseal bench pairwise`` at sizes that take no time: what it writes, and that it counts what was sent."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from crypto.pairwise.neighbour_graph import CERTAIN, Graph
from crypto.pairwise.unmask import unmask
from crypto.protection import Words
from protoseal.bench.pairwise import Plan, measure
from protoseal.cli import main
from protoseal_wire import codec

TINY = ("--sites", 5, "--classes", 2, "--dim", 3, "--repeats", 1)
BY_SITES = ("presence", "shares_made", "payload", "survivor_signature", "released_shares")
SAME_FOR_ALL = ("round_start", "active_list", "survivor_set", "signed_survivors")

FAKE_FLOWER = """\
#!/bin/sh
echo '{"flwr": "1.0", "sent": {"setup": 40, "unmask": 8}, "received": {"setup": 24}}'
while read -r task; do echo '{"wall": 5.0, "cpu": 4.0}'; done
"""


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", "pairwise", *map(str, (*TINY, *arguments))])


def cases_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (record["schema"], record["name"]) == (1, "pairwise")
    assert {"processor", "cores", "load"} <= record["machine"].keys()
    found = defaultdict(list)
    for case in record["cases"]:
        found[case["case"]].append(case)
    return found


def test_bench_pairwise_writes_one_record_for_each_case(tmp_path: Path) -> None:
    out, plot = tmp_path / "pairwise.json", tmp_path / "growth.svg"
    done = invoke("--json", out, "--growth", "4,7", "--plot", plot)
    assert done.exit_code == 0, done.output
    cases = cases_of(out)
    assert [case["dropped"] for case in cases["unmask"]] == [0, 1]
    assert [case["dropped"] for case in cases["coordinator"]] == [0, 1]
    assert [(case["sites"], case["dropped"], case["threshold"]) for case in cases["growth"]] == [
        (4, 1, 3),
        (7, 2, 5),
    ]
    for phase in ("presence", "shares", "values", "survivors", "unmask"):
        (step,) = cases[f"site {phase}"]
        assert step["seconds"] > 0
    for case in cases["unmask"]:
        assert (case["baseline_seconds"], case["ratio"]) == (None, None)
        assert case["baseline"].startswith("none")
        assert (case["values"], case["ring_bits"], case["fraction_bits"]) == (6, 32, 18)
    drawn = plot.read_text(encoding="utf-8")
    assert drawn.startswith("<?xml")
    assert "mathdefault" not in drawn


def test_bytes_are_those_of_the_codec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that sites and coordinator encode, added up by kind, is what the median site sends and receives."""
    made = defaultdict[str, list[int]](list)

    def counting(kind: str) -> Callable[[Any], bytes]:
        real = getattr(codec, f"encode_{kind}")

        def encode(value: Any) -> bytes:
            content: bytes = real(value)
            made[kind].append(len(content))
            return content

        return encode

    for kind in (*BY_SITES, *SAME_FOR_ALL, "received_shares"):
        monkeypatch.setattr(codec, f"encode_{kind}", counting(kind))
    bytes_case = next(measure(Plan(sites=5, classes=2, dim=3, dropped=0, repeats=1, growth=()))).what
    assert [len(made[kind]) for kind in BY_SITES] == [5] * 5
    assert [len(made[kind]) for kind in SAME_FOR_ALL] == [1] * 4
    sent = sum(sum(made[kind]) for kind in BY_SITES) / 5
    received = sum(made["received_shares"]) / 5 + sum(made[kind][0] for kind in SAME_FOR_ALL)
    rest = 5 * 2  # signatures are a byte longer or shorter from site to site
    assert bytes_case["sent"] == pytest.approx(sent, abs=rest)
    assert bytes_case["received"] == pytest.approx(received, abs=rest)
    total = int(str(bytes_case["sent"])) + int(str(bytes_case["received"]))
    assert bytes_case["of_float32"] == pytest.approx(total / (4 * 6))


def test_flowers_figures_are_the_baseline(tmp_path: Path) -> None:
    python, out = tmp_path / "python", tmp_path / "pairwise.json"
    python.write_text(FAKE_FLOWER, encoding="utf-8")
    python.chmod(0o755)
    done = invoke("--json", out, "--growth", "", "--flwr-python", python)
    assert done.exit_code == 0, done.output
    cases = cases_of(out)
    told = [
        (each["dropped"], each["baseline_shares"], each["baseline_threshold"]) for each in cases["unmask"]
    ]
    assert told == [(0, 5, 4), (0, 3, 2), (1, 5, 4), (1, 3, 2)]
    for case in (*cases["unmask"], *cases["site shares"], *cases["site values"]):
        assert case["baseline_seconds"] == 5.0
        assert case["ratio"] == pytest.approx(5.0 / case["seconds"])
        assert case["baseline"] == "flwr 1.0"
    (traffic,) = cases["bytes"]
    assert (traffic["baseline_sent_of_float32"], traffic["baseline_of_float32"]) == (2.0, 3.0)


def test_a_python_without_flower_is_named() -> None:
    done = invoke("--growth", "", "--flwr-python", sys.executable)
    assert done.exit_code == 1
    assert "pip install flwr" in done.stderr
    assert "No module named 'flwr'" in done.stderr


@pytest.mark.parametrize(
    ("more", "code"), [(("--dropped", 2), 1), (("--growth", "1"), 1), (("--sites", 1), 2)]
)
def test_sizes_that_no_group_has(more: tuple[object, ...], code: int) -> None:
    done = invoke(*more)
    assert done.exit_code == code
    assert "Traceback" not in done.output


def test_bench_pairwise_refuses_a_plot_without_growth(tmp_path: Path) -> None:
    assert invoke("--growth", "", "--plot", tmp_path / "x.svg").exit_code == 2


def test_a_wrong_sum_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_one(*arguments: Any) -> Words:
        words = unmask(*arguments)
        words[0] += np.asarray(1, words.dtype)
        return words

    monkeypatch.setattr("protoseal.bench.pairwise_parties.unmask", off_by_one)
    with pytest.raises(RuntimeError, match="not the sum"):
        next(measure(Plan(sites=3, classes=1, dim=2, dropped=0, growth=())))


def test_the_ring_that_sums_fit() -> None:
    assert [Plan().fixed_point(sites).ring_bits for sites in (50, 500, 5000)] == [32, 32, 64]
    assert Plan(ring_bits=64).fixed_point(50).ring_bits == 64


def test_a_sparse_graph_gives_the_sum_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of eight seals shares to five others, any three of which open; the sum is checked on the way."""
    sparse = Graph(members=8, holders=5, threshold=3, linked=CERTAIN)
    monkeypatch.setattr(Plan, "graph", lambda *_: sparse)
    *_, growth = measure(Plan(sites=8, classes=1, dim=2, dropped=1, repeats=1, growth=(8,)))
    assert (growth.what["holders"], growth.what["threshold"], growth.what["dropped"]) == (5, 3, 1)


def test_large_groups_have_sparse_graphs() -> None:
    plan = Plan()
    assert [plan.graph(sites).sparse for sites in (50, 100, 101, 500)] == [False, False, True, True]
    assert not Plan(complete_up_to=500).graph(500).sparse
