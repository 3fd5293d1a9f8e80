"""The files of a run: ``result.json``, and what each site leaves in its own folder.

``RUN/result.json`` and ``RUN/report.html``; ``RUN/sites/NAME/`` (or a deployed site's ``out``) holds
``agreement.json``, ``site.json``, ``model.safetensors`` and ``prototypes.safetensors``. A site's folder is
its own: sample counts, accuracies and prototypes in it are not protected and go nowhere by themselves.
"""

from __future__ import annotations

import json
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import safetensors
import safetensors.numpy
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from crypto import durable
from protoseal.begun_run import AGREEMENT
from protoseal.config import Agreement, ConfigError
from protoseal.errors import UserError
from protoseal.site_prototypes import SitePrototypes as SitePrototypes  # noqa: PLC0414 (read from here)

RESULT = "result.json"
SITE_LOG = "site.json"
MODEL, PROTOTYPES = "model.safetensors", "prototypes.safetensors"

Share = Annotated[float, Field(ge=0, le=1)]
Bytes = Annotated[int, Field(ge=0)]
Samples = Annotated[int, Field(ge=0)]
Duration = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class FileError(UserError):
    """A file of a run that is missing or not what it should be. One line that names it and the remedy."""


class Record(BaseModel):
    """A file of a run, or a part of it: frozen, with no fields but those it names."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Seconds(Record):
    """Wall-clock seconds of one round: the slowest site's ``train`` and ``protect``."""

    train: Duration
    protect: Duration
    aggregate: Duration
    total: Duration


class Personalised(Record):
    """FedNH's accuracies of a personalised model: PM(V) weighs all classes that the site has the same, PM(L) as often
    as it has them (:mod:`algorithms.metrics`).

    On the site's own test set, and on one over all sites (``_global``), which only a simulation has. None where there
    is no such test set, or no sample in it of a class that the site has. The third of FedNH's accuracies, GM, is of
    one global model; here every site has a classifier of its own, so there is none.
    """

    pm_v: Share | None = None
    pm_l: Share | None = None
    pm_v_global: Share | None = None
    pm_l_global: Share | None = None


class Accuracies(Personalised):
    """Shares of a site's own test set predicted rightly: by the method's own inference, by each of the two ways.

    The control ``self`` has the inference of the method that it aligns as. None where there is no test set, by
    prototype also where a method has none.
    """

    accuracy: Share | None = None
    accuracy_classifier: Share | None = None
    accuracy_prototype: Share | None = None


class SiteFigures(Accuracies):
    """One site after the last round, or the best where training stopped early.

    Accuracies are shares of its own test set, None without one. ``accuracy`` is by the method's own inference;
    ``compared`` has the accuracy of every method and control that ran beside it. ``epsilon`` is what the site spent at
    ``delta``, ``guaranteed`` whether that holds for the agreed unit; None where prototypes are exact and no ledger is
    kept. Bytes are payload bytes.
    """

    name: str
    train_samples: Samples
    epsilon: float | None = None
    delta: float | None = None
    guaranteed: bool = False
    bytes_up: Bytes
    bytes_down: Bytes
    model: str = ""
    compared: dict[str, Share] = Field(default_factory=dict)
    withheld: tuple[str, ...] = ()
    """Classes that the site has and got no answer for, since too few sites hold them, in the round of the figures."""
    per_class: dict[str, Share] = Field(default_factory=dict)
    """By the method's own inference, of the classes in the site's test set; where it was asked for."""


class RoundFigures(Record):
    """One round over all sites. ``accuracies`` maps site to accuracy, ``compared`` each other method to its mean.

    None, and no accuracies, for a round after which nothing was tested.
    """

    round: Annotated[int, Field(ge=1)]
    mean_accuracy: Share | None
    seconds: Seconds
    accuracies: dict[str, Share] = Field(default_factory=dict)
    compared: dict[str, Share] = Field(default_factory=dict)


class SeedFigures(Record):
    """The mean accuracy of one seed's run, and of the other methods that ran on the same data."""

    seed: int
    mean_accuracy: Share | None
    compared: dict[str, Share] = Field(default_factory=dict)
    metrics: dict[str, Accuracies] = Field(default_factory=dict)
    data_sha256: str | None = None


class Spread(Record):
    """Over seeds: mean and sample standard deviation of the sites' mean."""

    mean: Share
    standard_deviation: Annotated[float, Field(ge=0)]


