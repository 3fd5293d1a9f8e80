"""An audit of the prototype query: its scores are those of the query, and the command says what it found."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from privacy.accounting.events import GaussianRelease, Unit
from privacy.mechanisms import joint_clipping
from privacy.mechanisms.grid import Grid
from privacy.mechanisms.prototype_query import PrototypeQuery
from protoseal.audit.canary_audit import (
    AuditPlan,
    AuditVerdict,
    CanaryAudit,
    Guesses,
    audit_mechanism,
    fair_coins,
    plan_audit,
)
from protoseal.audit.prototype_canaries import LENGTH, AuditedQuery
from protoseal.cli import main
from protoseal.commands import budget_audit
from tests.support.audit_doubles import NOISE, SHAPES, Double, Shape, misshape_query, weaken_query
from tests.support.composed import epsilon
from tests.support.config_files import AGREEMENT, write
from tests.support.marks import full_but

DELTA, LEVEL = 1e-5, 0.05
CANARIES = 20_000
ONE = AuditedQuery(PrototypeQuery(clip=3.0, count_weight=2.0, noise_multiplier=2.0, min_count=1.0))
FOUR = AuditedQuery(PrototypeQuery(3.0, 2.0, 4.0, 1.0), releases=4, dim=5)
SUBJECTS = replace(ONE, dim=2, unit=Unit.SUBJECT)
SHARED = AuditedQuery(PrototypeQuery(3.0, 2.0, 2.0 / math.sqrt(3), 1.0), dim=2, shares=3)
ALL = pytest.mark.parametrize(
    "audited", [ONE, FOUR, SUBJECTS, SHARED], ids=["one", "four", "subjects", "shared"]
)


def test_audited_query_claim_is_the_accountants() -> None:
    releases = [GaussianRelease(4.0, CANARIES * 6)] * 4
    assert FOUR.epsilon(CANARIES, DELTA) == epsilon(releases, DELTA)
    for audited in (FOUR, SUBJECTS, SHARED):
        assert audited.epsilon(CANARIES, DELTA) == pytest.approx(ONE.epsilon(CANARIES, DELTA), abs=1e-3)
        assert audited.epsilon(CANARIES, DELTA, 0.5) == pytest.approx(
            ONE.epsilon(CANARIES, DELTA, 0.5), abs=1e-3
        )


@ALL
def test_audited_query_scores_are_inner_products_with_sums(
    audited: AuditedQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The score is one for each release with a millionth of the noise, and zero for canaries that are out."""
    monkeypatch.setitem(NOISE, "none", 1e-6)
    weaken_query(monkeypatch, "none")
    coins = fair_coins(3000)
    scores = audited.scores(coins)
    told = np.isfinite(scores)  # the others are repeated
    np.testing.assert_allclose(
        scores[told] - scores[told & ~coins].mean(), coins[told] * audited.releases, atol=1e-3
    )
    assert (scores[~told] > 0).tolist() == coins[~told].tolist()


@ALL
def test_audited_query_scores_are_distributed_as_simulated(audited: AuditedQuery) -> None:
    """Means and deviations, within 6.5 of their errors."""
    coins, sigma = fair_coins(20_000), audited.noise_multiplier * audited.releases**0.5
    for scores in (
        audited.scores(coins),
        audited.simulated_scores(coins),
        2 * audited.simulated_scores(coins, 0.5),
    ):
        outside = scores[~coins] / sigma
        assert outside.mean() == pytest.approx(0.0, abs=6.5 / 99)
        assert outside.std() == pytest.approx(1.0, abs=6.5 / 140)
    shift = audited.scores(coins)[coins] - audited.simulated_scores(coins)[coins]
    assert shift.mean() / sigma == pytest.approx(0.0, abs=6.5 * 1.5 / 99)
    assert shift.std() / sigma == pytest.approx(math.sqrt(2), abs=6.5 * 1.5 / 140)


def test_audited_query_unbounded_subject_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A double that adds up a subject's records, where it should take means and share them among its classes."""
    plan = plan_audit(SUBJECTS, CANARIES, LEVEL, 2400)
    assert audit_mechanism(SUBJECTS, plan).verdict is AuditVerdict.STANDS
    bounded = joint_clipping.factor
    monkeypatch.setattr(joint_clipping, "factor", lambda classes, records: bounded(1, 1))
    assert audit_mechanism(SUBJECTS, plan).verdict is AuditVerdict.REFUTED


def test_audited_query_clipping_by_coordinate_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Canaries are as long in each coordinate: a double that clips these one by one is found."""
    wide = replace(ONE, dim=9)

    def of_coordinates(grid: Any, features: Any) -> Any:
        return np.trunc(np.clip(features / grid.step, -grid.radius, grid.radius)).astype(np.int64)

    assert math.sqrt(wide.dim) < LENGTH
    monkeypatch.setattr(Grid, "clip_records", of_coordinates)
    assert audit_mechanism(wide, plan_audit(wide, CANARIES, LEVEL)).verdict is AuditVerdict.REFUTED


@pytest.mark.parametrize("shape", SHAPES)
def test_audited_query_noise_of_other_shape_refuted(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number has the claimed deviation or none: a canary's inner product alone would accept most such noise."""
    plan = plan_audit(FOUR, CANARIES, LEVEL, 2400)
    assert audit_mechanism(FOUR, plan).verdict is AuditVerdict.STANDS
    misshape_query(monkeypatch, shape, FOUR.dim)
    assert audit_mechanism(FOUR, plan).verdict is AuditVerdict.REFUTED


# The command


