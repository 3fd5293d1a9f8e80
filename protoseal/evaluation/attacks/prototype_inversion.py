"""Inversion of prototypes: an image whose features are the prototype, by optimisation or by a trained decoder.

*Feature matching* minimises ‖f(x) − C‖² / ‖C‖² + w·TV(x) over images x (Mahendran and Vedaldi 2015, equation 3), from
the class mean of public images. A *decoder* learns features → image on public images and is applied to the prototype.

The metric is identification: a reconstruction is compared with one image behind the prototype and nine others of its
class; an attack that learns nothing of the image finds it in one of ten. Comparisons are correlations after the class
mean is subtracted, since a class mean alone resembles every image of its class.

Limit: the adversary has the victim's own feature extractor, which a run of PFPL does not send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from warnings import catch_warnings

import numpy as np
import torch
from torch import Tensor, nn

from protoseal.evaluation.attacks.adversaries import Adversary, Learned, readings
from protoseal.evaluation.attacks.case import Case, auxiliary
from protoseal.evaluation.attacks.image_similarity import FIGURES, picture, similarities
from protoseal.evaluation.attacks.recorded_run import LabelledImages, RecordedRun, Rows
from protoseal.evaluation.attacks.verdicts import Measured, Picture, clustered_interval
from secure_client.models.prototype_model import PrototypeModel, outputs_of

GALLERY = 10
"""Images of a gallery: one behind the prototype, and others of its class."""
PICTURES = 6
_STEPS, _RATE, _SMOOTHING = 300, 0.1, 0.01
_DECODER_STEPS, _DECODER_BATCH, _HIDDEN = 400, 64, 256


@dataclass(frozen=True)
class Reconstruction:
    """Outcome for one release: the share of galleries in which an image behind it is found, and its similarities."""

    found: float
    similarities: Rows
    picture: Picture


class PrototypeInversion(Case):
    """Case of reconstruction from prototypes with ``samples`` images behind each."""

    metric = f"right image found among {GALLERY} of its class"
    chance, margin = 1.0 / GALLERY, 0.2
    question = "Can the adversary reconstruct an image well enough to recognise it?"
    not_covered = (
        "Stronger image priors such as diffusion models, and attributes of an image short of recognising it."
    )
    thinned = True

    def __init__(self, samples: int, *, decoder: bool) -> None:
        """Attack prototypes of exactly ``samples`` images, by a decoder or by feature matching."""
        self.samples, self._decoder = samples, decoder
        self.attack = f"{self.family}, {samples} sample{'s' * (samples != 1)}"

    @property
    def family(self) -> str:
        """See :class:`Case`."""
        return f"prototype inversion by {'a decoder' if self._decoder else 'feature matching'}"

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measured]:
        """Reconstruct from every prototype of that many samples, for each reading of the adversary's view."""
        found: dict[str, list[Reconstruction]] = {}
        for victim in run.sites:
            for learned in readings(run, adversary, victim):
                found.setdefault(learned.reading, []).extend(self._of_victim(run, victim, learned))
        return [_measured(reading, results) for reading, results in found.items() if results]

    def _of_victim(self, run: RecordedRun, victim: str, learned: Learned) -> list[Reconstruction]:
        known, site = auxiliary(run, victim), run.sites[victim]
        classes = [
            int(k) for k in np.unique(learned.labels) if (site.train.labels == k).sum() == self.samples
        ]
        others = {k: _others(known.outsiders, known.public, k) for k in classes}
        classes = [k for k in classes if len(others[k]) >= GALLERY - 1]
        if not classes:
            return []
        rows = [learned.of_class(k) for k in classes]
        targets = torch.from_numpy(np.concatenate(rows)).float()
        if self._decoder:
            made = decoder_of(run, victim)(targets)
        else:
            repeats = [k for k, each in zip(classes, rows, strict=True) for _ in each]
            made = matched(site.model, targets, _class_means(known.public, repeats), _range(known.public))
        parts = torch.split(made, [len(each) for each in rows])
        names = run.agreement.classes
        return [
            _identified(part, site.train.of_class(k).inputs, others[k], f"class {names[k]} at {victim}")
            for k, part in zip(classes, parts, strict=True)
        ]


def matched(model: PrototypeModel, targets: Tensor, starts: Tensor, within: tuple[float, float]) -> Tensor:
    """Return images (B, …) whose features come near ``targets`` (B, d), from ``starts`` (B, …), in the range."""
    low, high = within
    scaled = ((starts - low) / (high - low)).clamp(0.02, 0.98)
    free = torch.logit(scaled).requires_grad_()
    optimiser = torch.optim.Adam([free], lr=_RATE)
    size = targets.square().sum(dim=1).clamp(min=1e-6)
    model.eval()
    for _ in range(_STEPS):
        unit = torch.sigmoid(free)
        features = outputs_of(model, low + (high - low) * unit).features
        loss = ((features - targets).square().sum(dim=1) / size).sum() + _SMOOTHING * _variation(unit)
        (free.grad,) = torch.autograd.grad(loss, [free])
        optimiser.step()
    return (low + (high - low) * torch.sigmoid(free)).detach()


