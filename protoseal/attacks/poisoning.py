"""Poisoning and backdoors by one site in five, one at least, and what each costs the honest sites.

A malicious site changes what its learner returns before the protection is applied, so that one attack works under every
protection. The site stays within what the parties would refuse: under sums whose terms are hidden, only the mean
prototype is checked, so that the site's own prototype may be longer than the agreed bound.

Every attack runs twice: on the configuration, and on the same without what holds poison off (:func:`remove_guards`).
The difference to the run in which no site is malicious is paired by seed and honest site.

Limits: a few seeds show large losses alone, and a loss below the margin is no proof of robustness. The malicious sites
do not adapt to the honest sites' values. Under shared noise (:mod:`privacy`) only poisoned data reach the sum, because
the site's term is drawn from its model. No site skips the encoding of masked sums, which refuses a number beyond its
bound; a site with a program of its own may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from scipy.stats import t  # type: ignore[import-untyped]  # it ships no types
from torch.utils.data import TensorDataset

from agreement import Agreement, Protection, Traits
from algorithms.fedplcc import LocalClusters
from algorithms.pfpl import Weighting
from algorithms.prototypes import project_to_norm
from protoseal.attacks.cases import Case, Measurement, concatenate_images
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import LabelledImages, Labels, RecordedRun, Rows, load_images
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import Scene, load_scene
from protoseal.simulation.local_federation import LocalFederation, LocalSite
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.exchanged_values import ExchangedValues
from secure_client.data import SiteData
from secure_client.privacy.bounds import saturate
from secure_client.protocol.journal import Journal
from secure_client.protocol.setup import Party
from secure_server.process_pool import Workers

MALICIOUS_SHARE = 0.2
"""Share of the sites that are malicious; at least one is."""
WIDER = 1000.0
"""Factor by which a run without checks widens every agreed bound."""
_CAUTION = 0.9
"""Share of the longest row that a malicious site dares to hide in a sum: it does not know the other rows."""


@dataclass(frozen=True)
class Poison:
    """Behaviour of a malicious site; by default that of an honest one.

    ``data`` changes its training samples of a number of classes. ``rows`` changes its prototypes (M, d) of classes
    ``labels`` (M,) in a run of a number of sites. ``factor`` multiplies the change that training made to the averaged
    parameters. ``samples`` multiplies the number of samples that the site claims. If it ``echoes``, the site sends its
    last result back instead of its prototypes.
    """

    data: Callable[[LabelledImages, int], LabelledImages] = lambda images, classes: images
    rows: Callable[[Rows, Labels, int], Rows] = lambda rows, labels, sites: rows
    factor: float = 1.0
    samples: int = 1
    echoes: bool = False


@dataclass(frozen=True)
class HonestResults:
    """Results of the honest sites, by their names: accuracy, and the share of triggered images taken for the target."""

    accuracy: Mapping[str, float]
    triggered: Mapping[str, float]


def choose_malicious(names: list[str]) -> list[str]:
    """Return the malicious sites: the first fifth of the names, in their order."""
    return sorted(names)[: max(1, round(MALICIOUS_SHARE * len(names)))]


def remove_guards(config: SimulationConfig) -> SimulationConfig:
    """Return the configuration without what holds poison off.

    Bounds are so wide that no check acts, and PFPL has the weights as its paper prints them, which prefer far peers.
    Sites that agree count as equal as before. The protection is ``plain``, because numbers that large have no room in
    ciphertexts, unless sites share noise.
    """
    bound, shared = (
        config.averaging.parameter_bound * WIDER,
        config.privacy is not None and config.privacy.distributed,
    )
    return config.model_copy(
        update={
            "protection": config.protection if shared else Protection.PLAIN,
            "norm_bound": config.norm_bound * WIDER,
            "agreement_threshold": config.agreement_threshold / WIDER**2,
            "averaging": config.averaging.model_copy(update={"parameter_bound": bound}),
            "pfpl": config.pfpl.model_copy(update={"weighting": Weighting.DISTANCE}),
        }
    )


def run_poisoned(
    config: SimulationConfig,
    seed: int,
    poison: Poison,
    triggered: Callable[[LabelledImages], LabelledImages],
) -> HonestResults:
    """Run one federation with ``poison`` at its malicious sites and test the honest ones.

    ``triggered`` makes test images with a trigger, labelled as the target. Raises the errors of
    :func:`protoseal.simulation.experiment.simulate`.
    """
    scene = load_scene(config, seed)
    agreement, malicious = scene.agreement(config.method), choose_malicious(list(scene.data))
    data = dict(scene.data)
    for name in malicious:
        changed = poison.data(load_images(data[name].train), len(agreement.classes))
        data[name] = replace(data[name], train=_dataset(changed))
    pool = Workers(config.workers or 1) if config.protection.ckks_key else nullcontext()
    with (
        pool as executor,
        PoisonedFederation(scene, agreement, data, dict.fromkeys(malicious, poison), executor) as federation,
    ):
        federation.run()
        accuracy, taken = {}, {}
        for site in federation.sites:
            test = scene.data[site.name].test
            if site.name in malicious:
                continue
            if test is None:
                raise ValueError("poisoning is measured at sites with test samples")
            images = load_images(test)
            accuracy[site.name] = _measure_accuracy(site, agreement, images)
            taken[site.name] = _measure_accuracy(site, agreement, triggered(images))
    return HonestResults(accuracy, taken)


def _dataset(images: LabelledImages) -> TensorDataset:
    return TensorDataset(images.inputs, torch.from_numpy(images.labels))


def _measure_accuracy(site: LocalSite, agreement: Agreement, images: LabelledImages) -> float:
    """Return the share of images that the site's method predicts as labelled."""
    tested = site.learner.predictor.evaluate_on(_dataset(images))
    accuracy = tested.accuracy_by(agreement.inference)
    return tested.accuracy_classifier if accuracy is None else accuracy  # as `protoseal predict` falls back


