"""Records of rounds in a site's log, from what the session measured, and the accuracy of a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from agreement import Inference, Method, method_named
from secure_client.output.site_log import SiteRound
from secure_client.training.evaluation import Evaluation

if TYPE_CHECKING:
    from secure_client.training.job import Losses


def site_round(
    number: int,
    attempt: int,
    sites: int,
    withheld: tuple[str, ...],
    accuracy: Evaluation | None,
    seconds: Mapping[str, float],
    *,
    shortened: float | None = None,
) -> SiteRound:
    """Return the log's record of one round."""
    return SiteRound(
        round=number,
        attempt=attempt,
        sites=sites,
        withheld=withheld,
        accuracy_classifier=accuracy.accuracy_classifier if accuracy else None,
        accuracy_prototype=accuracy.accuracy_prototype if accuracy else None,
        pm_v=accuracy.pm_v if accuracy else None,
        pm_l=accuracy.pm_l if accuracy else None,
        accuracy_trained=accuracy.accuracy_trained if accuracy else None,
        accuracy_constant=accuracy.constant if accuracy else None,
        test_samples=accuracy.samples if accuracy else None,
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


class TwoWays(Protocol):
    """Interface of a test's two accuracies."""

    @property
    def accuracy_classifier(self) -> float | None:
        """Accuracy by the classifier."""
        ...

    @property
    def accuracy_prototype(self) -> float | None:
        """Accuracy by the nearest prototype."""
        ...


def own_accuracy(method: Method | str, figures: TwoWays) -> float | None:
    """Return the accuracy by the method's own inference, and by the classifier while there is no prototype.

    The run's own figure takes precedence: only the run knows which method's inference the control ``self`` uses.
    """
    if isinstance(figures, SiteRound) and figures.accuracy is not None:
        return figures.accuracy
    by_prototype = method_named(str(method)).traits.inference is Inference.PROTOTYPE
    if by_prototype and figures.accuracy_prototype is not None:
        return figures.accuracy_prototype
    return figures.accuracy_classifier
