"""Verdicts of the audit on mechanisms that are as they claim, and on doubles that are not.

Three quarters of the noise refute no claim, but give more right guesses than all of it: the verdict is "too weak to
tell". Where the claimed ε is small, so many canaries do not tell them from all of the noise.

P-values are compared with linear programs over the theorem's inequalities and over all mechanisms, and with exact
chances; the share of members that attacks recognise with closed forms, and with Opacus's accountant.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog  # type: ignore[import-untyped]  # it ships no types
from scipy.stats import binom, norm  # type: ignore[import-untyped]

from agreement import DpSgdSection
from privacy.accounting.accountant import Composed
from privacy.accounting.events import DpSgd, Event, GaussianRelease
from privacy.mechanisms.prototype_query import PrototypeQuery
from protoseal.audit.canary_audit import (
    LEAST_P,
    AuditedMechanism,
    AuditVerdict,
    Guesses,
    audit_mechanism,
    fair_coins,
    fewest_refuting,
    guess_coins,
    is_possible,
    lower_bound,
    p_value,
    plan_audit,
)
from protoseal.audit.prototype_canaries import AuditedQuery
from protoseal.audit.trade_off import (
    GaussianTradeOff,
    PairsTradeOff,
    TradeOff,
    composed_trade_off,
    most_recognised,
)
from protoseal.audit.training_canaries import AuditedTraining
from tests.privacy.accountants import gaussian_delta, prv
from tests.support.audit_doubles import DOUBLES, Double, weaken_query, weaken_training
from tests.support.composed import epsilon
from tests.support.marks import full_but

DELTA, LEVEL, FALSE_ALARM = 1e-5, 0.05, 1e-9
EXPECTED: dict[Double, AuditVerdict] = {
    "as claimed": AuditVerdict.STANDS,
    "three quarters": AuditVerdict.TOO_WEAK,
    "half": AuditVerdict.REFUTED,
    "none": AuditVerdict.REFUTED,
    "no clipping": AuditVerdict.REFUTED,
}
Weaken = Callable[[pytest.MonkeyPatch, Double], None]


def query(noise: float) -> AuditedQuery:
    return AuditedQuery(PrototypeQuery(3.0, 2.0, noise, 1.0), dim=2)


def training(noise: float, rate: float, epochs: int) -> AuditedTraining:
    settings = DpSgdSection(noise_multiplier=noise, clip=0.3, sampling_rate=rate)
    return AuditedTraining(settings, epochs)


MECHANISMS: list[tuple[Weaken, AuditedMechanism, int, int, int]] = [
    (weaken_query, query(3.731), 100_000, 12_000, 1),
    (weaken_query, query(1.995), 200_000, 24_000, 2),
    (weaken_query, query(1.081), 50_000, 12_000, 4),
    (weaken_query, query(0.6003), 50_000, 24_000, 8),
    (weaken_query, query(0.5), 50_000, 24_000, 10),
    (weaken_training, training(4.858, 0.9, 1), 60_000, 7200, 1),
    (weaken_training, training(1.458, 0.9, 1), 50_000, 12_000, 4),
    (weaken_training, training(0.849, 1.0, 2), 30_000, 14_400, 8),
    (weaken_training, training(0.707, 1.0, 2), 40_000, 19_200, 10),
]
"""Mechanisms with their weakening, numbers of canaries and guesses, and ε."""
UNDECIDED = {(weaken_query, 1), (weaken_training, 1)}
"""Cases in which three quarters of the noise have no certain verdict."""
NAMES = [f"{weaken.__name__.partition('_')[2]} at {epsilon}" for weaken, *_, epsilon in MECHANISMS]


@pytest.mark.parametrize(
    ("weaken", "audited", "canaries", "guesses", "epsilon"),
    full_but(MECHANISMS, MECHANISMS[3]),
    ids=NAMES,
)
def test_audit_mechanism_refutes_doubles_and_no_true_claim(
    weaken: Weaken, audited: AuditedMechanism, canaries: int, guesses: int, epsilon: int
) -> None:
    """Any other verdict has a probability below 1e-9: the thresholds are 8 deviations off, or more."""
    assert audited.epsilon(canaries, DELTA) == pytest.approx(epsilon, rel=0.002)
    plan = plan_audit(audited, canaries, LEVEL, guesses)
    assert plan.missed < FALSE_ALARM
    for double in DOUBLES:
        if double == "three quarters" and (weaken, epsilon) in UNDECIDED:
            continue
        with pytest.MonkeyPatch.context() as monkeypatch:
            weaken(monkeypatch, double)
            done = audit_mechanism(audited, plan)
        assert done.verdict is EXPECTED[double], (double, done)
        if double in {"as claimed", "half"}:
            bound = lower_bound(audited, done.guesses, DELTA, LEVEL)
            assert (bound >= audited.epsilon(canaries, DELTA)) is (double == "half")


Signs = tuple[int, ...]
SOLVED = 1e-6
"""Accuracy of the linear programs' solutions."""
BOUND_LEVEL = 0.05


