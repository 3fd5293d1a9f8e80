"""Command ``protoseal budget audit``: attacks a privacy mechanism once and compares the outcome with the claimed ε."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protoseal.commands.options import COUNT, DELTA, FRACTION, POSITIVE, Command, agreement_option, example
from protoseal.commands.terminal_output import one_line_errors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protoseal.audit.canary_audit import AuditedMechanism, CanaryAudit, Verdict
    from protoseal.audit.run_checks import RunAudit
    from secure_client.config import SiteConfig

NOISE = 2.0
TRAINING = {"noise_multiplier": 5.0, "clip": 1.0, "sampling_rate": 0.75}
EPOCHS, ROUNDS = 6, 1
EXIT_CODES = {"stands": 0, "refuted": 3, "too weak to tell": 4}
"""Exit codes by verdict. 1 and 2 are failures: nothing was audited."""


def _of_audit(command: Command) -> Command:
    """Add the options of every audit."""
    options = (
        click.option(
            "--canaries",
            type=click.IntRange(min=100, max=1_000_000),
            default=100_000,
            show_default=True,
            help="Number of made-up records, each in or out by a fair coin; more make the audit stronger and slower.",
        ),
        click.option(
            "--guesses",
            type=COUNT,
            help="Number of canaries that are guessed, fixed before the run.  [default: what finds half the"
            " noise best]",
        ),
        click.option(
            "--delta",
            type=DELTA,
            default=1e-5,
            show_default=True,
            help="δ at which ε is printed, a probability.",
        ),
        click.option(
            "--confidence",
            type=DELTA,
            default=0.95,
            show_default=True,
            help="Least probability that a mechanism which keeps its claim is not refuted.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the verdict and all figures as JSON."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group("audit", epilog=example("protoseal budget audit prototypes --agreement agreement.toml"))
def audit_group() -> None:
    """Test whether a mechanism loses more privacy than it claims, with canaries in one run.

    The releasing code runs on canaries, each included by a fair coin, and the command guesses the coins from the
    output. More right guesses than the claim makes probable refute the claim.

    \b
    Exit code and verdict:
      0  stands: not refuted, and half the noise would have been
      3  refuted: the mechanism loses more privacy than is claimed
      4  too weak to tell: half the noise might have passed, or there is a doubt
      1, 2  an error: nothing was audited
    """  # noqa: D301 (click reads the backspace, which keeps the table's lines apart)


@audit_group.command(
    "prototypes", epilog=example("protoseal budget audit prototypes --agreement agreement.toml")
)
@agreement_option("noise, releases, query and unit")
@click.option(
    "--noise-multiplier",
    "noise",
    type=POSITIVE,
    help=f"Claimed noise multiplier of the releases.  [default: {NOISE:g}]",
)
@click.option("--releases", type=COUNT, help="Number of releases.  [default: 1]")
@click.option("--clip", type=POSITIVE, help="Bound on the norm of a record's features.  [default: 1]")
@click.option(
    "--count-weight",
    type=POSITIVE,
    help="Weight of class counts beside sums of features.  [default: the clip]",
)
@click.option(
    "--dim",
    type=click.IntRange(1, 4096),
    default=4,
    show_default=True,
    help="Dimension of a canary's features.",
)
@_of_audit
@one_line_errors
def audit_prototypes(
    file: Path | None,
    noise: float | None,
    releases: int | None,
    clip: float | None,
    count_weight: float | None,
    dim: int,
    canaries: int,
    guesses: int | None,
    delta: float,
    confidence: float,
    as_json: bool,
) -> None:
    """Audit the release of noisy class sums and counts.

    Each canary is a record whose features are a hundred times as long as the clip.
    """
    from privacy.mechanisms.grid import noise_share
    from privacy.mechanisms.prototype_query import PrototypeQuery
    from protoseal.audit.prototype_canaries import AuditedQuery
    from protoseal.commands.budget_inputs import Releasing, releasing_of

    agreed = Releasing(NOISE, 1, 1.0) if file is None else releasing_of(file, dim)
    asked = agreed.but(noise_multiplier=noise, releases=releases, clip=clip, count_weight=count_weight)
    try:
        share = noise_share(asked.noise_multiplier, asked.shares)
        query = PrototypeQuery(asked.clip, asked.count_weight or asked.clip, share, min_count=1.0)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    audited = AuditedQuery(query, asked.releases, dim, asked.unit, asked.shares)
    _run(_Asked("prototypes", canaries, guesses, delta, 1 - confidence, asked.not_played), audited, as_json)


@audit_group.command("training", epilog=example("protoseal budget audit training --agreement agreement.toml"))
@agreement_option("noise, rate, epochs, rounds, clip and unit of DP-SGD")
@click.option(
    "--noise-multiplier",
    "noise",
    type=POSITIVE,
    help=f"Claimed noise multiplier of DP-SGD.  [default: {TRAINING['noise_multiplier']:g}]",
)
@click.option(
    "--sampling-rate",
    "rate",
    type=FRACTION,
    help=f"Share of the records in a step.  [default: {TRAINING['sampling_rate']:g}]",
)
@click.option(
    "--epochs", type=COUNT, help=f"Number of epochs of a round, of 1/rate steps each.  [default: {EPOCHS}]"
)
@click.option("--rounds", type=COUNT, help=f"Number of rounds.  [default: {ROUNDS}]")
@click.option(
    "--clip",
    type=POSITIVE,
    help=f"Bound on the norm of a record's gradient.  [default: {TRAINING['clip']:g}]",
)
@_of_audit
@one_line_errors
def audit_training(
    file: Path | None,
    noise: float | None,
    rate: float | None,
    epochs: int | None,
    rounds: int | None,
    clip: float | None,
    canaries: int,
    guesses: int | None,
    delta: float,
    confidence: float,
    as_json: bool,
) -> None:
    """Audit DP-SGD, seen by somebody who gets the weights after every step.

    Each canary is a record whose gradient is a hundred times as long as the clip.
    """
    from agreement import DpSgdSection
    from agreement.toml_loading import validate
    from protoseal.audit.training_canaries import AuditedTraining
    from protoseal.commands.budget_inputs import Training, training_of

    usual = Training(DpSgdSection(**TRAINING), EPOCHS, ROUNDS)
    agreed = usual if file is None else training_of(file)
    given = {"noise_multiplier": noise, "clip": clip, "sampling_rate": rate}
    table = agreed.settings.model_dump() | {name: value for name, value in given.items() if value is not None}
    settings = validate(DpSgdSection, table, source="audit", directory=Path())
    audited = AuditedTraining(settings, epochs or agreed.epochs, rounds or agreed.rounds, agreed.unit)
    _run(_Asked("training", canaries, guesses, delta, 1 - confidence, agreed.not_played), audited, as_json)


@audit_group.command("run", epilog=example("protoseal budget audit run runs/simulation"))
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The site's file, where DIR is its state_dir: it names the data and the ledger.",
)
@click.option(
    "--data-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with torchvision's data files, for a simulation that had one.",
)
@click.option(
    "--confidence",
    type=DELTA,
    default=0.99,
    show_default=True,
    help="Least probability that a run which keeps its claim is not refuted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict and all checks as JSON.")
@one_line_errors
def audit_run_command(
    directory: Path, config: Path | None, data_root: Path | None, confidence: float, as_json: bool
) -> None:
    """Audit a run that took place: what sites kept of it, against their records.

    DIR is the folder of a simulation with --keep-releases, or the state_dir of a site with keep_releases = true; a
    site's run is audited at the site, with its data. Exact sums are computed again from the records, by code of the
    audit's own. Checked are the noise, clipping, what was sent, and what the ledger charged. Nothing exact is printed.
    """
    from protoseal.audit.run_audit import audit_run
    from protoseal.audit.site_evidence import load_simulation_evidence, load_site_evidence

    if config is None:
        runs = list(load_simulation_evidence(directory, data_root))
    else:
        site = _site_of(config, directory)
        runs = [(site.agreement.run, {site.name: load_site_evidence(site)})]
    if not runs:
        raise click.UsageError(f"{directory} has no run with noise ([privacy]): there is nothing to audit")
    audits = [audit_run(run, sites, (1 - confidence) / len(runs)) for run, sites in runs]
    shown = [_run_as_json(audit) for audit in audits]
    click.echo(
        json.dumps({"schema": 1, "runs": shown}, indent=2)
        if as_json
        else "\n\n".join(map(_run_in_words, audits))
    )
    raise SystemExit(max(EXIT_CODES[audit.verdict] for audit in audits if audit.verdict is _worst(audits)))


def _site_of(path: Path, directory: Path) -> SiteConfig:
    from secure_client.config import load_site

    site = load_site(path)
    if site.state_dir.resolve() != directory.resolve():
        raise click.UsageError(f"{path} has state_dir {site.state_dir}, not {directory}: give that folder")
    return site


def _worst(audits: Sequence[RunAudit]) -> Verdict:
    """Return the verdict of all runs together: one that is refuted refutes them, one that is weak weakens them."""
    from protoseal.audit.canary_audit import Verdict

    verdicts = {audit.verdict for audit in audits}
    return next(each for each in (Verdict.REFUTED, Verdict.TOO_WEAK, Verdict.STANDS) if each in verdicts)


def _run_as_json(audit: RunAudit) -> dict[str, object]:
    checks = [
        {
            "site": site,
            "weakness": check.weakness,
            "outcome": check.outcome,
            "reason": check.reason,
            "p_value": check.p_value,
        }
        for site, all_ in audit.checks.items()
        for check in all_
    ]
    return {"run": audit.run, "verdict": audit.verdict.value, "checks": checks}


def _run_in_words(audit: RunAudit) -> str:
    from protoseal.audit.run_checks import Outcome

    lines = [f"{audit.verdict.value.upper()}: run {audit.run!r}"]
    for outcome in Outcome:
        alike: dict[str, list[str]] = {}
        for site, check in audit.of(outcome):
            alike.setdefault(f"{check.weakness} ({check.reason})", []).append(site)
        lines += [f"{outcome.value:<11}  {', '.join(sites)}: {said}" for said, sites in alike.items()]
    return "\n".join(lines)


@dataclass(frozen=True)
class _Asked:
    mechanism: str
    canaries: int
    guesses: int | None
    delta: float
    level: float
    not_played: tuple[str, ...]


@dataclass(frozen=True)
class _Found:
    done: CanaryAudit
    claimed: float
    bound: float
    p_value: float
    expected: dict[str, float]
    """Expected bounds, by the mechanism's actual noise."""


