"""Masked sums with shared noise against the same draws added up in the open, one number at a time.

FedPC in the groups that its clustering found, each with a list and a grid of its own, and FedProto and FedDBP over all
sites; with sites that vanish before the list is made, before they have added anything, and after.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from agreement import (
    Agreement,
    FeddbpSection,
    MaskingSection,
    Method,
    Noise,
    PrivacySection,
    Protection,
)
from crypto.pairwise.attempt import threshold
from privacy.mechanisms.discrete_gaussian import discrete_gaussian
from protoseal_wire.messages import Phase
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.data import SiteData
from secure_client.models.prototype_model import compute_outputs
from secure_client.privacy.releases import Releases
from tests.algorithms import fedpc_reference as paper
from tests.conformance.drop_outs import Loss
from tests.conformance.federations import data_for, private_agreement, two_kinds
from tests.conformance.transcripts import Transcript, contributors, record_run

DIM, HOLDS = 12, two_kinds()
SHARED = PrivacySection(clip=3.0, noise_multiplier=0.3, noise=Noise.DISTRIBUTED, colluding=1)
METHODS: dict[Method, dict[str, Any]] = {
    Method.FEDPC: {"fedpc": {"groups": 2}},
    Method.FEDDBP: {"feddbp": FeddbpSection(personal=False, decision=False)},
    Method.FEDPROTO: {},
}
LOST = [
    Loss("site-3", 1, Phase.PRESENCE),
    Loss("site-5", 2, Phase.VALUES),
    Loss("site-7", 3, Phase.SURVIVORS),
    Loss("site-1", 4, Phase.UNMASK),
]
ROUNDS = len(LOST) + 1
Records = tuple[NDArray[np.float64], list[int]]
"""Features (N, d), and labels."""
each_method = pytest.mark.parametrize("method", METHODS)
every_round = pytest.mark.parametrize("number", range(1, ROUNDS + 1))


@dataclass
class Draws:
    """Noise (K, d + 1) of each addition, and the number of listed sites that it was for, by (site, round)."""

    drawn: dict[tuple[str, int], list[tuple[int, NDArray[np.int64]]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Write down all noise that is added to a sum inside the block.

        That of FedPC's clustering, which has all of it by itself, is the same in every run: otherwise the groups would
        be others by chance, and of some the quorum would be lost with the site that is lost in this file.
        """
        pay, term, draw = Releases.draw_share, Releases.sum_term, discrete_gaussian
        of_clustering = np.random.default_rng(0)
        paying: list[bool] = []
        rounds: dict[bytes, int] = {}

        def noted_pay(releases: Releases, number: int) -> NDArray[np.int64]:
            paying.append(True)
            share = pay(releases, number)
            paying.clear()
            rounds[share.tobytes()] = number
            return share

        def noted_term(releases: Releases, batches: Any, listed: int, share: Any, *more: Any) -> Any:
            number = rounds.pop(share.tobytes())  # each share is added once
            self.drawn[releases._budget.dataset, number].append((listed, share.reshape(-1, DIM + 1)))
            return term(releases, batches, listed, share, *more)

        def noted_draw(count: int, sigma_log2: int) -> NDArray[np.int64]:
            if not paying:
                return np.rint(of_clustering.normal(0.0, 2.0**sigma_log2, count)).astype(np.int64)
            return draw(count, sigma_log2)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Releases, "draw_share", noted_pay)
            patch.setattr(Releases, "sum_term", noted_term)
            patch.setattr("privacy.mechanisms.prototype_query.discrete_gaussian", noted_draw)
            yield


@dataclass(frozen=True)
class Run:
    """Transcript of a run, and the noise and features from which it follows."""

    transcript: Transcript
    draws: Draws
    features: dict[str, Records]


Runs = Callable[[Method], Run]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Every run is made once."""

    @cache
    def made(method: Method) -> Run:
        agreement = private_agreement(
            Protection.MASKED,
            method,
            classes=HOLDS.shape[1],
            dim=DIM,
            rounds=ROUNDS,
            privacy=SHARED,
            masking=MaskingSection(),
            **METHODS[method],
        )
        data, draws = data_for(agreement, HOLDS), Draws()
        with draws.noted():
            transcript = record_run(agreement, data, tmp_path_factory.mktemp("run"), LOST)
        return Run(transcript, draws, {site: features(agreement, each) for site, each in data.items()})

    return made


# What should come out


def features(agreement: Agreement, data: SiteData) -> Records:
    """Return the initial model's features, which frozen features are."""
    dataset: Any = data.train
    model = build_agreed_model(agreement, agreement.training.model)
    model.eval()
    with torch.no_grad():
        given = compute_outputs(model, torch.stack([dataset[i][0] for i in range(len(dataset))]))
    return given.features.double().numpy(), [int(dataset[i][1]) for i in range(len(dataset))]