def pairs(*given: tuple[float, float]) -> PairsTradeOff:
    epsilons, deltas = zip(*given, strict=True)
    return PairsTradeOff(np.array(epsilons), np.array(deltas))


SEVERAL = pairs((0.2, 0.2), (0.7, 0.05), (2.0, 1e-3))


# The recursion, against all distributions of right guesses that its inequalities allow


def largest(guesses: Guesses, curve: PairsTradeOff) -> float:
    """Return the largest probability of so many right guesses, by linear programming over p_0 … p_r."""
    made, counts = guesses.made, np.arange(guesses.made + 1)
    above, limits = [], []
    for k in range(1, made + 1):
        right = np.where(counts >= k, counts, 0) / guesses.canaries
        wrong = np.where(counts >= k - 1, made - counts, 0) / guesses.canaries
        for one, delta in zip(curve.epsilons, curve.deltas, strict=True):
            above += [math.exp(-one) * right - wrong, math.exp(one) * right - wrong]
            limits += [math.exp(-one) * delta, math.exp(one) - 1 + delta]
    whole = np.ones((1, made + 1))
    return _maximum((counts >= guesses.right).astype(np.float64), np.array(above), np.array(limits), whole)


@pytest.mark.parametrize("curve", [pairs((1.0, 0.0)), pairs((2.0, 0.01)), SEVERAL])
@pytest.mark.parametrize(("canaries", "made"), [(1, 1), (9, 9), (40, 12), (25, 25)])
def test_p_value_equals_linear_program(curve: PairsTradeOff, canaries: int, made: int) -> None:
    for right in range(made + 1):
        guesses = Guesses(canaries, made, right)
        assert p_value(guesses, curve) == pytest.approx(largest(guesses, curve), rel=1e-5, abs=SOLVED)


def test_p_value_gaussian_curve_equals_its_pairs() -> None:
    """Pairs of a Gaussian are tangents of its curve, so that they allow a little more."""
    for mu in (0.3, 1.0, 3.0):
        epsilons = np.linspace(0.0, 30.0, 4000)
        drawn = PairsTradeOff(epsilons, np.array([gaussian_delta(mu, each) for each in epsilons]))
        for right in (60, 70, 80, 95, 100):
            guesses = Guesses(150, 100, right)
            exact = p_value(guesses, GaussianTradeOff(mu))
            assert exact * (1 - 1e-5) <= p_value(guesses, drawn) <= exact * 1.02


# All mechanisms, by linear programming


def most(coins: int, made: int, right: int, epsilon: float, delta: float) -> float:
    """Return the largest probability of so many right guesses over all (ε, δ)-private mechanisms.

    A mechanism is a distribution of guesses for each outcome of the coins. For each two outcomes that differ in one
    coin, in both directions, Σ max(0, P − e^ε·Q) over guesses is at most δ; the maxima are variables of their own.
    """
    outcomes = list(itertools.product((-1, 1), repeat=coins))
    guesses = [each for each in itertools.product((-1, 0, 1), repeat=coins) if sum(map(abs, each)) == made]
    place = {pair: number for number, pair in enumerate(itertools.product(outcomes, guesses))}
    pairs = [(one, other) for one in outcomes for other in outcomes if _wrong(one, other) == 1]
    size = len(place) + len(pairs) * len(guesses)
    above, limits = (
        np.zeros((len(pairs) * (len(guesses) + 1), size)),
        np.zeros(len(pairs) * (len(guesses) + 1)),
    )
    row = 0
    for number, (one, other) in enumerate(pairs):
        first = len(place) + number * len(guesses)
        for extra, guess in enumerate(guesses):
            above[row, [place[one, guess], place[other, guess], first + extra]] = 1, -math.exp(epsilon), -1
            row += 1
        above[row, first : first + len(guesses)], limits[row] = 1, delta
        row += 1
    whole, gain = np.zeros((len(outcomes), size)), np.zeros(size)
    for number, outcome in enumerate(outcomes):
        for guess in guesses:
            whole[number, place[outcome, guess]] = 1
            if made - _wrong(outcome, guess) >= right:
                gain[place[outcome, guess]] = 1 / len(outcomes)
    return _maximum(gain, above, limits, whole)


