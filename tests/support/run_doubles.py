"""Doubles in the run path of a site's releases: each weakens what leaves the site, and raises no error."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from crypto.protection import Payload
from privacy.ledger.hash_chain import Anchor
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Spending
from privacy.mechanisms import prototype_query
from privacy.mechanisms.cell_query import Cells
from privacy.mechanisms.discrete_gaussian import discrete_gaussian
from privacy.mechanisms.grid import Ints
from privacy.mechanisms.joint_clipping import Parts
from privacy.mechanisms.prototype_query import PrototypeQuery, Released, Sums
from secure_client.checkpoints import checkpointed_learner
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.privacy.noisy_prototypes import NoisyPrototypes
from secure_client.privacy.releases import Releases
from secure_client.protocol import sent_values
from secure_client.training import loop
from secure_client.training.job import Job
from secure_client.training.learner import Learner
from tests.support.audit_doubles import weaken_query

Weaken = Callable[[pytest.MonkeyPatch], None]
FEW = 9
"""Records of a class from which on a double sends its row: more than any class of a small run has."""


def scale_noise(factor: float) -> Weaken:
    """Return the double whose noise has ``factor`` of its deviation."""

    def drawn(count: int, log2: int) -> Ints:
        return np.asarray(np.rint(discrete_gaussian(count, log2) * factor), dtype=np.int64)

    return lambda patch: patch.setattr(prototype_query, "discrete_gaussian", drawn)


def _repeat_noise(patch: pytest.MonkeyPatch) -> None:
    """Give every release of a site the noise of its first one."""
    drawn: dict[int, Ints] = {}
    draw = PrototypeQuery.draw

    def again(query: PrototypeQuery, classes: int, dim: int) -> Ints:
        return drawn.setdefault(id(query), draw(query, classes, dim))

    patch.setattr(PrototypeQuery, "draw", again)


def _reorder_noise(patch: pytest.MonkeyPatch) -> None:
    """Give every release of a site the values of its first one, each time in another order."""
    drawn: dict[int, Ints] = {}
    draw = PrototypeQuery.draw

    def shuffled(query: PrototypeQuery, classes: int, dim: int) -> Ints:
        return np.random.default_rng().permutation(drawn.setdefault(id(query), draw(query, classes, dim)))

    patch.setattr(PrototypeQuery, "draw", shuffled)


def change_noise(change: Callable[[Ints], None]) -> Weaken:
    """Return the double that changes the noise (K, d + 1) of every release in place."""
    draw = PrototypeQuery.draw

    def changed(query: PrototypeQuery, classes: int, dim: int) -> Ints:
        drawn = draw(query, classes, dim)
        change(drawn.reshape(classes, dim + 1))
        return drawn

    return lambda patch: patch.setattr(PrototypeQuery, "draw", changed)


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


def _release_trained_features(patch: pytest.MonkeyPatch) -> None:
    """Release features of the model that trains, where they are agreed to be those of the initial one."""
    patch.setattr(Learner, "embedding_model", lambda learner: copy.deepcopy(learner.predictor))


def _share_noise(patch: pytest.MonkeyPatch) -> None:
    """Give all sites the same noise, as from a context that they share."""
    counts: dict[int, int] = {}
    drawn: dict[int, Ints] = {}
    draw = PrototypeQuery.draw

    def shared(query: PrototypeQuery, classes: int, dim: int) -> Ints:
        counts[id(query)] = counts.get(id(query), 0) + 1
        return drawn.setdefault(counts[id(query)], draw(query, classes, dim))

    patch.setattr(PrototypeQuery, "draw", shared)


def _clip_no_unit(patch: pytest.MonkeyPatch) -> None:
    """Clip records one by one where a subject is agreed to be the unit."""
    patch.setattr(Parts, "shorten", lambda parts, weight: (parts.rows, parts.counts * weight))


def _after_release(change: Callable[[Sums, Released], Released]) -> Weaken:
    release = Sums.release
    return lambda patch: patch.setattr(Sums, "release", lambda sums: change(sums, release(sums)))


def _exact_counts(sums: Sums) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(sums.weights / sums.query.grid.weight)


def _show_exact_presence(sums: Sums, released: Released) -> Released:
    present = _exact_counts(sums) >= 1
    rows = np.where(present[:, None], released.sums / np.maximum(released.counts, 1.0)[:, None], 0.0)
    return replace(released, present=present, rows=rows)


def _divide_by_exact_counts(sums: Sums, released: Released) -> Released:
    counts = np.maximum(_exact_counts(sums), 1.0)[:, None]
    return replace(released, rows=np.where(released.present[:, None], released.sums / counts, 0.0))


def _send_zeros_for_few_records(sums: Sums, released: Released) -> Released:
    """Zero the rows of classes with few records by the exact count; presence stays noisy."""
    many = _exact_counts(sums) >= FEW
    return replace(released, rows=np.where(many[:, None], released.rows, 0.0))


def _send_another_payload(patch: pytest.MonkeyPatch) -> None:
    """Send other rows than those that the site's half protected."""
    checked = sent_values._checked_payload

    def changed(*arguments: Any) -> Payload:
        payload = checked(*arguments)
        arrays = tuple(np.where(array != 0, 0.001, 0.0) for array in payload.arrays)
        return replace(payload, arrays=arrays)

    patch.setattr(sent_values, "_checked_payload", changed)