@lru_cache(maxsize=16)
def decoder_of(run: RecordedRun, victim: str) -> Callable[[Tensor], Tensor]:
    """Train a decoder of the victim's features on the adversary's public images; it maps (B, d) to images (B, …)."""
    public = auxiliary(run, victim).public
    features = torch.from_numpy(run.sites[victim].features(public.inputs)).float()
    centre, spread = features.mean(dim=0), features.std(dim=0) + 1e-6
    network = _trained_decoder((features - centre) / spread, public.inputs.flatten(1))

    def decode(targets: Tensor) -> Tensor:
        with torch.no_grad():
            made: Tensor = network((targets - centre) / spread)
        return made.clamp(*_range(public)).reshape(-1, *public.inputs.shape[1:])

    return decode


def _trained_decoder(features: Tensor, images: Tensor) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(features.shape[1], _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, images.shape[1])
        )
        optimiser, parameters = torch.optim.Adam(network.parameters(), lr=2e-3), list(network.parameters())
        for _ in range(_DECODER_STEPS):
            chosen = torch.randint(len(images), (_DECODER_BATCH,))
            loss = nn.functional.mse_loss(network(features[chosen]), images[chosen])
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.grad = gradient
            optimiser.step()
    return network


def _variation(images: Tensor) -> Tensor:
    """Return the total variation of images (B, C, H, W); 0 for inputs that are no images."""
    if images.ndim != 4:
        return images.new_zeros(())
    return (
        images.diff(dim=2).abs().mean(dim=(1, 2, 3)).sum()
        + images.diff(dim=3).abs().mean(dim=(1, 2, 3)).sum()
    )


def _others(outsiders: LabelledImages, public: LabelledImages, number: int) -> Tensor:
    return torch.cat([outsiders.of_class(number).inputs, public.of_class(number).inputs])


def _class_means(public: LabelledImages, classes: Sequence[int]) -> Tensor:
    return torch.stack([public.of_class(k).inputs.mean(dim=0) for k in classes])


def _range(public: LabelledImages) -> tuple[float, float]:
    return float(public.inputs.min()), float(public.inputs.max())


def _identified(made: Tensor, behind: Tensor, others: Tensor, title: str) -> Reconstruction:
    """Compare the reconstructions of one release with the images behind it and with others of the class."""
    mean = others.flatten(1).mean(dim=0)
    right, wrong = (
        _correlation(each.flatten(1) - mean, made.flatten(1) - mean).max(dim=1).values.numpy()
        for each in (behind, others)
    )
    best = made[:1]
    original = "original" if len(behind) == 1 else f"one of {len(behind)} originals"
    shown = {original: behind[0], "reconstruction": best[0], "class mean": others.mean(dim=0)}
    return Reconstruction(
        found=float(np.mean([_first_of_gallery(score, wrong) for score in right])),
        similarities=similarities(best, behind[:1], others[:1]),
        picture=Picture(title, {name: picture(each) for name, each in shown.items()}),
    )


def _first_of_gallery(score: float, wrong: Rows) -> float:
    """Return the share of galleries, over all draws of the others, in which ``score`` is the highest."""
    below, rivals = int((wrong < score).sum()), GALLERY - 1
    return comb(below, rivals) / comb(len(wrong), rivals)


def _correlation(images: Tensor, others: Tensor) -> Tensor:
    """Return the cosines (A, B) of rows of two matrices."""
    products: Tensor = nn.functional.normalize(images, dim=1) @ nn.functional.normalize(others, dim=1).T
    return products


def _measured(reading: str, results: Sequence[Reconstruction]) -> Measured:
    rates = np.array([each.found for each in results])
    low, high = clustered_interval(lambda chosen: float(rates[chosen].mean()), len(rates))
    value = float(rates.mean())
    with catch_warnings(action="ignore", category=RuntimeWarning):  # a figure may be NaN for all images
        means = np.nanmean(np.array([each.similarities for each in results]), axis=0)
    named = {
        f"{name} with {image}": float(means[i, j])
        for j, name in enumerate(FIGURES)
        for i, image in enumerate(("the image", "another of its class"))
    }
    return Measured(
        value=value,
        low=min(low, value),
        high=max(high, value),
        trials=len(rates),
        basis=reading,
        details={name: number for name, number in named.items() if np.isfinite(number)},
        pictures=tuple(each.picture for each in results[:PICTURES]),
    )