def most_alike(made: int, right: int, epsilon: float, delta: float) -> float:
    """Return the largest probability if all coins are guessed; the best mechanism then treats all coins, and both
    sides, alike.

    Turning and swapping coins gives mechanisms that are as good, and so does their mean. So let p_d be the probability
    of d wrong guesses; among those in which a given coin is right, (r − d)/r·p_d have d wrong ones.
    """
    size = made + 1 + 2 * made
    above, limits = np.zeros((2 * made + 1, size)), np.zeros(2 * made + 1)
    for d in range(made):
        one, other = (made - d) / made, (d + 1) / made
        above[d, [d, d + 1, made + 1 + d]] = one, -math.exp(epsilon) * other, -1
        above[made + d, [d + 1, d, 2 * made + 1 + d]] = other, -math.exp(epsilon) * one, -1
    above[-1, made + 1 :], limits[-1] = 1, delta
    whole, gain = np.zeros((1, size)), np.zeros(size)
    whole[0, : made + 1], gain[: made - right + 1] = 1, 1
    return _maximum(gain, above, limits, whole)


def _maximum(
    gain: NDArray[np.float64],
    above: NDArray[np.float64],
    limits: NDArray[np.float64],
    whole: NDArray[np.float64],
) -> float:
    found = linprog(-gain, above, limits, whole, np.ones(len(whole)), bounds=(0, 1))
    assert found.success
    return float(-found.fun)


def _wrong(one: Signs, other: Signs) -> int:
    return sum(a * b < 0 for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("coins", "made"), [(1, 1), (2, 1), (2, 2), (3, 2), (3, 3)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (0.5, 0.05), (2.0, 0.01)])
def test_p_value_some_coins_bounds_every_mechanism(
    coins: int, made: int, epsilon: float, delta: float
) -> None:
    """The bound is reached where all guesses are right."""
    for right in range(made + 1):
        best = most(coins, made, right, epsilon, delta)
        told = p_value(Guesses(coins, made, right), pairs((epsilon, delta)))
        assert best <= told + SOLVED
        assert right < made or told == pytest.approx(best, abs=SOLVED)


@pytest.mark.parametrize("made", [1, 2, 3, 7, 30])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 0.01), (1.0, 1e-3), (2.0, 0.01), (2.0, 1e-3)])
def test_p_value_all_coins_bounds_every_mechanism(made: int, epsilon: float, delta: float) -> None:
    for right in range(1, made + 1):
        best = most_alike(made, right, epsilon, delta)
        assert best <= p_value(Guesses(made, made, right), pairs((epsilon, delta))) + SOLVED
    assert best == pytest.approx(p_value(Guesses(made, made, made), pairs((epsilon, delta))), abs=SOLVED)
    assert best > p_value(Guesses(made, made, made), pairs((epsilon, 0.0))) + delta / 30  # δ is in it


# True claims are refuted as rarely as is said: exact probabilities, no samples


@pytest.mark.parametrize("made", [20, 500, 20_000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 8.0])
def test_fewest_refuting_randomised_response_keeps_level(made: int, epsilon: float) -> None:
    fewest = fewest_refuting(made, made, pairs((epsilon, 0.0)), BOUND_LEVEL)
    assert binom.sf(fewest - 1, made, 1 / (1 + math.exp(-epsilon))) < BOUND_LEVEL
    assert fewest <= made + 1


@pytest.mark.parametrize(("mu", "canaries"), [(0.3, 20_000), (1.0, 1000), (1.67, 1000), (2.0, 20_000)])
def test_fewest_refuting_gaussian_noise_keeps_level_and_has_power(mu: float, canaries: int) -> None:
    """Independent canaries, all guessed by the nearer mean: right with probability Φ(μ/2) each."""
    fewest = fewest_refuting(canaries, canaries, GaussianTradeOff(mu), BOUND_LEVEL)
    assert binom.sf(fewest - 1, canaries, norm.cdf(mu / 2)) < BOUND_LEVEL
    assert binom.sf(fewest - 1, canaries, norm.cdf(3 * mu)) > 0.99


