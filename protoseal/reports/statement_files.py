"""Forms of a site's privacy statement: text for a terminal, an HTML page, and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from textwrap import TextWrapper

from agreement.storage.run_files import write_text
from protoseal.reports.ledger_facts import RunFacts
from protoseal.reports.pages import write_page
from protoseal.reports.registry_fields import registry_fields
from protoseal.reports.site_statement import Facts, Section, headline, not_covered, sections, to_confirm

PAGE, FIELDS = "privacy-statement.html", "privacy-statement.json"
NOT_ANONYMOUS = "This page is no finding that the data are anonymous in law."
_WRAPPED = TextWrapper(100, break_long_words=False, break_on_hyphens=False)
_ITEM = TextWrapper(
    100, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
)


def title(facts: Facts) -> str:
    """Return the title of the statement."""
    whose = "" if facts.site is None else f" of site {facts.site!r}"
    return f"Privacy statement{whose} on {facts.data}"


def source(facts: Facts) -> str:
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


def text_of(facts: Facts) -> str:
    """Return the statement as text."""
    lines = [title(facts), "", *_WRAPPED.wrap(headline(facts)), "", *_WRAPPED.wrap(source(facts))]
    for section in sections(facts):
        lines += ["", section.title, "-" * len(section.title), *_lines(section)]
    return "\n".join(lines)


def _lines(section: Section) -> Iterator[str]:
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


def fields_of(facts: Facts) -> dict[str, object]:
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
        "not_covered": list(not_covered(facts)),
        "to_confirm": list(to_confirm(facts)),
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


def write_statement(folder: Path, facts: Facts) -> Path:
    """Write the page and its JSON into ``folder``, and return the page's path."""
    write_text(folder / FIELDS, json.dumps(fields_of(facts), indent=2, ensure_ascii=False))
    return write_page(
        folder / PAGE,
        "statement.html",
        {},
        title=title(facts),
        headline=headline(facts),
        source=source(facts),
        sections=sections(facts),
    )
