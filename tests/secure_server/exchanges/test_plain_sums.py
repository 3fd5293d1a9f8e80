"""Sums over one group at the coordinator: which vectors are refused, and means against loops over the sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Agreement, AveragingSection, Method, Protection
from agreement.derived import means
from agreement.derived.cohorts import group_cohort
from agreement.derived.payload_shapes import limits_of
from crypto.errors import CryptoError, MalformedError
from crypto.pairwise.masks import SCHEME as PAIRWISE
from crypto.plain import SCHEME as PLAIN
from crypto.protection import Payload
from protoseal_wire import codec
from protoseal_wire.codec import CodecError
from protoseal_wire.messages import ActiveList, Phase, PhaseKey, PresenceStatement
from secure_server.exchanges import sums
from secure_server.exchanges.exchange import Attempt, ExchangeParts
from secure_server.exchanges.group_results import GroupSum, check_means, group_payloads
from secure_server.exchanges.sums import PlainSumHalf
from tests.algorithms import feddbp_reference as paper
from tests.support.small import CLASSES, DIM, HOLDINGS
from tests.support.summed import PARTS, method_agreement, sizes_of

Vector = NDArray[np.float64]

SITES, MOST = tuple(HOLDINGS), 50
HOLDS = np.array([[k in held for k in range(len(CLASSES))] for held in HOLDINGS.values()])
SAMPLES = (18, 7, 12, 50)
"""Weights of four sites, the last at the most that is agreed."""
AVERAGED = [Method.FEDAVG, Method.FEDBN, Method.FEDPER, Method.FEDPROTO_AVERAGED]
RESULTS = [*AVERAGED, Method.FEDPROTO, Method.FEDDBP]


def agreed(method: Method, protection: Protection = Protection.PLAIN, **changes: Any) -> Agreement:
    parameters, buffers = sizes_of(PARTS[method])
    averaging = AveragingSection(parameters=parameters, buffers=buffers, most_samples=MOST)
    return method_agreement(method, protection, averaging=averaging, **changes)


def attempt(sites: tuple[str, ...] = SITES, answers: dict[str, bytes] | None = None) -> Attempt:
    """Return an attempt of one group of all of ``sites``, which have sent ``answers``."""
    statements = tuple(
        PresenceStatement(site, HOLDS[SITES.index(site)], b"signature", b"", None) for site in sites
    )
    roster: Any = None
    given = answers or {}
    return Attempt(
        PhaseKey("run-1", 1, 1, Phase.PRESENCE),
        roster,
        ActiveList(statements),
        (sites,),
        {Phase.VALUES: sites},
        lambda _, site: given[site],
    )


def contributions(agreement: Agreement, seed: int = 0) -> tuple[list[Vector], list[Vector]]:
    """Return each site's rows (K, d), within the norm bound, and model (p + q,)."""
    rng = np.random.default_rng(seed)
    rows = [0.1 * rng.normal(size=(len(CLASSES), DIM)) for _ in SITES]
    return rows, [rng.normal(size=agreement.layout.model) for _ in SITES]


def sent(agreement: Agreement, rows: list[Vector], models: list[Vector]) -> dict[str, Vector]:
    """Return the contribution of each site."""
    holds = group_cohort(attempt().active, SITES, agreement).holds
    taken = [np.where(held[:, None], own, 0.0) for held, own in zip(holds, rows, strict=True)]
    layout = agreement.layout
    return {
        site: layout.contribution(own if layout.classes else own[:0], model, samples)
        for site, own, model, samples in zip(SITES, taken, models, SAMPLES, strict=True)
    }


def half_of(agreement: Agreement) -> PlainSumHalf:
    return PlainSumHalf(ExchangeParts(agreement, limits_of(agreement), Path()))


def check(agreement: Agreement, vector: Vector, site: str = SITES[0]) -> None:
    """Check the vector as a site sends it: encoded, decoded, validated."""
    content = codec.encode_payload(Payload(PLAIN, arrays=(vector,)))
    half_of(agreement).check(attempt(), Phase.VALUES, site, content)


# What is refused


@pytest.mark.parametrize("weight", [0.0, -3.0, 1.5, MOST + 1.0, 1e300, float("nan"), float("inf")])
def test_a_weight_counts_samples(weight: float) -> None:
    agreement = agreed(Method.FEDAVG)
    vector = sent(agreement, *contributions(agreement))[SITES[0]]
    check(agreement, vector)
    vector[-1] = weight
    with pytest.raises((MalformedError, CodecError)):
        check(agreement, vector)
    payload = Payload(PLAIN, arrays=(vector,))  # what the codec refuses anyway
    with pytest.raises(MalformedError, match="weight"):
        half_of(agreement).validate(payload, SITES[0], attempt())