# Which way p-values move, and that they are numbers


def test_p_value_falls_with_right_guesses_and_rises_with_claim() -> None:
    def told(right: int, mu: float = 1.0, canaries: int = 1000) -> float:
        return p_value(Guesses(canaries, 200, right), GaussianTradeOff(mu))

    rights = [told(right) for right in range(100, 201, 5)]
    assert rights == sorted(rights, reverse=True)
    assert rights[0] == 1.0
    assert rights[-1] < 1e-3
    claims = [told(190, mu) for mu in (0.1, 0.5, 1.0, 2.0, 4.0)]
    assert claims == sorted(claims)
    assert told(190, canaries=200) < told(190) < told(190, canaries=100_000)


def test_fewest_refuting_is_first_below_level() -> None:
    for curve in (GaussianTradeOff(0.5), GaussianTradeOff(1.5), SEVERAL):
        fewest = fewest_refuting(150, 100, curve, BOUND_LEVEL)
        assert (
            p_value(Guesses(150, 100, fewest), curve)
            < BOUND_LEVEL
            <= p_value(Guesses(150, 100, fewest - 1), curve)
        )
    assert fewest_refuting(300, 100, GaussianTradeOff(40.0), BOUND_LEVEL) == 101  # nothing refutes that


@pytest.mark.parametrize(
    "curve",
    [
        *(GaussianTradeOff(mu) for mu in (0.0, 1e-9, 8.0, 45.0, 1e3, 1e150)),
        GaussianTradeOff(1.0, slack=1e3),
        pairs((700.0, 0.0)),
        pairs((900.0, 1e-300)),
        pairs((0.0, 1.0)),
        pairs((0.0, 0.0)),
    ],
    ids=repr,
)
def test_p_value_extreme_claims_stay_probabilities(curve: TradeOff) -> None:
    for made, right in ((0, 0), (1, 1), (5000, 0), (5000, 2500), (5000, 4999), (5000, 5000)):
        found = p_value(Guesses(5000, made, right), curve)
        assert LEAST_P <= found <= 1.0
    values = [curve.least(each) for each in (0.0, 1e-300, 1e-9, 0.5, 1 - 1e-12, 1.0)]
    assert values == sorted(values)
    assert values[0] == 0.0
    assert values[-1] <= 1.0


def test_p_value_no_privacy_allows_all_right() -> None:
    assert p_value(Guesses(5000, 5000, 5000), GaussianTradeOff(45.0)) == pytest.approx(1.0)
    assert p_value(Guesses(5000, 5000, 5000), GaussianTradeOff(0.0)) == LEAST_P


@pytest.mark.parametrize("numbers", [(10, 11, 5), (10, 5, 6), (10, 5, -1)])
def test_guesses_impossible_numbers_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="made"):
        Guesses(*numbers)


# Curves of what is accounted for


def test_composed_trade_off_lies_below_exact_curve() -> None:
    """Training in which every record takes part is Gaussian noise; its pairs are known to a little less."""
    whole = composed_trade_off(Composed.of([DpSgd(3.0, 1.0, 4)]))
    exact = GaussianTradeOff(2 / 3)
    for probability in (1e-6, 1e-3, 0.05, 0.3, 0.9):
        assert 0.97 * exact.least(probability) - 1e-9 < whole.least(probability) <= exact.least(probability)
    releases = composed_trade_off(Composed.of([GaussianRelease(3.0, 10**7)] * 4))
    assert isinstance(releases, GaussianTradeOff)
    assert releases.mu == pytest.approx(2 / 3)
    assert releases.slack > 0
    assert releases.least(0.3) < GaussianTradeOff(2 / 3).least(0.3)


def test_composed_trade_off_holds_accountants_claim() -> None:
    """Curves give an event of probability y at least e^-ε·(y − δ) at the claimed ε and δ, and not much more."""
    history = [DpSgd(1.3, 0.1, 100)]
    curve, claimed = composed_trade_off(Composed.of(history)), epsilon(history, 1e-5)
    assert curve.least(1e-4) >= math.exp(-claimed) * (1e-4 - 1e-5) * 0.99
    assert curve.least(1e-5) < 1e-5 * math.exp(-claimed)


