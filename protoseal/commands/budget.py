"""Command group ``protoseal budget``, with the commands on a ledger itself: ``show``, ``verify`` and ``allow``."""

from __future__ import annotations

import json
import math
import re
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
from protoseal.commands.budget_statement import facts_of, statement_command
from protoseal.commands.options import example
from protoseal.commands.terminal_output import one_line_errors
from protoseal.reports.ledger_facts import RunFacts, why_none
from secure_client.privacy.ledger_anchors import PEERS, check_shown, missing_anchor, shown_anchor

_LEDGER = click.argument("ledger", type=click.Path(dir_okay=False, path_type=Path))
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
        found = re.fullmatch(r"(\d{1,18}):([0-9a-f]{64})", str(value))
        if found is None:
            self.fail("give it as `show` prints it: a number, a colon and 64 hexadecimal digits", param, ctx)
        return Anchor(int(found[1]), found[2])


@click.command("show", epilog=example("protoseal budget show scans-2026.jsonl"))
@_LEDGER
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
    stated = facts_of(account)
    spent, left = stated.epsilon, _remaining(account, accountant_for(account.limit.accountant))
    first, last = _dates(stated.runs)
    facts = _facts(account) | {"epsilon_spent": spent, "first_entry": first, "last_entry": last}
    if as_json:
        facts["epsilon_spent"] = spent if math.isfinite(spent) else None
        kinds = [asdict(event) | {"count": count} for event, count in left]
        entries = [_entry(each) for each in account.entries]
        runs = [run_to_json(run) for run in stated.runs]
        lists = {"remaining": kinds, "runs": runs, "entries": entries} | _decisions(account)
        click.echo(json.dumps(_SCHEMA | {"statement": headline(stated)} | facts | lists, indent=2))
        return
    remain = " or ".join(describe_remaining(event, count) for event, count in left)
    # A name of one's own could otherwise look like more lines of this.
    shown = facts | {"dataset": repr(account.budget.dataset), "remaining": remain or "all of it"}
    lines = [f"{name.replace('_', ' '):<17} {_text(value)}" for name, value in shown.items()]
    listed = [*_summary(stated.runs), *_decisions_in_words(account)]
    click.echo("\n".join([headline(stated), *lines, *listed, _RECORDED_ALONE]))


@click.command("verify", epilog=example("protoseal budget verify scans-2026.jsonl"))
@_LEDGER
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
    account = read_account(ledger)
    _verified(account, anchor, as_json=as_json)
    if account.unfinished:
        raise SystemExit(TORN)


def _verified(account: Account, anchor: Anchor | None, *, as_json: bool) -> None:
    kept = check_shown(account)
    if anchor is not None:
        account.check_anchor(anchor)
    facts = _facts(account) | {"anchored": None if anchor is None else str(anchor)}
    if as_json:
        click.echo(json.dumps(_SCHEMA | facts, indent=2))
        return
    for words in _first_words(account):
        click.echo(words)
    click.echo(f"The chain holds. Entries: {len(account.lines)}; the head is {account.anchor}.")
    if account.unfinished:
        what = f"{account.unfinished} bytes of an unfinished entry {account.anchor.seq + 1} lie behind it"
        click.echo(f"TORN END: {what}. {_CRASHED_OR_CUT if kept is None else _CRASHED}")
    click.echo(
        "An older copy would look the same: give --anchor an entry that others have kept."
        if anchor is None
        else f"It has the entry that others have kept: {anchor.seq}."
    )


def _facts(account: Account) -> dict[str, object]:
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
        "without_guarantee": sum(not is_guaranteed(each) for each in account.entries)
        + len(account.exposures)
        + len(account.losses),
        "guarantee": _guarantee(account),
        "unfinished_bytes": account.unfinished,
        "anchor": str(account.anchor),
    }


def _guarantee(account: Account) -> str:
    if _why_none(account) is not None:
        return "none"
    if account.unfinished and shown_anchor(account) is None:
        return "unknown, the end is torn"
    if account.limit.accountant is Accounting.PLANNED:
        return "for what is recorded here, if all its agreements were fixed before the first release"
    return "for what is recorded here"


def _first_words(account: Account) -> list[str]:
    """Return the line that comes before all others where nothing is guaranteed; none elsewhere."""
    why = _why_none(account)
    return [] if why is None else [f"NO GUARANTEE for any {account.limit.unit}: {why}"]


def _why_none(account: Account) -> str | None:
    return why_none(account, missing_anchor(account))


