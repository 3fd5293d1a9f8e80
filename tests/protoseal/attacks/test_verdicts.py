"""Verdicts on attacks, and attacks on builds in which a defence is silently missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from crypto import rotation
from crypto.pairwise import masks, unmask
from crypto.protection import Words
from protoseal.attacks.cases import Measurement, Verdict, clustered_interval, judge
from protoseal.attacks.image_gallery import GALLERY
from protoseal.attacks.prototype_inversion import PrototypeInversion
from protoseal.attacks.prototype_membership import PrototypeMembership, allowed_rates, auc, true_positive_rate
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import RecordedRun
from tests.protoseal.attacks.recorded import record_anew, recorded
from tests.support.audit_doubles import weaken_query

NOISE = {"clip": 2.0, "noise_multiplier": 40.0, "min_count": 1.0}
SEVERITY = (Verdict.DEFENDED, Verdict.TOO_WEAK, Verdict.NOT_DEFENDED)
CASE = PrototypeMembership()


def measured(value: float, low: float, high: float) -> Measurement:
    return Measurement(value, low, high, trials=20)


@pytest.mark.parametrize(
    ("found", "undefended", "verdict"),
    [
        ((0.9, 0.8, 1.0), (0.9, 0.8, 1.0), Verdict.NOT_DEFENDED),
        ((0.5, 0.45, 0.55), (0.9, 0.8, 1.0), Verdict.DEFENDED),
        ((0.55, 0.51, 0.59), (0.9, 0.8, 1.0), Verdict.DEFENDED),
        ((0.55, 0.40, 0.70), (0.9, 0.8, 1.0), Verdict.TOO_WEAK),
        ((0.65, 0.48, 0.80), (0.9, 0.8, 1.0), Verdict.TOO_WEAK),
        ((0.5, 0.45, 0.55), (0.55, 0.51, 0.6), Verdict.TOO_WEAK),
        ((0.5, 0.45, 0.55), (0.9, 0.49, 1.0), Verdict.TOO_WEAK),
    ],
)
def test_a_defence_counts_only_if_the_attack_succeeds_without_it(
    found: tuple[float, float, float], undefended: tuple[float, float, float], verdict: Verdict
) -> None:
    assert judge(measured(*found), measured(*undefended), chance=0.5, margin=0.1) is verdict


def test_a_measurement_lies_in_its_interval() -> None:
    with pytest.raises(ValueError, match="interval"):
        measured(0.5, 0.6, 0.7)


def test_few_releases_have_a_wide_interval_or_none() -> None:
    values = np.array([0.2, 0.4, 0.3, 0.5])

    def mean(chosen: np.ndarray[Any, Any]) -> float:
        return float(values[chosen].mean())

    assert clustered_interval(mean, 2) == (0.0, 1.0)
    low, high = clustered_interval(mean, 4)
    assert (high - low) / 2 == pytest.approx(3.182 * values.std(ddof=1) / 2, rel=1e-3)


def test_intervals_over_releases_are_wider_than_over_records() -> None:
    """Ten records of a release that share its noise are one observation, not ten."""
    rng = np.random.default_rng(0)
    releases = np.repeat(rng.normal(size=30), 10).reshape(30, 10)
    low, high = clustered_interval(lambda chosen: float(releases[chosen].mean()), 30, bounds=(-9, 9))
    assert high - low > 2 * 1.96 * releases.std() / np.sqrt(300)


def test_rates_at_a_threshold_are_those_of_sorted_scores() -> None:
    members, outsiders = np.array([0.5, 2.0, 3.0, 4.0]), np.array([0.0, 1.0, 2.0, 2.5])
    assert auc(members, outsiders) == (0.25 + (2 + 0.5) / 4 + 1 + 1) / 4
    assert true_positive_rate(members, outsiders, 0.0) == 0.5
    assert true_positive_rate(members, outsiders, 0.25) == 0.5
    assert true_positive_rate(members, outsiders, 1.0) == 1.0


def test_epsilon_allows_the_known_rates() -> None:
    """ε = 1 allows e · 0.1 % at 0.1 % false positives, and ε = 3 allows e³ · 0.1 %, plus δ."""
    for epsilon, allowed in ((1.0, 0.00273), (3.0, 0.0201)):
        assert allowed_rates(epsilon, 1e-5, np.array([0.001]))[0] == pytest.approx(allowed, rel=0.01)


# Doubles


def worst(run: RecordedRun, undefended: RecordedRun, adversary: Adversary = Adversary.COORDINATOR) -> Verdict:
    """Return the worst verdict over the adversary's readings."""
    baseline = CASE.measure(undefended, Adversary.COORDINATOR)[0]
    verdicts = [
        judge(each, baseline, chance=CASE.chance, margin=CASE.margin) for each in CASE.measure(run, adversary)
    ]
    return max(verdicts, key=SEVERITY.index)


