"""Membership inference on prototypes: rates that have a closed form, and builds in which a defence is missing.

The last test of the first part states a limit of every exact mean, which no reading of the command ``attack`` uses.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import nnls  # type: ignore[import-untyped]  # it ships no types
from scipy.stats import norm  # type: ignore[import-untyped]  # it ships no types

from protoseal.attacks.cases import Verdict, divide_test_samples
from protoseal.attacks.prototype_membership import (
    PrototypeMembership,
    Scores,
    allowed_rates,
    auc,
    score_release,
    true_positive_rate,
)
from protoseal.attacks.readings import Adversary, readings
from protoseal.attacks.recorded_run import RecordedRun, Rows
from tests.protoseal.attacks.recorded import (
    leave_out_masks,
    leave_out_rotations,
    record_anew,
    recorded_frozen,
    recorded_large,
)
from tests.support.audit_doubles import weaken_query

FEATURES, OUTSIDERS, RATE, DELTA = 512, 400, 0.001, 1e-5
CLIP = float(np.sqrt(FEATURES))
NOISE = 3.7304
"""Noise multiplier of one release with ε = 1 at δ = 1e-5."""


def rate(releases: int, records: int, noise: float = 0.0) -> float:
    """Return the true-positive rate at 0.1 % false positives over all releases.

    Each release is the mean of so many clipped records, whose sum has noise of ``noise`` times the clipping bound.
    """
    rng = np.random.default_rng(7)
    found = [_one_release(rng, records, noise) for _ in range(releases)]
    members, outsiders = (
        np.concatenate([getattr(each, name) for each in found]) for name in ("members", "outsiders")
    )
    return true_positive_rate(members, outsiders, RATE)


def _one_release(rng: np.random.Generator, records: int, noise: float) -> Scores:
    """Score one release; public records come in pairs of opposite sign, so that their mean is the true one."""
    members, outsiders, public = (_drawn(rng, count, noise) for count in (records, OUTSIDERS, OUTSIDERS // 2))
    total = members.sum(axis=0, keepdims=True) + rng.normal(size=(1, FEATURES)) * noise * CLIP
    return score_release(
        total / records, members, outsiders, np.concatenate([public, -public]), np.eye(FEATURES)
    )


def _drawn(rng: np.random.Generator, count: int, noise: float) -> Rows:
    rows = rng.normal(size=(count, FEATURES))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths / CLIP, 1.0) if noise else rows


def expected(records: int, noise: float = 0.0) -> float:
    """Return Φ(μ − z): a member's score is higher by μ = √d / √(n + σ²d) deviations of an outsider's."""
    shift = np.sqrt(FEATURES) / np.sqrt(records + noise**2 * FEATURES)
    return float(norm.cdf(shift - norm.isf(RATE)))


@pytest.mark.parametrize(
    ("records", "releases", "within"), [(10, 20, 0.001), (50, 40, 0.06), (200, 20, 0.03)]
)
def test_score_release_true_positive_rate_is_the_closed_form(
    records: int, releases: int, within: float
) -> None:
    """Rates are 100, 54 and 7 % for 10, 50 and 200 records of 512 features."""
    assert rate(releases, records) == pytest.approx(expected(records), abs=within)


def test_score_release_is_the_standardised_log_likelihood_ratio() -> None:
    """The row is a mean of three members; scores are standardised by those of the public samples."""
    rng = np.random.default_rng(3)
    members, outsiders, public = (rng.normal(size=(count, 4)) for count in (3, 5, 50))
    row, precision = members.mean(axis=0), np.diag([1.0, 2.0, 3.0, 4.0])
    mean = public.mean(axis=0)

    def ratios(features: Rows) -> Rows:
        return np.array(
            [
                (f - mean) @ precision @ (row - mean) - (f - mean) @ precision @ (f - mean) / 6
                for f in features
            ]
        )

    scores = score_release(row[None], members, outsiders, public, precision)
    base = ratios(public)
    np.testing.assert_allclose(scores.members, (ratios(members) - base.mean()) / base.std())
    np.testing.assert_allclose(scores.outsiders, (ratios(outsiders) - base.mean()) / base.std())


@pytest.mark.full
def test_score_release_noise_stays_below_epsilons_rate_and_half_does_not() -> None:
    """Members are found at 0.24 % at ε = 1, which allows 0.27 %, and at 0.52 % with half the noise."""
    allowed = float(allowed_rates(1.0, DELTA, np.array([RATE]))[0])
    claimed, weakened = rate(300, 50, NOISE), rate(300, 50, NOISE / 2)
    assert claimed == pytest.approx(expected(50, NOISE), abs=0.0013)
    assert expected(50, NOISE) < allowed < expected(50, NOISE / 2)
    assert weakened > allowed + 0.0013


@pytest.mark.parametrize(("protection", "weighting"), [("plain", "complement"), ("masked", "uniform")])
def test_the_stated_limit_a_list_of_all_records_solves_an_exact_mean(protection: str, weighting: str) -> None:
    """Fewer candidates than features are equations with one solution: sums over sites hide no member either."""
    run = recorded_frozen(protection, weighting)
    learned = readings(run, Adversary.COORDINATOR, "site-2")[-1]
    others = [site.train for name, site in run.sites.items() if name != "site-2"]
    # A sum is of all sites' records, which the list then has as well.
    lists = [
        run.sites["site-2"].train,
        divide_test_samples(run, "site-2").outsiders,
        *(others if protection == "masked" else []),
    ]
    weights = []
    for k in np.unique(learned.labels):
        inputs = [part.of_class(int(k)).inputs for part in lists]
        solution, _ = nnls(run.sites["site-2"].features(torch.cat(inputs)).T, learned.of_class(k)[0])
        weights.append(np.split(solution, np.cumsum([len(part) for part in inputs]))[:2])
    members, outsiders = (np.concatenate(parts) for parts in zip(*weights, strict=True))
    assert members.min() > 10.0 * outsiders.max()


def test_auc_and_true_positive_rate_follow_sorted_scores() -> None:
    members, outsiders = np.array([0.5, 2.0, 3.0, 4.0]), np.array([0.0, 1.0, 2.0, 2.5])
    assert auc(members, outsiders) == (0.25 + (2 + 0.5) / 4 + 1 + 1) / 4
    assert true_positive_rate(members, outsiders, 0.0) == 0.5
    assert true_positive_rate(members, outsiders, 0.25) == 0.5
    assert true_positive_rate(members, outsiders, 1.0) == 1.0


def test_allowed_rates_are_the_known_ones() -> None:
    """ε = 1 allows e · 0.1 % at 0.1 % false positives, and ε = 3 allows e³ · 0.1 %, plus δ."""
    for epsilon, allowed in ((1.0, 0.00273), (3.0, 0.0201)):
        assert allowed_rates(epsilon, 1e-5, np.array([0.001]))[0] == pytest.approx(allowed, rel=0.01)


# Missing defences


STRONG_NOISE = {"clip": 2.0, "noise_multiplier": 40.0, "min_count": 1.0}
SEVERITY = (Verdict.DEFENDED, Verdict.TOO_WEAK, Verdict.NOT_DEFENDED)
CASE = PrototypeMembership()


def worst(run: RecordedRun, undefended: RecordedRun, adversary: Adversary = Adversary.COORDINATOR) -> Verdict:
    """Return the worst verdict over the adversary's readings."""
    baseline = CASE.measure(undefended, Adversary.COORDINATOR)[0]
    verdicts = [CASE.judge(each, baseline) for each in CASE.measure(run, adversary)]
    return max(verdicts, key=SEVERITY.index)


