"""Learner of a site: model, data, objective and schedule, trained round by round, without transport or protection."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from agreement import InputSection
from agreement.registry.recipe import Recipe, Stage
from algorithms.feddbp import fisher_scores
from algorithms.fedplcc import LocalClusters, local_clusters
from algorithms.gram_matrix import Bool, Float
from algorithms.prototypes import Guide, class_means
from secure_client.data import SiteData
from secure_client.data.input_ranges import InputRanges
from secure_client.errors import DataError, DeviceError, ModelError, TrainingError
from secure_client.models.prototype_model import (
    PrototypeModel,
    check_model,
    check_training,
    copy_model,
    has_fixed_features,
)
from secure_client.models.wrapped_models import FixedBatchModel
from secure_client.training.averaged_parameters import AveragedPart
from secure_client.training.batches import (
    BatchSource,
    DatasetSource,
    TensorSource,
    batch_in_order,
    open_source,
)
from secure_client.training.dp_sgd.model_support import check_batch_independence, check_suitable
from secure_client.training.evaluation import EVALUATION_BATCH, Evaluation, evaluate
from secure_client.training.feature_pass import EmbeddedBatch, FeaturePass
from secure_client.training.job import Job, Losses, Schedule, has_batch_norm, training_seed
from secure_client.training.loop import run_job
from secure_client.training.lost_data import PrivateSource, RetryingSource
from secure_client.training.step_records import StepRecords

_log = logging.getLogger("protoseal.site")


def choose_device(name: str) -> torch.device:
    """Return the device: ``auto`` is the GPU if CUDA has one, else the CPU; other names are torch's.

    Raises :class:`DeviceError` for a name that torch does not know or a GPU that does not exist.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was compiled with CUDA
        _log.debug("device %r: the error's origin", name, exc_info=error)
        usable = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        usable += ["mps"] if torch.backends.mps.is_available() else []
        raise DeviceError(
            f"device {name!r} cannot be used: the devices that torch has here are {', '.join(usable)}; use one of"
            " them, or auto"
        ) from error
    return device


