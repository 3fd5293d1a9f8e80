"""Identification of an image in a gallery of its class, by reconstructions of it, and figures of similarity to the eye.

A gallery has one image that is behind what was attacked, and nine others of its class. An attack that learns nothing of
the image finds it in one of ten galleries. Images are compared by correlation after the mean of the gallery is
subtracted, since a class mean alone resembles every image of its class. A share is the probability of a hit over all
galleries that could be drawn. Beside the share are PSNR, and with the package ``piq`` SSIM and HaarPSI.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from protoseal.attacks.cases import Auxiliary, Measurement, Picture, clustered_interval
from protoseal.attacks.recorded_run import Rows

GALLERY = 10
"""Images of a gallery: one behind what was attacked, and others of its class."""
PICTURES = 6
"""Pictures of a result."""
METRIC = f"right image found among {GALLERY} of its class"


@dataclass(frozen=True)
class Trial:
    """One image: the share of galleries in which it is found, its similarities (2, 3), and images by caption."""

    found: float
    similarities: Rows
    title: str
    images: Mapping[str, Tensor] = field(repr=False)


def choose_rivals(samples: Auxiliary, number: int) -> Tensor | None:
    """Return other images of a class, public ones only where outsiders are too few; None if all are too few."""
    others = samples.outsiders.of_class(number).inputs
    if len(others) < GALLERY - 1:
        others = torch.cat([others, samples.public.of_class(number).inputs])
    return others if len(others) >= GALLERY - 1 else None


def run_trial(image: Tensor, made: Tensor, others: Tensor, title: str) -> Trial:
    """Look for an image (…) among ``others`` (N, …) by the reconstruction of ``made`` (B, …) that resembles it most."""
    gallery = torch.cat([image[None], others]).flatten(1)
    mean = gallery.mean(dim=0)  # of the image and its rivals alike, so that chance is exactly one in ten
    likeness = normalize(gallery - mean, dim=1) @ normalize(made.flatten(1) - mean, dim=1).T
    best = made[likeness[0].argmax()]
    return _make_trial(image, others, likeness.amax(dim=1), title, {"reconstruction": best})


def run_scored_trial(image: Tensor, others: Tensor, scores: Rows, title: str) -> Trial:
    """Look for an image (…) among ``others`` (N, …) by ``scores`` (N + 1,), the first of which is the image's."""
    chosen = torch.cat([image[None], others])[int(scores.argmax())]
    return _make_trial(image, others, torch.from_numpy(scores), title, {"chosen image": chosen})


def _make_trial(image: Tensor, others: Tensor, scores: Tensor, title: str, best: dict[str, Tensor]) -> Trial:
    """Return the trial of an image by ``scores`` (N + 1,), with the ``best`` guess under its caption."""
    images = {"original": image, **best, "class mean": others.mean(dim=0)}
    (guess,) = best.values()
    # All galleries of nine rivals are equally likely; those in which every rival scores lower are hits.
    below, rest = int((scores[1:] < scores[0]).sum()), len(scores) - 1
    return Trial(
        math.comb(below, GALLERY - 1) / math.comb(rest, GALLERY - 1),
        measure_similarities(guess[None], image[None], others[:1]),
        title,
        images,
    )


def measure_trials(reading: str, releases: Sequence[Sequence[Trial]]) -> Measurement:
    """Return the mean share over images, with an interval over releases: what is behind one release is one trial."""
    all_trials = [trial for trials in releases for trial in trials]
    clusters = [trials for trials in releases if trials]
    shares = [np.array([trial.found for trial in trials]) for trials in clusters]
    low, high = clustered_interval(
        lambda chosen: float(np.concatenate([shares[i] for i in chosen]).mean()), len(shares)
    )
    # Equal shares leave a bootstrap without width: the exact interval of n hits, or misses, in n trials stands in.
    value, exact = float(np.concatenate(shares).mean()), 0.025 ** (1.0 / len(shares))
    low, high = (min(low, exact) if value == 1.0 else low), (max(high, 1.0 - exact) if value == 0.0 else high)
    return Measurement(
        value=value,
        low=min(low, value),
        high=max(high, value),
        trials=len(shares),
        reading=reading,
        details=_mean_similarities(np.array([trial.similarities for trial in all_trials])),
        pictures=tuple(
            Picture(
                title=trials[0].title,
                images={caption: to_png(image) for caption, image in trials[0].images.items()},
            )
            for trials in clusters[:PICTURES]
        ),
    )


def _mean_similarities(figures: Rows) -> dict[str, float]:
    """Return the mean similarities of (T, 2, 3), without figures that no image has."""
    has_figure = ~np.isnan(figures)
    means = np.where(has_figure, figures, 0.0).sum(axis=0) / has_figure.sum(axis=0).clip(1)
    return {
        f"{name} with {image}": float(means[i, j])
        for j, name in enumerate(FIGURES)
        for i, image in enumerate(("the image", "another of its class"))
        if has_figure[:, i, j].any()
    }


FIGURES = ("PSNR", "SSIM", "HaarPSI")
_LEAST_HAAR = 16
"""Least side of an image that HaarPSI takes."""


def scale_to_unit(images: Tensor) -> Tensor:
    """Scale images (B, …) to [0, 1], each by its own range."""
    flat = images.flatten(1)
    low, high = (end.view(-1, *[1] * (images.ndim - 1)) for end in (flat.amin(dim=1), flat.amax(dim=1)))
    return (images - low) / (high - low).clamp(min=1e-6)


def total_variation(images: Tensor) -> Tensor:
    """Return the mean total variation of each of images (B, C, H, W); zeros for inputs (B, …) that are no images."""
    if images.ndim != 4:
        return images.new_zeros(len(images))
    return images.diff(dim=2).abs().mean(dim=(1, 2, 3)) + images.diff(dim=3).abs().mean(dim=(1, 2, 3))


def measure_similarities(made: Tensor, right: Tensor, other: Tensor) -> NDArray[np.float64]:
    """Return PSNR (dB), SSIM and HaarPSI, (2, 3): with the right image, and with another of its class.

    Figures that an image is too small for, or that need ``piq`` where it is not installed, are NaN.
    """
    images = [scale_to_unit(image) for image in (made, right, other)]
    return np.array([_compare_pair(images[0], image) for image in images[1:]])


def _compare_pair(made: Tensor, image: Tensor) -> tuple[float, float, float]:
    error = float((made - image).square().mean())
    psnr = 10.0 * float(np.log10(1.0 / max(error, 1e-10)))
    if image.ndim != 4 or find_spec("piq") is None:
        return psnr, float("nan"), float("nan")
    import piq  # noqa: PLC0415 (an extra)

    side = min(image.shape[2:])
    kernel = min(11, side - (side + 1) % 2)
    with torch.no_grad():
        ssim = float(piq.ssim(made, image, kernel_size=kernel, data_range=1.0))
        haar = float(piq.haarpsi(made, image, data_range=1.0)) if side >= _LEAST_HAAR else float("nan")
    return psnr, ssim, haar


def to_png(image: Tensor) -> str:
    """Return an image (C, H, W), or a vector of features as one row of pixels, as a PNG in base64."""
    pixels = (scale_to_unit(image[None])[0] * 255).round().to(torch.uint8)
    if pixels.ndim != 3:
        pixels = pixels.reshape(1, -1)
    else:
        pixels = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)[..., :3]
    buffer = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(buffer, format="PNG")
    return base64.b64encode(buffer.getvalue()).decode()