def audited(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["budget", "audit", "prototypes", *map(str, arguments)])
    assert "Traceback" not in done.output
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("double", "code", "verdict"),
    full_but(
        [("as claimed", 0, "stands"), ("none", 3, "refuted"), ("half", 3, "refuted")], ("half", 3, "refuted")
    ),
)
def test_audit_command_prototypes_refutes_doubles(
    double: Double, code: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command refutes a double without noise at ε = 8, where an earlier audit accepted it."""
    weaken_query(monkeypatch, double)
    ended, text = audited("--noise-multiplier", 0.6, "--canaries", 50_000, "--guesses", 24_000, "--json")
    found: dict[str, Any] = json.loads(text)
    assert (ended, found["verdict"], found["mechanism"]) == (code, verdict, "prototypes")
    assert (found["canaries"], found["guesses"], found["level"]) == (50_000, 24_000, pytest.approx(0.05))
    assert found["epsilon_claimed"] == pytest.approx(8.004, abs=1e-3)
    assert (found["epsilon_bound"] >= found["epsilon_claimed"]) is (code == 3)
    assert (
        found["expected_bound"]["half the noise"]
        > found["epsilon_claimed"]
        > found["expected_bound"]["noise as claimed"]
    )
    assert found["half_the_noise_passes"] < 1e-9
    assert (found["right"] >= found["right_that_refute"]) is (code == 3)
    assert (found["p_value"] < 0.05) is (code == 3)
    assert found["not_played"]


def test_audit_command_few_canaries_too_weak() -> None:
    code, text = audited("--canaries", 100, "--guesses", 10, "--noise-multiplier", 0.6)
    assert code == 4
    assert text.startswith("TOO WEAK TO TELL")
    assert "--canaries" in text


def test_verdict_lenient_level_is_no_power() -> None:
    """Half the noise passes a level of 0.7 more often than the audit counts as power."""
    plan = AuditPlan(canaries=400, made=96, level=0.7, refuting=61, missed=0.48, doubtful=90)
    assert CanaryAudit(plan, Guesses(400, 96, 60)).verdict is AuditVerdict.TOO_WEAK
    assert CanaryAudit(replace(plan, missed=0.05), Guesses(400, 96, 60)).verdict is AuditVerdict.STANDS


@pytest.mark.full
def test_audit_command_prototypes_takes_agreement() -> None:
    """The sample has one release with a noise multiplier of 2, since its features are frozen."""
    sample = Path(__file__).parents[3] / "deploy" / "samples" / "agreement-private.toml"
    few = ("--agreement", sample, "--canaries", 1000, "--guesses", 100, "--json")
    found = json.loads(audited(*few)[1])
    assert found["epsilon_claimed"] == pytest.approx(epsilon([GaussianRelease(2.0)], DELTA))
    assert any("canaries have 4" in part for part in found["not_played"])
    found = json.loads(audited(*few, "--releases", 4)[1])
    assert found["epsilon_claimed"] == pytest.approx(epsilon([GaussianRelease(2.0)] * 4, DELTA))


FEDPC: dict[str, Any] = {"method": "fedpc", "averaging": {"parameters": 1000}}
FEDPLCC: dict[str, Any] = {"method": "fedplcc", "averaging": {"parameters": 1000}, "protection": "plain"}
PRIVATE = {"extractor": "private", "dp_sgd": {"noise_multiplier": 2.0, "clip": 1.0, "sampling_rate": 0.1}}


@pytest.mark.parametrize(
    ("changes", "privacy", "told", "played"),
    [
        ({}, {"unit": "subject"}, "", {"unit": Unit.SUBJECT}),
        ({}, {"unit": "site"}, "a whole site", {"unit": Unit.SITE}),
        ({}, {"project_from": 16}, "projection", {}),
        ({}, {"extractor": "trained"}, "NO GUARANTEE", {}),
        ({}, PRIVATE, "releases and DP-SGD together", {}),
        (FEDPLCC, PRIVATE, "cells", {}),
        (FEDPC | {"protection": "masked"}, {"noise": "distributed", "colluding": 1}, "masks", {"shares": 2}),
    ],
)
def test_audit_command_plays_or_names_each_setting(
    changes: dict[str, Any],
    privacy: dict[str, Any],
    told: str,
    played: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    section = {"clip": 2.0, "noise_multiplier": 4.0} | privacy
    inner = section.pop("dp_sgd", None)
    table = (
        AGREEMENT | {"protection": "plain", "training": {"norm": "group"}} | changes | {"privacy": section}
    )
    file = write(tmp_path / "agreement.toml", table)
    if inner is not None:
        lines = "".join(f"{name} = {value}\n" for name, value in inner.items())
        file.write_text(file.read_text("utf-8") + f"\n[privacy.dp_sgd]\n{lines}", "utf-8")
    seen: list[tuple[AuditedQuery, tuple[str, ...]]] = []
    monkeypatch.setattr(
        budget_audit,
        "audit_with_canaries",
        lambda _, audited, not_played, **__: seen.append((audited, not_played)),
    )
    code, text = audited("--agreement", file)
    assert code == 0, text
    ((mechanism, not_played),) = seen
    assert told in " ".join(not_played)
    assert mechanism.noise_multiplier == pytest.approx(4.0)
    assert {name: getattr(mechanism, name) for name in played} == played


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--canaries", 500, "--guesses", 501), "more than --canaries"),
        (("--noise-multiplier", 1e-12), "steps"),
        (("--confidence", 1), "range"),
        (("--noise-multiplier", 0.01), "too small for a finite claimed"),
        (("--delta", 1e-13), "too small for a finite claimed"),
    ],
)
def test_audit_command_impossible_arguments_refused(arguments: tuple[object, ...], told: str) -> None:
    code, text = audited(*arguments)
    assert code == 2
    assert told in text
