"""Log of a site, ``site.json``: its own record of a run, round by round."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from secure_client.output.json_records import Bytes, Duration, Record, Samples, Share, read_json, write_json

SITE_LOG = "site.json"


class Personalised(Record):
    """FedNH's accuracies of a personalised model.

    PM(V) gives all classes that the site has equal weights, PM(L) weights by their frequency
    (:mod:`algorithms.metrics`). The accuracies are on the site's own test set, and on one over all sites
    (``_global``), which only a simulation has. None where there is no such test set, or no sample in it of a class
    that the site has. The third of FedNH's accuracies, GM, is of one global model; here every site has a classifier
    of its own, so there is none.
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
    """False where the round's training failed: the model is as the round began, and the site took part with it."""
    accuracy: Share | None = None
    """By the method's own inference; only a simulation has it here, where ``self`` has that of the method beside it."""
    accuracy_classifier: Share | None
    accuracy_prototype: Share | None
    accuracy_trained: Share | None = None
    """Accuracy of the model as the site trained it last, where the method predicts with an aggregated one."""
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
    """True if the guarantee holds for the agreed unit.

    It does not hold where features were trained on the records without noise, or where exact values have left in any
    run.
    """


class SiteLog(Record):
    """``site.json``: the site's own record of a run, which no one else receives."""

    schema_version: Literal[1] = Field(default=1, alias="schema")
    name: str
    model: str
    train_samples: Samples
    bytes_up: Bytes
    bytes_down: Bytes
    rounds: tuple[SiteRound, ...]


def write_site_log(folder: Path, log: SiteLog) -> Path:
    """Write ``site.json`` into a site's folder and return its path."""
    return write_json(folder / SITE_LOG, log)


def read_site_log(folder: Path) -> SiteLog:
    """Read the ``site.json`` of a site's folder; raise :class:`FileError`."""
    return read_json(folder / SITE_LOG, SiteLog, "give the folder that a site wrote to (out)")
