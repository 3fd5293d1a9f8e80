"""Inversion of prototypes: an image whose features are the prototype, by optimisation or by a trained decoder.

*Feature matching* minimises ‖f(x) − C‖² / ‖C‖² + w·TV(x) over images x (Mahendran and Vedaldi 2015, equation 3), from
the class mean of public images. A *decoder* learns features → image on public images and is applied to the prototype.
Where rows are rotated there is nothing to reconstruct: the images of a gallery are judged by the lengths and inner
products of rows instead (:mod:`protoseal.attacks.rotated_rows`).

The metric is identification (:mod:`protoseal.attacks.image_gallery`).

Limit: the adversary has the victim's own feature extractor, which a run of PFPL does not send, and which everyone has
where features are frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from protoseal.attacks.cases import Case, Measurement, divide_test_samples
from protoseal.attacks.image_gallery import (
    GALLERY,
    METRIC,
    Trial,
    choose_rivals,
    measure_trials,
    run_scored_trial,
    run_trial,
    total_variation,
)
from protoseal.attacks.readings import Adversary, readings, round_zero_readings
from protoseal.attacks.recorded_run import (
    LabelledImages,
    Labels,
    RecordedRun,
    Rows,
    cached_in_run,
    compute_features,
)
from protoseal.attacks.rotated_rows import rotated_readings
from secure_client.models.prototype_model import PrototypeModel, compute_outputs

_STEPS, _RATE, _SMOOTHING = 300, 0.1, 0.01
_LEAST_SPREAD = 0.01
_DECODER_STEPS, _DECODER_BATCH, _HIDDEN = 400, 64, 256


class PrototypeInversion(Case):
    """Case of reconstruction from prototypes with ``samples`` images behind each."""

    metric = METRIC
    chance, margin = 1.0 / GALLERY, 0.2
    question = "Can the adversary reconstruct an image well enough to recognise it?"
    ability = "reconstruct a recognisable image from a prototype"
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

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:
        """Reconstruct from every prototype of that many samples, for each reading of the adversary's view."""
        by_reading: dict[str, dict[bytes, list[Trial]]] = {}
        for victim in run.sites:
            for reading, release, trials in self._trials(run, adversary, victim):
                # Sites that share a mean have one release: their trials are not independent.
                by_reading.setdefault(reading, {}).setdefault(release, []).extend(trials)
        return [measure_trials(reading, list(releases.values())) for reading, releases in by_reading.items()]

    def _trials(
        self, run: RecordedRun, adversary: Adversary, victim: str
    ) -> Iterator[tuple[str, bytes, list[Trial]]]:
        """Yield each reading and release of that many samples, by its rows, with a trial for each image behind it."""
        for made in reconstruct(run, adversary, victim, decoder=self._decoder):
            for k, title, behind, others in self._galleries(run, victim, made.labels.tolist()):
                trials = [run_trial(image, made.of_class(k), others, title) for image in behind]
                yield made.reading, made.rows[made.labels == k].tobytes(), trials
        for rotated in rotated_readings(run, adversary, victim):
            for k, title, behind, others in self._galleries(run, victim, rotated.classes):
                scores, rivals = rotated.ratios(k, behind), rotated.ratios(k, others)
                trials = [
                    run_scored_trial(image, others, np.append(score, rivals), title)
                    for image, score in zip(behind, scores, strict=True)
                ]
                yield rotated.reading, rotated.release(k), trials

    def _galleries(
        self, run: RecordedRun, victim: str, classes: Iterable[int]
    ) -> Iterator[tuple[int, str, Tensor, Tensor]]:
        """Yield each class with that many samples: its number and title, the images behind it, and other images."""
        samples, train = divide_test_samples(run, victim), run.sites[victim].train
        for k in sorted(set(classes)):
            behind, others = train.of_class(k).inputs, choose_rivals(samples, k)
            if len(behind) == self.samples and others is not None:
                yield k, f"class {run.agreement.classes[k]} at {victim}", behind, others


