"""Identification of an image in a gallery of its class, by reconstructions of it.

A gallery has one image that is behind what was attacked, and nine others of its class. An attack that learns nothing of
the image finds it in one of ten galleries. Images are compared by correlation after the mean of the gallery is
subtracted, since a class mean alone resembles every image of its class. A share is the probability of a hit over all
galleries that could be drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from protoseal.attacks.case import Auxiliary
from protoseal.attacks.image_similarity import FIGURES, picture, similarities
from protoseal.attacks.recorded_run import Rows
from protoseal.attacks.verdicts import Measured, Picture, clustered_interval

GALLERY = 10
"""Images of a gallery: one behind what was attacked, and others of its class."""
PICTURES = 6
"""Pictures of a result."""
METRIC = f"right image found among {GALLERY} of its class"


@dataclass(frozen=True)
class Trial:
    """One image: the share of galleries in which it is found, its similarities (2, 3), and a picture."""

    found: float
    similarities: Rows
    shown: Picture


def rivals_of(known: Auxiliary, number: int) -> Tensor | None:
    """Return other images of a class, public ones only where outsiders are too few; None if all are too few."""
    others = known.outsiders.of_class(number).inputs
    if len(others) < GALLERY - 1:
        others = torch.cat([others, known.public.of_class(number).inputs])
    return others if len(others) >= GALLERY - 1 else None


def trial(image: Tensor, made: Tensor, others: Tensor, title: str) -> Trial:
    """Look for an image (…) among ``others`` (N, …) by the reconstruction of ``made`` (B, …) that resembles it most."""
    gallery = torch.cat([image[None], others]).flatten(1)
    mean = gallery.mean(dim=0)  # of the image and its rivals alike, so that chance is exactly one in ten
    likeness = _cosines(gallery - mean, made.flatten(1) - mean)
    best = made[likeness[0].argmax()]
    return _trial(image, others, likeness.amax(dim=1), title, {"reconstruction": best})


def scored_trial(image: Tensor, others: Tensor, scores: Rows, title: str) -> Trial:
    """Look for an image (…) among ``others`` (N, …) by ``scores`` (N + 1,), the first of which is the image's."""
    chosen = torch.cat([image[None], others])[int(scores.argmax())]
    return _trial(image, others, torch.from_numpy(scores), title, {"chosen image": chosen})


def _trial(image: Tensor, others: Tensor, scores: Tensor, title: str, best: dict[str, Tensor]) -> Trial:
    """Return the trial of an image by ``scores`` (N + 1,), with the ``best`` guess under its caption."""
    shown = {"original": image, **best, "class mean": others.mean(dim=0)}
    (guess,) = best.values()
    return Trial(
        _share(scores),
        similarities(guess[None], image[None], others[:1]),
        Picture(title, {name: picture(each) for name, each in shown.items()}),
    )


def _cosines(images: Tensor, others: Tensor) -> Tensor:
    products: Tensor = nn.functional.normalize(images, dim=1) @ nn.functional.normalize(others, dim=1).T
    return products


def _share(scores: Tensor) -> float:
    """Return the probability that the first score exceeds those of nine others, drawn from the rest."""
    below, rest = int((scores[1:] < scores[0]).sum()), len(scores) - 1
    return math.comb(below, GALLERY - 1) / math.comb(rest, GALLERY - 1)


def measured_trials(reading: str, releases: Sequence[Sequence[Trial]]) -> Measured:
    """Return the mean share over images, with an interval over releases: what is behind one release is one trial."""
    every = [each for trials in releases for each in trials]
    clusters = [trials for trials in releases if trials]
    shares = [np.array([each.found for each in trials]) for trials in clusters]
    low, high = clustered_interval(
        lambda chosen: float(np.concatenate([shares[i] for i in chosen]).mean()), len(shares)
    )
    value, exact = float(np.concatenate(shares).mean()), 0.025 ** (1.0 / len(shares))
    low, high = (min(low, exact) if value == 1.0 else low), (max(high, 1.0 - exact) if value == 0.0 else high)
    return Measured(
        value=value,
        low=min(low, value),
        high=max(high, value),
        trials=len(shares),
        basis=reading,
        details=_details(np.array([each.similarities for each in every])),
        pictures=tuple(trials[0].shown for trials in releases if trials)[:PICTURES],
    )


def _details(figures: Rows) -> dict[str, float]:
    """Return the mean similarities of (T, 2, 3), without figures that no image has."""
    known = ~np.isnan(figures)
    means = np.where(known, figures, 0.0).sum(axis=0) / known.sum(axis=0).clip(1)
    return {
        f"{name} with {image}": float(means[i, j])
        for j, name in enumerate(FIGURES)
        for i, image in enumerate(("the image", "another of its class"))
        if known[:, i, j].any()
    }