class Paired(Record):
    """A method less another on the same data, seed by seed; their mean, and its standard error with two seeds or more.

    Of the sites' means, as shares: 0.01 is one percentage point.
    """

    by_seed: dict[int, float]
    mean: float
    standard_error: Annotated[float, Field(ge=0)] | None


class ViewLine(Record):
    """One thing that the coordinator could have seen, whether it did, and how that was found."""

    what: str
    seen: bool
    evidence: str


class RunResult(Record):
    """``result.json``. Where there were several seeds, ``sites`` and ``rounds`` are those of ``seed``.

    As long as the run goes on, and when it was ended, ``complete`` is false: then it has what there was by then.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    method: str
    protection: str
    dataset: str
    seed: int
    sites: tuple[SiteFigures, ...]
    rounds: tuple[RoundFigures, ...]
    mean_accuracy: Share | None
    config: dict[str, Any]
    classes: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    """Classes that too few sites hold, in the last round, or ``best_round``."""
    compared: dict[str, Share] = Field(default_factory=dict)
    """Mean accuracy of each other method and control on the same data with the same budget."""
    metrics: dict[str, Accuracies] = Field(default_factory=dict)
    """For the method and each that it is compared with: means over the sites."""
    best_round: Annotated[int, Field(ge=1)] | None = None
    """Where training was stopped early: the round that all figures but those of ``rounds`` are of."""
    groups: tuple[tuple[str, ...], ...] = ()
    """Sites that averaged with each other in the last round, or ``best_round``; none where a method has no groups."""
    seeds: tuple[SeedFigures, ...] = ()
    spread: Spread | None = None
    """Of ``mean_accuracy`` over the seeds."""
    summary: dict[str, dict[str, Spread]] = Field(default_factory=dict)
    """With several seeds: for the method and each compared, by the names in ``metrics``, mean and spread."""
    differences: dict[str, dict[str, Paired]] = Field(default_factory=dict)
    """With several seeds: the method less each compared, by the names in ``metrics``."""
    complete: bool = True
    data_sha256: str | None = None
    """Of all sites' samples, which only a simulation has: runs on the same data and split have the same."""
    coordinator_view: tuple[ViewLine, ...] = ()


class SiteRound(Personalised):
    """One round as one site saw it."""

    round: Annotated[int, Field(ge=1)]
    attempt: Annotated[int, Field(ge=1)]
    sites: Annotated[int, Field(ge=1)]
    withheld: tuple[str, ...]
    trained: bool = True
    """False where the round's training failed: the model is as the round began, and the site took part with it."""
    accuracy: Share | None = None
    """By the method's own inference; only a simulation has it here, where ``self`` has that of the method beside it."""
    accuracy_classifier: Share | None
    accuracy_prototype: Share | None
    accuracy_trained: Share | None = None
    """Of the model as the site trained it last, where the method predicts with an aggregated one."""
    accuracy_validation: Share | None = None
    """On what the site keeps aside to stop training early, by the method's own inference."""
    loss: float | None = None
    """The training loss, a mean over the batches of the last local epoch; only a simulation has it here."""
    per_class: dict[str, Share] | None = None
    seconds: dict[str, Duration]
    epsilon: float | None = None
    """Spent of the data set's privacy budget by then, over all runs; None where prototypes are exact and no ledger
    is kept."""
    delta: float | None = None
    """The δ at which ``epsilon`` was spent."""
    guaranteed: bool = False
    """Whether that is true of the agreed unit: not where features were trained on the records without noise, or
    anything exact has left in any run."""


class SiteLog(Record):
    """``site.json``: the site's own record of a run, which no one else receives."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    name: str
    model: str
    train_samples: Samples
    bytes_up: Bytes
    bytes_down: Bytes
    rounds: tuple[SiteRound, ...]


class RunRecord(Record):
    """``runs/METHOD.json``: a simulated run that has ended, with all that its results are made of.

    ``agreement`` and ``rounds`` are an agreement and a coordinator's rounds as JSON has them.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    method: str
    agreement: dict[str, Any]
    sites: tuple[SiteLog, ...]
    rounds: tuple[dict[str, Any], ...]
    best_round: Annotated[int, Field(ge=1)] | None
    data_sha256: str


RecordT = TypeVar("RecordT", bound=Record)


def write_result(run: Path, result: RunResult) -> Path:
    """Write ``result.json`` into the folder of a run and return its path."""
    return write_json(run / RESULT, result)


def read_result(run: Path) -> RunResult:
    """The ``result.json`` of a run; raises :class:`FileError`."""
    return read_json(run / RESULT, RunResult, "give the folder that a run wrote to")


