"""Reader and writer of ``result.json``.

``RUN/result.json`` and ``RUN/report.html``; ``RUN/sites/NAME/`` (or a deployed site's ``out``) holds
``agreement.json``, ``site.json``, ``model.safetensors`` and ``prototypes.safetensors``. A site's folder is private to
the site: its sample counts, accuracies and prototypes are unprotected and are not sent anywhere.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from agreement import Inference
from agreement.storage.run_files import Bytes, Duration, Record, Samples, Share, read_json, write_json
from secure_client.diagnosis.diagnoses import Diagnosis
from secure_client.output.site_log import Personalised

RESULT = "result.json"


class Seconds(Record):
    """Wall-clock seconds of one round: the slowest site's ``train`` and ``protect``."""

    train: Duration
    protect: Duration
    aggregate: Duration
    total: Duration


class Accuracies(Personalised):
    """Shares of a site's own test set predicted correctly: by the method's own inference, by classifier, by prototype.

    The control ``self`` has the inference of the method that it aligns as. With frozen features every method and
    control predicts by the nearest prototype, where it has any. Values are None without a test set; the
    value by prototype also for a method without prototypes. ``accuracy_global`` is ``accuracy`` on a simulation's test
    set over all sites, classes included that the site lacks.
    """

    accuracy: Share | None = None
    accuracy_global: Share | None = None
    accuracy_classifier: Share | None = None
    accuracy_prototype: Share | None = None


class SiteFigures(Accuracies):
    """Figures of one site after the last round, or after the best round if training stopped early.

    Accuracies are shares of its own test set, None without one. ``accuracy`` is by the method's own inference;
    ``compared`` has the accuracy of every method and control that ran beside it. ``epsilon`` is the site's spending at
    ``delta``, and ``guaranteed`` is true if it holds for the agreed unit; all None if prototypes are exact and the site
    has no ledger. Bytes are payload bytes.
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
    """Classes of the site without a result, since too few sites hold them, in the round of the figures."""
    per_class: dict[str, Share] = Field(default_factory=dict)
    """Accuracy by the method's own inference of each class in the site's test set, if requested."""


class RoundFigures(Record):
    """One round over all sites. ``accuracies`` maps site to accuracy, ``compared`` each other method to its mean.

    Means are None, and accuracies empty, for a round without tests.
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


class SeedSpread(Record):
    """Mean and sample standard deviation, over seeds, of the sites' mean."""

    mean: Share
    standard_deviation: Annotated[float, Field(ge=0)]


class Paired(Record):
    """Differences of two methods on the same data, by seed; their mean, and its standard error with two or more seeds.

    The differences are of the sites' means, as shares: 0.01 is one percentage point.
    """

    by_seed: dict[int, float]
    mean: float
    standard_error: Annotated[float, Field(ge=0)] | None


class ViewLine(Record):
    """One kind of value: ``seen`` is true if the coordinator saw it, and ``evidence`` describes the recording."""

    what: str
    seen: bool
    evidence: str


class RunResult(Record):
    """``result.json``. Where there were several seeds, ``sites`` and ``rounds`` are those of ``seed``.

    While the run continues, and after an interruption, ``complete`` is false, and the file has the results so far.
    """

    schema_version: Literal[1] = Field(default=1, alias="schema")
    method: str
    inference: Inference | None = None
    """Kind of prediction by which ``accuracy`` is counted; None in older files."""
    protection: str
    dataset: str
    seed: int
    sites: tuple[SiteFigures, ...]
    rounds: tuple[RoundFigures, ...]
    mean_accuracy: Share | None
    config: dict[str, Any]
    """The agreement; a simulation adds `engine`, `precision` and `schedule`, each unless the default was asked for.
    Without `engine`, `auto` chose tensors under `plain` without `[privacy]`, else sessions."""
    classes: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    """Classes that too few sites hold, in the last round, or ``best_round``."""
    compared: dict[str, Share] = Field(default_factory=dict)
    """Mean accuracy of each other method and control on the same data with the same budget."""
    metrics: dict[str, Accuracies] = Field(default_factory=dict)
    """Means over the sites, for the method and each compared method."""
    best_round: Annotated[int, Field(ge=1)] | None = None
    """Round whose figures are reported where training was stopped early; ``rounds`` has all of them."""
    groups: tuple[tuple[str, ...], ...] = ()
    """Groups of sites that averaged in the last round, or ``best_round``; empty for a method without groups."""
    seeds: tuple[SeedFigures, ...] = ()
    spread: SeedSpread | None = None
    """Spread of ``mean_accuracy`` over the seeds."""
    summary: dict[str, dict[str, SeedSpread]] = Field(default_factory=dict)
    """Mean and spread over several seeds, for the method and each compared, by the names in ``metrics``."""
    differences: dict[str, dict[str, Paired]] = Field(default_factory=dict)
    """Differences between the method and each compared, over several seeds, by the names in ``metrics``."""
    complete: bool = True
    data_sha256: str | None = None
    """Hash of all sites' samples, in simulations only: equal for runs on the same data and split."""
    coordinator_view: tuple[ViewLine, ...] = ()
    diagnoses: tuple[Diagnosis, ...] = ()
    """Signs of wrong settings, with their remedies, for the method and each compared method."""


def write_result(run: Path, result: RunResult) -> Path:
    """Write ``result.json`` into the folder of a run and return its path."""
    return write_json(run / RESULT, result)


def read_result(run: Path) -> RunResult:
    """Read the ``result.json`` of a run; raise :class:`agreement.storage.run_files.FileError`."""
    return read_json(run / RESULT, RunResult, "give the folder that a run wrote to")


def site_folder(run: Path, site: str) -> Path:
    """Return the path of a site's files in the folder of a simulated run."""
    return run / "sites" / site
