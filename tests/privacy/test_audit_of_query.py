"""An audit of the prototype query: it stays below the claim, and refutes it where noise is halved or left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from crypto.discrete_gaussian import discrete_gaussian
from protoseal.cli import main
from protoseal.evaluation.audit import fair_coins
from protoseal.evaluation.audit_power import Separation, best_guesses
from protoseal.evaluation.audited import audit, expected
from protoseal.evaluation.audited_query import QueryUnderAudit
from secure_client.privacy import query as query_module
from secure_client.privacy.accounting import epsilon
from secure_client.privacy.events import GaussianRelease
from secure_client.privacy.query import PrototypeQuery
from tests.support.audits import FALSE_ALARM, margin

DELTA, LEVEL = 1e-5, 0.05
CANARIES = 100_000
ONE = QueryUnderAudit(PrototypeQuery(clip=3.0, count_weight=2.0, noise_multiplier=2.0, min_count=1.0))
FOUR = QueryUnderAudit(PrototypeQuery(3.0, 2.0, 4.0, 1.0), releases=4, dim=5)


def weaken(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Noise of half the standard deviation, or none, where the software draws it."""

    def halved(count: int, log2: int) -> NDArray[np.int64]:
        return discrete_gaussian(count, log2 - 1)

    def off(count: int, log2: int) -> NDArray[np.int64]:
        return np.zeros(count, np.int64)

    monkeypatch.setattr(query_module, "discrete_gaussian", {"halved": halved, "off": off}[how])


@pytest.mark.parametrize("audited", [ONE, FOUR], ids=["one release", "four releases"])
def test_the_query_keeps_its_claim(audited: QueryUnderAudit) -> None:
    done = audit(audited, CANARIES, DELTA, LEVEL)
    assert margin(done, audited.separation()) > FALSE_ALARM
    assert not done.refuted
    assert 0.8 < done.bound < done.claimed  # it finds half of what there is
    assert done.bound == pytest.approx(expected(audited, done, 1.0), abs=0.2)


@pytest.mark.parametrize("how", ["halved", "off"])
@pytest.mark.parametrize("audited", [ONE, FOUR], ids=["one release", "four releases"])
def test_weaker_noise_refutes_the_claim(
    audited: QueryUnderAudit, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken(monkeypatch, how)
    done = audit(audited, CANARIES, DELTA, LEVEL)
    assert done.refuted
    assert done.bound > done.claimed > audited.claimed(CANARIES, 1e-3)
    assert done.p_value < LEVEL
    if how == "halved":
        assert margin(done, audited.separation(0.5)) > FALSE_ALARM
    else:
        assert done.guesses.right == done.guesses.made


def test_the_claim_is_the_accountants() -> None:
    releases = [GaussianRelease(4.0, CANARIES * 6)] * 4
    assert FOUR.claimed(CANARIES, DELTA) == epsilon(releases, DELTA)
    assert FOUR.claimed(CANARIES, DELTA) == pytest.approx(ONE.claimed(CANARIES, DELTA), abs=1e-3)


def test_scores_are_a_canarys_inner_product_with_the_noisy_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise one for each release if it is in, but for rounding to whole steps; else nothing."""
    weaken(monkeypatch, "off")
    coins = fair_coins(3000)
    for audited in (ONE, FOUR):
        np.testing.assert_allclose(audited.scores(coins), coins * float(audited.releases), atol=1e-4)


def test_scores_are_as_far_apart_as_is_said() -> None:
    """Both deviations and the shift, within 6.5 of their errors."""
    coins = fair_coins(40_000)
    for audited in (ONE, FOUR):
        said, sigma = audited.separation(), audited.query.noise_multiplier * audited.releases**0.5
        scores = audited.scores(coins) / sigma
        inside, outside = scores[coins], scores[~coins]
        assert inside.mean() - outside.mean() == pytest.approx(said.shift, abs=6.5 * 2 / 200)
        assert outside.std() == pytest.approx(1.0, abs=6.5 / 200)
        assert inside.std() == pytest.approx(said.spread, abs=6.5 / 200)


def test_right_guesses_are_as_many_as_expected() -> None:
    """Of scores drawn by a seed: the planned number of guesses is that of the mixture, to a few deviations."""
    rng = np.random.default_rng(2)
    coins = rng.integers(0, 2, CANARIES).astype(np.bool_)
    separation = Separation(1.3, 1.2)
    scores = np.where(coins, rng.normal(1.3, 1.2, CANARIES), rng.normal(size=CANARIES))
    order = np.argsort(scores)
    for made in (200, 8000, CANARIES):
        half = made // 2
        right = coins[order[-half:]].sum() + (~coins[order[:half]]).sum()
        assert separation.right(CANARIES, made) == pytest.approx(right, abs=5 * made**0.5)
    assert separation.right(CANARIES, 0) == 0
    assert 10 <= best_guesses(20, separation, 1.0, DELTA) <= 20


# The command


def audited(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["budget", "audit", "prototypes", *map(str, arguments)])
    assert "Traceback" not in done.output
    return done.exit_code, done.output


def test_what_the_command_finds() -> None:
    code, text = audited("--json")
    found: dict[str, Any] = json.loads(text)
    assert (code, found["refuted"], found["mechanism"]) == (0, False, "prototypes")
    assert found["canaries"] == CANARIES
    assert 0.8 < found["epsilon_bound"] < found["epsilon_claimed"] == pytest.approx(1.993, abs=1e-3)
    assert found["expected_bound"]["half the noise"] > found["epsilon_claimed"]
    # More right guesses than refute: a probability below 1e-15.
    code, text = audited("--canaries", 5000, "--guesses", 400, "--confidence", 0.9, "--dim", 3)
    assert code == 0
    assert "400 guesses" in text
    assert "confidence of 90 %" in text
    assert "the claim stands" in text


def test_the_command_takes_what_is_agreed() -> None:
    """4 releases with a noise multiplier of 6.3, as the sample has them; a right claim is refuted with 1e-9 at most."""
    sample = Path(__file__).parents[2] / "deploy" / "samples" / "agreement-private.toml"
    sure = ("--canaries", 2000, "--confidence", 0.999999999, "--json")
    code, text = audited("--agreement", sample, *sure)
    assert code == 0
    assert json.loads(text)["epsilon_claimed"] == pytest.approx(epsilon([GaussianRelease(6.3)] * 4, DELTA))
    _, text = audited("--agreement", sample, "--releases", 1, *sure)
    assert json.loads(text)["epsilon_claimed"] == pytest.approx(epsilon([GaussianRelease(6.3)], DELTA))


def test_the_command_fails_where_the_claim_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    weaken(monkeypatch, "off")
    code, text = audited("--canaries", 2000)
    assert code == 1
    assert "the claim is refuted" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--canaries", 500, "--guesses", 501), "more than --canaries"),
        (("--noise-multiplier", 1e-12), "steps"),
        (("--confidence", 1), "range"),
        (("--noise-multiplier", 0.01), "nothing to refute"),
        (("--delta", 1e-13), "nothing to refute"),
    ],
)
def test_what_cannot_be_audited_is_refused(arguments: tuple[object, ...], told: str) -> None:
    code, text = audited(*arguments)
    assert code == 2
    assert told in text