@pytest.mark.parametrize("weight", [1.0, 2.0, float(MOST)])
def test_weights_from_one_to_the_most_are_good(weight: float) -> None:
    agreement = agreed(Method.FEDAVG)
    check(agreement, np.append(np.full(agreement.layout.model, 60.0 * weight), weight))


def test_a_model_is_held_to_its_bounds_once_its_weight_is_divided_out() -> None:
    agreement = agreed(Method.FEDAVG)
    good = np.append(np.full(agreement.layout.model, 5.0 * 60.0), 5.0)
    check(agreement, good)
    for position, value in ((0, 5.0 * 60.1), (agreement.layout.parameters, 5.0 * 1.1e6)):
        bad = good.copy()
        bad[position] = value
        with pytest.raises(MalformedError, match="bound"):
            check(agreement, bad)
    with pytest.raises(MalformedError, match="bound"):
        check(agreement, np.append(good[:-1], 4.0))  # the same numbers, of fewer samples


@pytest.mark.parametrize("method", [Method.FEDPROTO, Method.FEDDBP])
def test_rows_are_held_to_the_norm_bound_and_to_the_classes_of_the_site(method: Method) -> None:
    agreement = agreed(method)
    vector = np.zeros(agreement.layout.length)
    vector[0] = agreement.norm_bound
    check(agreement, vector, "clinic-c")
    for position, value, why in ((0, 2.001, "norm"), (2 * DIM, 0.1, "hold")):
        bad = vector.copy()
        bad[position] = value
        with pytest.raises(MalformedError, match=why):
            check(agreement, bad, "clinic-c")


@pytest.mark.parametrize("extra", [-1, 1])
@pytest.mark.parametrize("method", RESULTS)
def test_a_vector_of_another_length_is_refused(method: Method, extra: int) -> None:
    agreement = agreed(method)
    with pytest.raises((CodecError, CryptoError)):
        check(agreement, np.ones(agreement.layout.length + extra))


@pytest.mark.parametrize(
    ("name", "change"), [("weight", (-1, 0.5)), ("model", (0, 1e9))], ids=["weight", "model"]
)
def test_without_its_check_a_bad_vector_would_enter_the_sum(
    monkeypatch: pytest.MonkeyPatch, name: str, change: tuple[int, float]
) -> None:
    agreement = agreed(Method.FEDAVG)
    vector = sent(agreement, *contributions(agreement))[SITES[0]]
    vector[change[0]] = change[1]
    with pytest.raises(MalformedError):
        check(agreement, vector)
    monkeypatch.setattr(sums, f"check_{name}", lambda *_: None)
    if (
        name == "weight"
    ):  # half a sample makes each number of the model twice as large, and no larger than agreed
        check(agreement, np.append(vector[:-1] / 100.0, 0.5))
    else:
        check(agreement, vector)


# What comes out


def total(agreement: Agreement, vectors: dict[str, Vector], members: tuple[str, ...] = SITES) -> GroupSum:
    cohort = group_cohort(attempt().active, SITES, agreement)
    added = np.sum([vectors[site] for site in members], axis=0)
    return GroupSum(cohort, members, added)


def by_loops(
    agreement: Agreement, rows: list[Vector], models: list[Vector], members: tuple[int, ...]
) -> tuple[list[list[float]], list[bool], list[float]]:
    """Means of prototypes over their holders, and of models over samples, a number at a time."""
    taken = [rows[i].tolist() for i in members]
    means, has = paper.global_prototypes(taken, HOLDS[list(members)].tolist(), agreement.min_holders)
    weights = [SAMPLES[i] for i in members]
    model = [
        sum(weight * models[i][j] for i, weight in zip(members, weights, strict=True)) / sum(weights)
        for j in range(agreement.layout.model)
    ]
    return means, has, model


