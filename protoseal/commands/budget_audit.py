"""Command ``protoseal budget audit``: attacks a privacy mechanism once and compares the outcome with the claimed ε."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protoseal.commands.options import (
    COUNT,
    DELTA,
    EXISTING_FILE,
    EXISTING_FOLDER,
    FRACTION,
    POSITIVE,
    Command,
    agreement_option,
    example,
)
from protoseal.commands.terminal_output import one_line_errors

if TYPE_CHECKING:
    from protoseal.audit.canary_audit import AuditedMechanism, CanaryAudit
    from protoseal.audit.run_checks import RunAudit

NOISE = 2.0
TRAINING = {"noise_multiplier": 5.0, "clip": 1.0, "sampling_rate": 0.75}
EPOCHS = 6
ROUNDS = 1
EXIT_CODES = {"stands": 0, "refuted": 3, "too weak to tell": 4}
"""Exit codes by verdict. 1 and 2 are failures: nothing was audited."""


def _add_canary_options(command: Command) -> Command:
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
@_add_canary_options
@one_line_errors
def audit_prototypes(
    file: Path | None,
    noise: float | None,
    releases: int | None,
    clip: float | None,
    count_weight: float | None,
    dim: int,
    **canary_options: Any,
) -> None:
    """Audit the release of noisy class sums and counts.

    Each canary is a record whose features are a hundred times as long as the clip.
    """
    from privacy.mechanisms.grid import noise_share
    from privacy.mechanisms.prototype_query import PrototypeQuery
    from protoseal.audit.prototype_canaries import AuditedQuery
    from protoseal.commands.budget_inputs import ReleaseSettings, read_release_settings

    settings = ReleaseSettings(NOISE, 1, 1.0) if file is None else read_release_settings(file, dim)
    options: dict[str, Any] = {
        "noise_multiplier": noise,
        "releases": releases,
        "clip": clip,
        "count_weight": count_weight,
    }
    settings = replace(settings, **{name: value for name, value in options.items() if value is not None})
    try:
        # One site adds a share of the noise; the shortest list of sites that an agreement allows adds up to all of it.
        share = noise_share(settings.noise_multiplier, settings.shares)
        query = PrototypeQuery(settings.clip, settings.count_weight or settings.clip, share, min_count=1.0)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    audited = AuditedQuery(query, settings.releases, dim, settings.unit, settings.shares)
    audit_with_canaries("prototypes", audited, settings.not_played, **canary_options)


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
@_add_canary_options
@one_line_errors
def audit_training(
    file: Path | None,
    noise: float | None,
    rate: float | None,
    epochs: int | None,
    rounds: int | None,
    clip: float | None,
    **canary_options: Any,
) -> None:
    """Audit DP-SGD, seen by somebody who gets the weights after every step.

    Each canary is a record whose gradient is a hundred times as long as the clip.
    """
    from agreement import DpSgdSection
    from agreement.toml_loading import validate
    from protoseal.audit.training_canaries import AuditedTraining
    from protoseal.commands.budget_inputs import TrainingSettings, read_training_settings

    settings = (
        TrainingSettings(DpSgdSection(**TRAINING), EPOCHS, ROUNDS)
        if file is None
        else read_training_settings(file)
    )
    options = {"noise_multiplier": noise, "clip": clip, "sampling_rate": rate}
    table = settings.dp_sgd.model_dump() | {
        name: value for name, value in options.items() if value is not None
    }
    # Validated as an agreement's section is, so that an impossible value is refused by its name.
    dp_sgd = validate(DpSgdSection, table, source="audit", directory=Path())
    audited = AuditedTraining(dp_sgd, epochs or settings.epochs, rounds or settings.rounds, settings.unit)
    audit_with_canaries("training", audited, settings.not_played, **canary_options)


@audit_group.command("run", epilog=example("protoseal budget audit run runs/simulation"))
@click.argument("directory", metavar="DIR", type=EXISTING_FOLDER)
@click.option(
    "--config",
    type=EXISTING_FILE,
    help="The site's file, where DIR is its state_dir: it names the data and the ledger.",
)
@click.option(
    "--data-root",
    type=EXISTING_FOLDER,
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
def audit_recorded_run(
    directory: Path, config: Path | None, data_root: Path | None, confidence: float, as_json: bool
) -> None:
    """Audit a run that took place: what sites kept of it, against their records.

    DIR is the folder of a simulation with --keep-releases, or the state_dir of a site with keep_releases = true; a
    site's run is audited at the site, with its data. Exact sums are computed again from the records, by code of the
    audit's own. Checked are the noise, clipping, what was sent, and what the ledger charged. Nothing exact is printed.
    """
    from protoseal.audit.canary_audit import AuditVerdict
    from protoseal.audit.run_audit import audit_run
    from protoseal.audit.site_evidence import load_simulation_evidence, load_site_evidence

    if config is None:
        runs = list(load_simulation_evidence(directory, data_root))
    else:
        from secure_client.config import load_site

        site = load_site(config)
        if site.state_dir.resolve() != directory.resolve():
            raise click.UsageError(
                f"{config} has state_dir {site.state_dir}, not {directory}: give that folder"
            )
        runs = [(site.agreement.run, {site.name: load_site_evidence(site)})]
    if not runs:
        raise click.UsageError(f"{directory} has no run with noise ([privacy]): there is nothing to audit")
    # Bonferroni: the probability that any one of the runs is refuted by chance stays below 1 - confidence.
    audits = [audit_run(run, sites, (1 - confidence) / len(runs)) for run, sites in runs]
    if as_json:
        click.echo(json.dumps({"schema": 1, "runs": [_run_to_json(audit) for audit in audits]}, indent=2))
    else:
        click.echo("\n\n".join(map(_describe_run, audits)))
    # One refuted run refutes them all; without any, one weak run leaves them open.
    verdicts = {audit.verdict for audit in audits}
    worst_first = (AuditVerdict.REFUTED, AuditVerdict.TOO_WEAK, AuditVerdict.STANDS)
    raise SystemExit(next(EXIT_CODES[verdict] for verdict in worst_first if verdict in verdicts))


def _run_to_json(audit: RunAudit) -> dict[str, object]:
    checks = [
        {
            "site": site,
            "weakness": check.weakness,
            "outcome": check.outcome,
            "reason": check.reason,
            "p_value": check.p_value,
        }
        for site, checks_of_site in audit.checks.items()
        for check in checks_of_site
    ]
    return {"run": audit.run, "verdict": audit.verdict.value, "checks": checks}


def _describe_run(audit: RunAudit) -> str:
    from protoseal.audit.run_checks import CheckOutcome

    lines = [f"{audit.verdict.value.upper()}: run {audit.run!r}"]
    for outcome in CheckOutcome:
        sites_by_check: dict[str, list[str]] = {}
        for site, check in audit.checks_with(outcome):
            sites_by_check.setdefault(f"{check.weakness} ({check.reason})", []).append(site)
        lines += [
            f"{outcome.value:<11}  {', '.join(sites)}: {check}" for check, sites in sites_by_check.items()
        ]
    return "\n".join(lines)


def audit_with_canaries(
    mechanism: str,
    audited: AuditedMechanism,
    not_played: tuple[str, ...],
    *,
    canaries: int,
    guesses: int | None,
    delta: float,
    confidence: float,
    as_json: bool,
) -> None:
    """Audit a mechanism, print the verdict and its figures, and exit with the verdict's code.

    ``not_played`` names what the canaries leave out. Raises ``click.UsageError`` where there is no claim to audit.
    """
    from protoseal.audit.canary_audit import (
        HALF,
        audit_mechanism,
        claim_p_value,
        expected_bound,
        lower_bound,
        plan_audit,
    )

    if guesses is not None and guesses > canaries:
        raise click.UsageError(f"--guesses {guesses} are more than --canaries {canaries}")
    level = 1 - confidence
    claimed = audited.epsilon(canaries, delta)
    if not isfinite(claimed):
        raise click.UsageError(
            f"the noise is too small for a finite claimed ε at δ = {delta:g}: give more noise"
        )
    # The plan is made before the coins are drawn: a number of guesses chosen by their outcome would refute any claim.
    plan = plan_audit(audited, canaries, level, guesses)
    audit = audit_mechanism(audited, plan)
    figures = {
        "schema": 2,
        "mechanism": mechanism,
        "verdict": audit.verdict.value,
        "canaries": audit.guesses.canaries,
        "guesses": audit.guesses.made,
        "right": audit.guesses.right,
        "right_that_refute": plan.refuting,
        "right_that_leave_a_doubt": plan.doubtful,
        "epsilon_claimed": claimed,
        "epsilon_bound": lower_bound(audited, audit.guesses, delta, level),
        "expected_bound": {
            "noise as claimed": expected_bound(audited, audit, delta, 1.0),
            "half the noise": expected_bound(audited, audit, delta, HALF),
        },
        "half_the_noise_passes": plan.missed,
        "p_value": claim_p_value(audited, audit),
        "level": level,
        "delta": delta,
        "not_played": list(not_played),
    }
    click.echo(json.dumps(figures, indent=2, allow_nan=False) if as_json else _describe_audit(audit, figures))
    raise SystemExit(EXIT_CODES[audit.verdict])


def _describe_audit(audit: CanaryAudit, figures: dict[str, Any]) -> str:
    from protoseal.commands.budget_inputs import NO_GUARANTEE

    plan = audit.plan
    made = audit.guesses.made
    expected = figures["expected_bound"]
    refuting = f"{plan.refuting} or more" if plan.refuting <= made else "no number of right guesses would"
    lines = [
        f"{audit.verdict.value.upper()}: {_explain_verdict(audit)}",
        f"ε claimed {figures['epsilon_claimed']:.4g} at δ = {figures['delta']:g}; ε is above"
        f" {figures['epsilon_bound']:.4g} with a confidence of {100 * (1 - figures['level']):g} %"
        f" (p = {figures['p_value']:.2g})",
        f"expected: above {expected['noise as claimed']:.4g} with the claimed noise,"
        f" above {expected['half the noise']:.4g} with half of it",
        f"{audit.guesses.canaries} canaries, each in by a fair coin; {made} guesses, {audit.guesses.right} right;"
        f" {refuting} refute",
        "not audited:",
        *(f"- {part}" for part in figures["not_played"]),
    ]
    return "\n".join([NO_GUARANTEE, *lines] if NO_GUARANTEE in figures["not_played"] else lines)


def _explain_verdict(audit: CanaryAudit) -> str:
    from protoseal.audit.canary_audit import AuditVerdict

    if audit.verdict is AuditVerdict.REFUTED:
        return "the mechanism loses more privacy than is claimed"
    if audit.is_doubtful:
        return (
            f"the claimed noise gives fewer than {audit.plan.doubtful} right guesses, and {audit.plan.refuting} would"
            " refute: look for missing noise, and audit again with more --canaries"
        )
    if audit.verdict is AuditVerdict.TOO_WEAK:
        return (
            f"half the noise would pass with a probability of up to {audit.plan.missed:.2g}: audit with more"
            " --canaries, fewer releases or rounds, or let --guesses find their number"
        )
    return f"half the noise would have passed with a probability of {audit.plan.missed:.2g} at most"