def _text(value: object) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _remaining(account: Account, epsilon: Accountant) -> list[tuple[Event, int]]:
    """Return how many more releases, or steps, like the latest release and the latest training fit."""
    history, limit = account.history, account.limit
    latest = {type(event): event for event in history}.values()
    return [(event, count_remaining(history, event, limit, epsilon)) for event in latest]


def _decisions(account: Account) -> dict[str, object]:
    """Return the ledger's other lines, as JSON has them."""
    began = account.budget.limit
    exposed = [line_to_json(exposure) for exposure in account.exposures]
    lost = [line_to_json(loss) for loss in account.losses]
    return {
        "limit_at_first": {"time": account.budget.time, **_limit(began)},
        "limits": [
            {"time": each.time, **_limit(each.limit), "reason": each.reason} for each in account.allowances
        ],
        "exact": [{name: each[name] for name in ("time", "run", "agreement")} for each in exposed],
        "lost": [{name: each[name] for name in ("time", "entry")} for each in lost],
    }


def _limit(limit: Limit) -> dict[str, object]:
    """Return a limit as JSON has it."""
    return {"epsilon": limit.epsilon, "delta": limit.delta, "accountant": str(limit.accountant)}


def _decisions_in_words(account: Account) -> list[str]:
    """Return a line for each decision: runs that released exact values, the limit, and changes of it."""
    exposed = [
        f"run {each.run!r}, from {each.time}: exact values, without a guarantee for any record"
        for each in account.exposures
    ]
    lost = [
        f"ledger lost, found at {each.time}: entries up to {each.seq}, without which nothing is guaranteed"
        for each in account.losses
    ]
    began = account.budget.time
    first = [] if began is None else [f"limit, from {began}: {account.budget.limit}"]
    before = [account.budget.limit, *(each.limit for each in account.allowances)]
    changed = [
        f"limit, from {each.time}: {each.limit}, was {was}: {each.reason}"
        for was, each in zip(before, account.allowances, strict=False)
    ]
    return [*exposed, *lost, *first, *changed]


def _entry(entry: Entry) -> dict[str, object]:
    """Return an entry as JSON has it, without the encrypted sketch of its records."""
    facts = {name: fact for name, fact in entry.spending.facts.items() if name != RECORDS}
    content = line_to_json(replace(entry, spending=replace(entry.spending, facts=facts)))
    del content["kind"]
    return content


def _summary(runs: tuple[RunFacts, ...]) -> list[str]:
    """Return a line for each run and thing released: when, how often, in which rounds, and by which mechanism."""
    return [
        f"run {run.name!r}, {run.dates}, rounds {min(released.rounds)}-{max(released.rounds)}: {released.in_words}"
        for run in runs
        for released in run.released
    ]


def _dates(runs: tuple[RunFacts, ...]) -> tuple[str | None, str | None]:
    """Return the days of the first and the last entry; None for a ledger without any."""
    return min((run.first for run in runs), default=None), max((run.last for run in runs), default=None)


@click.command(
    "allow", epilog=example("protoseal budget allow scans-2026.jsonl --epsilon 8 --reason 'second study'")
)
@click.argument("ledger", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--epsilon",
    type=float,
    help="New limit ε on the privacy loss of the data set, over all its runs.  [default: as before]",
)
@click.option("--delta", type=float, help="New δ of that limit, a probability.  [default: as before]")
@click.option(
    "--accountant",
    type=click.Choice([each.value for each in Accounting]),
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
    before = read_account(ledger)
    kept = check_shown(before)  # another line would take the place of a torn end
    was = before.limit
    account = Ledger(ledger, before.budget.dataset, was, epsilon=accountant_for(was.accountant))
    if kept is not None:
        account.check_anchor(kept)
    try:
        account.allow(
            Limit(
                was.epsilon if epsilon is None else epsilon,
                was.delta if delta is None else delta,
                was.unit,
                was.accountant if accountant is None else Accounting(accountant),
            ),
            reason,
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    after = read_account(ledger)
    spent = spent_epsilon(after.history, after.limit, accountant_for(after.limit.accountant))
    click.echo(
        f"The limit of data set {after.budget.dataset!r} was {was}, and is {after.limit}; epsilon {spent:.6g} of it is"
        f" spent. Let [privacy] of the site's file say the same."
    )


@click.group(epilog=example("protoseal budget plan --epsilon 3 --releases 10"))
def budget() -> None:
    """Plan, evaluate, audit, show, state, verify or change a data set's privacy budget."""


for _command in (
    *(plan_command, evaluate_command, audit_group),
    *(show_command, statement_command, verify_command, allow_command),
):
    budget.add_command(_command)