@pytest.mark.parametrize("scheme", [PLAIN, PAIRWISE])
@pytest.mark.parametrize("members", [(0, 1, 2, 3), (0, 1, 3), (0, 1, 2)])
@pytest.mark.parametrize("method", RESULTS)
def test_a_result_is_the_means_of_those_who_are_in_the_sum(
    method: Method, members: tuple[int, ...], scheme: str
) -> None:
    agreement = agreed(method)
    rows, models = contributions(agreement)
    each = total(agreement, sent(agreement, rows, models), tuple(SITES[i] for i in members))
    check_means(agreement, each)
    (result,) = group_payloads(agreement, [each], scheme)
    vector, has = result.arrays
    means, known, model = by_loops(agreement, rows, models, members)
    got_rows, got_model = agreement.layout.split(vector)
    assert result.scheme == scheme
    if agreement.layout.classes:
        np.testing.assert_allclose(got_rows, means, rtol=1e-12, atol=1e-12)
        assert has.tolist() == known == [True, True, members != (0, 1, 2)]
    else:
        assert not has.any()
        assert not got_rows.size
    np.testing.assert_allclose(got_model, model, rtol=1e-12)


@pytest.mark.parametrize("method", [Method.FEDAVG, Method.FEDPROTO])
def test_the_comparison_sees_a_site_more_or_less(method: Method) -> None:
    agreement = agreed(method)
    rows, models = contributions(agreement)
    (result,) = group_payloads(agreement, [total(agreement, sent(agreement, rows, models))], PLAIN)
    means, _, model = by_loops(agreement, rows, models, (0, 1, 3))
    got_rows, got_model = agreement.layout.split(result.arrays[0])
    wanted, got = (got_rows, np.array(means)) if agreement.layout.classes else (got_model, np.array(model))
    assert np.abs(wanted - got).max() > 1e-3


def test_unweighted_models_would_be_another_mean() -> None:
    agreement = agreed(Method.FEDAVG)
    rows, models = contributions(agreement)
    (result,) = group_payloads(agreement, [total(agreement, sent(agreement, rows, models))], PLAIN)
    assert np.abs(result.arrays[0] - np.mean(models, axis=0)).max() > 0.1


def test_a_plain_outcome_is_the_same_result_for_everyone() -> None:
    agreement = agreed(Method.FEDAVG)
    vectors = sent(agreement, *contributions(agreement))
    answers = {
        site: codec.encode_payload(Payload(PLAIN, arrays=(vector,))) for site, vector in vectors.items()
    }
    outcome = half_of(agreement).outcome(attempt(answers=answers))
    assert set(outcome.results) == set(SITES)
    (expected,) = group_payloads(agreement, [total(agreement, vectors)], PLAIN)
    for result in outcome.results.values():
        np.testing.assert_allclose(result.arrays[0], expected.arrays[0], rtol=1e-12)


def test_a_sum_of_fewer_than_is_agreed_has_no_result() -> None:
    agreement = agreed(Method.FEDAVG)
    few = total(agreement, sent(agreement, *contributions(agreement)), SITES[:2])
    with pytest.raises(ValueError, match="min_holders"):
        group_payloads(agreement, [few], PLAIN)


# What a masked sum must come to


@pytest.mark.parametrize("weight", [3.0, -1.0, 4.0 * MOST + 1.0, 1e12])
def test_a_masked_sum_with_a_weight_of_nobody_is_refused(
    weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights from one sample for each of four sites to the maximum for each are accepted."""
    agreement = agreed(Method.FEDAVG, Protection.MASKED)
    good = total(agreement, sent(agreement, *contributions(agreement)))
    for possible in (4.0, 4.0 * MOST):
        check_means(agreement, GroupSum(good.cohort, good.members, np.append(good.total[:-1], possible)))
    bad = GroupSum(good.cohort, good.members, np.append(good.total[:-1], weight))
    with pytest.raises(MalformedError, match="4 members"):
        check_means(agreement, bad)
    monkeypatch.setattr(means, "check_samples", lambda *_: None)
    check_means(agreement, bad)


def test_a_masked_mean_that_is_longer_than_the_norm_bound_is_refused() -> None:
    agreement = agreed(Method.FEDDBP, Protection.MASKED)
    each = total(agreement, sent(agreement, *contributions(agreement)))
    check_means(agreement, each)
    long = each.total.copy()
    long[0] += 4 * 2.1
    with pytest.raises(MalformedError, match="norm_bound"):
        check_means(agreement, GroupSum(each.cohort, each.members, long))


def test_weights_come_out_of_fixed_point_as_they_went_in() -> None:
    """Whole numbers, so that nothing of them is rounded, whatever else is in the sum."""
    agreement = agreed(Method.FEDAVG, Protection.MASKED)
    fixed, vectors = agreement.fixed_point(), sent(agreement, *contributions(agreement))
    words = np.zeros(fixed.length, dtype=np.uint64)
    for vector in vectors.values():
        words += fixed.encode(vector).astype(np.uint64)
    assert fixed.decode_sum(words, 4)[-1] == sum(SAMPLES)