def check_fails(run: RecordedRun, undefended: RecordedRun) -> None:
    """Raise ``AssertionError`` unless the attack succeeds undefended, and every reading of the run is below its margin.

    The verdict "defended" asks the same of the interval's upper end. With masks and ciphertexts, which are drawn anew
    for each run, that end passes the margin in one run of some 200; the values, of standard deviation 0.02, do not.
    """
    success = CASE.chance + CASE.margin
    baseline = CASE.measure(undefended, Adversary.COORDINATOR)[0]
    assert baseline.low > CASE.chance
    assert baseline.value >= success
    assert max(reading.value for reading in CASE.measure(run, Adversary.COORDINATOR)) < success


@pytest.mark.parametrize(
    ("method", "leave_out"), [("feddbp", leave_out_masks), ("pfpl", leave_out_rotations)]
)
def test_prototype_membership_missing_protection_is_found(
    method: str, leave_out: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    undefended = recorded_large(method)
    check_fails(recorded_large(method, "masked"), undefended)
    leave_out(monkeypatch)
    assert worst(record_anew(method, "masked"), undefended) is Verdict.NOT_DEFENDED


def test_prototype_membership_missing_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    undefended = recorded_large("pfpl")
    noisy = record_anew("pfpl", "plain", privacy=STRONG_NOISE)
    assert worst(noisy, undefended) is not Verdict.NOT_DEFENDED
    weaken_query(monkeypatch, "none")
    assert worst(record_anew("pfpl", "plain", privacy=STRONG_NOISE), undefended) is Verdict.NOT_DEFENDED


def test_prototype_membership_key_given_away_is_found() -> None:
    run = recorded_large("pfpl", "ckks")
    check_fails(run, recorded_large("pfpl"))
    assert worst(run, recorded_large("pfpl"), Adversary.COLLUSION) is Verdict.NOT_DEFENDED
