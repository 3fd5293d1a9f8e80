"""Records of rounds in a site's log, from what the session measured."""

from __future__ import annotations

from collections.abc import Mapping

from secure_client.output.site_log import SiteRound
from secure_client.training.evaluation import Evaluation


def site_round(
    number: int,
    attempt: int,
    sites: int,
    withheld: tuple[str, ...],
    accuracy: Evaluation | None,
    seconds: Mapping[str, float],
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
        seconds=dict(seconds),
    )
