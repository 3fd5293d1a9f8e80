"""Command group ``protoseal budget``, and its commands on a ledger: ``show``, ``verify`` and ``allow``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import click

from agreement.errors import UserError
from privacy.accounting.accounting_rules import Accountant, Accounting, accountant_for
from privacy.accounting.events import Event
from privacy.ledger.budget_account import Account, read_account
from privacy.ledger.hash_chain import Anchor
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import (
    LONGEST_REASON,
    NEIGHBOURS,
    RECORDS,
    Entry,
    Limit,
    is_guaranteed,
    line_to_json,
)
from privacy.ledger.remaining_budget import count_remaining, describe_remaining, spent_epsilon
from protoseal.commands.budget_audit import audit_group
from protoseal.commands.budget_evaluate import evaluate_command
from protoseal.commands.budget_plan import plan_command
from protoseal.commands.budget_statement import collect_facts, statement_command
from protoseal.commands.options import FILE, example
from protoseal.commands.terminal_output import one_line_errors
from protoseal.reports.ledger_facts import why_none
from secure_client.privacy.ledger_anchors import PEERS, check_shown, missing_anchor, shown_anchor

_ledger_argument = click.argument("ledger", type=FILE)
_SCHEMA: dict[str, object] = {"schema": 2}
TORN = 3
"""Exit code of ``verify`` for a ledger whose lines hold, and whose end is torn."""
_RECORDED_ALONE = (
    "This is what the ledger records. What left of the same records without it (in a run of a site whose file has no"
    " [privacy], under another ledger, or under another name of the data set) cannot be known from it."
)
_CRASHED = (
    f"A crash while writing left them, and nothing was released for them: {PEERS} beside the ledger has the last entry"
    " that the site has shown, which is not this one. The site drops them when it writes the next entry."
)
_CRASHED_OR_CUT = (
    "If a crash while writing left them, nothing was released for them. If the entry was cut after it was acknowledged,"
    " something may have been: only an anchor of that entry tells, and none of this ledger is stored beside it."
)
_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


class _AnchorType(click.ParamType[Anchor]):
    name = "SEQ:HEAD"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Anchor:
        match = re.fullmatch(r"(\d{1,18}):([0-9a-f]{64})", str(value))
        if match is None:
            self.fail("give it as `show` prints it: a number, a colon and 64 hexadecimal digits", param, ctx)
        return Anchor(int(match[1]), match[2])


@click.command("show", epilog=example("protoseal budget show scans-2026.jsonl"))
@_ledger_argument
@_json_option
@one_line_errors
def show_command(*, ledger: Path, as_json: bool) -> None:
    """Show what was spent of a data set's privacy budget, on what and when, and what remains. Nothing is changed.

    The first sentence says what is protected from whom, how surely, and what was spent. The first words are NO
    GUARANTEE where exact values left, or an earlier ledger was lost.
    """
    from protoseal.reports.site_statement import headline
    from protoseal.reports.statement_files import run_to_json

    account = read_account(ledger)
    statement = collect_facts(account)
    remaining = _count_remaining_events(account, accountant_for(account.limit.accountant))
    facts = _collect_ledger_facts(account) | {
        "epsilon_spent": statement.epsilon,
        "first_entry": min((run.first for run in statement.runs), default=None),
        "last_entry": max((run.last for run in statement.runs), default=None),
    }
    if as_json:
        facts["epsilon_spent"] = statement.epsilon if math.isfinite(statement.epsilon) else None
        lists = {
            "remaining": [asdict(event) | {"count": count} for event, count in remaining],
            "runs": [run_to_json(run) for run in statement.runs],
            "entries": [_entry_to_json(entry) for entry in account.entries],
        }
        content = _SCHEMA | {"statement": headline(statement)} | facts | lists | _decisions_to_json(account)
        click.echo(json.dumps(content, indent=2))
        return
    # The name is the site's own text: repr() keeps a line end in it from looking like one more line of this output.
    facts["dataset"] = repr(account.budget.dataset)
    facts["remaining"] = (
        " or ".join(describe_remaining(event, count) for event, count in remaining) or "all of it"
    )
    click.echo(headline(statement))
    for name, value in facts.items():
        text = "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
        click.echo(f"{name.replace('_', ' '):<17} {text}")
    for run in statement.runs:
        for released in run.released:
            rounds = f"rounds {min(released.rounds)}-{max(released.rounds)}"
            click.echo(f"run {run.name!r}, {run.dates}, {rounds}: {released.in_words}")
    for decision in _describe_decisions(account):
        click.echo(decision)
    click.echo(_RECORDED_ALONE)


@click.command("verify", epilog=example("protoseal budget verify scans-2026.jsonl"))
@_ledger_argument
@click.option(
    "--anchor",
    type=_AnchorType(),
    help="Entry that another party has recorded, which the ledger must contain.",
)
@_json_option
@one_line_errors
def verify_command(*, ledger: Path, anchor: Anchor | None, as_json: bool) -> None:
    """Check that a ledger is intact and has the entries that others have recorded. Nothing is changed.

    The entries are that of --anchor and, if the file LEDGER.peers exists, the one that the site keeps there.

    The exit code is 0 if the ledger is intact, 3 if only its last line is incomplete, as after a power cut, and 1 for
    anything else.
    """
    # Reading checks the chain itself; an anchor shows that the end of it was not cut off.
    account = read_account(ledger)
    shown = check_shown(account)
    if anchor is not None:
        account.check_anchor(anchor)
    if as_json:
        facts = _collect_ledger_facts(account) | {"anchored": None if anchor is None else str(anchor)}
        click.echo(json.dumps(_SCHEMA | facts, indent=2))
    else:
        reason = why_none(account, missing_anchor(account))
        if reason is not None:
            click.echo(f"NO GUARANTEE for any {account.limit.unit}: {reason}")
        click.echo(f"The chain holds. Entries: {len(account.lines)}; the head is {account.anchor}.")
        if account.unfinished:
            end = f"{account.unfinished} bytes of an unfinished entry {account.anchor.seq + 1} lie behind it"
            click.echo(f"TORN END: {end}. {_CRASHED_OR_CUT if shown is None else _CRASHED}")
        click.echo(
            "An older copy would look the same: give --anchor an entry that others have kept."
            if anchor is None
            else f"It has the entry that others have kept: {anchor.seq}."
        )
    if account.unfinished:
        raise SystemExit(TORN)


def _collect_ledger_facts(account: Account) -> dict[str, object]:
    limit = account.limit
    return {
        "ledger": str(account.path),
        "dataset": account.budget.dataset,
        "epsilon_limit": limit.epsilon,
        "delta": limit.delta,
        "unit": str(limit.unit),
        "neighbours": NEIGHBOURS,
        "accountant": str(limit.accountant),
        "spendings": len(account.entries),
        "without_guarantee": sum(not is_guaranteed(entry) for entry in account.entries)
        + len(account.exposures)
        + len(account.losses),
        "guarantee": _describe_coverage(account),
        "unfinished_bytes": account.unfinished,
        "anchor": str(account.anchor),
    }


def _describe_coverage(account: Account) -> str:
    if why_none(account, missing_anchor(account)) is not None:
        return "none"
    if account.unfinished and shown_anchor(account) is None:
        return "unknown, the end is torn"
    if account.limit.accountant is Accounting.PLANNED:
        return "for what is recorded here, if all its agreements were fixed before the first release"
    return "for what is recorded here"


def _count_remaining_events(account: Account, epsilon: Accountant) -> list[tuple[Event, int]]:
    """Return how many more releases, or steps, like the latest release and the latest training fit."""
    # The future is planned like the latest past: what else would be released is not known here.
    history, limit = account.history, account.limit
    latest = {type(event): event for event in history}.values()
    return [(event, count_remaining(history, event, limit, epsilon)) for event in latest]


def _decisions_to_json(account: Account) -> dict[str, object]:
    """Return the lines that are no entry: the first limit, its changes, exact releases and losses."""
    exposures = [line_to_json(exposure) for exposure in account.exposures]
    losses = [line_to_json(loss) for loss in account.losses]
    return {
        "limit_at_first": {"time": account.budget.time, **_limit_to_json(account.budget.limit)},
        "limits": [
            {"time": allowance.time, **_limit_to_json(allowance.limit), "reason": allowance.reason}
            for allowance in account.allowances
        ],
        "exact": [{name: line[name] for name in ("time", "run", "agreement")} for line in exposures],
        "lost": [{name: line[name] for name in ("time", "entry")} for line in losses],
    }


def _limit_to_json(limit: Limit) -> dict[str, object]:
    return {"epsilon": limit.epsilon, "delta": limit.delta, "accountant": str(limit.accountant)}


def _describe_decisions(account: Account) -> Iterator[str]:
    """Yield a line for each decision: runs that released exact values, the limit, and changes of it."""
    for exposure in account.exposures:
        yield (
            f"run {exposure.run!r}, from {exposure.time}: exact values, without a guarantee for any record"
        )
    for loss in account.losses:
        yield (
            f"ledger lost, found at {loss.time}: entries up to {loss.seq}, without which nothing is guaranteed"
        )
    limit = account.budget.limit
    if account.budget.time is not None:
        yield f"limit, from {account.budget.time}: {limit}"
    for allowance in account.allowances:
        yield f"limit, from {allowance.time}: {allowance.limit}, was {limit}: {allowance.reason}"
        limit = allowance.limit


def _entry_to_json(entry: Entry) -> dict[str, object]:
    # The sketch of the records is encrypted and long, and only the site's own key reads it.
    facts = {name: fact for name, fact in entry.spending.facts.items() if name != RECORDS}
    content = line_to_json(replace(entry, spending=replace(entry.spending, facts=facts)))
    del content["kind"]
    return content


@click.command(
    "allow", epilog=example("protoseal budget allow scans-2026.jsonl --epsilon 8 --reason 'second study'")
)
@_ledger_argument
@click.option(
    "--epsilon",
    type=float,
    help="New limit ε on the privacy loss of the data set, over all its runs.  [default: as before]",
)
@click.option("--delta", type=float, help="New δ of that limit, a probability.  [default: as before]")
@click.option(
    "--accountant",
    type=click.Choice([accounting.value for accounting in Accounting]),
    help="How the privacy loss is computed, for all entries from the first on.  [default: as before]",
)
@click.option(
    "--reason",
    required=True,
    help=f"Who decided the change and why, in at most {LONGEST_REASON} characters; the ledger keeps it.",
)
@one_line_errors
def allow_command(
    *, ledger: Path, epsilon: float | None, delta: float | None, accountant: str | None, reason: str
) -> None:
    """Change the privacy limit of a data set, or how its loss is computed, by a new entry in its ledger.

    The site's configuration file has to have the same limit from then on. What is spent stays spent. --accountant
    renyi-filter also covers agreements that are chosen after looking at earlier results; it cannot be undone.
    """
    account = read_account(ledger)
    old = account.limit
    # Refused for a ledger whose end is behind what the site has shown: the new line would take the place of the one
    # that is cut off or torn, and the chain would look whole again.
    shown = check_shown(account)
    writer = Ledger(ledger, account.budget.dataset, old, epsilon=accountant_for(old.accountant))
    if shown is not None:
        writer.check_anchor(shown)
    try:
        new = Limit(
            old.epsilon if epsilon is None else epsilon,
            old.delta if delta is None else delta,
            old.unit,
            old.accountant if accountant is None else Accounting(accountant),
        )
        writer.allow(new, reason)
    except ValueError as error:
        raise UserError(str(error)) from error
    account = read_account(ledger)
    spent = spent_epsilon(account.history, account.limit, accountant_for(account.limit.accountant))
    click.echo(
        f"The limit of data set {account.budget.dataset!r} was {old}, and is {account.limit}; epsilon {spent:.6g} of it"
        f" is spent. Let [privacy] of the site's file say the same."
    )


@click.group(epilog=example("protoseal budget plan --epsilon 3 --releases 10"))
def budget() -> None:
    """Plan, evaluate, audit, show, state, verify or change a data set's privacy budget."""


budget.add_command(plan_command)
budget.add_command(evaluate_command)
budget.add_command(audit_group)
budget.add_command(show_command)
budget.add_command(statement_command)
budget.add_command(verify_command)
budget.add_command(allow_command)
