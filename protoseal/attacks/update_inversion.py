"""Inversion of model updates: images whose gradient is the change that training made to a model.

*Gradient matching* (Geiping et al. 2020) looks for images x with 1 − cos(∇L(x), base − model) + w·TV(x) least. Labels
follow from the change of the classifier's bias; where the classifier stays at the site, labels are optimised too, and
the initial classifier stands for the site's own (Zhu et al. 2019). From a sum over sites as many images are recovered
as the sum has behind it.

*Single step*: each site has few samples and takes one step of SGD, and its model passes through the run's protection.
*Realistic epochs*: the same inversion of the run's last round, which took many steps on many samples.

The metric is identification (:mod:`protoseal.attacks.image_gallery`).

Limits: every adversary is given the base of its victim's training; the single step starts at the initial model; models
compute in ``eval()`` mode; no closed-form inversion of the first fully connected layer, no prior but smoothness.
``min_holders`` bounds one sum: a coordinator that makes the peers stand still has the victim's update
(:class:`StandStill`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from protoseal.attacks.cases import Case, Measurement, divide_test_samples
from protoseal.attacks.exchanged_models import (
    ExchangedModel,
    find_base,
    load_model,
    read_average,
    read_models,
)
from protoseal.attacks.image_gallery import (
    GALLERY,
    METRIC,
    Trial,
    choose_rivals,
    measure_trials,
    run_trial,
    total_variation,
)
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import RecordedRun, Rows, record_scene
from protoseal.audit.budget_curve import change_config
from protoseal.simulation.experiment import load_scene
from secure_client.data.samples import Samples
from secure_client.models.prototype_model import PrototypeModel, compute_outputs

REPEATS = 4
"""Single-step runs, each with other samples."""
_MOST_IMAGES, _MOST_NUMBERS = 20, 20_000_000
_STEPS, _RATE, _SMOOTHING, _SURE = 200, 0.1, 0.01, 50.0
_ONE_STEP = {"optimiser": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "local_epochs": 1}


@dataclass(frozen=True)
class Update:
    """Model that an adversary reads as a site's, and the averaged part ``base`` (p + q,) that it was trained from."""

    run: RecordedRun
    victim: str
    read: ExchangedModel
    base: Rows

    @property
    def name(self) -> bytes:
        """Hash of the update."""
        return hashlib.sha256(self.base.tobytes() + self.read.vector.tobytes()).digest()