def added(run: Run, site: str, number: int) -> tuple[NDArray[np.int64], int]:
    """Return a site's term in the last attempt's sum, (K, d + 1), one record at a time, and the number of listed
    sites.
    """
    agreement = run.transcript.agreement
    listed, noise = run.draws.drawn[site, number][-1]
    grid = agreement.noisy_sum(listed).grid
    total = noise.copy()
    for row, label in zip(*run.features[site], strict=True):
        total[label, :DIM] += grid.clip_records(row[None])[0]
        total[label, DIM] += grid.weight
    return total, listed


def group_means(
    run: Run, group: tuple[str, ...], number: int, without: tuple[str, ...] = ()
) -> tuple[list[list[float]], list[bool]]:
    """Σ features / Σ counts of those whose values came, cut off at zero (FedPC) and at the norm bound."""
    agreement = run.transcript.agreement
    sites = [site for site in contributors(run.transcript, number) if site in group and site not in without]
    terms = [added(run, site, number) for site in sites]
    (listed,) = {each for _, each in terms}
    grid = agreement.noisy_sum(listed).grid
    least = 3.0 * len(terms) ** 0.5 * 2**20 / grid.weight
    rows, has = [], []
    for k in range(len(agreement.classes)):
        sums = [sum(int(term[k, j]) for term, _ in terms) for j in range(DIM + 1)]
        count = sums[DIM] / grid.weight
        has.append(count >= least)
        row = [value * grid.step / count if has[-1] else 0.0 for value in sums[:DIM]]
        if agreement.method is Method.FEDPC:
            row = [max(0.0, value) for value in row]
        length = sum(value * value for value in row) ** 0.5
        rows.append([value * min(1.0, agreement.norm_bound / length) if length else value for value in row])
    return rows, has


def expected(
    run: Run, number: int, without: tuple[str, ...] = ()
) -> dict[tuple[str, ...], tuple[NDArray[np.float64], list[bool]]]:
    """Compute the results of each group's members."""
    groups = run.transcript.groups
    found = [group_means(run, group, number, without) for group in groups]
    if run.transcript.agreement.method is not Method.FEDPC:
        return {groups[0]: (np.array(found[0][0]), found[0][1])}
    means, has = [rows for rows, _ in found], [each for _, each in found]
    weights = paper.rho([paper.concatenated(*each) for each in found])
    mixed, known = paper.inter_prototypes(means, has, weights, literal=False)
    return {group: (np.array(mixed[j]), known[j]) for j, group in enumerate(groups)}


def off(run: Run, number: int, without: tuple[str, ...] = ()) -> float:
    """Return the largest difference between a round's results and what they should be; infinite for another class."""
    worst = 0.0
    for group, (rows, has) in expected(run, number, without).items():
        for site in group:
            got = run.transcript.got.get((number, site))
            if got is not None:
                worst = max(worst, float(np.abs(got.rows - rows).max()))
                worst = worst if got.has.tolist() == has else float("inf")
    return worst


# That it does


@every_round
@each_method
def test_shared_noise_sum_equals_the_same_draws_in_the_open(runs: Runs, method: Method, number: int) -> None:
    run = runs(method)
    assert off(run, number) < 1e-12


def test_shared_noise_clustering_finds_the_two_kinds(runs: Runs) -> None:
    """The sites' noisy rows give the two groups that the other tests of this file rely on."""
    sites = [f"site-{i + 1}" for i in range(len(HOLDS))]
    assert sorted(runs(Method.FEDPC).transcript.groups) == [tuple(sites[0::2]), tuple(sites[1::2])]


