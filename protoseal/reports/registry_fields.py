"""Fields of a privacy statement as OpenDP's registry of deployments names them, up to its highest tier.

The names are those of ``deployments-schema.yaml`` (github.com/opendp/deployments-registry-data, July 2026). A field
that only people can fill in holds :data:`ASK`. Limit: the registry has its own review; these fields are a draft.
"""

from __future__ import annotations

from importlib.metadata import version

from privacy.ledger.budget_account import Account
from privacy.ledger.lines import NEIGHBOURS
from protoseal.reports.privacy_statement import observers, of_hundred
from protoseal.reports.site_statement import (
    CONFIRM,
    SENT,
    Facts,
    composition,
    mechanisms,
    not_covered,
    to_confirm,
)

ASK = "to be filled in by the site"
TIER = 3


def registry_fields(facts: Facts) -> dict[str, object] | None:
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
                "unprotected_quantities": " ".join([*not_covered(facts), f"{CONFIRM}:", *to_confirm(facts)]),
            },
            "privacy_loss": _privacy_loss(facts, facts.account),
            "deployment_model": _deployment_model(facts, facts.account),
            "accounting": {
                "post_processing": (
                    "Division of sums by counts, absence of classes with a small count, shortening of rows, sums and"
                    " mixtures with other sites' values, training of models by the results."
                ),
                "composition": composition(facts.account.limit),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": (
                    f"Any choice made by looking at the records is not accounted for. Which were: {ASK}."
                ),
                "mechanisms": " ".join([*mechanisms(facts), _implementation()]),
                "justification": ASK,
            },
            "administrative": {
                "sources": "docs/explanation/privacy.md and docs/explanation/privacy-mechanisms.md of protoseal",
                "notes": f"Made on {facts.made} from ledger entry {facts.account.anchor}.",
                "registry_authors": [ASK],
            },
        },
    }


def _basic(facts: Facts) -> dict[str, object]:
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


def _privacy_loss(facts: Facts, account: Account) -> dict[str, object]:
    limit, recognised = account.limit, facts.recognised
    if recognised is None:
        raise ValueError("nothing is guaranteed")
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
            f" Of 100 {facts.members.inside}, an attacker picks out at most {of_hundred(recognised.usual)}"
            " at 1 % of false alarms."
        ),
    }


def _deployment_model(facts: Facts, account: Account) -> dict[str, object]:
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
            f" holds against {observers(facts.colluding, SENT)}."
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