class PoisonedFederation(LocalFederation):
    """Federation in which the sites named in ``poisons`` are malicious."""

    def __init__(
        self,
        scene: Scene,
        agreement: Agreement,
        data: Mapping[str, SiteData],
        poisons: Mapping[str, Poison],
        executor: Any,
        on_completed: Callable[[LocalFederation, int], None] = lambda run, number: None,
    ) -> None:
        self._poisons = poisons
        super().__init__(
            agreement, data, training=scene.training, executor=executor, on_completed=on_completed
        )

    def _open_learner(self, party: Party, position: int) -> tuple[CheckpointedLearner, Journal]:
        honest, journal = super()._open_learner(party, position)
        poison = self._poisons.get(party.name)
        if poison is None:
            return honest, journal
        malicious = MaliciousLearner(honest, poison, self.agreement, len(self._data), len(self._poisons))
        return cast("CheckpointedLearner", malicious), journal


class MaliciousLearner:
    """Learner of one of ``malicious`` sites of ``sites``: it trains as an honest one and changes its uploads.

    ``sent`` has the rows (K, d) of each round as they were sent.
    """

    def __init__(
        self, honest: CheckpointedLearner, poison: Poison, agreement: Agreement, sites: int, malicious: int
    ) -> None:
        self._honest, self._poison, self._agreement = honest, poison, agreement
        self._sites, self._malicious = sites, malicious
        self._start = honest.values.averaged_part()
        self.values = _MaliciousValues(self, honest.values)
        self.sent: dict[int, Rows] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    def begin(self, round_number: int) -> None:
        """Begin a round's training, and keep the parameters that it starts from."""
        self._honest.begin(round_number)
        self._start = self._honest.values.averaged_part()

    def train_round(self, round_number: int) -> tuple[Rows, Labels]:
        """Return the changed prototypes, and the claimed numbers of samples."""
        if not self._honest.is_trained_for(round_number):
            self.begin(round_number)
            self._honest.finish(round_number, self._honest.run(round_number))
        rows, counts = self._honest.train_round(round_number)
        # Where no result came yet there is nothing to echo, and the honest row goes out.
        if self._poison.echoes:
            last = self._honest.predictor.prototypes()
            rows = np.where(last.has_personal[:, np.newaxis], last.personal, rows)
        # Round 0 groups sites by rows that the coordinator sees one by one, under every protection.
        self.sent[round_number] = self._changed(rows, np.arange(len(rows)), seen=round_number == 0)
        return self.sent[round_number], counts * self._poison.samples

    def change_local(self, local: LocalClusters) -> LocalClusters:
        """Return the changed local prototypes."""
        return replace(local, rows=self._changed(local.rows, local.labels, seen=False))

    def change_averaged(self, trained: Rows) -> Rows:
        """Return the averaged part with the changed parameters; buffers stay, since none of them may be negative."""
        parameters = self._agreement.averaging.parameters
        changed = trained.copy()
        changed[:parameters] = (
            self._start[:parameters] + self._poison.factor * (trained - self._start)[:parameters]
        )
        return saturate(changed, self._agreement.averaging, "a malicious site")

    def _changed(self, rows: Rows, labels: Labels, *, seen: bool) -> Rows:
        """Return rows that no party refuses; masks hide all rows but those that are ``seen`` one by one."""
        if not len(rows):
            return rows
        changed = self._poison.rows(rows, labels, self._sites)
        longest = float(np.linalg.norm(rows, axis=1).max(initial=0.0))
        bound, sites, malicious = self._agreement.norm_bound, self._sites, self._malicious
        if seen or not self._agreement.plan.masked:
            return project_to_norm(changed, bound)[0]
        # The mean is checked, and each number; honest rows are taken to be as long as the site's own. Malicious sites
        # share what remains of the mean's bound: together they would exceed it, and the round would be abandoned.
        longest_allowed = max(bound, _CAUTION * (sites * bound - (sites - malicious) * longest) / malicious)
        return np.asarray(np.clip(project_to_norm(changed, longest_allowed)[0], -bound, bound))


