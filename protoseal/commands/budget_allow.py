"""Command ``protoseal budget allow``: changes the limit of a data set's privacy ledger and records the reason there."""

from __future__ import annotations

from pathlib import Path

import click

from agreement.errors import UserError
from privacy.accounting.accounting_rules import Accounting, accountant_for
from privacy.ledger.budget_account import read_account
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import LONGEST_REASON, Limit
from privacy.ledger.remaining_budget import spent_epsilon
from protoseal.commands.error_output import one_line_errors
from protoseal.commands.option_types import example
from secure_client.privacy.ledger_anchors import check_shown


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