@dataclass(frozen=True)
class Reconstruction:
    """Images (M, …) of classes ``labels`` (M,), one for each of the ``rows`` (M, d) of a reading."""

    reading: str
    rows: Rows = field(repr=False)
    images: Tensor = field(repr=False)
    labels: Labels = field(repr=False)

    def of_class(self, number: int) -> Tensor:
        """Return the images of one class."""
        return self.images[torch.from_numpy(self.labels == number)]


@cached_in_run
def reconstruct(
    run: RecordedRun, adversary: Adversary, victim: str, *, decoder: bool
) -> tuple[Reconstruction, ...]:
    """Return images for all rows of each reading: cases of other numbers of samples use the same."""
    public, result = divide_test_samples(run, victim).public, []
    for learned in (*readings(run, adversary, victim), *round_zero_readings(run, adversary, victim)):
        model = run.initial if learned.initial and run.initial is not None else run.sites[victim].model
        # Both ways start from public images of the class, so that classes without any are left out.
        is_public = np.isin(learned.labels, public.labels)
        labels, targets = learned.labels[is_public], torch.from_numpy(learned.rows[is_public]).float()
        if not len(labels):
            continue
        if decoder:
            made = train_decoder(run, victim, model)(targets)
        else:
            starts = torch.stack([public.of_class(k).inputs.mean(dim=0) for k in labels.tolist()])
            made = match_features(model, targets, starts, _input_range(public))
        result.append(Reconstruction(learned.reading, learned.rows[is_public], made, labels))
    return tuple(result)


def match_features(
    model: PrototypeModel, targets: Tensor, starts: Tensor, within: tuple[float, float]
) -> Tensor:
    """Return images (B, …) whose features come near ``targets`` (B, d), from ``starts`` (B, …), in the range."""
    low, high = within
    # A sigmoid keeps images in the range of inputs, and 0.02 from its ends lets gradients move them.
    scaled = ((starts - low) / (high - low)).clamp(0.02, 0.98)
    free = torch.logit(scaled).requires_grad_()
    optimiser = torch.optim.Adam([free], lr=_RATE)
    size = targets.square().sum(dim=1).clamp(min=1e-6)
    model.eval()
    for _ in range(_STEPS):
        unit = torch.sigmoid(free)
        features = compute_outputs(model, low + (high - low) * unit).features
        distances = (features - targets).square().sum(dim=1) / size
        loss = distances.sum() + _SMOOTHING * total_variation(unit).sum()
        (free.grad,) = torch.autograd.grad(loss, [free])
        optimiser.step()
    return (low + (high - low) * torch.sigmoid(free)).detach()


@cached_in_run
def train_decoder(run: RecordedRun, victim: str, model: PrototypeModel) -> Callable[[Tensor], Tensor]:
    """Train a decoder of a model's features on the adversary's public images; it maps (B, d) to images (B, …)."""
    public = divide_test_samples(run, victim).public
    features = torch.from_numpy(compute_features(model, public.inputs)).float()
    centre, spread = features.mean(dim=0), features.std(dim=0)
    spread = spread.clamp(min=_LEAST_SPREAD * float(spread.max()))  # dead features would magnify rounding
    network = _fit_decoder((features - centre) / spread, public.inputs.flatten(1))

    def decode(targets: Tensor) -> Tensor:
        with torch.no_grad():
            made: Tensor = network((targets - centre) / spread)
        return made.clamp(*_input_range(public)).reshape(-1, *public.inputs.shape[1:])

    return decode


def _fit_decoder(features: Tensor, images: Tensor) -> nn.Module:
    # The decoder draws from a generator of its own, so that it changes no run that is recorded later.
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


def _input_range(public: LabelledImages) -> tuple[float, float]:
    return float(public.inputs.min()), float(public.inputs.max())
