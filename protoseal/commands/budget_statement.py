"""Command ``protoseal budget statement``: the privacy statement of a site, as a page and as fields."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privacy.accounting.accounting_rules import Accounting, accountant_for
from privacy.ledger.budget_account import Account, read_account
from privacy.ledger.lines import now
from privacy.ledger.remaining_budget import spent_epsilon
from protoseal.commands.options import FILE, FOLDER, example
from protoseal.commands.terminal_output import one_line_errors
from secure_client.config import SiteConfig, load_site
from secure_client.privacy.ledger_anchors import missing_anchor, shown_anchor

if TYPE_CHECKING:
    from agreement import Agreement
    from protoseal.reports.ledger_facts import RecognisedShares, StatementFacts

STATED_ALARMS = (0.001, 0.01, 0.1)
"""Shares of false alarms for which a statement says how many members are recognised."""
_NO_LEDGER = "run {!r} releases exact values, and this site has no ledger, since its file has no [privacy]"
_TORN = "the last line of the ledger is incomplete, so that nobody knows what it said"
_NO_BOUND = "the noise was too small for any finite ε"


@click.command("statement", epilog=example("protoseal budget statement scans-2026.jsonl"))
@click.argument("ledger", type=FILE, required=False)
@click.option(
    "--config",
    type=FILE,
    help="Configuration file of the site, in place of LEDGER; adds the site, its agreement and what its run plans.",
)
@click.option(
    "--out",
    type=FOLDER,
    help="Folder for privacy-statement.html and privacy-statement.json.  [default: print the statement]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the statement and its fields as JSON.")
@one_line_errors
def statement_command(*, ledger: Path | None, config: Path | None, out: Path | None, as_json: bool) -> None:
    """State for one site's data what is protected from whom, how surely, what was spent, and what is not covered.

    The first words are NO GUARANTEE where nothing is guaranteed. The JSON has the fields of the highest tier of the
    OpenDP registry of deployments. `client run` writes the same files into the folder of its results. The ledger stays
    as it is.
    """
    from protoseal.reports.statement_files import statement_text, statement_to_json, write_statement

    if (ledger is None) is (config is None):
        raise click.UsageError("give either LEDGER or --config SITE.toml")
    facts = read_site_facts(load_site(config)) if config is not None else read_ledger_facts(ledger or Path())
    if out is not None:
        click.echo(f"The statement is in {write_statement(out, facts)}")
    elif as_json:
        click.echo(json.dumps(statement_to_json(facts), indent=2, ensure_ascii=False))
    else:
        click.echo(statement_text(facts))


def read_site_facts(config: SiteConfig) -> StatementFacts:
    """Return the facts of a site's ledger and its agreement. Raises ``LedgerError`` for a ledger that is not there."""
    if config.privacy is not None:
        return replace(read_ledger_facts(config.privacy.ledger, config.agreement), site=config.name)
    from protoseal.reports.ledger_facts import StatementFacts

    return StatementFacts(
        made=now()[:10],
        site=config.name,
        agreement=config.agreement,
        account=None,
        runs=(),
        epsilon=0.0,
        recognised=None,
        why_none=_NO_LEDGER.format(config.agreement.run),
    )


def read_ledger_facts(ledger: Path, agreement: Agreement | None = None) -> StatementFacts:
    """Return the facts of a ledger, with the ``agreement`` whose run it may have."""
    return collect_facts(read_account(ledger), agreement)


def collect_facts(account: Account, agreement: Agreement | None = None) -> StatementFacts:
    """Return the facts of a ledger that was read."""
    from protoseal.reports.ledger_facts import StatementFacts, list_runs, why_none

    epsilon = accountant_for(account.limit.accountant)
    spent = spent_epsilon(account.history, account.limit, epsilon)
    reason = why_none(account, missing_anchor(account))
    # Where the site's own record lies beside the ledger, it tells a crash from a cut.
    torn = bool(account.unfinished) and shown_anchor(account) is None
    if reason is None and (torn or not isfinite(spent)):
        reason = _TORN if torn else _NO_BOUND
    return StatementFacts(
        made=now()[:10],
        site=None,
        agreement=agreement,
        account=account,
        runs=list_runs(account, epsilon),
        epsilon=spent,
        recognised=bound_recognition(account, spent) if reason is None and account.entries else None,
        why_none=reason,
    )


def bound_recognition(account: Account, spent: float) -> RecognisedShares:
    """Return the largest shares of members that attacks recognise, by the composed curve of all entries.

    Agreements with DP-SGD that follow from earlier results have no composed curve: the Rényi filter that covers them
    gives one (ε, δ) alone (:func:`protoseal.reports.ledger_facts.renyi_filter_pair`), from the limits and the ``spent``
    ε.
    """
    import numpy as np

    from privacy.accounting.accountant import Composed
    from protoseal.audit.trade_off import PairsTradeOff, composed_trade_off, most_recognised
    from protoseal.reports.ledger_facts import RecognisedShares, renyi_filter_pair

    composed = Composed.of(account.history)
    agreements = {entry.spending.agreement_hash for entry in account.entries}
    adaptive = (
        account.limit.accountant is Accounting.RENYI and bool(composed.training) and len(agreements) > 1
    )
    # The composed curve holds for mechanisms that are fixed beforehand. Those chosen by earlier results have only the
    # filter's (ε, δ), and the weaker curve that follows from the pair.
    pair = renyi_filter_pair(account, spent) if adaptive else None
    curve = (
        composed_trade_off(composed)
        if pair is None
        else PairsTradeOff(np.array([pair[0]]), np.array([pair[1]]))
    )
    # Ten records change a release ten times as much as one: the privacy parameter's square is a hundredfold. Training
    # has no such closed form.
    ten_records = replace(composed, squares=100 * composed.squares)
    return RecognisedShares(
        shares={alarms: most_recognised(curve, alarms) for alarms in STATED_ALARMS},
        of_ten=most_recognised(composed_trade_off(ten_records), 0.01) if not composed.training else None,
        filtered=pair,
    )
