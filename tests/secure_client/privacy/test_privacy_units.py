"""Releases for one subject or one site from a site's data: the unit of each record, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from agreement import Agreement, AveragingSection, Extractor, Method, PrivacySection
from crypto.keys import StorageKey
from privacy.accounting.events import Unit
from privacy.errors import BudgetError
from privacy.ledger.budget_account import read_account
from privacy.mechanisms import prototype_query as query_module
from privacy.mechanisms.cell_query import Cells
from privacy.mechanisms.joint_clipping import joint_sums
from privacy.mechanisms.prototype_query import Sums
from secure_client.checkpoints.learner_factory import build_checkpointed_learner, build_learner
from secure_client.data import SiteData
from secure_client.errors import DataError
from secure_client.privacy.budget import BudgetSection, check_delta
from secure_client.privacy.cost import simulated_budget
from secure_client.privacy.releases import build_query, count_units, open_releases, with_owners
from secure_client.protocol.journal import Journal
from tests.support.small import small_agreement, small_data

SITE, SUBJECTS = "clinic-a", np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3], dtype=np.int64)
"""Eighteen records of nine subjects, dealt over all three classes."""


def agreement(unit: Unit = Unit.SUBJECT, **changes: Any) -> Agreement:
    privacy = PrivacySection(clip=2.0, noise_multiplier=0.5, min_count=0.01, unit=unit, **changes)
    return small_agreement(rounds=6).model_copy(update={"privacy": privacy, "norm_bound": 50.0})


def data(agreed: Agreement) -> SiteData:
    return replace(small_data(agreed)[SITE], subjects=SUBJECTS)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    kept = Journal(
        tmp_path / "journal.sqlite", run="r", agreement_hash=b"", site=SITE, storage=StorageKey(bytes(32))
    )
    yield kept
    kept.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Sums]:
    """Record the sums of each release before their noise, of which none is drawn."""
    found: list[Sums] = []
    kept = Sums.add_noise

    def keep(sums: Sums) -> Any:
        found.append(sums)
        return kept(sums)

    monkeypatch.setattr(Sums, "add_noise", keep)
    monkeypatch.setattr(
        query_module, "discrete_gaussian", lambda count, _log2: np.zeros(count, dtype=np.int64)
    )
    return found


@pytest.mark.parametrize("unit", [Unit.SUBJECT, Unit.SITE])
def test_release_sums_units(tmp_path: Path, journal: Journal, asked: list[Sums], unit: Unit) -> None:
    agreed = agreement(unit)
    learner = build_learner(agreed, SITE, data(agreed), model=agreed.training.model, device="cpu")
    releases = open_releases(agreed, simulated_budget(agreed, SITE, tmp_path))
    build_checkpointed_learner(agreed, learner, journal, releases).train_round(1)
    plain = build_learner(
        agreement(Unit.RECORD), SITE, data(agreed), model=agreed.training.model, device="cpu"
    )
    ((features, labels),) = [(f.double().numpy(), known.numpy()) for f, known in plain.embed()]
    order = np.argsort(SUBJECTS, kind="stable")
    owners = np.sort(SUBJECTS) if unit is Unit.SUBJECT else np.zeros(len(labels), np.int64)
    assert agreed.privacy is not None
    query = build_query(agreed.privacy, agreed.dim)
    known = joint_sums(query.start(3, agreed.dim), [(features[order], labels[order])], owners)
    (found,) = asked
    np.testing.assert_allclose(found.vectors, known.vectors, atol=3)  # features in float32, in another order
    assert (found.weights == known.weights).all()
    total = found.weights.sum() / query.grid.weight
    assert total == pytest.approx(np.sqrt(3) if unit is Unit.SITE else _of_subjects(labels), abs=1e-3)
    facts = read_account(tmp_path / "ledger.jsonl").entries[0].spending.facts
    assert facts["guarantee"] == unit.value
    assert read_account(tmp_path / "ledger.jsonl").budget.limit.unit is unit


def _of_subjects(labels: NDArray[np.int64]) -> float:
    return float(sum(np.sqrt(len(np.unique(labels[each == SUBJECTS]))) for each in np.unique(SUBJECTS)))


def test_with_owners_record_unit_keeps_the_order() -> None:
    agreed = agreement(Unit.RECORD)
    learner = build_learner(agreed, SITE, data(agreed), model=agreed.training.model, device="cpu")
    assert learner.owners is None
    labels = torch.cat([known for _, known in learner.embed()])
    dataset = data(agreed).train
    assert isinstance(dataset, TensorDataset)
    assert torch.equal(labels, dataset.tensors[1])


def test_release_for_subjects_without_owners_is_refused(tmp_path: Path) -> None:
    agreed = agreement()
    releases = open_releases(agreed, simulated_budget(agreed, SITE, tmp_path))
    assert releases is not None
    batch = np.zeros((2, agreed.dim)), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="owners"):
        releases.release(1, [batch])
    by_record = agreement(Unit.RECORD)
    other = open_releases(
        by_record,
        simulated_budget(by_record, "other", tmp_path / "other.jsonl").model_copy(
            update={"ledger": tmp_path / "other.jsonl"}
        ),
    )
    assert other is not None
    with pytest.raises(ValueError, match="owners"):
        other.release(1, [batch], np.zeros(2, np.int64))
    assert not read_account(tmp_path / "ledger.jsonl").entries


def test_with_owners_unknown_subjects_are_refused() -> None:
    agreed = agreement()
    nobody = replace(data(agreed), subjects=None)
    with pytest.raises(DataError, match="subjects"):
        with_owners(nobody, agreed)
    with pytest.raises(DataError, match="17 subjects"):
        with_owners(replace(nobody, subjects=SUBJECTS[1:]), agreed)
    assert with_owners(nobody, agreement(Unit.RECORD)).subjects is None
    assert with_owners(data(agreed), small_agreement()).subjects is None


@pytest.mark.parametrize(
    ("unit", "units", "whose"),
    [
        (Unit.RECORD, 18, "this site's records"),
        (Unit.SUBJECT, 9, "this site's subjects"),
        (Unit.SITE, 256, "sites of a run"),
    ],
)
def test_check_delta_counts_units(unit: Unit, units: int, whose: str) -> None:
    agreed = agreement(unit)
    assert count_units(data(agreed), agreed) == units
    own = BudgetSection(dataset="d", ledger=Path("l"), epsilon=1.0, delta=1 / units, unit=unit)
    with pytest.raises(BudgetError, match=whose):
        check_delta(own, units)
    check_delta(own, units - 1)


@pytest.mark.parametrize("agreed", list(Unit))
@pytest.mark.parametrize("own", list(Unit))
def test_budget_of_another_unit_is_refused(tmp_path: Path, agreed: Unit, own: Unit) -> None:
    budget = BudgetSection(dataset="d", ledger=tmp_path / "l", epsilon=100.0, unit=own)
    section = agreement(agreed).privacy
    if agreed is own:
        budget.check(section, 3)
        open_releases(agreement(agreed), budget)
        return
    with pytest.raises(ValueError, match=f"{agreed}.*{own}"):
        budget.check(section, 3)
    with pytest.raises(BudgetError):
        open_releases(agreement(agreed), budget)


def test_agreement_hash_covers_the_unit() -> None:
    assert '"unit":"record"' in agreement(Unit.RECORD).to_json()
    assert '"unit":"subject"' in agreement().to_json()
    assert len({agreement(unit).hash() for unit in Unit}) == 3
    read = Agreement.from_json(agreement(project_from=64).to_json(), source="text")
    assert read.privacy is not None
    assert (read.privacy.unit, read.privacy.project_from) == (Unit.SUBJECT, 64)


@pytest.mark.parametrize("method", [Method.PFPL, Method.LOCAL, Method.SELF])
def test_projection_serves_methods_with_signed_features(method: Method) -> None:
    agreement(project_from=9).check_served(method)


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (Method.FEDPC, "its features must not be negative"),
        (Method.AVERAGE, "its features must not be negative"),
        (Method.FEDDBP, "its branches compute features in linear layers"),
    ],
)
def test_projection_elsewhere_is_refused(method: Method, reason: str) -> None:
    trained = agreement(project_from=9, extractor=Extractor.TRAINED)
    told = rf"^project_from in \[privacy\] does not serve '{method.value}': {reason}"
    with pytest.raises(ValueError, match=told):
        trained.check_served(method)


def test_subject_is_bounded_over_all_cells_together(tmp_path: Path, asked: list[Sums]) -> None:
    """Two centres of each class: a subject has records in up to six cells, and counts one over their root in each."""
    averaging = AveragingSection(parameters=1)
    agreed = agreement().model_copy(update={"method": Method.FEDPLCC, "averaging": averaging})
    rng = np.random.default_rng(5)
    features, labels = rng.normal(size=(18, agreed.dim)), np.arange(18, dtype=np.int64) % 3
    cells = Cells.around(rng.normal(size=(6, agreed.dim)), np.arange(6, dtype=np.int64) // 2, 3)
    releases = open_releases(agreed, simulated_budget(agreed, SITE, tmp_path))
    assert releases is not None
    owners = np.sort(SUBJECTS)
    for kept in (np.ones(18, np.bool_), owners != 3, owners != 9):
        releases.release_cells(1, [(features[kept], labels[kept])], cells, owners[kept])
    whole, *rest = asked
    for without in rest:
        moved = [
            *(whole.vectors - without.vectors).ravel().tolist(),
            *(whole.weights - without.weights).tolist(),
        ]
        assert 0 < sum(value * value for value in moved) <= whole.query.grid.sensitivity_squared
