"""Subjects and whole sites under noise that sites share: what each adds, what one subject moves, what the sum says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Agreement, Method, Noise, PrivacySection
from privacy.accounting.events import Unit
from privacy.ledger.budget_account import read_account
from privacy.mechanisms import prototype_query
from privacy.mechanisms.discrete_gaussian import discrete_gaussian
from privacy.mechanisms.joint_clipping import joint_sums
from privacy.mechanisms.prototype_query import Sums
from secure_client.privacy import releases
from secure_client.privacy.cost import simulated_budget
from secure_client.privacy.releases import Releases, build_query
from tests.support.grouped import grouped_agreement

CLASSES, DIM, LISTED = 3, 8, 4
Ints = NDArray[np.int64]
Float = NDArray[np.float64]
Own = tuple[Float, Ints, Ints]
"""A site's features (N, d), labels (N,) and whose they are (N,), ascending."""


class TooSensitiveError(AssertionError):
    """A subject moves what a site adds by more than is said."""


def agreement(unit: Unit) -> Agreement:
    privacy = PrivacySection(
        clip=2.0, noise_multiplier=0.5, noise=Noise.DISTRIBUTED, colluding=1, min_count=0.5, unit=unit
    )
    return grouped_agreement(method=Method.FEDPROTO, averaging={}, privacy=privacy, dim=DIM, rounds=2)


def own(site: int, unit: Unit) -> Own:
    """Return three subjects: nine records of one class in one direction, two records of each class, and one record."""
    rng = np.random.default_rng(site)
    features = rng.normal(scale=2.0, size=(16, DIM))
    features[:9] = features[0]
    labels = np.array([site % CLASSES] * 9 + [0, 0, 1, 1, 2, 2] + [1], dtype=np.int64)
    owners = np.repeat(np.array([2, 5, 6], dtype=np.int64), (9, 6, 1))
    return features, labels, owners if unit is Unit.SUBJECT else np.zeros(16, np.int64)


def term(folder: Path, agreed: Agreement, given: Own) -> tuple[Ints, Ints]:
    """Return a site's share of a sum of four, in whole steps: (K, d) and (K,)."""
    assert agreed.privacy is not None
    folder.mkdir()
    releases = Releases(agreed, agreed.privacy, simulated_budget(agreed, "site", folder))
    features, labels, owners = given
    batches = [(features[:5], labels[:5]), (features[5:], labels[5:])]
    return releases.sum_term(batches, LISTED, releases.draw_share(1), owners)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Ints]:
    """Record the noise of each term, (K, d + 1)."""
    found: list[Ints] = []

    def noted(count: int, sigma_log2: int) -> Ints:
        found.append(discrete_gaussian(count, sigma_log2).reshape(CLASSES, DIM + 1))
        return found[-1].ravel()

    monkeypatch.setattr(prototype_query, "discrete_gaussian", noted)
    return found


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "privacy.mechanisms.prototype_query.discrete_gaussian",
        lambda count, _: np.zeros(count, dtype=np.int64),
    )


units = pytest.mark.parametrize("unit", [Unit.SUBJECT, Unit.SITE])


@units
def test_sum_is_that_of_units_and_draws(tmp_path: Path, drawn: list[Ints], unit: Unit) -> None:
    """The sum equals one in the clear, subject by subject, to the last digit, on the grid of the shared noise."""
    agreed = agreement(unit)
    assert agreed.privacy is not None
    grid = agreed.noisy_sum(LISTED).grid
    query = replace(build_query(agreed.privacy, DIM), noise_multiplier=agreed.noisy_sum(LISTED).share)
    assert query.grid == grid
    vectors, weights = np.zeros((CLASSES, DIM), np.int64), np.zeros(CLASSES, np.int64)
    terms = [term(tmp_path / str(site), agreed, own(site, unit)) for site in range(LISTED)]
    for site in range(LISTED):
        features, labels, owners = own(site, unit)
        for owner in np.unique(owners):
            mine = owners == owner
            alone = joint_sums(query.start(CLASSES, DIM), [(features[mine], labels[mine])], owners[mine])
            vectors += alone.vectors
            weights += alone.weights
    noise = np.sum(drawn, axis=0)
    assert len(drawn) == LISTED
    np.testing.assert_array_equal(np.sum([each for each, _ in terms], axis=0), vectors + noise[:, :DIM])
    np.testing.assert_array_equal(np.sum([each for _, each in terms], axis=0), weights + noise[:, DIM])


@units
def test_total_counts_units(tmp_path: Path, silent: None, unit: Unit) -> None:
    """A subject of all three classes counts √3 in all, and so does a site; of one class, one."""
    agreed = agreement(unit)
    _, weights = term(tmp_path / "site", agreed, own(0, unit))
    counted = weights.sum() / agreed.noisy_sum(LISTED).grid.weight
    assert counted == pytest.approx(np.sqrt(3) + (2 if unit is Unit.SUBJECT else 0), abs=1e-3)


def check_units(folder: Path, unit: Unit) -> None:
    """Check that without all records of any one unit no more changes than the shared noise covers."""
    agreed = agreement(unit)
    most = agreed.noisy_sum(LISTED).grid.sensitivity_squared
    features, labels, owners = given = own(0, unit)
    whole = term(folder / "whole", agreed, given)
    for owner in np.unique(owners):
        kept = owners != owner
        rest = term(folder / f"without-{owner}", agreed, (features[kept], labels[kept], owners[kept]))
        parts = zip(whole, rest, strict=True)
        moved = [int(value) for one, other in parts for value in (one - other).ravel()]
        if not 0 < sum(value * value for value in moved) <= most:
            raise TooSensitiveError(f"unit {owner} moves a term by √{sum(value * value for value in moved)}")


@units
def test_sum_term_one_unit_moves_it_like_one_record(tmp_path: Path, silent: None, unit: Unit) -> None:
    check_units(tmp_path, unit)


@units
def test_check_finds_sums_over_records(
    tmp_path: Path, silent: None, unit: Unit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A double that adds each record by itself, as if it were all that its subject has."""

    def by_records(sums: Sums, batches: Any, owners: Ints) -> Sums:
        for features, labels in batches:
            sums.add(features, labels)
        return sums

    monkeypatch.setattr(releases, "joint_sums", by_records)
    with pytest.raises(TooSensitiveError):
        check_units(tmp_path, unit)


@units
def test_ledger_records_the_unit_and_the_noise(tmp_path: Path, unit: Unit) -> None:
    agreed = agreement(unit)
    term(tmp_path / "site", agreed, own(0, unit))
    (ledger,) = (tmp_path / "site").rglob("*.jsonl")
    account = read_account(ledger)
    (entry,) = account.entries
    facts = entry.spending.facts
    assert (facts["guarantee"], facts["noise"], facts["colluding"]) == (unit.value, "distributed", 1)
    assert account.budget.limit.unit is unit


def test_sum_term_without_owners_is_refused(tmp_path: Path) -> None:
    agreed = agreement(Unit.SUBJECT)
    assert agreed.privacy is not None
    releases = Releases(agreed, agreed.privacy, simulated_budget(agreed, "site", tmp_path))
    features, labels, _ = own(0, Unit.SUBJECT)
    with pytest.raises(ValueError, match="owners"):
        releases.sum_term([(features, labels)], LISTED, releases.draw_share(1))
