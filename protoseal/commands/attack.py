"""Command ``protoseal attack``: tries attacks on a configuration, and reports what each adversary gets."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protoseal.commands.options import example, parse_epsilons, parse_words
from protoseal.commands.simulate import simulate
from protoseal.commands.terminal_output import one_line_errors

if TYPE_CHECKING:
    from protoseal.attacks.grid import PlannedRun
    from protoseal.attacks.records import AttackReport

SUITE_NAMES = (
    "quick",
    "all",
    "inversion",
    "membership",
    "models",
    "labels",
    "protection",
    "audit",
    "poisoning",
)
"""Suites of :mod:`protoseal.attacks.grid`, which ``--help`` need not import."""
_WITHOUT_MEANING = {"compare", "engine", "early_stopping", "tensorboard", "evaluate_every", "per_class"}
_WITHOUT_MEANING |= {"fresh", "as_json", "sweeps", "address", "cpus_per_run", "gpus_per_run"}
"""Options of ``simulate`` that ``attack`` does not have."""


@click.command(
    epilog=example(
        "protoseal attack quick --config federation.toml --protections masked,ckks --out runs/attack"
    )
)
@click.argument("suite", type=click.Choice(SUITE_NAMES))
@click.option(
    "--protections",
    callback=parse_words,
    help="Protections to attack, with commas between.  [default: as the configuration has it]",
)
@click.option(
    "--epsilons",
    callback=parse_epsilons,
    help="Values of ε to attack, with commas between; inf is without noise. Needs [privacy], whose noise is scaled."
    "  [default: as the configuration has it]",
)
@click.option(
    "--pictures",
    is_flag=True,
    help="Keep pictures in the results: training images beside what attacks reconstruct of them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print attacks.json instead of a table.")
@one_line_errors
def attack(
    *,
    suite: str,
    config: Path | None,
    out: Path | None,
    settings: tuple[str, ...],
    protections: tuple[str, ...] | None,
    epsilons: tuple[float, ...],
    pictures: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """Try attacks on a configuration of `protoseal simulate`, beside the same system undefended.

    SUITE is one of the suites, all of them, or quick: short attacks of four kinds, which take about half a minute for
    four sites of the bundled digits on two idle cores, and longer where training does. Each configuration is simulated
    on its own data and model, every message is recorded, and each adversary attacks with what it saw: the coordinator,
    one other site, half of the sites together, all other sites together, and the coordinator with one site. The audit
    checks the noise of the recorded run, and poisoning runs further simulations. The undefended system (plain, no
    noise) is attacked first: an attack that fails there proves nothing, and says so.

    Nothing leaves this machine. Results are in --out: attacks.json and report.html. A second start tries what is left.

    Results are computed from the records, and no ε covers them. On private records they are private, and settings that
    are chosen because of them are themselves a release: run these tests on public records that resemble yours instead,
    and choose by their results. Pictures of records are kept with --pictures alone.
    """
    from protoseal.attacks.findings import TOLD_BY_DESIGN, list_judged
    from protoseal.attacks.grid import AttackGrid, make_cases
    from protoseal.attacks.report import write_report
    from protoseal.simulation.config import load_simulation

    loaded = load_simulation(config, {**flags, "out": out}, settings)
    command = " ".join(["protoseal", *sys.argv[1:]])
    grid = AttackGrid(
        loaded,
        make_cases(suite),
        loaded.out,
        protections=protections or (),
        epsilons=epsilons,
        pictures=pictures,
        command=command,
    )
    # Pictures of records do not stay by accident: those of an earlier start go unless they are asked for again.
    click.echo("\n".join([*grid.remove_pictures(), *grid.notices]), err=True)
    seconds = _minutes(grid.training_seconds())
    click.echo(
        f"{grid.runs} runs to attack; training them takes about {seconds}, attacks come on top", err=True
    )
    announce = _Announcer(grid.runs)

    # Written after each run, so that an interrupted start keeps what it has, and the next resumes there.
    def publish(planned: PlannedRun, report: AttackReport) -> None:
        announce(planned)
        write_report(loaded.out, report)

    report = grid.run(publish)
    if as_json:
        click.echo(report.model_dump_json(by_alias=True, indent=2))
        return
    click.echo("\n".join(_describe_report(report)))
    for kind in dict.fromkeys(judged.noise_kind(report) for judged in list_judged(report)):
        click.echo(f"Told by design: {TOLD_BY_DESIGN[kind]}")
    click.echo(f"Everything is in {loaded.out}")


class _Announcer:
    """Printer of a line on standard error after each run, with the time that remains."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._done = 0
        self._start = time.monotonic()

    def __call__(self, planned: PlannedRun) -> None:
        self._done += 1
        left = (time.monotonic() - self._start) / self._done * (self._runs - self._done)
        remaining = f"; about {_minutes(left)} remain" if left else ""
        click.echo(f"run {self._done} of {self._runs} attacked: {planned.description}{remaining}", err=True)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _describe_report(report: AttackReport) -> Iterator[str]:
    """Yield what each adversary can do on each configuration, a line for each verdict."""
    from protoseal.attacks.findings import (
        WORST_FIRST,
        Subject,
        choose_subject,
        describe_verdict,
        explain_undecided,
        list_columns,
    )

    yield f"Test attacks on method {report.method}, {report.dataset}, {report.sites} sites"
    for column in list_columns(report):
        findings = [
            (name, finding.case)
            for name, finding in column.standing.findings.items()
            if choose_subject(finding.case) is not Subject.BY_DESIGN
        ]
        if findings:
            yield f"{column.configuration}: {column.adversary}"
        for verdict in WORST_FIRST:
            same = [(name, case) for name, case in findings if case.verdict is verdict]
            reasons = [explain_undecided(case, report.seeds) for _, case in same]
            figures = [
                f"{name} ({case.value:.2f}{f'; {why}' if why else ''})"
                for (name, case), why in zip(same, reasons, strict=True)
            ]
            if same:
                yield f"  {describe_verdict(same[0][1])}: {', '.join(figures)}"


attack.params.extend(parameter for parameter in simulate.params if parameter.name not in _WITHOUT_MEANING)