def test_composed_trade_off_infinite_epsilon_is_zero() -> None:
    curve = composed_trade_off(Composed.of([DpSgd(1e-4, 0.5, 3)]))
    assert not any(map(curve.least, (0.0, 0.5, 1.0)))
    assert is_possible(Guesses(10, 10, 10), curve, 1.0)


# Which coins are guessed


def test_guess_coins_takes_extreme_scores() -> None:
    scores = np.array([0.3, -2.0, 5.0, 0.1, 4.0, -1.0])
    coins = np.array([True, False, True, False, False, True])
    assert guess_coins(scores, coins, 2) == Guesses(6, 2, 2)
    assert guess_coins(scores, coins, 4) == Guesses(6, 4, 2)
    assert guess_coins(scores, coins, 3) == Guesses(6, 3, 2)
    # Of three guesses two are that the highest scores are in, and one that the lowest is out.
    assert guess_coins(scores, np.array([True, True, True, False, True, True]), 3) == Guesses(6, 3, 2)
    assert guess_coins(scores, coins, 0) == Guesses(6, 0, 0)
    with pytest.raises(ValueError, match="7"):
        guess_coins(scores, coins, 7)


def test_fair_coins_are_fair() -> None:
    """Sum and correlation of neighbours, both within 6.2 deviations: a false alarm below 1e-9."""
    signs = np.where(fair_coins(40_000), 1, -1)
    assert abs(signs.sum()) < 6.2 * 200
    assert abs((signs[:-1] * signs[1:]).sum()) < 6.2 * 200


NORMAL = NormalDist()
ALARMS = (0.001, 0.01, 0.1)


def share_recognised(history: list[Event], alarms: float) -> float:
    return most_recognised(composed_trade_off(Composed.of(history)), alarms)


@pytest.mark.parametrize("alarms", ALARMS)
@pytest.mark.parametrize(("noise", "count"), [(1.39, 1), (6.3, 4), (0.5, 1), (13.9, 100)])
def test_most_recognised_releases_equals_neyman_pearson_power(
    noise: float, count: int, alarms: float
) -> None:
    """Neyman and Pearson: a sum of the releases is shifted by √count deviations of 1/noise."""
    power = 1 - NORMAL.cdf(NORMAL.inv_cdf(1 - alarms) - math.sqrt(count) / noise)
    found = share_recognised([GaussianRelease(noise, 650)] * count, alarms)
    assert power <= found == pytest.approx(power, rel=1e-4)


@pytest.mark.parametrize("alarms", ALARMS)
def test_most_recognised_dp_sgd_step_equals_power_against_mixture(alarms: float) -> None:
    noise, rate = 0.8, 0.3
    power = (1 - rate) * alarms + rate * (1 - NORMAL.cdf(NORMAL.inv_cdf(1 - alarms) - 1 / noise))
    found = share_recognised([DpSgd(noise, rate, 1)], alarms)
    assert power <= found <= 1.05 * power + 1e-4


@pytest.mark.parametrize("history", [[DpSgd(2.0, 0.05, 300), *[GaussianRelease(4.0)] * 3]])
def test_most_recognised_training_and_releases_equals_opacus(history: list[Event]) -> None:
    """Each pair (ε, δ) of Opacus bounds the power by e^ε·α + δ and by 1 − e^-ε·(1 − δ − α)."""
    deltas = np.geomspace(1e-5, 0.3, 25)
    epsilons = np.array([prv(history, float(delta), error=0.02) for delta in deltas])
    for alarms in ALARMS[1:]:
        rising = np.exp(epsilons) * alarms + deltas
        falling = 1 - np.exp(-epsilons) * (1 - deltas - alarms)
        assert share_recognised(history, alarms) == pytest.approx(min(rising.min(), falling.min()), rel=0.05)


def test_most_recognised_without_noise_is_all_and_endless_noise_none() -> None:
    assert most_recognised(GaussianTradeOff(40.0), 0.01) == 1.0
    assert most_recognised(GaussianTradeOff(0.0), 0.01) == pytest.approx(0.01)
    assert share_recognised([DpSgd(1e-4, 0.5, 1)], 0.01) == 1.0


def test_most_recognised_is_sharper_than_epsilon() -> None:
    history: list[Event] = [GaussianRelease(1.39)]
    loose = math.exp(Composed.of(history).epsilon(1e-5)) * 0.01 + 1e-5
    assert share_recognised(history, 0.01) < 0.3 * loose
