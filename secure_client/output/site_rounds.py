"""Records of rounds in a site's log, from what the session measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agreement import Inference
from secure_client.output.site_log import SiteRound
from secure_client.training.evaluation import Evaluation

if TYPE_CHECKING:
    from secure_client.training.job import Losses


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
