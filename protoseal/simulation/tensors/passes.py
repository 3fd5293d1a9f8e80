"""Passes of several sites' models over their own samples at once: features of training sets, and tests.

Models that can be stacked (:mod:`protoseal.simulation.batched.network`) compute together, the others one by one.
Results are equal up to the order of sums in floating point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from algorithms.inference import by_prototype
from algorithms.losses import Outputs
from algorithms.prototypes import Guide
from protoseal.simulation.batched.flat_models import CannotStack
from protoseal.simulation.batched.network import Stack, signature
from protoseal.simulation.batched.training import Batching, sites_at_once
from secure_client.models.prototype_model import PrototypeModel
from secure_client.training.evaluation import EVALUATION_BATCH, Evaluation, evaluation_of
from secure_client.training.feature_pass import EmbeddedBatch
from secure_client.training.learner import Learner

INPUT_BYTES = 2**25
"""Most bytes of the inputs that several sites pass at once. A layer of 64 channels makes 64 times as many of a gray
image, and three such tensors may exist at a time: 6 GiB."""


def embed_sites(learners: Sequence[Learner], batching: Batching) -> list[list[EmbeddedBatch] | None]:
    """Return the features of each site's training set, as :meth:`Learner.embed` would.

    None for a site that has to embed by itself: its model cannot be stacked, its features are the initial model's, or
    some of them are not finite.
    """
    tensors = [None if learner.has_initial_features else learner.train_tensors for learner in learners]
    outputs = _outputs([learner.predictor for learner in learners], tensors, batching)
    finite = [of_site.features.isfinite().all() for of_site in outputs if of_site is not None]
    are_finite = iter(torch.stack(finite).tolist() if finite else ())
    embedded: list[list[EmbeddedBatch] | None] = []
    for of_site, pair in zip(outputs, tensors, strict=True):
        usable = of_site is not None and next(are_finite)
        if of_site is None or pair is None or not usable:
            embedded.append(None)
            continue
        features, labels = of_site.features, pair[1]
        # In batches, so that sums are taken in the order of a site's own pass.
        embedded.append(
            list(zip(*(torch.split(part, EVALUATION_BATCH) for part in (features, labels)), strict=True))
        )
    return embedded


def evaluate_sites(
    learners: Sequence[Learner], guides: Sequence[Guide | None], batching: Batching
) -> list[Evaluation | None]:
    """Return each site's evaluation on its own test set, as :meth:`Learner.evaluate` would; None without one.

    ``guides`` are the prototypes to predict by, on the CPU.
    """
    tensors = [learner.test_tensors for learner in learners]
    outputs = _outputs([learner.predictor for learner in learners], tensors, batching)
    predicted, nearest = [], []
    for learner, of_site, guide in zip(learners, outputs, guides, strict=True):
        if of_site is not None:
            predicted.append(of_site.logits.argmax(dim=1))
            if guide is not None:
                nearest.append(by_prototype(of_site, guide.to(learner.device)))
    classes, near = _unload(predicted), _unload(nearest)
    evaluations: list[Evaluation | None] = []
    for learner, of_site, guide in zip(learners, outputs, guides, strict=True):
        if of_site is None:
            evaluations.append(learner.evaluate(guide))
        else:
            by_guide = None if guide is None else next(near)
            evaluations.append(evaluation_of(next(classes), by_guide, learner.test_labels, learner.counts))
    return evaluations


def _unload(parts: Sequence[Tensor]) -> Iterator[NDArray[np.int64]]:
    """Yield int64 vectors as arrays, copied from the device together."""
    if not parts:
        return
    together = torch.cat(list(parts)).cpu().numpy()
    yield from np.split(together, np.cumsum([len(part) for part in parts])[:-1])


def _outputs(
    models: Sequence[PrototypeModel], tensors: Sequence[tuple[Tensor, Tensor] | None], batching: Batching
) -> list[Outputs | None]:
    """Return each model's outputs in ``eval()`` mode for its inputs (N, …), on the device; None where it is alone.

    Models of one signature compute together, at most as many as train together, with inputs of at most
    :data:`INPUT_BYTES`.
    """
    alike: dict[object, list[int]] = {}
    for number, (model, pair) in enumerate(zip(models, tensors, strict=True)):
        if pair is not None:
            with suppress(CannotStack):
                sample = pair[0][0]
                alike.setdefault((signature(model), sample.shape, sample.dtype), []).append(number)
    results: list[Outputs | None] = [None] * len(models)
    for numbers in alike.values():
        # The longest first, so that those with another batch come first.
        ordered = sorted(numbers, key=lambda number: len(_inputs(tensors, number)), reverse=True)
        longest = _inputs(tensors, ordered[0])
        fitting = INPUT_BYTES // max(1, longest[:EVALUATION_BATCH].nbytes)
        at_once = max(1, min(sites_at_once(models[ordered[0]], longest.device, batching), fitting))
        for start in range(0, len(ordered), at_once):
            chosen = ordered[start : start + at_once]
            if len(chosen) > 1:
                with suppress(CannotStack):
                    inputs = [_inputs(tensors, number) for number in chosen]
                    outputs = _pass_together([models[number] for number in chosen], inputs)
                    for number, of_site in zip(chosen, outputs, strict=True):
                        results[number] = of_site
    return results


def _pass_together(models: Sequence[PrototypeModel], inputs: Sequence[Tensor]) -> list[Outputs]:
    """Return the outputs of each model for its inputs (N, …), which are sorted by N, the longest first."""
    stack = Stack(models)
    parts: list[list[list[Tensor]]] = [[] for _ in models]
    for start in range(0, len(inputs[0]), EVALUATION_BATCH):
        stop = min(start + EVALUATION_BATCH, len(inputs[0]))
        active = sum(len(of_site) > start for of_site in inputs)
        # Shorter rows repeat a sample: in `eval()` mode no sample affects another's outputs.
        batch = torch.stack(
            [of_site[torch.arange(start, stop).clamp(max=len(of_site) - 1)] for of_site in inputs[:active]]
        )
        stack.use(range(active))
        with torch.no_grad():
            outputs = stack.outputs(batch, training=False)
        given = [output for output in outputs if output is not None]
        for site in range(active):
            parts[site].append([output[site, : len(inputs[site]) - start] for output in given])
    kinds = [output is not None for output in outputs]
    return [_join(of_site, kinds) for of_site in parts]


def _join(batches: Sequence[Sequence[Tensor]], kinds: Sequence[bool]) -> Outputs:
    joined = iter([torch.cat(list(parts)) for parts in zip(*batches, strict=True)])
    return Outputs(*(next(joined) if kind else None for kind in kinds))  # type: ignore[arg-type] # None keeps its place


def _inputs(tensors: Sequence[tuple[Tensor, Tensor] | None], number: int) -> Tensor:
    pair = tensors[number]
    if pair is None:
        raise ValueError(f"site {number} has no tensors")
    return pair[0]