def write_site_log(folder: Path, log: SiteLog) -> Path:
    """Write ``site.json`` into a site's folder and return its path."""
    return write_json(folder / SITE_LOG, log)


def read_site_log(folder: Path) -> SiteLog:
    """The ``site.json`` of a site's folder; raises :class:`FileError`."""
    return read_json(folder / SITE_LOG, SiteLog, "give the folder that a site wrote to (out)")


def write_record(path: Path, record: RunRecord) -> Path:
    """Write the record of a run that has ended and return its path."""
    return write_json(path, record)


def read_record(path: Path) -> RunRecord:
    """The record of a run that has ended; raises :class:`FileError`."""
    return read_json(path, RunRecord, "delete it to run that method again, or use --fresh to start over")


def write_agreement(folder: Path, agreement: Agreement) -> Path:
    """Write ``agreement.json`` into a site's folder and return its path."""
    return write_text(folder / AGREEMENT, agreement.to_json() + "\n")


def read_agreement(folder: Path) -> Agreement:
    """The agreement under which a site's folder was written; raises :class:`FileError`."""
    path = folder / AGREEMENT
    text = ""
    try:
        text = read_text(path, "give the folder that a site wrote to (out)")
        return Agreement.from_json(text, source=str(path))
    except (ConfigError, ValueError) as error:
        missing = _not_installed(text)
        if missing:
            raise FileError(f"{path} needs what is not installed: install {' and '.join(missing)}") from error
        raise FileError(f"{path} is not an agreement of this version: {first_line(error)}") from error


def _not_installed(text: str) -> list[str]:
    """Names and versions of the distributions that an agreement was made with and that are not there."""
    try:
        stated = TypeAdapter(dict[str, str]).validate_python(json.loads(text).get("distributions", {}))
    except (AttributeError, ValueError):
        return []
    there = {f"{each.name} {each.version}" for each in distributions()}
    return sorted(set(stated.values()) - there)


def write_prototypes(folder: Path, prototypes: SitePrototypes) -> Path:
    """Write ``prototypes.safetensors`` into a site's folder and return its path."""
    arrays = {
        name: np.ascontiguousarray(array) for name, array in vars(prototypes).items() if array is not None
    }
    return write_bytes(folder / PROTOTYPES, safetensors.numpy.save(arrays))


def read_prototypes(folder: Path) -> SitePrototypes:
    """The prototypes in a site's folder; raises :class:`FileError`."""
    path = folder / PROTOTYPES
    try:
        return SitePrototypes(**safetensors.numpy.load_file(path))
    except FileNotFoundError as error:
        raise FileError(f"{path} is missing; give the folder that a site wrote to (out)") from error
    except (OSError, TypeError, ValueError, safetensors.SafetensorError) as error:
        raise FileError(f"{path} does not hold a site's prototypes: {first_line(error)}") from error


def site_folder(run: Path, site: str) -> Path:
    """Where a site's files lie in the folder of a simulated run."""
    return run / "sites" / site


def write_text(path: Path, text: str) -> Path:
    """Replace a file in one durable step, making its folder if need be; returns the path."""
    return write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """Replace a file in one durable step, making its folder if need be; returns the path."""
    durable.make_folder(path.parent)
    durable.write(path, content)
    return path


def write_json(path: Path, record: Record) -> Path:
    """Write a record into a file, in one durable step, and return the file's path."""
    # Validated once more, since model_copy and model_construct do not.
    checked = type(record).model_validate(record.model_dump(by_alias=True))
    return write_text(path, checked.model_dump_json(by_alias=True, indent=2) + "\n")


def read_json(path: Path, model: type[RecordT], remedy: str) -> RecordT:
    """Return the record in a file; raises :class:`FileError` that ends in the ``remedy``."""
    try:
        return model.model_validate_json(read_text(path, remedy))
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise FileError(f"{path} is damaged ({first['msg']}); {remedy}") from error
        where = ".".join(str(part) for part in first["loc"])
        raise FileError(f"{path} is not of this version ({where}: {first['msg']}); {remedy}") from error


def read_text(path: Path, remedy: str) -> str:
    """Return a file's text; raises :class:`FileError` that ends in the ``remedy``."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"{path} cannot be read ({error.strerror}); {remedy}") from error


def first_line(error: Exception) -> str:
    """Return an error's message without its further lines."""
    return (str(error).splitlines() or [type(error).__name__])[0]