class UpdateInversion(Case):
    """Case of inversion of a single step on ``samples`` images of each site, or of the run's last round for None."""

    metric = METRIC
    chance, margin = 1.0 / GALLERY, 0.2
    question = "Can the adversary reconstruct an image that trained a model from the model's change?"
    ability = "reconstruct a recognisable training image from a model's change"
    not_covered = (
        "Models that the coordinator crafts for the purpose, and image priors such as diffusion models."
    )

    def __init__(self, samples: int | None) -> None:
        """Attack one step on that many images at each site, or with None the last round as it ran."""
        self.samples = samples
        way = "realistic epochs" if samples is None else f"one step on {samples} image{'s' * (samples != 1)}"
        self.attack = f"inversion of a model update, {way}"
        self._last: tuple[RecordedRun, Sequence[RecordedRun]] | None = None
        self._made: dict[bytes, Tensor] = {}

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:
        """Recover images from every site's update, for each reading of the adversary's view."""
        if not run.agreement.method.averages:
            return ()
        updates = [
            Update(step, victim, read, find_base(step, victim))
            for step in self._runs(run)
            for victim in step.sites
            for read in self._readings(step, adversary, victim)
        ]
        self._recover(updates)
        by_reading: dict[str, dict[bytes, list[Trial]]] = {}
        for update in updates:
            of_update = by_reading.setdefault(update.read.reading, {}).setdefault(update.name, [])
            of_update.extend(_run_trials(update, self._made[update.name]))
        results = {reading: list(by_update.values()) for reading, by_update in by_reading.items()}
        return [measure_trials(reading, trials) for reading, trials in results.items() if any(trials)]

    def _readings(self, run: RecordedRun, adversary: Adversary, victim: str) -> Iterator[ExchangedModel]:
        yield from read_models(run, adversary, victim)

    def _runs(self, run: RecordedRun) -> Sequence[RecordedRun]:
        if self.samples is None:
            return [run]
        if self._last is None or self._last[0] is not run:
            self._last = run, [record_single_step(run, self.samples, number) for number in range(REPEATS)]
        return self._last[1]

    def _recover(self, updates: Sequence[Update]) -> None:
        """Recover images from the updates that are new; the sites of one sum have one update."""
        alike: dict[tuple[bytes, int], dict[bytes, Update]] = {}
        for update in updates:
            if update.name not in self._made:
                count = min(update.read.sites * (self.samples or GALLERY), _MOST_IMAGES)
                alike.setdefault((update.base.tobytes(), count), {})[update.name] = update
        for (_, count), by_name in alike.items():
            # Gradients of gradients need memory in proportion to updates times parameters.
            at_once = max(1, _MOST_NUMBERS // max(1, len(next(iter(by_name.values())).base)))
            names = list(by_name)
            for i in range(0, len(names), at_once):
                part = names[i : i + at_once]
                self._made |= zip(part, _recover_images([by_name[name] for name in part], count), strict=True)


class StandStill(UpdateInversion):
    """Case of a coordinator that makes all sites but the victim stand still in a round of a masked sum.

    The sum less the peers' unchanged models is the victim's. The peers' standing still is simulated: their own updates
    are subtracted from the recorded sum.
    """

    def __init__(self) -> None:
        """Attack one step on one image at each site."""
        super().__init__(1)
        self.attack += ", peers standing still"
        self.adversaries = (Adversary.COORDINATOR,)

    def _readings(
        self,
        run: RecordedRun,
        adversary: Adversary,  # noqa: ARG002 (the coordinator alone)
        victim: str,
    ) -> Iterator[ExchangedModel]:
        """Yield the victim's model from the opened mean of a round in which no peer's model changed."""
        others = sorted(set(run.sites) - {victim})
        if not run.agreement.protection.ckks_key:
            read = read_average(run, victim, others, coordinator=True)
            if read.sites == 1:
                yield replace(read, reading="the sum, less the base that all peers sent back unchanged")


def record_single_step(run: RecordedRun, samples: int, number: int) -> RecordedRun:
    """Record one round, under the run's protection, of one step of SGD on ``samples`` images at each site."""
    own = run.config.training.model_dump(mode="json", exclude_unset=True)
    config = change_config(run.config, {"rounds": 1, "training": own | _ONE_STEP | {"batch_size": samples}})
    scene, rng = load_scene(config, run.seed), np.random.default_rng(number)
    sites = tuple(replace(site, train=_draw_few(site.train, samples, rng)) for site in scene.divided.sites)
    data = {site.name: site.to_data(scene.divided.preprocessing) for site in sites}
    return record_scene(replace(scene, divided=replace(scene.divided, sites=sites), data=data))


def _draw_few(train: Samples, count: int, rng: np.random.Generator) -> Samples:
    """Return ``count`` samples, of different classes as far as there are any."""
    order = rng.permutation(len(train.labels))
    # A batch of different classes has a gradient that tells its images apart best.
    _, firsts = np.unique(train.labels[order], return_index=True)
    rest = np.setdiff1d(np.arange(len(order)), firsts)
    return train.take(order[np.concatenate([rng.permutation(firsts), rest])[:count]])


def _recover_images(updates: Sequence[Update], count: int) -> Tensor:
    """Return ``count`` images for each of the updates, (T, count, …), which have one base."""
    run, public = updates[0].run, divide_test_samples(updates[0].run, updates[0].victim).public.inputs
    base, low, high = load_model(run, updates[0].base), float(public.min()), float(public.max())
    before = dict(base.named_parameters())
    steps = []
    for update in updates:
        after = dict(load_model(run, update.read.vector).named_parameters())
        steps.append({name: (before[name] - after[name]).detach() for name in before})
    noise = torch.rand((len(updates), count, *public.shape[1:]), generator=torch.Generator().manual_seed(0))
    unit = match_gradients(base, steps, noise.clamp(0.02, 0.98), (low, high))
    return low + (high - low) * unit


def match_gradients(
    base: PrototypeModel, steps: Sequence[Mapping[str, Tensor]], start: Tensor, within: tuple[float, float]
) -> Tensor:
    """Return images in [0, 1] like ``start`` (T, B, …) whose gradients at ``base`` point along ``steps``, by parameter.

    ``within`` is the range of inputs that [0, 1] stands for.
    """
    low, high = within
    moved = [name for name in steps[0] if any(bool(step[name].any()) for step in steps)]
    if not moved:
        return start
    network = Logits(base)
    fixed = {name: parameter.detach() for name, parameter in network.named_parameters()}
    moving = {f"model.{name}": fixed.pop(f"model.{name}") for name in moved}
    wanted = torch.stack([torch.cat([step[name].flatten() for name in moved]) for step in steps])

    def loss(parameters: dict[str, Tensor], unit: Tensor, labels: Tensor) -> Tensor:
        logits = torch.func.functional_call(network, fixed | parameters, (low + (high - low) * unit,))
        return nn.functional.cross_entropy(logits, torch.softmax(labels, dim=1))

    def off(free: Tensor, labels: Tensor, step: Tensor) -> Tensor:
        unit = torch.sigmoid(free)
        gradients = torch.func.grad(loss)(moving, unit, labels)
        flat = torch.cat([gradient.flatten() for gradient in gradients.values()])
        # The direction alone (Geiping et al. 2020, equation 4): a step's length depends on the learning rate.
        return 1.0 - torch.cosine_similarity(flat, step, dim=0) + _SMOOTHING * total_variation(unit).mean()

    free = torch.logit(start).requires_grad_()
    labels = torch.stack([_infer_labels(step, base, part) for step, part in zip(steps, start, strict=True)])
    # Labels that the bias tells stay fixed; otherwise they are sought beside the images (Zhu et al. 2019).
    sought = [free] if bool(labels.any()) else [free, labels.requires_grad_()]
    optimiser = torch.optim.Adam(sought, lr=_RATE)
    for _ in range(_STEPS):
        total = torch.func.vmap(off)(free, labels, wanted).sum()
        for tensor, gradient in zip(sought, torch.autograd.grad(total, sought), strict=True):
            tensor.grad = gradient
        optimiser.step()
    return torch.sigmoid(free).detach()


class Logits(nn.Module):
    """Module of a model's logits alone."""

    def __init__(self, model: PrototypeModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits (B, K)."""
        return compute_outputs(self.model, inputs).logits


def _infer_labels(steps: Mapping[str, Tensor], base: PrototypeModel, start: Tensor) -> Tensor:
    """Return logits (B, K) of the images' labels: those that the bias's change tells, or zeros.

    A class with c of B images changes the bias by a multiple of c / B − 1 / K, if all classes are about as likely.
    """
    with torch.no_grad():
        logits = compute_outputs(base, start).logits
    count, classes = logits.shape
    biases = [
        step for name, step in steps.items() if name.startswith("classifier.") and step.shape == (classes,)
    ]
    if not biases or not bool(biases[-1].any()):
        return torch.zeros_like(logits)
    # Descent raises the biases of the batch's own classes and lowers the others, by 1 / K each.
    rise = -biases[-1].double()
    expected = count * (rise / (-rise.min() * classes) + 1.0 / classes)
    labels = torch.zeros_like(logits)
    for row in labels:
        best = int(expected.argmax())
        row[best], expected[best] = _SURE, expected[best] - 1.0
    return labels


def _run_trials(update: Update, made: Tensor) -> Iterator[Trial]:
    """Look for images behind an update, one of each class, among those that were recovered."""
    run, victim = update.run, update.victim
    samples, train = divide_test_samples(run, victim), run.sites[victim].train
    for k in np.unique(train.labels)[:GALLERY]:
        others = choose_rivals(samples, int(k))
        if others is not None:
            title = f"class {run.agreement.classes[k]} at {victim}"
            yield run_trial(train.of_class(int(k)).inputs[0], made, others, title)