class Learner:
    """One site's model and data, with the computations of a round.

    A round's result depends on the model, the targets, and (seed, site, round) alone: optimiser state does not outlive
    a round, and shuffling and dropout draw from a generator seeded by the three. So a site that was restarted and
    loaded its model trains as if it had not been restarted: bit for bit on a CPU; up to the order of sums on a GPU, and
    where several sites train as one program (:mod:`protoseal.simulation.batched.training`). A last batch of one sample
    joins the previous batch when the model has batch normalisation.
    """

    def __init__(
        self,
        model: PrototypeModel,
        data: SiteData,
        recipe: Recipe,
        schedule: Schedule,
        *,
        site: str,
        seed: int,
        classes: int,
        dim: int,
        device: torch.device,
        private: bool = False,
        agreed: InputSection | None = None,
    ) -> None:
        """Move model and data to ``device`` and try one batch. ``ranges`` are shown on the scale of ``agreed``.

        ``private``: the agreement has ``[privacy]``, which decides what a record that can no longer be read does (see
        :mod:`secure_client.training.lost_data`).

        Raises :class:`ModelError` when the model's outputs are not (B, d) and (B, K), or its features are finite for no
        training record, :class:`DataError`
        for an empty data set or labels outside [0, K), :class:`TrainingError` when batch normalisation
        would have to train on single samples. With the recipe's ``dp_sgd`` :class:`ModelError` also for a model that
        cannot train by it; with ``initial_features`` for one that does not compute each record by itself.
        """
        self._model = model.to(device)
        # Ditto trains two models: the averaged one, and the site's own, which is pulled towards it.
        self._personal = None if recipe.personal is None else copy_model(self._model)
        self._initial = copy_model(self._model) if recipe.initial_features else None
        self._recipe = recipe
        self._schedule = schedule
        self.site = site
        """Name of the site."""
        self._seed = seed
        self._classes = classes
        self.dim = dim
        """Dimension d of a prototype."""
        self.predicts = recipe.predicts
        """Model that this site predicts with, as opposed to the model that it trained."""
        self.exchanges_prototypes = recipe.prototypes
        """True if the method exchanges prototypes, one for each class or several."""
        self._device = device
        self._train = open_source(data.train, device)
        self._test = None if data.test is None else open_source(data.test, device)
        self._owners = data.subjects
        self._records: StepRecords | None = None
        self._features: FeaturePass | None = None
        self._check_outputs()
        where = data.where or site
        self.ranges = [InputRanges(agreed, f"{where}: training data")]
        """Ranges of the training inputs, and of the test inputs if there are any; secrets of this site."""
        self._labels = read_labels(self._train, self._classes, self.ranges[0])
        if self._test is not None:
            self.ranges.append(InputRanges(agreed, f"{where}: test data"))
            read_labels(self._test, self._classes, self.ranges[1])
        self._train_counts = torch.bincount(self._labels, minlength=classes).numpy()
        self._check_features()
        if recipe.dp_sgd is not None:
            check_suitable(self._model, self._first_input())
        if recipe.initial_features:
            # Noise on class means covers a record's own features. A model that mixes records would spread a record.
            check_batch_independence(self._model, self._first_input())
        # Last, because the start's own reads fail at once: a wrong path is no interruption to wait for.
        if isinstance(self._train, DatasetSource):
            stored = self._train
            self._train = PrivateSource(stored, site, data.root) if private else RetryingSource(stored, site)

    def check_training(self) -> None:
        """Raise :class:`ModelError` unless the model gives outputs and gradients in ``train()`` mode."""
        check_training(self._model, self._first_input(), classes=self._classes, dim=self.dim)

    def train(self, round_number: int, guide: Guide | None) -> Losses:
        """Train the local epochs of a round; return the losses of the last stage. Without a guide nothing is aligned.

        Raises :class:`TrainingError` when the loss is not finite.
        """
        for job in self.jobs(round_number, guide):
            losses = run_job(job)
        return losses

    def record_steps(self, folder: Path) -> None:
        """Record the steps of DP-SGD from now on, in files of ``folder``, for an audit at the site."""
        self._records = StepRecords(folder)

    def jobs(self, round_number: int, guide: Guide | None) -> list[Job]:
        """Return the jobs of :meth:`train`, to be run in order. They change this learner's model in place."""
        recipe = self._recipe
        plan = [(self._model, stage, recipe.proximal) for stage in recipe.stages]
        if self._personal is not None and recipe.personal is not None:
            plan.append((self._personal, Stage(), recipe.personal))
        on_device = None if guide is None else guide.to(self._device)
        anchor: dict[str, Tensor] = {}
        # The model of the round's start, copied because the jobs change the model in place.
        if any(proximal for _, _, proximal in plan):
            anchor = {name: value.detach().clone() for name, value in self._model.named_parameters()}
        return [
            Job(
                model=model,
                source=self._train,
                objective=recipe.objective,
                guide=on_device,
                schedule=self._schedule,
                epochs=stage.epochs or self._schedule.local_epochs,
                trains=stage.trains,
                seed=training_seed(self._seed, self.site, round_number, number),
                device=self._device,
                anchor=anchor,
                proximal=proximal,
                dp_sgd=recipe.dp_sgd,
                owners=self._owners,
                recorder=None if self._records is None else self._records.open_recorder(round_number),
            )
            for number, (model, stage, proximal) in enumerate(plan)
        ]

    def embed(self) -> Iterable[EmbeddedBatch]:
        """Return features of the training set, from one ``eval()`` pass of the model that this site predicts with.

        The order is that of the training set, or that of the records' owners if there are any. With the recipe's
        ``initial_features`` the pass uses a copy of the initial model, so that neither training nor state of the model
        affects the features. Private features are computed in batches of one size.

        Neither a model that fails on a record nor features that are not finite end the pass: such a record counts as
        zeros, with its label, independently of other records.

        Read the result once, or as often as :meth:`prototypes`, :meth:`scores` and :meth:`local_clusters` need for this
        recipe: if the recipe needs several of them, the features are kept.
        """
        model = self.predictor if self._initial is None else self.embedding_model()
        if self._initial is not None or self._recipe.dp_sgd is not None:
            # A matrix product over fewer records rounds differently, so that a batch's size would show in features.
            model = FixedBatchModel(model, EVALUATION_BATCH)
        order: Iterable[int] = range(len(self._train))
        if self._owners is not None:  # a unit's records one after the other, as its clip needs them
            order = np.argsort(self._owners, kind="stable").tolist()
        self._features = self._feature_pass(model)
        batches = self._embed_in(self._features, order)
        # Scores and clusters read the features again, after the means.
        return list(batches) if self._recipe.scores or self._recipe.clustered else batches

    def _embed_in(self, features: FeaturePass, order: Iterable[int]) -> Iterator[EmbeddedBatch]:
        yield from features.embed(order)
        self._check_root()  # before a release of the features is paid for

    def _feature_pass(self, model: PrototypeModel) -> FeaturePass:
        return FeaturePass(
            model, self._train, self._labels, dim=self.dim, device=self._device, where=self.site
        )

    def begin_round(self) -> None:
        """Begin a round's reads of the training set, before anything is paid for.

        Raises :class:`secure_client.errors.DataLost` if the folder or file of private records cannot be opened.
        """
        self._check_root()
        if isinstance(self._train, PrivateSource):
            self._train.unreadable = False

    def _check_root(self) -> None:
        if isinstance(self._train, PrivateSource):
            self._train.check_root()

    @property
    def unreadable(self) -> bool:
        """True if, with ``[privacy]``, a record of the training set could not be read since :meth:`begin_round`."""
        return isinstance(self._train, PrivateSource) and self._train.unreadable

    @property
    def zeroed(self) -> list[str]:
        """Records that counted as zeros in the last pass, in words; a secret of this site."""
        return [] if self._features is None else self._features.warnings

    def embedding_model(self) -> PrototypeModel:
        """Return a copy of the model whose features the prototypes average."""
        return copy_model(self.predictor if self._initial is None else self._initial)

    def prototypes(
        self, embedded: Iterable[EmbeddedBatch] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return class means of the features, float64 (K, d), and samples per class, int64 (K,).

        The means are over :meth:`embed`, the whole training set. Rows of classes without samples are zero. Both
        arrays are unprotected secrets of this site.
        """
        batches = self.embed() if embedded is None else embedded
        means, counts = class_means(batches, self._classes, self.dim)
        return means.numpy(), counts.numpy()

    def scores(self, embedded: Iterable[EmbeddedBatch]) -> NDArray[np.float64] | None:
        """Return each class's Fisher scores of feature channels, float64 (K, d), for FedDBP; None for other methods.

        The scores are of the features in ``embedded``; zeros for classes without samples and for NaN. The scores show
        which features separate this site's classes, and are the site's secret.
        """
        if not self._recipe.scores:
            return None
        classifier = self.predictor.classifier
        scores = fisher_scores(embedded, classifier, self._classes, self.dim)
        return scores.nan_to_num().numpy()

    def scores_at(self, rows: Float, present: Bool) -> NDArray[np.float64] | None:
        """Return :meth:`scores` at prototypes (K, d) in place of records, for the classes that are ``present`` (K,).

        The scores follow from the rows and the model alone, and reveal no more of records than the rows.
        """
        if not self._recipe.scores:
            return None
        # Of noisy prototypes, in place of records, which would be a release that nobody paid for.
        prototypes = torch.tensor(rows[present], dtype=torch.float32, device=self._device)
        labels = torch.from_numpy(np.flatnonzero(present)).to(self._device)
        self.predictor.eval()
        return self.scores([(prototypes, labels)])

    def local_clusters(self, embedded: Iterable[EmbeddedBatch]) -> LocalClusters | None:
        """Return several prototypes for each class, for FedPLCC, FPL and FedPLVM; None for other methods.

        The prototypes and their number are this site's secrets.
        """
        clustered = self._recipe.clustered
        if clustered is None:
            return None
        features, labels = [], []
        for batch_features, batch_labels in embedded:
            features.append(batch_features.cpu().double().numpy())
            labels.append(batch_labels.cpu().numpy())
        return local_clusters(
            np.concatenate(features),
            np.concatenate(labels).astype(np.int64),
            self._classes,
            single=clustered.single,
            literal=clustered.literal,
            most=clustered.most,
        )

    def evaluate(self, prototypes: Guide | None) -> Evaluation | None:
        """Evaluate on the site's own test set, by classifier and by nearest prototype; None without a test set."""
        return None if self._test is None else self._evaluate(self._test, prototypes)

    def evaluate_on(self, dataset: Dataset[Any], prototypes: Guide | None) -> Evaluation:
        """Evaluate on another test set; raise :class:`DataError` for one without samples or with other classes."""
        source = open_source(dataset, self._device)
        read_labels(source, self._classes)
        return self._evaluate(source, prototypes)

    def _evaluate(self, source: BatchSource, prototypes: Guide | None) -> Evaluation:
        on_device = None if prototypes is None else prototypes.to(self._device)
        return evaluate(self.predictor, source, on_device, self._train_counts)

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the parameters and buffers of all of this site's models, on the CPU."""
        return _copy_state(self._models(), torch.device("cpu"))

    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy as :meth:`state` does, on the models' own device, where :meth:`load` needs no transfer."""
        return _copy_state(self._models(), self._device)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Load a state; raise :class:`ModelError` for another model's state."""
        try:
            self._models().load_state_dict(state)
        except RuntimeError as error:
            reason = " ".join(str(error).split())
            raise ModelError(f"the stored model does not fit the configured model: {reason}") from error

    @property
    def is_finite(self) -> bool:
        """Return True if every parameter and buffer of this site's models is a finite number."""
        values = self._models().state_dict().values()
        finite = [value.isfinite().all() for value in values if value.is_floating_point()]
        return bool(torch.stack(finite).all())  # a GPU is waited for once, and not for each layer

    def predictor_state(self) -> dict[str, Tensor]:
        """Return a copy of the parameters and buffers of the model that this site predicts with, on the CPU."""
        return _copy_state(self.predictor, torch.device("cpu"))

    @property
    def models(self) -> tuple[PrototypeModel, ...]:
        """Models of this site: the one that is averaged, and with Ditto the personal one."""
        return (self._model,) if self._personal is None else (self._model, self._personal)

    @property
    def predictor(self) -> PrototypeModel:
        """Module that this site predicts with."""
        return self._model if self._personal is None else self._personal

    @property
    def device(self) -> torch.device:
        """Device of the model and the data."""
        return self._device

    @property
    def train_tensors(self) -> tuple[Tensor, Tensor] | None:
        """Inputs and labels of the training set on the device; None for data that are read as needed."""
        return self._train.tensors if isinstance(self._train, TensorSource) else None

    @property
    def test_tensors(self) -> tuple[Tensor, Tensor] | None:
        """Inputs and labels of the test set on the device; None without one, and for data that are read as needed."""
        return self._test.tensors if isinstance(self._test, TensorSource) else None

    @cached_property
    def test_labels(self) -> NDArray[np.int64]:
        """Labels of the test set (N,); empty without one, and for data that are read as needed."""
        tensors = self.test_tensors
        return np.empty(0, dtype=np.int64) if tensors is None else tensors[1].cpu().numpy()

    @property
    def counts(self) -> NDArray[np.int64]:
        """Training samples of each class, int64 (K,); a secret of this site."""
        return self._train_counts.copy()

    @property
    def owners(self) -> NDArray[np.int64] | None:
        """Numbers of the units of :meth:`embed`'s records, (N,), ascending; a secret of this site.

        None means that each record is a unit.
        """
        return None if self._owners is None else np.sort(self._owners)

    @property
    def has_initial_features(self) -> bool:
        """True if the agreement freezes the extractor, so that features are the initial model's."""
        return self._initial is not None

    @property
    def has_fixed_features(self) -> bool:
        """True if no training can change the model's features: see :func:`has_fixed_features`."""
        return has_fixed_features(self._model, self._first_input())

    def _first_input(self) -> Tensor:
        inputs, _ = next(self._train.batches([[0]]))
        return inputs

    @property
    def averaged_sizes(self) -> tuple[int, int]:
        """Sizes (p, q): the numbers in the parameters and buffers of the averaged part of the model."""
        return self._averaged.sizes

    @property
    def averaged_names(self) -> frozenset[str]:
        """Names of the parameters and buffers of the averaged part."""
        return self._averaged.names

    def averaged_vector(self) -> NDArray[np.float64]:
        """Return the averaged part of the model, float64 (p + q,); a secret of this site once it has trained.

        With the recipe's ``initial_features`` the averaged part is the initial model's, whatever changes in training.
        """
        if self._initial is None:
            return self._averaged.vector()
        # Buffers of a frozen extractor (batch statistics) could move in training all the same, after the records.
        return AveragedPart(self._initial, self._recipe.averages).vector()

    def load_averaged(self, vector: Float) -> None:
        """Load the averaged part, float64 (p + q,), and keep the rest; see :meth:`AveragedPart.load`."""
        self._averaged.load(vector)

    @contextmanager
    def use_averaged(self, vector: Float) -> Iterator[None]:
        """Give the model ``vector`` (p + q,) as its averaged part inside the ``with`` block."""
        # The trained part comes back whatever happens: training goes on from it, not from the model that predicts.
        trained = self._averaged.vector()
        self.load_averaged(vector)
        try:
            yield
        finally:
            self.load_averaged(trained)

    @cached_property
    def _averaged(self) -> AveragedPart:
        return AveragedPart(self._model, self._recipe.averages)

    def _models(self) -> nn.Module:
        if self._personal is None:
            return self._model
        return nn.ModuleDict({"averaged": self._model, "personal": self._personal})

    def _check_features(self) -> None:
        features = self._feature_pass(self._model)
        if not features.has_finite():
            raise ModelError(
                f"the model has no finite features of any record: {'; '.join(features.warnings)}"
            )

    def _check_outputs(self) -> None:
        """Raise :class:`ModelError` for outputs of other shapes, :class:`TrainingError` for norms of single samples."""
        check_model(self._model, self._first_input(), classes=self._classes, dim=self.dim)
        if has_batch_norm(self._model) and 1 in (self._schedule.batch_size, len(self._train)):
            raise TrainingError(
                "batch normalisation cannot train on single samples; use a batch size of 2 or more"
                " and as many samples, or a model with nn.GroupNorm"
            )


def _copy_state(model: nn.Module, device: torch.device) -> dict[str, Tensor]:
    return {name: value.detach().to(device, copy=True) for name, value in model.state_dict().items()}


def read_labels(source: BatchSource, classes: int, ranges: InputRanges | None = None) -> Tensor:
    """Read all samples; return their labels, int64 (N,), on the CPU, and add the inputs to ``ranges``.

    Raises :class:`DataError` for a label outside [0, K).
    """
    collected = []
    for inputs, labels in source.batches(batch_in_order(len(source), EVALUATION_BATCH)):
        outside = labels[(labels < 0) | (labels >= classes)]
        if len(outside):
            raise DataError(
                f"label {int(outside[0])} is outside the {classes} agreed classes, 0 to {classes - 1}"
            )
        collected.append(labels.cpu())
        if ranges is not None:
            ranges.add(inputs)
    return torch.cat(collected)