def leave_out_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    def unchanged(words: Words, plus: Sequence[bytes], minus: Sequence[bytes]) -> Words:
        return words.copy()

    monkeypatch.setattr(masks, "add_streams", unchanged)
    monkeypatch.setattr(unmask, "add_streams", unchanged)


def leave_out_rotations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "rotate", lambda key, vectors, inverse=False: vectors.copy())


@pytest.mark.parametrize(
    ("method", "leave_out"), [("feddbp", leave_out_masks), ("pfpl", leave_out_rotations)]
)
def test_a_missing_protection_is_found(
    method: str, leave_out: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    undefended = recorded(method)
    assert worst(recorded(method, "masked"), undefended) is Verdict.DEFENDED
    leave_out(monkeypatch)
    assert worst(record_anew(method, "masked"), undefended) is Verdict.NOT_DEFENDED


def test_missing_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    undefended = recorded("pfpl")
    noisy = record_anew("pfpl", "plain", privacy=NOISE)
    assert worst(noisy, undefended) is not Verdict.NOT_DEFENDED
    weaken_query(monkeypatch, "none")
    assert worst(record_anew("pfpl", "plain", privacy=NOISE), undefended) is Verdict.NOT_DEFENDED


def test_a_key_given_away_is_found() -> None:
    run = recorded("pfpl", "ckks")
    assert worst(run, recorded("pfpl")) is Verdict.DEFENDED
    assert worst(run, recorded("pfpl"), Adversary.COLLUSION) is Verdict.NOT_DEFENDED


# Inversion


@pytest.fixture(scope="module")
def inverted() -> dict[str, Measurement]:
    """Return inversions of prototypes of one sample and of twenty, and of one sample under a rotation."""
    plain, masked = (recorded("pfpl", protection, (1, 20)) for protection in ("plain", "masked"))
    one, many = (PrototypeInversion(samples, decoder=True) for samples in (1, 20))
    by_matching = PrototypeInversion(1, decoder=False)
    runs = {
        "one": (one, plain),
        "many": (many, plain),
        "matched": (by_matching, plain),
        "rotated": (one, masked),
    }
    return {name: case.measure(run, Adversary.COORDINATOR)[0] for name, (case, run) in runs.items()}


def test_one_image_is_found_from_its_prototype_and_one_of_twenty_is_not(
    inverted: dict[str, Measurement],
) -> None:
    chance = 1 / GALLERY
    assert inverted["one"].low > chance + 0.2
    assert inverted["matched"].low > chance
    assert inverted["many"].high < inverted["one"].low


def test_a_rotated_prototype_gives_no_image(inverted: dict[str, Measurement]) -> None:
    assert inverted["rotated"].low <= 0.2
    assert inverted["rotated"].high < inverted["one"].low


def test_a_reconstruction_is_shown_beside_the_original(inverted: dict[str, Measurement]) -> None:
    shown = inverted["one"].pictures[0].images
    assert set(shown) == {"original", "reconstruction", "class mean"}
    assert all(each.shape == (8, 8) and 0 <= each.min() <= each.max() <= 1 for each in shown.values())
