"""Compare masked sums with Flower's SecAgg+: bytes and seconds of a core, a round of either by turns.

    python -m benchmarks.secagg --flwr-python PYTHON --json secagg.json

The figures are of ``python -m benchmarks.pairwise``'s rounds and of Flower's own code in a Python that has flwr
(:mod:`benchmarks.flower_worker`), which runs as a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from agreement import MaskingSection
from agreement.errors import UserError
from benchmarks.masked_round import MaskedRound
from benchmarks.pairwise import FLOAT32_BYTES, MaskedSumBenchmark, check_tolerated
from benchmarks.record import Case, Spent, Value, json_option, machine, record_cases, show
from protoseal.commands.options import COUNT
from protoseal.commands.terminal_output import one_line_errors
from protoseal_wire.messages import Phase

SCRIPT = Path(__file__).with_name("flower_worker.py")


@dataclass(frozen=True)
class FlowerSettings:
    """An exchange of Flower's: ``shares`` of each secret, as many as sites for all; ``threshold`` open it."""

    sites: int
    values: int
    shares: int
    threshold: int
    dropped: int


class FlowerProcess:
    """A process that has played an exchange up to its end and repeats parts of it on demand.

    ``version`` of flwr; ``sent`` and ``received``: bytes of one site's contents in all stages. Raises
    :class:`UserError` if that Python cannot do it.
    """

    def __init__(self, python: Path, settings: FlowerSettings) -> None:
        self.settings = settings
        command = [str(python), "-I", str(SCRIPT), json.dumps(vars(settings))]
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 (closed with this)
        self._process = subprocess.Popen(  # noqa: S603 (the user names the Python)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        facts = self._line()
        self.version: str = facts["flwr"]
        self.sent, self.received = sum(facts["sent"].values()), sum(facts["received"].values())

    def take(self, task: str) -> Spent:
        """Time ``shares``, ``values`` (of one site) or ``unmask`` (the server's whole stage) once."""
        if self._process.stdin is None:
            raise UserError("the process with flwr has no input")
        self._process.stdin.write(task + "\n")
        self._process.stdin.flush()
        spent = self._line()
        return Spent(spent["wall"], spent["cpu"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _line(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            self._process.communicate()
            self._log.seek(0)
            last = self._log.read().strip().splitlines()[-1:] or ["it said nothing"]
            self._log.close()
            raise UserError(f"--flwr-python cannot run flwr's SecAgg+, pip install flwr there: {last[0]}")
        read: dict[str, Any] = json.loads(line)
        return read


FEW_SHARES = (3, 2)
"""Shares and threshold in Flower's example of SecAgg+; the workflow itself has no default for them."""
SITE_TASKS = {"shares": Phase.SHARES, "values": Phase.VALUES}
"""Steps of a site that Flower has too, by the worker's names."""
_UNMASK, _FEW = "unmask", "unmask of few"
COLUMNS = {
    **{name: name for name in ("case", "dropped", "baseline_shares", "seconds")},
    "baseline_seconds": "flwr",
    "ratio": "ratio",
    "of_float32": "bytes",
    "baseline_of_float32": "flwr's",
}
CAPTION = "shares: of each secret, in flwr; bytes: sent and received by a site, over its values as float32"


def compare(plan: MaskedSumBenchmark, sites: int, dropped: int, flwr_python: Path) -> Iterator[Case]:
    """Yield the cases of so many ``sites``, ``dropped`` of which drop out, as they are done.

    A turn before those that count warms both up. Raises :class:`agreement.errors.UserError` if that Python cannot
    run flwr's SecAgg+.
    """
    check_tolerated(sites, dropped)
    alike = flower_settings(plan, sites, dropped)
    shares, needed = FEW_SHARES
    with ExitStack() as stack:
        flower, few = (
            stack.enter_context(FlowerProcess(flwr_python, each))
            for each in (alike, replace(alike, shares=shares, threshold=needed))
        )
        turns = [_turn(plan, sites, dropped, flower, few) for _ in range(plan.repeats + 1)][1:]
    rounds, theirs = [own for own, _ in turns], [spent for _, spent in turns]
    facts = plan.facts(sites, dropped, rounds[-1])
    yield _traffic(facts, plan, rounds, flower)
    for name, phase in SITE_TASKS.items():
        what = {"case": f"site {name}", **facts, **_baseline_facts(flower)}
        yield _against(what, [each.site_step(phase) for each in rounds], [each[name] for each in theirs])
    unmask = [each.coordinator[Phase.UNMASK] for each in rounds]
    for name, side in ((_UNMASK, flower), (_FEW, few)):
        yield _against(
            {"case": "unmask", **facts, **_baseline_facts(side)}, unmask, [each[name] for each in theirs]
        )


def flower_settings(plan: MaskedSumBenchmark, sites: int, dropped: int) -> FlowerSettings:
    """Return Flower's settings with as many shares as ours, at our threshold."""
    graph = plan.masking.graph(sites, sites)
    return FlowerSettings(sites, plan.values, graph.holders + 1, graph.threshold, dropped)


def _turn(
    plan: MaskedSumBenchmark, sites: int, dropped: int, flower: FlowerProcess, few: FlowerProcess
) -> tuple[MaskedRound, dict[str, Spent]]:
    theirs = {name: flower.take(name) for name in (*SITE_TASKS, _UNMASK)}
    theirs[_FEW] = few.take(_UNMASK)
    return plan.played(sites, dropped), theirs


def _traffic(
    facts: Mapping[str, Value], plan: MaskedSumBenchmark, rounds: Sequence[MaskedRound], flower: FlowerProcess
) -> Case:
    """Return the bytes of a site; seconds are of all its steps."""
    plain = FLOAT32_BYTES * plan.values
    sizes: dict[str, Value] = {
        "baseline_sent_of_float32": flower.sent / plain,
        "baseline_of_float32": (flower.sent + flower.received) / plain,
    }
    return Case(
        {"case": "bytes", **facts, **_baseline_facts(flower), **sizes},
        _core(each.site_seconds for each in rounds),
    )


def _baseline_facts(flower: FlowerProcess) -> dict[str, Value]:
    settings = flower.settings
    return {
        "baseline": f"flwr {flower.version}",
        "baseline_shares": settings.shares,
        "baseline_threshold": settings.threshold,
    }


def _against(what: Mapping[str, Value], own: Sequence[float], theirs: Sequence[Spent]) -> Case:
    """Return a case in seconds of a core on both sides."""
    return Case(what, _core(own), _core(each.cpu for each in theirs))


def _core(seconds: Iterable[float]) -> list[Spent]:
    return [Spent(each, each) for each in seconds]


@click.command()
@click.option(
    "--flwr-python",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Python interpreter with flwr installed.",
)
@json_option
@click.option(
    "--sites",
    type=click.IntRange(min=2),
    default=50,
    show_default=True,
    help="Number of sites whose vectors are added up.",
)
@click.option(
    "--classes", type=COUNT, default=10, show_default=True, help="Number of classes, one prototype each."
)
@click.option("--dim", type=COUNT, default=5120, show_default=True, help="Dimension of a prototype.")
@click.option(
    "--dropped",
    type=click.FloatRange(0, 1),
    default=0.3,
    show_default=True,
    help="Share of the sites that drop out, measured beside a sum without drop-outs.",
)
@click.option(
    "--repeats", type=COUNT, default=3, show_default=True, help="Number of turns; the median counts."
)
@click.option(
    "--complete-up-to",
    type=click.IntRange(2),
    default=100,
    show_default=True,
    help="Most sites among which every pair has a mask; larger groups use a sparse graph.",
)
@one_line_errors
def main(
    flwr_python: Path,
    path: Path | None,
    sites: int,
    classes: int,
    dim: int,
    dropped: float,
    repeats: int,
    complete_up_to: int,
) -> None:
    """Compare masked sums with Flower's SecAgg+, without drop-outs and with them."""
    masking = MaskingSection(complete_up_to=complete_up_to)
    plan = MaskedSumBenchmark((sites,), classes, dim, dropped, repeats, masking)
    patterns = dict.fromkeys((0, plan.dropped_of(sites)))
    cases = (case for each in patterns for case in compare(plan, sites, each, flwr_python))
    show(record_cases("secagg", cases, path, machine()), COLUMNS, CAPTION)


if __name__ == "__main__":
    main()