def _run(asked: _Asked, audited: AuditedMechanism, as_json: bool) -> None:
    from protoseal.audit.canary_audit import (
        HALF,
        audit_mechanism,
        claim_p_value,
        expected_bound,
        lower_bound,
        plan_audit,
    )

    if asked.guesses is not None and asked.guesses > asked.canaries:
        raise click.UsageError(f"--guesses {asked.guesses} are more than --canaries {asked.canaries}")
    claimed = audited.epsilon(asked.canaries, asked.delta)
    if not isfinite(claimed):
        raise click.UsageError(
            f"the noise is too small for a finite claimed ε at δ = {asked.delta:g}: give more noise"
        )
    done = audit_mechanism(audited, plan_audit(audited, asked.canaries, asked.level, asked.guesses))
    found = _Found(
        done,
        claimed,
        lower_bound(audited, done.guesses, asked.delta, asked.level),
        claim_p_value(audited, done),
        {
            "noise as claimed": expected_bound(audited, done, asked.delta, 1.0),
            "half the noise": expected_bound(audited, done, asked.delta, HALF),
        },
    )
    click.echo(
        json.dumps(_as_json(asked, found), indent=2, allow_nan=False) if as_json else _in_words(asked, found)
    )
    raise SystemExit(EXIT_CODES[done.verdict])


