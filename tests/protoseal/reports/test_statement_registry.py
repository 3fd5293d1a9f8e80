"""A statement of the ledgers that a site's own releases write, and its fields for a registry of deployments."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Method, PrivacySection
from privacy.mechanisms.cell_query import Cells
from protoseal.commands.budget_statement import read_ledger_facts
from protoseal.reports.ledger_facts import StatementFacts
from protoseal.reports.statement_files import statement_text, statement_to_json
from secure_client.privacy.cost import simulated_budget
from secure_client.privacy.releases import Releases, open_releases
from tests.protoseal.reports.recorded_ledgers import (
    BASE,
    SHARED,
    TRAINED,
    Recorded,
)
from tests.support.small import small_agreement

Batch = tuple[NDArray[np.float64], NDArray[np.int64]]
NO_CENTRES = Cells.around(np.zeros((0, 8)), np.zeros(0, dtype=np.int64), 3)


def subjects_of(releases: Releases, batches: list[Batch]) -> None:
    releases.release(1, batches, np.arange(8) // 2)


RELEASED: dict[str, tuple[dict[str, Any], Callable[[Releases, list[Batch]], object], tuple[str, ...]]] = {
    "local noise": (
        {},
        lambda releases, batches: releases.release(1, batches),
        (
            "whether any one record is in data set 'scans' is protected from anyone who sees what the ledger records",
            "counts of records of 3 classes, with 8 features, with discrete Gaussian noise of 6.3 times",
            "Features are shortened to norm 1 before.",
            "weights with SHA-256 abc",
        ),
    ),
    "subjects": (
        {"unit": "subject"},
        subjects_of,
        (
            "whether any one person has records in data set 'scans' is protected",
            "The unit of protection is one person",
        ),
    ),
    "a site": (
        {"unit": "site"},
        lambda releases, batches: releases.release(1, batches, np.zeros(8, dtype=np.int64)),
        ("whether the site has any records behind what it sends is protected",),
    ),
    "shared noise": (
        {"noise": "distributed", "colluding": 2},
        lambda releases, batches: releases.draw_share(1),
        ("with up to 2 sites that help them", "This site as a whole."),
    ),
    "DP-SGD": (
        {"extractor": "private", "dp_sgd": {"noise_multiplier": 4.0, "clip": 1.0, "sampling_rate": 0.25}},
        lambda releases, batches: releases.pay_for_training(1),
        ("training, 4 steps of DP-SGD with noise multiplier 4", "takes every record with probability 0.25"),
    ),
    "trained features": (
        {"extractor": "trained"},
        lambda releases, batches: releases.release(1, batches),
        ("NO GUARANTEE for any record of data set 'scans': something was released of features",),
    ),
    "the cells of FedPLCC": (
        {},
        lambda releases, batches: releases.release_cells(1, batches, NO_CENTRES),
        ("of 3 classes in up to 16 cells (parts of a class) each, with 8 features",),
    ),
}


@pytest.mark.parametrize("name", RELEASED)
def test_statement_says_what_releases_recorded(name: str, tmp_path: Path) -> None:
    changes, release, said = RELEASED[name]
    privacy = PrivacySection.model_validate_json(json.dumps({"clip": 1.0, "noise_multiplier": 6.3} | changes))
    cells = {"method": Method.FEDPLCC} if "cells" in name else {}
    agreed = small_agreement().model_copy(update={"privacy": privacy} | cells)
    budget = simulated_budget(agreed, "scans", tmp_path)
    releases = open_releases(agreed, budget)
    assert releases is not None
    releases.begin_with("abc")
    release(releases, [(np.eye(8), np.arange(8, dtype=np.int64) % 3)])
    text = " ".join(statement_text(read_ledger_facts(budget.ledger)).split())
    assert [sentence for sentence in said if sentence not in text] == []


# The fields of the registry

TIER_3 = {
    "url_slug",
    "status",
    "tier",
    "deployment.basic.name",
    "deployment.basic.data_curators",
    "deployment.basic.intended_use",
    "deployment.basic.data_product_type",
    "deployment.basic.data_product_region",
    "deployment.basic.description",
    "deployment.basic.publication_date",
    "deployment.dp_variant.variant_name",
    "deployment.dp_variant.data_domain",
    "deployment.dp_variant.unprotected_quantities",
    "deployment.privacy_loss.privacy_unit",
    "deployment.privacy_loss.privacy_unit_details",
    "deployment.privacy_loss.privacy_parameters.epsilon",
    "deployment.privacy_loss.privacy_parameters.delta",
    "deployment.privacy_loss.privacy_parameters_details",
    "deployment.deployment_model.model_name",
    "deployment.deployment_model.model_name_details",
    "deployment.deployment_model.actors",
    "deployment.deployment_model.release_type",
    "deployment.deployment_model.release_type_details",
    "deployment.deployment_model.data_source_type",
    "deployment.deployment_model.data_source_type_details",
    "deployment.deployment_model.access_type",
    "deployment.deployment_model.access_type_details",
    "deployment.accounting.post_processing",
    "deployment.accounting.composition",
    "deployment.implementation.preprocessing_and_hyperparameter_tuning",
    "deployment.implementation.mechanisms",
    "deployment.implementation.justification",
    "deployment.administrative.sources",
    "deployment.administrative.notes",
    "deployment.administrative.registry_authors",
}
"""The fields of deployments-schema.yaml at commit 3e9c812 of opendp/deployments-registry-data, but for ``rho``, which
another variant has, and the optional ``data_product_sector``."""
ENUMERATIONS = {
    "deployment.basic.data_product_type": {"Summary statistics", "Machine learning model"},
    "deployment.dp_variant.variant_name": {"Approximate DP"},
    "deployment.deployment_model.model_name": {"Federated"},
    "deployment.deployment_model.release_type": {"One release", "Many releases"},
    "deployment.deployment_model.data_source_type": {"Static", "Dynamic"},
    "deployment.deployment_model.access_type": {"Interactive", "Non-interactive"},
    "status": {"Draft"},
}


def flat(table: object, before: str = "") -> dict[str, object]:
    if not isinstance(table, dict):
        return {before[:-1]: table}
    return {
        name: value for key, each in table.items() for name, value in flat(each, f"{before}{key}.").items()
    }


@pytest.mark.parametrize(
    "recorded", [BASE, replace(BASE, events=TRAINED), SHARED], ids=["local", "dp-sgd", "shared"]
)
def test_registry_fields_are_those_of_highest_tier(
    recorded: Recorded, stated: Callable[[Recorded], StatementFacts]
) -> None:
    facts = stated(recorded)
    fields = flat(statement_to_json(facts)["registry"])
    assert set(fields) == TIER_3
    assert {name for name, allowed in ENUMERATIONS.items() if fields[name] not in allowed} == set()
    assert all(isinstance(value, str | list | float | int) and value != "" for value in fields.values())
    assert fields["deployment.privacy_loss.privacy_parameters.epsilon"] == facts.epsilon
    assert fields["deployment.privacy_loss.privacy_parameters.delta"] == 1e-5
    assert fields["deployment.basic.publication_date"] == "2026-03-02"


def test_statement_one_release_is_told_from_many(stated: Callable[[Recorded], StatementFacts]) -> None:
    once = flat(statement_to_json(stated(replace(BASE, events=BASE.events[:1])))["registry"])
    many = flat(statement_to_json(stated(BASE))["registry"])
    name = "deployment.deployment_model.release_type"
    assert (once[name], many[name]) == ("One release", "Many releases")
