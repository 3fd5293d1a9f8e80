"""Reader and writer of ``result.json`` and of the records of simulated runs.

``RUN/result.json`` and ``RUN/report.html``; ``RUN/sites/NAME/`` (or a deployed site's ``out``) holds
``agreement.json``, ``site.json``, ``model.safetensors`` and ``prototypes.safetensors``. A site's folder is
its own: sample counts, accuracies and prototypes in it are not protected and go nowhere by themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from secure_client.output.json_records import Bytes, Duration, Record, Samples, Share, read_json, write_json
from secure_client.output.site_log import Personalised, SiteLog

RESULT = "result.json"


class Seconds(Record):
    """Wall-clock seconds of one round: the slowest site's ``train`` and ``protect``."""

    train: Duration
    protect: Duration
    aggregate: Duration
    total: Duration


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
    """Round whose figures are reported where training was stopped early; ``rounds`` has all of them."""
    groups: tuple[tuple[str, ...], ...] = ()
    """Sites that averaged with each other in the last round, or ``best_round``; none where a method has no groups."""
    seeds: tuple[SeedFigures, ...] = ()
    spread: Spread | None = None
    """Spread of ``mean_accuracy`` over the seeds."""
    summary: dict[str, dict[str, Spread]] = Field(default_factory=dict)
    """Mean and spread over several seeds, for the method and each compared, by the names in ``metrics``."""
    differences: dict[str, dict[str, Paired]] = Field(default_factory=dict)
    """Differences between the method and each compared, over several seeds, by the names in ``metrics``."""
    complete: bool = True
    data_sha256: str | None = None
    """Hash of all sites' samples, which only a simulation has: runs on the same data and split have the same."""
    coordinator_view: tuple[ViewLine, ...] = ()


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


def write_result(run: Path, result: RunResult) -> Path:
    """Write ``result.json`` into the folder of a run and return its path."""
    return write_json(run / RESULT, result)


def read_result(run: Path) -> RunResult:
    """Read the ``result.json`` of a run; raise :class:`FileError`."""
    return read_json(run / RESULT, RunResult, "give the folder that a run wrote to")


def write_record(path: Path, record: RunRecord) -> Path:
    """Write the record of a run that has ended and return its path."""
    return write_json(path, record)


def read_record(path: Path) -> RunRecord:
    """Read the record of a run that has ended; raise :class:`FileError`."""
    return read_json(path, RunRecord, "delete it to run that method again, or use --fresh to start over")


def site_folder(run: Path, site: str) -> Path:
    """Return the path of a site's files in the folder of a simulated run."""
    return run / "sites" / site