def _as_json(asked: _Asked, found: _Found) -> dict[str, object]:
    plan, guesses = found.done.plan, found.done.guesses
    return {
        "schema": 2,
        "mechanism": asked.mechanism,
        "verdict": found.done.verdict.value,
        "canaries": guesses.canaries,
        "guesses": guesses.made,
        "right": guesses.right,
        "right_that_refute": plan.refuting,
        "right_that_leave_a_doubt": plan.doubtful,
        "epsilon_claimed": found.claimed,
        "epsilon_bound": found.bound,
        "expected_bound": found.expected,
        "half_the_noise_passes": plan.missed,
        "p_value": found.p_value,
        "level": asked.level,
        "delta": asked.delta,
        "not_played": list(asked.not_played),
    }


def _in_words(asked: _Asked, found: _Found) -> str:
    from protoseal.commands.budget_inputs import NO_GUARANTEE

    plan, guesses = found.done.plan, found.done.guesses
    expected = found.expected
    lines = [
        *([NO_GUARANTEE] if NO_GUARANTEE in asked.not_played else []),
        f"{found.done.verdict.value.upper()}: {_reason(found.done)}",
        f"ε claimed {found.claimed:.4g} at δ = {asked.delta:g}; ε is above {found.bound:.4g} with a confidence of"
        f" {100 * (1 - asked.level):g} % (p = {found.p_value:.2g})",
        f"expected: above {expected['noise as claimed']:.4g} with the claimed noise,"
        f" above {expected['half the noise']:.4g} with half of it",
        f"{guesses.canaries} canaries, each in by a fair coin; {guesses.made} guesses, {guesses.right} right;"
        f" {_or_more(plan.refuting, guesses.made)} refute",
        "not audited:",
        *(f"- {part}" for part in asked.not_played),
    ]
    return "\n".join(lines)


def _or_more(count: int, made: int) -> str:
    return f"{count} or more" if count <= made else "no number of right guesses would"


def _reason(done: CanaryAudit) -> str:
    from protoseal.audit.canary_audit import Verdict

    if done.verdict is Verdict.REFUTED:
        return "the mechanism loses more privacy than is claimed"
    if done.is_doubtful:
        return (
            f"the claimed noise gives fewer than {done.plan.doubtful} right guesses, and {done.plan.refuting} would"
            " refute: look for missing noise, and audit again with more --canaries"
        )
    if done.verdict is Verdict.TOO_WEAK:
        return (
            f"half the noise would pass with a probability of up to {done.plan.missed:.2g}: audit with more --canaries,"
            " fewer releases or rounds, or let --guesses find their number"
        )
    return f"half the noise would have passed with a probability of {done.plan.missed:.2g} at most"
