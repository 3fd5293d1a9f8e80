"""Files of a site's privacy statement: text for a terminal, an HTML page, and JSON with OpenDP's registry fields.

The registry's fields are named as in ``deployments-schema.yaml`` (github.com/opendp/deployments-registry-data, July
2026), up to its highest tier. A field that only people can fill in holds :data:`ASK`. Limit: the registry has its own
review; these fields are a draft.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from textwrap import TextWrapper

from agreement.storage.run_files import write_text
from privacy.ledger.budget_account import Account
from privacy.ledger.lines import NEIGHBOURS
from protoseal.reports.ledger_facts import RunFacts, StatementFacts
from protoseal.reports.pages import write_page
from protoseal.reports.privacy_statement import describe_observers, out_of_hundred
from protoseal.reports.site_statement import (
    CONFIRM,
    SENT,
    StatementSection,
    describe_composition,
    headline,
    list_mechanisms,
    list_not_covered,
    list_to_confirm,
    sections,
)

PAGE, FIELDS = "privacy-statement.html", "privacy-statement.json"
NOT_ANONYMOUS = "This page is no finding that the data are anonymous in law."
_WRAPPED = TextWrapper(100, break_long_words=False, break_on_hyphens=False)
_ITEM = TextWrapper(
    100, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
)


def title(facts: StatementFacts) -> str:
    """Return the title of the statement."""
    whose = "" if facts.site is None else f" of site {facts.site!r}"
    return f"Privacy statement{whose} on {facts.data}"


def source(facts: StatementFacts) -> str:
    """Return when the statement was made, and from what."""
    account = facts.account
    made = f"Made on {facts.made}"
    if account is None:
        return f"{made} from the site's file; there is no ledger. {NOT_ANONYMOUS}"
    return (
        f"{made} from the ledger {account.path.name!r}, up to entry {account.anchor}. The chain of its entries was"
        " verified then. A ledger that was replaced as a whole would pass: “protoseal budget verify --anchor” finds"
        f" that by an entry which others have kept. Dates are those of the site's clock. {NOT_ANONYMOUS}"
    )


def statement_text(facts: StatementFacts) -> str:
    """Return the statement as text."""
    lines = [title(facts), "", *_WRAPPED.wrap(headline(facts)), "", *_WRAPPED.wrap(source(facts))]
    for section in sections(facts):
        lines += ["", section.title, "-" * len(section.title), *_lines(section)]
    return "\n".join(lines)


def _lines(section: StatementSection) -> Iterator[str]:
    for sentence in section.sentences:
        yield from _WRAPPED.wrap(sentence)
    if section.table:
        columns = zip(*section.table, strict=True)
        widths = [max(map(len, column)) for column in columns]
        yield ""
        for row in section.table:
            yield (
                "  " + "   ".join(f"{cell:<{size}}" for cell, size in zip(row, widths, strict=True)).rstrip()
            )
    for item in section.items:
        yield from _ITEM.wrap(item)


def statement_to_json(facts: StatementFacts) -> dict[str, object]:
    """Return the statement's facts as JSON, with the ``registry``'s fields; these are None without a guarantee."""
    account, recognised = facts.account, facts.recognised
    limit = None if account is None else account.limit
    return {
        "schema": 1,
        "made": facts.made,
        "site": facts.site,
        "dataset": None if account is None else account.budget.dataset,
        "statement": headline(facts),
        "guaranteed": facts.why_none is None,
        "unit": str(facts.unit),
        "epsilon": facts.epsilon if math.isfinite(facts.epsilon) else None,
        "epsilon_limit": None if limit is None else limit.epsilon,
        "delta": None if limit is None else limit.delta,
        "recognised": None
        if recognised is None
        else {f"{at:g}": share for at, share in recognised.shares.items()},
        "runs": [run_to_json(run) for run in facts.runs],
        "not_covered": list(list_not_covered(facts)),
        "to_confirm": list(list_to_confirm(facts)),
        "registry": registry_fields(facts),
    }


def run_to_json(run: RunFacts) -> dict[str, object]:
    """Return a run's dates and cost as JSON."""
    return {
        "run": run.name,
        "agreement": run.agreement_hash.hex(),
        "first": run.first,
        "last": run.last,
        "epsilon": run.epsilon if math.isfinite(run.epsilon) and not run.exact else None,
        "exact": run.exact,
    }


def write_statement(folder: Path, facts: StatementFacts) -> Path:
    """Write the page and its JSON into ``folder``, and return the page's path."""
    write_text(folder / FIELDS, json.dumps(statement_to_json(facts), indent=2, ensure_ascii=False))
    return write_page(
        folder / PAGE,
        "statement.html",
        {},
        title=title(facts),
        headline=headline(facts),
        source=source(facts),
        sections=sections(facts),
    )