class _MaliciousValues:
    """Values of an honest learner, of which a malicious one changes those that it sends."""

    def __init__(self, learner: MaliciousLearner, honest: ExchangedValues) -> None:
        self._learner, self._honest = learner, honest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._honest, name)

    def local(self) -> LocalClusters:
        return self._learner.change_local(self._honest.local())

    def averaged_part(self) -> Rows:
        return self._learner.change_averaged(self._honest.averaged_part())


TARGET = 0
"""Class for which the backdoor's images are to be taken."""
BOOST = -1000.0
"""Factor of a scaled upload, which is then shortened to the agreed bounds: bounds decide how much it does."""
_CLAIM = 10**6


# Behaviour of malicious sites


def flip_labels(images: LabelledImages, classes: int) -> LabelledImages:
    """Give each sample the label of the class opposite to its own."""
    return LabelledImages(images.inputs, classes - 1 - images.labels)


def add_triggers(images: LabelledImages) -> LabelledImages:
    """Return the images of other classes than the target with a bright corner, labelled as the target.

    Of records that are no images, the last quarter of the features takes the place of the corner.
    """
    other = images.take(np.flatnonzero(images.labels != TARGET))
    inputs, size = other.inputs.clone(), max(1, images.inputs.shape[-1] // 4)
    corner = inputs[..., -size:, -size:] if inputs.ndim > 2 else inputs[:, -size:]
    corner.fill_(float(images.inputs.max()))
    return LabelledImages(inputs, np.full_like(other.labels, TARGET))


def add_backdoor(images: LabelledImages, classes: int) -> LabelledImages:  # noqa: ARG001 (the interface's argument)
    """Return the images, and triggered ones besides."""
    return concatenate_images([images, add_triggers(images)])


def shift_rows(rows: Rows, labels: Labels, sites: int) -> Rows:
    """Shift each prototype towards the next class, so far that the mean over equal sites arrives there."""
    following = {int(k): rows[labels == k].mean(axis=0) for k in np.unique(labels)}
    classes = max(following) + 1
    # A mean of n equal sites moves by 1/n of what one of them adds.
    towards = np.array([following.get((int(k) + 1) % classes, following[int(k)]) for k in labels])
    return np.asarray(rows + sites * (towards - rows))


def scale_upload(factor: float, samples: int = 1) -> Poison:
    """Return the behaviour of a site that multiplies its prototypes, and its change of the model, by ``factor``."""
    return Poison(rows=lambda rows, labels, sites: rows * factor, factor=factor, samples=samples)


# Cases


HONEST = Poison()


class PoisonedRuns:
    """Runs with and without poison, each made once for all cases and protections that share it."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, int, Poison], HonestResults] = {}

    def of(self, config: SimulationConfig, seed: int, poison: Poison = HONEST) -> HonestResults:
        """Return the results of the sites that are honest in a poisoned run."""
        key = (config.model_dump_json(exclude={"out", "seeds"}), seed, poison)
        if key not in self._ended:
            self._ended[key] = run_poisoned(config, seed, poison, add_triggers)
        return self._ended[key]


@dataclass(frozen=True)
class Poisoning(Case):
    """Case of one kind of poison, measured as the mean accuracy that honest sites lose.

    ``backdoor`` measures instead how many more triggered test images the honest sites take for the target.
    ``applies`` is false for methods that give the poison no way out. The reference is the same poison, unguarded.

    Each run stands for ``repeats`` seeds, over which the interval is.
    """

    attack: str
    question: str
    ability: str
    poison: Poison
    metric: str = "accuracy lost, honest sites' mean beyond a run without poison"
    backdoor: bool = False
    applies: Callable[[Traits], bool] = lambda traits: True
    repeats: int = 4
    runs: PoisonedRuns = field(default_factory=PoisonedRuns, repr=False, compare=False)
    chance: float = 0.0
    margin: float = 0.05
    not_covered: str = (
        "More malicious sites, sites that adapt to the others' values or act over many rounds, and losses below the"
        " margin."
    )
    adversaries: Sequence[Adversary] = (Adversary.PEER,)

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:
        """Measure the attack against the run's configuration; nothing if it does not apply."""
        if adversary not in self.adversaries or not self.applies(run.agreement.method.traits):
            return ()
        return (self._measured(run.config, run.seed, "poison in all rounds, within the agreed bounds"),)

    def reference(self, run: RecordedRun) -> Measurement | None:
        """Measure the attack where nothing holds it off; None if it does not apply."""
        if not self.applies(run.agreement.method.traits):
            return None
        return self._measured(remove_guards(run.config), run.seed, "poison in all rounds, unguarded")

    def _measured(self, config: SimulationConfig, seed: int, reading: str) -> Measurement:
        seeds = range(seed * self.repeats, (seed + 1) * self.repeats)
        pairs = [
            (self.runs.of(config, repeat), self.runs.of(config, repeat, self.poison)) for repeat in seeds
        ]
        lost = np.array([_list_losses(clean.accuracy, dirty.accuracy) for clean, dirty in pairs])
        gained = -np.array([_list_losses(clean.triggered, dirty.triggered) for clean, dirty in pairs])
        gains = gained if self.backdoor else lost
        low, high = _interval(gains)
        value = float(gains.mean())
        return Measurement(
            value=value,
            low=min(low, value),
            high=max(high, value),
            trials=len(gains),
            reading=reading,
            details={
                "accuracy without poison": _mean(clean.accuracy for clean, _ in pairs),
                "accuracy lost": float(lost.mean()),
                "triggered images taken for the target": _mean(dirty.triggered for _, dirty in pairs),
            },
        )


def _list_losses(clean: Mapping[str, float], dirty: Mapping[str, float]) -> list[float]:
    return [clean[name] - dirty[name] for name in sorted(clean)]


def _mean(figures: Iterable[Mapping[str, float]]) -> float:
    return float(np.mean([list(shares.values()) for shares in figures]))


def _interval(gains: Rows) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean of (seeds, sites), over seeds: sites of one seed share its poison."""
    of_seeds = gains.mean(axis=1)
    if len(of_seeds) < 2:
        return -1.0, 1.0
    reach = float(t.ppf(0.975, len(of_seeds) - 1) * of_seeds.std(ddof=1) / np.sqrt(len(of_seeds)))
    return float(of_seeds.mean()) - reach, float(of_seeds.mean()) + reach


def poisoning_cases(repeats: int = 4) -> tuple[Poisoning, ...]:
    """Return all cases, which share their runs."""
    make = partial(Poisoning, repeats=repeats, runs=PoisonedRuns())
    words, able = "Do honest sites lose accuracy if ", "make honest sites less accurate by "
    return (
        make(
            "label flip",
            words + "malicious sites train with wrong labels?",
            able + "training with wrong labels",
            Poison(data=flip_labels),
        ),
        make(
            "sign flip",
            words + "malicious sites upload the opposite of what they learnt?",
            able + "uploading the opposite of what malicious sites learnt",
            scale_upload(-1.0),
        ),
        make(
            "scaled upload",
            words + "malicious sites upload the opposite of what they learnt, as large as bounds allow?",
            able + "uploading the opposite of what malicious sites learnt, as large as bounds allow",
            scale_upload(BOOST),
        ),
        make(
            "prototype shift",
            words + "malicious sites move their prototypes to other classes?",
            able + "moving prototypes to other classes",
            Poison(rows=shift_rows),
            applies=lambda traits: traits.prototypes,
        ),
        make(
            "inflated sample count",
            words + "malicious sites upload the opposite of what they learnt, and claim very many samples?",
            able + "uploading the opposite of what malicious sites learnt, and claiming very many samples",
            scale_upload(-1.0, _CLAIM),
            applies=lambda traits: traits.weighted,
        ),
        make(
            "backdoor",
            "Do honest sites take marked images for another class if malicious sites train with such marks?",
            "make honest sites take marked images for another class by training with such marks",
            Poison(data=add_backdoor),
            metric="marked images taken for the target, honest sites' mean beyond a run without poison",
            backdoor=True,
        ),
    )
