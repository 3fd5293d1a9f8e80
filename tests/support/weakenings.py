"""Weakened builds of a site's run with releases: what leaves the site is weaker, and no error is raised.

A double changes how a run uses a mechanism: the query that its releases hold, the noise that they add, what a payment
records. The mechanism under `protoseal budget audit`, which plays it anew, stays as it is. Doubles of training are in
:mod:`tests.support.training_weakenings`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

from crypto.protection import Payload
from privacy.accounting.events import DpSgd, GaussianRelease
from privacy.ledger.ledger import Ledger
from privacy.mechanisms.cell_query import Cells
from privacy.mechanisms.grid import SIGMA_LOG2, Float, Ints
from privacy.mechanisms.joint_clipping import Parts
from privacy.mechanisms.prototype_query import PrototypeQuery, Released, Sums
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.exchanged_values import ExchangedValues
from secure_client.privacy.noisy_prototypes import NoisyPrototypes, ReleasedPrototypes
from secure_client.privacy.releases import Releases
from secure_client.protocol import sent_values
from secure_client.training.learner import Learner

Patch = Callable[[pytest.MonkeyPatch], None]
Noise = Callable[["ChangedSums", Ints], Ints]
"""A change of the noise (K, d + 1) of a release, where its exact sums are known."""
Batches = list[tuple[Float, Ints]]
FEW = 9
"""Records of a class from which on a double sends its row: more than any class of a small run has."""


@dataclass(frozen=True, repr=False)
class ChangedSums(Sums):
    """Sums whose noise is changed before it is added."""

    change: Noise

    def add_noise(self, drawn: Ints | None = None) -> tuple[Ints, Ints]:
        """Return noisy vectors and weights. A share that was ``drawn`` before stays as it is."""
        classes, dim = self.vectors.shape
        if drawn is not None:
            return super().add_noise(drawn)
        fresh = self.query.draw(classes, dim).reshape(classes, dim + 1)
        return super().add_noise(self.change(self, fresh).reshape(-1))


# Releases


def noise(change: Noise) -> Patch:
    """Return a double that changes the noise of every release."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        sums = Releases._sums

        def changed(releases: Releases, *arguments: Any) -> Sums:
            exact = sums(releases, *arguments)
            return ChangedSums(exact.query, exact.vectors, exact.weights, change)

        monkeypatch.setattr(Releases, "_sums", changed)

    return patch


def scaled(factor: float) -> Noise:
    return lambda sums, drawn: np.rint(factor * drawn).astype(np.int64)


def on_sums_alone(sums: ChangedSums, drawn: Ints) -> Ints:
    drawn[:, -1] = 0
    return drawn


def on_counts_alone(sums: ChangedSums, drawn: Ints) -> Ints:
    drawn[:, :-1] = 0
    return drawn