ASK = "to be filled in by the site"
TIER = 3


def registry_fields(facts: StatementFacts) -> dict[str, object] | None:
    """Return the record of one deployment; None where nothing is guaranteed, or nothing was released."""
    if facts.recognised is None or facts.account is None:
        return None
    return {
        "url_slug": ASK,
        "status": "Draft",
        "tier": TIER,
        "deployment": {
            "basic": _basic(facts),
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"All data sets of labelled examples that {facts.data} might have been.",
                "unprotected_quantities": " ".join(
                    [*list_not_covered(facts), f"{CONFIRM}:", *list_to_confirm(facts)]
                ),
            },
            "privacy_loss": _privacy_loss(facts, facts.account),
            "deployment_model": _deployment_model(facts, facts.account),
            "accounting": {
                "post_processing": (
                    "Division of sums by counts, absence of classes with a small count, shortening of rows, sums and"
                    " mixtures with other sites' values, training of models by the results."
                ),
                "composition": describe_composition(facts.account.limit),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": (
                    f"Any choice made by looking at the records is not accounted for. Which were: {ASK}."
                ),
                "mechanisms": " ".join([*list_mechanisms(facts), _implementation()]),
                "justification": ASK,
            },
            "administrative": {
                "sources": "docs/explanation/privacy.md and docs/explanation/privacy-mechanisms.md of protoseal",
                "notes": f"Made on {facts.made} from ledger entry {facts.account.anchor}.",
                "registry_authors": [ASK],
            },
        },
    }


def _basic(facts: StatementFacts) -> dict[str, object]:
    agreement = facts.agreement
    by = "" if agreement is None else f" by {agreement.method.value} under {agreement.protection.value}"
    product = (
        "model trained by DP-SGD and noisy class means" if facts.trains else "noisy class means of features"
    )
    return {
        "name": f"Prototypes of {facts.data}",
        "data_curators": [facts.site or ASK],
        "intended_use": f"Federated learning of prototypes between institutions{by}.",
        "data_product_type": "Machine learning model" if facts.trains else "Summary statistics",
        "data_product_region": ASK,
        "description": f"{product.capitalize()} of {facts.data}, sent to the coordinator of a federation.",
        "publication_date": min(run.first for run in facts.runs),
    }


def _privacy_loss(facts: StatementFacts, account: Account) -> dict[str, object]:
    limit, recognised = account.limit, facts.recognised
    if recognised is None:
        raise ValueError("nothing is guaranteed")
    # Under a Rényi filter what was spent bounds nothing by itself; the limit does.
    epsilon, delta = recognised.filtered or (facts.epsilon, limit.delta)
    return {
        "privacy_unit": str(facts.unit),
        "privacy_unit_details": (
            f"Adjacent data sets differ by {facts.members.one} ({facts.members.meaning}): {NEIGHBOURS}. Replacing one"
            " counts as two changes."
        ),
        "privacy_parameters": {"epsilon": epsilon, "delta": delta},
        "privacy_parameters_details": (
            f"Spent: ε = {facts.epsilon:.4g} over {len(facts.runs)} runs, of a limit of ε = {limit.epsilon:g}."
            f" Of 100 {facts.members.inside}, an attacker picks out at most {out_of_hundred(recognised.usual)}"
            " at 1 % of false alarms."
        ),
    }


def _deployment_model(facts: StatementFacts, account: Account) -> dict[str, object]:
    once = len(facts.released) == 1 and len(facts.released[0].rounds) == 1 and not facts.trains
    shared = facts.colluding is not None
    return {
        "model_name": "Federated",
        "model_name_details": (
            "Sites share the noise of sums that open under pairwise masks."
            if shared
            else "The site holds its records, and adds all of the noise before anything leaves it."
        ),
        "actors": (
            "The site, which is trusted with its records; the coordinator and other sites, which are not. The guarantee"
            f" holds against {describe_observers(facts.colluding, SENT)}."
        ),
        "release_type": "One release" if once else "Many releases",
        "release_type_details": (
            f"The budget of ε = {account.limit.epsilon:g} never resets; the program refuses a release beyond it."
        ),
        "data_source_type": "Static",
        "data_source_type_details": f"The ledger counts all runs as if on the same records. Changes: {ASK}.",
        "access_type": "Non-interactive",
        "access_type_details": "Nobody queries the records; an agreement fixes the releases of a run beforehand.",
    }


def _implementation() -> str:
    return (
        f"Implemented by protoseal {version('protoseal')}: sums on an integer grid with discrete Gaussian noise from"
        " the operating system's entropy against floating-point attacks, features in batches of one size, answers at"
        " fixed delays unless the agreement says otherwise, the payment on the disk before the noise is drawn."
        " Gradients of DP-SGD have float64 noise on a grid. Rounding on GPUs was not examined."
    )
