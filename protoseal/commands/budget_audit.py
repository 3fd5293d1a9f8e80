"""``protoseal budget audit``: attack a mechanism once, and hold what was found against what is claimed."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protoseal.commands.bench_options import COUNT
from protoseal.commands.budget_options import DELTA, FRACTION, POSITIVE, Command, agreement_option
from protoseal.commands.reporting import one_line_errors

if TYPE_CHECKING:
    from protoseal.evaluation.audit import Audit
    from protoseal.evaluation.audited import UnderAudit

NOISE = 2.0
TRAINING = {"noise_multiplier": 5.0, "clip": 1.0, "sampling_rate": 0.75}
EPOCHS, ROUNDS = 6, 1


def _of_audit(command: Command) -> Command:
    """What every audit is asked."""
    options = (
        click.option(
            "--canaries", type=click.IntRange(min=100, max=1_000_000), default=100_000, show_default=True
        ),
        click.option("--guesses", type=COUNT, help="Fixed beforehand.  [default: finds half the noise best]"),
        click.option("--delta", type=DELTA, default=1e-5, show_default=True),
        click.option(
            "--confidence",
            type=DELTA,
            default=0.95,
            show_default=True,
            help="That a bound is not above the truth.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    )
    for option in reversed(options):
        command = option(command)
    return command


@click.group("audit")
def audit_group() -> None:
    """Look for more privacy loss than is claimed, by canaries in one run.

    The code that releases runs on canaries, each in by a fair coin; from what it gives out, coins are guessed. So many
    right guesses as the claim makes improbable refute it. A bound below the claim is no proof of it. The command ends
    with 1 where the claim is refuted.
    """


@audit_group.command("prototypes")
@agreement_option("noise, releases and query")
@click.option("--noise-multiplier", "noise", type=POSITIVE, help=f"[default: {NOISE:g}]")
@click.option("--releases", type=COUNT, help="[default: 1]")
@click.option("--clip", type=POSITIVE, help="Norm of a record's features.  [default: 1]")
@click.option("--count-weight", type=POSITIVE, help="Of counts beside sums.  [default: the clip]")
@click.option(
    "--dim", type=click.IntRange(1, 4096), default=1, show_default=True, help="Of a canary's features."
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
    """Of the noisy sums and counts of classes: one canary in each of many classes."""
    from protoseal.commands.budget_inputs import released_by
    from protoseal.evaluation.audited_query import QueryUnderAudit
    from secure_client.privacy.query import PrototypeQuery

    agreed = (NOISE, 1, 1.0, None) if file is None else released_by(file)
    noise, releases, clip = noise or agreed[0], releases or agreed[1], clip or agreed[2]
    try:
        query = PrototypeQuery(clip, count_weight or agreed[3] or clip, noise, min_count=1.0)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    audited = QueryUnderAudit(query, releases, dim)
    _run("prototypes", audited, canaries, guesses, delta, confidence, as_json)


@audit_group.command("training")
@agreement_option("noise, rate, epochs, rounds and clip of DP-SGD")
@click.option(
    "--noise-multiplier", "noise", type=POSITIVE, help=f"[default: {TRAINING['noise_multiplier']:g}]"
)
@click.option("--sampling-rate", "rate", type=FRACTION, help=f"[default: {TRAINING['sampling_rate']:g}]")
@click.option("--epochs", type=COUNT, help=f"Of a round, of 1/rate steps each.  [default: {EPOCHS}]")
@click.option("--rounds", type=COUNT, help=f"[default: {ROUNDS}]")
@click.option("--clip", type=POSITIVE, help=f"Norm of a record's gradient.  [default: {TRAINING['clip']:g}]")
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
    """Of DP-SGD: canaries with gradients as long as the clip, orthogonal to each other, seen in the trained weights."""
    from protoseal.commands.budget_inputs import trained_by
    from protoseal.config import DpSgdSection
    from protoseal.config.reading import validate
    from protoseal.evaluation.audited_training import TrainingUnderAudit

    agreed = (TRAINING, EPOCHS, ROUNDS) if file is None else trained_by(file)
    given = {"noise_multiplier": noise, "clip": clip, "sampling_rate": rate}
    table = agreed[0] | {name: value for name, value in given.items() if value is not None}
    settings = validate(DpSgdSection, table, source="audit", directory=Path())
    audited = TrainingUnderAudit(settings, epochs or agreed[1], rounds or agreed[2])
    _run("training", audited, canaries, guesses, delta, confidence, as_json)


def _run(
    what: str,
    audited: UnderAudit,
    canaries: int,
    guesses: int | None,
    delta: float,
    confidence: float,
    as_json: bool,
) -> None:
    from protoseal.evaluation.audited import audit, expected

    if guesses is not None and guesses > canaries:
        raise click.UsageError(f"--guesses {guesses} are more than --canaries {canaries}")
    if not isfinite(audited.claimed(canaries, delta)):
        raise click.UsageError(
            f"no ε is claimed for so little noise at δ = {delta:g}: there is nothing to refute"
        )
    done = audit(audited, canaries, delta, 1 - confidence, guesses)
    usual = {"all": expected(audited, done, 1.0), "half": expected(audited, done, 0.5)}
    found = _as_json(what, done, usual)
    click.echo(json.dumps(found, indent=2, allow_nan=False) if as_json else _in_words(done, usual))
    if done.refuted:
        raise SystemExit(1)


def _as_json(what: str, done: Audit, usual: dict[str, float]) -> dict[str, object]:
    guesses = done.guesses
    return {
        "schema": 1,
        "mechanism": what,
        "canaries": guesses.canaries,
        "guesses": guesses.made,
        "right": guesses.right,
        "epsilon_bound": done.bound,
        "confidence": 1 - done.level,
        "epsilon_claimed": done.claimed,
        "delta": done.delta,
        "p_value": done.p_value,
        "refuted": done.refuted,
        "expected_bound": {"noise as claimed": usual["all"], "half the noise": usual["half"]},
    }


def _in_words(done: Audit, usual: dict[str, float]) -> str:
    guesses = done.guesses
    verdict = "the claim is refuted" if done.refuted else "the claim stands"
    return "\n".join(
        [
            f"{guesses.canaries} canaries, each in by a fair coin; {guesses.made} guesses, {guesses.right} right",
            f"ε is {done.bound:g} or more, with a confidence of {100 * (1 - done.level):g} %; claimed is"
            f" {done.claimed:.4g} at δ = {done.delta:g}: {verdict} (p = {done.p_value:.2g})",
            f"expected: {usual['all']:g} where the noise is as claimed, {usual['half']:g} where it is half of that",
        ]
    )