def _send_exact_rows(sums: Sums, released: Released) -> Released:
    means = sums.vectors * sums.query.grid.step / np.maximum(_exact_counts(sums), 1.0)[:, None]
    return replace(released, rows=np.where(released.present[:, None], means, 0.0))


def _send_other_rows(patch: pytest.MonkeyPatch) -> None:
    """Send rows that a site's trainee has changed after their release: here with half of the noise averaged away."""
    trained = CheckpointedLearner.train_round

    def changed(trainee: CheckpointedLearner, number: int) -> object:
        rows, counts = trained(trainee, number)
        exact, _ = trainee._learner.prototypes()
        return np.where(rows != 0.0, (rows + exact) / 2, 0.0), counts

    patch.setattr(CheckpointedLearner, "train_round", changed)


def _forget_entry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "spend", lambda ledger, spending: ledger.anchor)


def _pay_once(patch: pytest.MonkeyPatch) -> None:
    """Record the first release alone."""
    spend = Ledger.spend

    def paid(ledger: Ledger, spending: Spending) -> Anchor:
        return ledger.anchor if ledger.entries() else spend(ledger, spending)

    patch.setattr(Ledger, "spend", paid)


def _pay_less(patch: pytest.MonkeyPatch) -> None:
    spending = Releases._spending

    def cheaper(releases: Releases, *given: object, **facts: object) -> Spending:
        paid = spending(releases, *given, **facts)  # type: ignore[arg-type]
        return replace(paid, event=replace(paid.event, noise_multiplier=2 * paid.event.noise_multiplier))

    patch.setattr(Releases, "_spending", cheaper)


def _choose_centres(patch: pytest.MonkeyPatch) -> None:
    """Divide classes around centres of the site's own, which no result has published."""
    chosen = NoisyPrototypes._cells

    def own(noisy: NoisyPrototypes, guide: object) -> Cells:
        cells = chosen(noisy, guide)  # type: ignore[arg-type]
        return Cells(cells.classes, cells.centres + np.random.default_rng().normal(size=cells.centres.shape))

    patch.setattr(NoisyPrototypes, "_cells", own)


def _average_trained_models(patch: pytest.MonkeyPatch) -> None:
    """Send the part of the model that records have shaped, where the extractor is agreed to be frozen."""
    patch.setattr(Learner, "averaged_vector", lambda learner: learner._averaged.vector() + 1e-3)


def _train_after_the_record(patch: pytest.MonkeyPatch) -> None:
    """Train once more without noise after each training by DP-SGD."""
    trained = loop.run_job

    def twice(job: Job) -> object:
        losses = trained(job)
        trained(replace(job, dp_sgd=None, recorder=None))
        return losses

    patch.setattr(checkpointed_learner, "run_job", twice)


def _train_once_by_the_record(patch: pytest.MonkeyPatch) -> None:
    """Train by DP-SGD in a site's first round alone; the later ones train without noise, though paid for."""
    trained, begun = loop.run_job, set[int]()

    def unnoised(job: Job) -> object:
        private = job.dp_sgd if id(job.model) not in begun else None
        begun.add(id(job.model))
        return trained(replace(job, dp_sgd=private))

    patch.setattr(checkpointed_learner, "run_job", unnoised)


WEAKENINGS: Mapping[str, Weaken] = {
    "a tenth of the noise": scale_noise(0.1),
    "half of the noise": scale_noise(0.5),
    "the same noise twice": _repeat_noise,
    "the same noise in another order": _reorder_noise,
    "noise that sites share": _share_noise,
    "a half with the noise of the other": change_noise(copy_half),
    "a class with a combination of noise": change_noise(combine_classes),
    "a class that shares its noise": change_noise(share_a_class()),
    "features of the model that trains": _release_trained_features,
    "no clipping": lambda patch: weaken_query(patch, "no clipping"),
    "subjects are not clipped as a whole": _clip_no_unit,
    "exact presence": _after_release(_show_exact_presence),
    "division by exact counts": _after_release(_divide_by_exact_counts),
    "rows that are zero by an exact count": _after_release(_send_zeros_for_few_records),
    "another payload than the protected one": _send_another_payload,
    "rows without noise": _after_release(_send_exact_rows),
    "rows changed after their release": _send_other_rows,
    "no entry": _forget_entry,
    "an entry for the first release alone": _pay_once,
    "entries that cost less": _pay_less,
    "centres of a site's own": _choose_centres,
    "models that are not the initial one": _average_trained_models,
    "training without noise after the recorded one": _train_after_the_record,
    "training by DP-SGD in the first round alone": _train_once_by_the_record,
}
"""Doubles by name."""