@each_method
def test_shared_noise_site_is_in_the_sum_only_if_lost_after_values(runs: Runs, method: Method) -> None:
    """Lost before it sent values, a site is in no sum; lost after, it is in it. Who is not listed draws nothing."""
    run = runs(method)
    for number, (loss, there) in enumerate(zip(LOST, (False, False, True, True), strict=True), start=1):
        assert (loss.site in contributors(run.transcript, number)) == there
        assert bool(run.draws.drawn[loss.site, number]) == there


@each_method
def test_shared_noise_shorter_list_draws_more_noise_per_site(runs: Runs, method: Method) -> None:
    """One site is not there when the first round's list is made."""
    run = runs(method)
    (group,) = [each for each in run.transcript.groups if "site-3" in each]
    other = next(site for site in group if site != "site-3")
    first, last = (run.draws.drawn[other, number][-1][0] for number in (1, ROUNDS))
    assert (first, last) == (len(group) - 1, len(group))
    steps = [run.transcript.agreement.noisy_sum(listed).grid.step for listed in (first, last)]
    assert steps[0] / steps[1] == pytest.approx(((threshold(last) - 1) / (threshold(first) - 1)) ** 0.5)


@each_method
def test_shared_noise_class_of_too_few_records_is_absent(runs: Runs, method: Method) -> None:
    """One class has no record at each kind of sites; over all sites each class has some.

    A class without records is present by chance once in 740 sums, and in four of a run's ten with 7e-10.
    """
    run = runs(method)
    without, by_chance = 0, 0
    for number in range(1, ROUNDS + 1):
        for group in run.transcript.groups:
            held = {
                k
                for site in contributors(run.transcript, number)
                if site in group
                for k in run.features[site][1]
            }
            has = group_means(run, group, number)[1]
            assert all(has[k] for k in held)
            without += len(has) - len(held)
            by_chance += sum(has) - len(held)
    assert (without > 0) == (method is Method.FEDPC)
    assert by_chance <= 3


@each_method
def test_shared_noise_models_stay_the_initial_ones(runs: Runs, method: Method) -> None:
    """The averaged parts belong to features that no record shaped, so they reveal nothing, up to rounding."""
    transcript = runs(method).transcript
    if not transcript.agreement.layout.model:
        return
    resolution = transcript.agreement.fixed_point().resolution.max(
        where=transcript.agreement.fixed_point().resolution < 1, initial=0
    )
    initial = next(iter(transcript.put.values())).averaged
    for got in transcript.got.values():
        assert np.abs(got.averaged - initial).max() <= resolution


# That it could be told otherwise


@each_method
def test_shared_noise_of_one_site_less_shows(runs: Runs, method: Method) -> None:
    run = runs(method)
    left_out = contributors(run.transcript, 2)[:1]
    assert off(run, 2, without=left_out) > 1e-3


@each_method
def test_shared_noise_is_drawn_anew_each_round(runs: Runs, method: Method) -> None:
    digests = [
        hashlib.sha256(noise.tobytes()).digest()
        for drawn in runs(method).draws.drawn.values()
        for _, noise in drawn
    ]
    assert len(set(digests)) == len(digests) > len(HOLDS)


def test_shared_noise_features_are_those_of_the_model(runs: Runs) -> None:
    """Features of another origin would make the comparison one of the test with itself."""
    run = runs(Method.FEDPROTO)
    rows, labels = run.features["site-1"]
    assert rows.shape == (len(labels), DIM)
    assert np.linalg.norm(rows, axis=1).min() > 0.1


def test_shared_noise_class_of_one_site_is_released_below_min_count(
    tmp_path: Path,
) -> None:
    """A limit of shared noise: ``min_holders`` does not count, since the number of holders is private."""
    holds = np.ones((7, 3), dtype=np.bool_)
    holds[1:, 0] = False  # site-1 alone has class 0
    for most_samples, min_count, released in ((100_000, None, [0, 1, 2]), (18, 37.0, [1, 2])):
        privacy = SHARED.model_copy(update={"min_count": min_count})
        base = private_agreement(
            Protection.MASKED, Method.FEDPROTO, classes=3, dim=DIM, rounds=1, privacy=privacy
        )
        averaging = base.averaging.model_copy(update={"most_samples": most_samples})
        agreement = Agreement.model_validate({**dict(base), "averaging": averaging})
        assert agreement.min_holders == 3
        got = record_run(agreement, data_for(agreement, holds), tmp_path / str(most_samples)).got
        assert np.flatnonzero(got[1, "site-4"].has).tolist() == released
