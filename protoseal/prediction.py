"""Prediction with a trained model: reads a site's output folder and returns the classes of images."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from agreement import Agreement, Inference
from agreement.storage.run_files import FileError
from algorithms.inference import by_prototype
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.checkpoints.predictor import deciding_guide, inference_guide
from secure_client.data.input_ranges import InputRanges
from secure_client.data.table import describe_table, parse_table
from secure_client.data.table_scale import scale_rows, warn_of_units
from secure_client.errors import ModelError
from secure_client.models.prototype_model import PrototypeModel, compute_outputs
from secure_client.output.site_files import MODEL, SitePrototypes, read_agreement, read_prototypes
from secure_client.output.site_log import SiteLog, read_site_log
from secure_client.table_format import format_beside
from secure_client.training.learner import choose_device
from secure_client.user_code import describe_failure

_BATCH = 256


class Basis(StrEnum):
    """Basis of a prediction."""

    CLASSIFIER = "classifier"
    PROTOTYPE = "prototype"


@dataclass(frozen=True)
class TrainedModel:
    """Trained model of a site, with its agreement, prototypes and log. The model is in ``eval()`` mode."""

    agreement: Agreement
    model: PrototypeModel
    prototypes: SitePrototypes
    log: SiteLog


def load_trained(folder: Path) -> TrainedModel:
    """Load the result of a site's run from its ``out``; raise :class:`FileError` or a ``SiteError``."""
    agreement, log = read_agreement(folder), read_site_log(folder)
    model = build_agreed_model(agreement, log.model)
    path = folder / MODEL
    try:
        model.load_state_dict(safetensors.torch.load_file(path))
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing; give the folder that a site wrote to (out)") from error
    except (RuntimeError, safetensors.SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise FileError(f"{path} does not fit the model {log.model!r}: {reason}") from error
    model.eval()  # dropout and batch statistics would make a prediction depend on its batch
    return TrainedModel(agreement, model, read_prototypes(folder), log)


@dataclass(frozen=True)
class TableRows:
    """Rows of a table as inputs, the line of each in the file, and the lines of rows that are left out.

    Without ``labelled`` the labels of ``inputs`` mean nothing. ``facts`` describe each column; ``warnings`` name
    columns whose values are far from the agreed scale.
    """

    inputs: TensorDataset
    lines: tuple[int, ...]
    left_out: tuple[int, ...]
    labelled: bool
    facts: str
    warnings: list[str]


def read_rows(trained: TrainedModel, path: Path) -> TableRows:
    """Read the rows of a table for the model that a site trained: with the site's scale and the site's format.

    A format beside the file replaces the site's. The file need have no labels. Raises
    :class:`secure_client.errors.DataError`.
    """
    agreement, log = trained.agreement, trained.log
    if agreement.table is None or log.scale is None:
        raise FileError(
            f"{path}: this run's agreement is not on tables: give npz:PATH, folder:PATH or images"
        )
    written = format_beside(path) if log.table is None or path.with_suffix(".toml").exists() else log.table
    table = parse_table(path, agreement.table, written, agreement.classes, labelled=False)
    is_kept = table.has_required_values
    if not is_kept.any():
        raise FileError(f"{path}: every row is left out for a missing value: fill in values")
    inputs = torch.from_numpy(scale_rows(table.features(), log.scale, str(path)))
    indices = [agreement.classes.index(name) for name in table.labels or agreement.classes[:1] * len(is_kept)]
    lines = np.array(table.lines)
    return TableRows(
        TensorDataset(inputs, torch.tensor(indices)[torch.from_numpy(is_kept)]),
        tuple(lines[is_kept].tolist()),
        tuple(lines[~is_kept].tolist()),
        table.labels is not None,
        describe_table(table),
        warn_of_units(table.features(), agreement.table),
    )


def choose_basis(trained: TrainedModel) -> Basis:
    """Return the method's basis of predictions; the classifier also where no class has a prototype."""
    by_nearest = trained.agreement.inference is Inference.PROTOTYPE
    return (
        Basis.PROTOTYPE if by_nearest and deciding_guide(trained.prototypes) is not None else Basis.CLASSIFIER
    )


def predict(
    trained: TrainedModel, inputs: Dataset[Any], by: Basis, *, device: str, ranges: InputRanges | None = None
) -> tuple[list[int], list[int]]:
    """Predict; return classes and the data set's labels, as indices into the agreement's classes.

    ``inputs`` yields (float32 tensor, int label), and is added to ``ranges``.
    Raises :class:`ModelError` for inputs that the model cannot take.
    """
    where = choose_device(device)
    model = trained.model.to(where)
    guide = inference_guide(trained.prototypes).to(where) if by is Basis.PROTOTYPE else None
    predicted: list[int] = []
    labels: list[int] = []
    for batch, batch_labels in DataLoader(inputs, batch_size=_BATCH):
        if ranges is not None:
            ranges.add(batch)
        try:
            with torch.no_grad():
                outputs = compute_outputs(model, batch.to(where))
                chosen = outputs.logits.argmax(dim=1) if guide is None else by_prototype(outputs, guide)
        except Exception as error:  # a model of the site's own raises anything
            raise describe_failure(
                ModelError, f"the model, for inputs of shape {tuple(batch.shape[1:])}", error
            ) from error
        predicted += chosen.tolist()
        labels += torch.as_tensor(batch_labels).tolist()
    return predicted, labels