def on_the_first_classes(sums: ChangedSums, drawn: Ints) -> Ints:
    drawn[len(drawn) // 2 :] = 0
    return drawn


def by_class_size(sums: ChangedSums, drawn: Ints) -> Ints:
    """Return less noise for smaller classes, so that all have the same error."""
    share = sums.weights / max(1, int(sums.weights.max()))
    return np.rint(drawn * share[:, None]).astype(np.int64)


def on_half_of_the_coordinates(sums: ChangedSums, drawn: Ints) -> Ints:
    drawn[:, : drawn.shape[1] // 2] = 0
    return drawn


def equal_in_classes(sums: ChangedSums, drawn: Ints) -> Ints:
    return np.repeat(drawn[:1], len(drawn), axis=0)


def equal_in_coordinates(sums: ChangedSums, drawn: Ints) -> Ints:
    return np.repeat(drawn[:, :1], drawn.shape[1], axis=1)


def of_uniform_shape(sums: ChangedSums, drawn: Ints) -> Ints:
    deviation = 2.0**SIGMA_LOG2
    uniform = stats.norm.cdf(drawn / deviation) - 0.5
    return np.asarray(np.rint(uniform * np.sqrt(12) * deviation), dtype=np.int64)


def from_a_seed(*, by_site: bool) -> Patch:
    """Return a double whose noise is from a generator with a seed: of the run, or of the site too."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        generators: dict[object, np.random.Generator] = {}
        sums = Releases._sums

        def changed(releases: Releases, *arguments: Any) -> Sums:
            exact = sums(releases, *arguments)
            seed = sum(releases.ledger.dataset.encode()) if by_site else 7
            generator = generators.setdefault(releases.ledger.path, np.random.default_rng(seed))

            def draw(_: ChangedSums, drawn: Ints) -> Ints:
                return np.rint(generator.normal(0.0, 2.0**SIGMA_LOG2, drawn.shape)).astype(np.int64)

            return ChangedSums(exact.query, exact.vectors, exact.weights, draw)

        monkeypatch.setattr(Releases, "_sums", changed)

    return patch


def kept_noise(own: float, common: float, *, over_sites: bool) -> Patch:
    """Return a double of which each release's noise has a part in common: with the site's others, or with all."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        kept: dict[object, Ints] = {}
        sums = Releases._sums

        def changed(releases: Releases, *arguments: Any) -> Sums:
            exact = sums(releases, *arguments)

            def mix(_: ChangedSums, drawn: Ints) -> Ints:
                first = kept.setdefault(None if over_sites else releases.ledger.path, drawn.copy())
                return np.rint(own * drawn + common * first).astype(np.int64)

            return ChangedSums(exact.query, exact.vectors, exact.weights, mix)

        monkeypatch.setattr(Releases, "_sums", changed)

    return patch


def reordered_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every release of a site the values of its first one, each time in another order."""
    first: dict[object, Ints] = {}
    sums = Releases._sums

    def changed(releases: Releases, *arguments: Any) -> Sums:
        exact = sums(releases, *arguments)

        def shuffle(_: ChangedSums, drawn: Ints) -> Ints:
            values = first.setdefault(releases.ledger, drawn.copy())
            return np.random.default_rng().permutation(values.reshape(-1)).reshape(drawn.shape)

        return ChangedSums(exact.query, exact.vectors, exact.weights, shuffle)

    monkeypatch.setattr(Releases, "_sums", changed)


def in_place(change: Callable[[Ints], None]) -> Noise:
    """Return the change of noise that ``change`` makes in place."""

    def changed(sums: ChangedSums, drawn: Ints) -> Ints:
        change(drawn)
        return drawn

    return changed


def copy_half(noise: Ints) -> None:
    """Make the noise of a half of the coordinates that of the other half, with other signs."""
    half = (noise.shape[1] - 1) // 2
    noise[:, half : 2 * half] = noise[:, :half] * np.where(np.arange(half) % 2, 1, -1)


def combine_classes(noise: Ints) -> None:
    """Make the last class's noise a combination of the other classes' noise, of the claimed deviation."""
    others = len(noise) - 1
    signs = np.where(np.arange(others) % 2, 1, -1) / np.sqrt(others)
    noise[-1] = np.rint(signs @ noise[:-1]).astype(np.int64)


def share_a_class() -> Callable[[Ints], None]:
    """Return the change that gives all releases of all sites the same noise on one class."""
    shared: list[Ints] = []

    def change(noise: Ints) -> None:
        shared.append(noise[1].copy())
        noise[1] = shared[0]

    return change


# What is sent


def exact_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send exact class means in place of the released rows."""
    of_round = ExchangedValues.compute

    def swapped(values: ExchangedValues, *arguments: Any) -> Any:
        outcome = of_round(values, *arguments)
        exact = values._learner.prototypes()[0]
        return replace(outcome, rows=np.where(outcome.held_classes()[:, None], exact, 0.0))

    monkeypatch.setattr(ExchangedValues, "compute", swapped)


def stale_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the first release's rows, whatever later releases drew."""
    of_round = NoisyPrototypes.release_round
    first: dict[int, ReleasedPrototypes] = {}

    def stale(noisy: NoisyPrototypes, *arguments: Any) -> ReleasedPrototypes:
        drawn = of_round(noisy, *arguments)
        kept = first.setdefault(id(noisy), drawn)
        return replace(drawn, rows=kept.rows, counts=kept.counts)

    monkeypatch.setattr(NoisyPrototypes, "release_round", stale)


def other_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Release features of a model that followed the records, where the initial model's are agreed."""
    embedded = Learner.embed

    def centred(learner: Learner) -> Any:
        batches = list(embedded(learner))
        mean = torch.cat([features for features, _ in batches]).mean(dim=0)
        return [(features - mean, labels) for features, labels in batches]

    monkeypatch.setattr(Learner, "embed", centred)


def of_classes(change: Callable[[ReleasedPrototypes, Ints], ReleasedPrototypes]) -> Patch:
    """Return a double that changes what is made of a release, where the exact counts (K,) are known."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        made = NoisyPrototypes._release_classes

        def changed(noisy: NoisyPrototypes, number: int, batches: Any) -> ReleasedPrototypes:
            kept = [(features, labels) for features, labels in batches]
            drawn = made(noisy, number, iter(kept))
            return change(
                drawn,
                np.bincount(np.concatenate([labels for _, labels in kept]), minlength=len(drawn.counts)),
            )

        monkeypatch.setattr(NoisyPrototypes, "_release_classes", changed)

    return patch


def exactly_present(drawn: ReleasedPrototypes, exact: Ints) -> ReleasedPrototypes:
    counts = np.where(exact > 0, np.maximum(drawn.counts, 1), 0)
    return replace(drawn, counts=counts, rows=np.where(exact[:, None] > 0, drawn.rows, 0.0))


def divided_by_exact_counts(drawn: ReleasedPrototypes, exact: Ints) -> ReleasedPrototypes:
    return replace(drawn, rows=drawn.rows * (drawn.counts / np.maximum(exact, 1))[:, None])


def release_trained_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Release features of the model that trains, where they are agreed to be those of the initial one."""
    monkeypatch.setattr(Learner, "embedding_model", lambda learner: copy.deepcopy(learner.predictor))


def clip_no_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clip records one by one where a subject is agreed to be the unit."""
    monkeypatch.setattr(Parts, "shorten", lambda parts, weight: (parts.rows, parts.counts * weight))


def send_zeros_for_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero the rows of classes with few records by the exact count; presence stays noisy."""
    release = Sums.release

    def zeroed(sums: Sums) -> Released:
        released, counts = release(sums), sums.weights / sums.query.grid.weight
        return replace(released, rows=np.where((counts >= FEW)[:, None], released.rows, 0.0))

    monkeypatch.setattr(Sums, "release", zeroed)


def send_another_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send other rows than those that the site's half protected."""
    checked = sent_values._checked_payload

    def changed(*arguments: Any) -> Payload:
        payload = checked(*arguments)
        arrays = tuple(np.where(array != 0, 0.001, 0.0) for array in payload.arrays)
        return replace(payload, arrays=arrays)

    monkeypatch.setattr(sent_values, "_checked_payload", changed)


def send_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send rows that a site's learner has changed after their release: here with half of the noise averaged away."""
    trained = CheckpointedLearner.train_round

    def changed(learner: CheckpointedLearner, number: int) -> object:
        rows, counts = trained(learner, number)
        exact, _ = learner._learner.prototypes()
        return np.where(rows != 0.0, (rows + exact) / 2, 0.0), counts

    monkeypatch.setattr(CheckpointedLearner, "train_round", changed)


def forget_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "spend", lambda ledger, spending: ledger.anchor)


def choose_centres(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide classes around centres of the site's own, which no result has published."""
    chosen = NoisyPrototypes._cells

    def own(noisy: NoisyPrototypes, guide: object) -> Cells:
        cells = chosen(noisy, guide)  # type: ignore[arg-type]
        return Cells(cells.classes, cells.centres + np.random.default_rng().normal(size=cells.centres.shape))

    monkeypatch.setattr(NoisyPrototypes, "_cells", own)


def average_trained_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the part of the model that records have shaped, where the extractor is agreed to be frozen."""
    monkeypatch.setattr(Learner, "averaged_vector", lambda learner: learner._averaged.vector() + 1e-3)


# Clipping of features


def records(change: Callable[[Any, Batches], Batches], *, wide: bool) -> Patch:
    """Return a double that changes a release's batches; ``wide`` clips at a hundred times the agreed norm."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        sums = Releases._sums

        def changed(releases: Releases, query: PrototypeQuery, parts: int, batches: Any, owners: Any) -> Sums:
            kept = change(query, [(features.copy(), labels) for features, labels in batches])
            used = _unclipped(query) if wide else query
            return sums(releases, used, parts, iter(kept), owners)

        monkeypatch.setattr(Releases, "_sums", changed)

    return patch


def _unclipped(query: PrototypeQuery) -> PrototypeQuery:
    """Return a query with a hundred times the clip and as much noise as the given one, in units of a feature."""
    wide = 100 * query.clip
    ratio = np.hypot(query.clip, query.count_weight) / np.hypot(wide, query.count_weight)
    return PrototypeQuery(wide, query.count_weight, query.noise_multiplier * float(ratio), query.min_count)


def as_they_are(query: PrototypeQuery, batches: Batches) -> Batches:
    return batches


def by_coordinate(query: PrototypeQuery, batches: Batches) -> Batches:
    return [(np.clip(features, -query.clip, query.clip), labels) for features, labels in batches]


def by_batch(query: PrototypeQuery, batches: Batches) -> Batches:
    """Shorten each batch's longest record to the clip, and the others by the same factor and not below half."""
    longest = [np.linalg.norm(features, axis=1).max(initial=1e-9) for features, _ in batches]
    return [
        (features * max(0.5, min(1.0, query.clip / longest[number])), labels)
        for number, (features, labels) in enumerate(batches)
    ]


def first_record_twice(query: PrototypeQuery, batches: Batches) -> Batches:
    features, labels = batches[0]
    return [(np.concatenate([features[:1], features]), np.concatenate([labels[:1], labels])), *batches[1:]]


def clipped_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clip class means in place of records."""
    sums = Releases._sums

    def changed(releases: Releases, query: PrototypeQuery, *arguments: Any) -> Sums:
        exact = sums(releases, _unclipped(query), *arguments)
        lengths = np.linalg.norm(exact.vectors, axis=1)
        allowed = query.grid.radius * (exact.weights / exact.query.grid.weight)
        factors = np.minimum(1.0, allowed / np.maximum(lengths, 1e-9))
        return replace(exact, vectors=np.trunc(exact.vectors * factors[:, None]).astype(np.int64))

    monkeypatch.setattr(Releases, "_sums", changed)


# Accounting


def without_entry(kind: type) -> Patch:
    """Return a double whose ledger records no payment of this kind of event after the first."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        spend = Ledger.spend

        def forgetful(ledger: Ledger, spending: Any) -> Any:
            if isinstance(spending.event, kind) and any(isinstance(event, kind) for event in ledger.history):
                return ledger.anchor
            return spend(ledger, spending)

        monkeypatch.setattr(Ledger, "spend", forgetful)

    return patch


def cheaper(kind: type[GaussianRelease] | type[DpSgd]) -> Patch:
    """Return a double whose payments of this kind of event record twice the noise."""

    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        spend = Ledger.spend

        def cheap(ledger: Ledger, spending: Any) -> Any:
            event: Any = spending.event
            if isinstance(event, kind):
                event = replace(event, noise_multiplier=2 * event.noise_multiplier)
            return spend(ledger, replace(spending, event=event))

        monkeypatch.setattr(Ledger, "spend", cheap)

    return patch


def mean_of_two_draws(sums: ChangedSums, drawn: Ints) -> Ints:
    """Return the noise of the mean of two answers, of which one was paid for."""
    second = sums.query.draw(*sums.vectors.shape).reshape(drawn.shape)
    return np.rint((drawn + second) / 2).astype(np.int64)


RELEASE_DOUBLES: dict[str, Patch] = {
    "a tenth of the noise": noise(scaled(0.1)),
    "half of the noise": noise(scaled(0.5)),
    "noise on sums, none on counts": noise(on_sums_alone),
    "noise on counts, none on sums": noise(on_counts_alone),
    "noise on the first classes only": noise(on_the_first_classes),
    "noise on half of the coordinates": noise(on_half_of_the_coordinates),
    "noise in proportion to a class's size": noise(by_class_size),
    "noise that is equal in all classes": noise(equal_in_classes),
    "noise that is equal in all coordinates": noise(equal_in_coordinates),
    "noise of uniform shape": noise(of_uniform_shape),
    "noise from one seed at all sites": from_a_seed(by_site=False),
    "noise from a seed of each site": from_a_seed(by_site=True),
    "the same noise in two rounds": kept_noise(0.0, 1.0, over_sites=False),
    "the same noise at two sites": kept_noise(0.0, 1.0, over_sites=True),
    "correlated noise in two rounds": kept_noise(0.6, 0.8, over_sites=False),
    "correlated noise at two sites": kept_noise(0.6, 0.8, over_sites=True),
    "exact rows in place of released rows": exact_rows,
    "rows of an earlier release": stale_rows,
    "features of another model": other_model,
    "classes present by exact counts": of_classes(exactly_present),
    "division by exact counts": of_classes(divided_by_exact_counts),
    "no clipping": records(as_they_are, wide=True),
    "clipping of single coordinates": records(by_coordinate, wide=True),
    "clipping of means": clipped_too_late,
    "a record counted twice": records(first_record_twice, wide=False),
    "no entry": without_entry(GaussianRelease),
    "an entry with a smaller cost": cheaper(GaussianRelease),
    "the mean of two draws for one entry": noise(mean_of_two_draws),
}
"""Doubles of a run with releases, by weakness; the page on the privacy audit has a row for each."""
OTHER_DOUBLES: dict[str, Patch] = {
    "the same noise in another order": reordered_noise,
    "a half with the noise of the other": noise(in_place(copy_half)),
    "a class with a combination of noise": noise(in_place(combine_classes)),
    "a class that shares its noise": noise(in_place(share_a_class())),
    "features of the model that trains": release_trained_features,
    "subjects are not clipped as a whole": clip_no_unit,
    "rows that are zero by an exact count": send_zeros_for_few_records,
    "another payload than the protected one": send_another_payload,
    "rows changed after their release": send_other_rows,
    "no entry at all": forget_entry,
    "centres of a site's own": choose_centres,
    "models that are not the initial one": average_trained_models,
}
"""Doubles that only some agreements can have, by weakness."""
