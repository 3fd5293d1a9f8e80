"""Command group ``protoseal budget``: plan, show, change and test the privacy budget of a data set."""

from __future__ import annotations

import click

from protoseal.commands.budget_audit import audit_group
from protoseal.commands.budget_evaluate import evaluate_command
from protoseal.commands.budget_ledger import allow_command, show_command, verify_command
from protoseal.commands.budget_plan import plan_command
from protoseal.commands.budget_statement import statement_command
from protoseal.commands.option_types import example


@click.group(epilog=example("protoseal budget plan --epsilon 3 --releases 10"))
def budget() -> None:
    """Plan, evaluate, audit, show, state, verify or change a data set's privacy budget."""


for _command in (
    *(plan_command, evaluate_command, audit_group),
    *(show_command, statement_command, verify_command, allow_command),
):
    budget.add_command(_command)
