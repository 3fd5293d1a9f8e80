"""Log of a site, ``site.json``: its own record of a run, round by round, from what the session measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agreement import Inference
from agreement.storage.run_files import Bytes, Duration, Record, Samples, Share, read_json, write_json
from secure_client.table_format import TableFormat, TableScale

if TYPE_CHECKING:
    from secure_client.training.evaluation import Evaluation
    from secure_client.training.job import Losses


SITE_LOG = "site.json"


class Personalised(Record):
    """FedNH's accuracies of a personalised model.

    PM(V) gives all classes that the site has equal weights, PM(L) weights by their frequency
    (:mod:`algorithms.metrics`). The accuracies are on the site's own test set and, in a simulation, on a test set over
    all sites (``_global``). A value is None without such a test set, or if that set has no sample of the site's
    classes. FedNH's third accuracy, GM, is of one global model and does not exist here, since every site has its own
    classifier.
    """

    pm_v: Share | None = None
    pm_l: Share | None = None
    pm_v_global: Share | None = None
    pm_l_global: Share | None = None


class SiteRound(Personalised):
    """One round as one site saw it."""

    round: Annotated[int, Field(ge=1)]
    attempt: Annotated[int, Field(ge=1)]
    sites: Annotated[int, Field(ge=1)]
    withheld: tuple[str, ...]
    trained: bool = True
    """False if the round's training failed: the site took part with the model from the start of the round."""
    unreadable: bool = False
    """True if training records could not be read, which count as zeros with ``[privacy]``."""
    accuracy: Share | None = None
    """Accuracy by the method's own inference; ``self`` has that of its method. None if no prototype decides there."""
    accuracy_classifier: Share | None
    accuracy_prototype: Share | None
    accuracy_global: Share | None = None
    """``accuracy`` on the test set over all sites; None in a deployment, which has no such set."""
    accuracy_trained: Share | None = None
    """Accuracy of the model as the site trained it last, where the method predicts with an aggregated one."""
    accuracy_validation: Share | None = None
    """Accuracy on the samples kept aside for early stopping, by the method's own inference."""
    accuracy_constant: Share | None = None
    """Share of the most frequent class in the site's test set: the accuracy of a model that always answers it."""
    test_samples: Samples | None = None
    loss: float | None = None
    """Training loss, a mean over the batches of the last local epoch; a deployment with ``[privacy]`` records none."""
    loss_classification: float | None = None
    """Cross entropy in ``loss``, before the objective's weight; recorded where ``loss`` is."""
    loss_constant: float | None = None
    """Entropy of the site's labels, in nats: the cross entropy of a model that knows only how frequent classes are."""
    shortened: Share | None = None
    """Share of the prototypes sent that were shortened to ``norm_bound``; None without prototypes, and with noise."""
    per_class: dict[str, Share] | None = None
    seconds: dict[str, Duration]
    epsilon: float | None = None
    """Spent privacy budget of the data set, over all runs; None for exact prototypes without a ledger."""
    delta: float | None = None
    """The δ at which ``epsilon`` was spent."""
    guaranteed: bool = False
    """True if the guarantee holds for the agreed unit.

    The guarantee does not hold if features were trained on the records without noise, or if any run released exact
    values.
    """


class SiteLog(Record):
    """Content of ``site.json``: the site's own record of a run, which nobody else receives."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    name: str
    model: str
    class_names: dict[str, str] = Field(default_factory=dict)
    """Agreed classes by the data's own class names, from the site's file; ``protoseal predict`` reads data by them."""
    train_samples: Samples
    table: TableFormat | None = None
    """Format of the site's table, by which `predict` reads another."""
    scale: TableScale | None = None
    """Scale of a table's features, which may be statistics of the training rows: no other party receives them."""
    bytes_up: Bytes
    bytes_down: Bytes
    rounds: tuple[SiteRound, ...]


def write_site_log(folder: Path, log: SiteLog) -> Path:
    """Write ``site.json`` into a site's folder and return its path."""
    return write_json(folder / SITE_LOG, log)


def read_site_log(folder: Path) -> SiteLog:
    """Read the ``site.json`` of a site's folder; raise :class:`agreement.storage.run_files.FileError`."""
    return read_json(folder / SITE_LOG, SiteLog, "give the folder that a site wrote to (out)")


def site_round(
    number: int,
    attempt: int,
    sites: int,
    withheld: tuple[str, ...],
    tested: Evaluation | None,
    seconds: Mapping[str, float],
    *,
    inference: Inference,
    shortened: float | None = None,
) -> SiteRound:
    """Return the log's record of one round, in which the site predicts by ``inference``."""
    return SiteRound(
        round=number,
        attempt=attempt,
        sites=sites,
        withheld=withheld,
        accuracy=tested.accuracy_by(inference) if tested else None,
        accuracy_classifier=tested.accuracy_classifier if tested else None,
        accuracy_prototype=tested.accuracy_prototype if tested else None,
        pm_v=tested.pm_v if tested else None,
        pm_l=tested.pm_l if tested else None,
        accuracy_trained=tested.accuracy_trained if tested else None,
        accuracy_constant=tested.constant if tested else None,
        test_samples=tested.samples if tested else None,
        shortened=shortened,
        seconds=dict(seconds),
    )


def loss_figures(losses: Losses | None, label_entropy: float) -> dict[str, Any]:
    """Return the fields of a round's record that have the training's losses; none without losses."""
    if losses is None:
        return {}
    return {
        "loss": losses.total,
        "loss_classification": losses.classification,
        "loss_constant": label_entropy,
    }
