"""Three sentences on the demo's run in plain words: who gained, what left each site, what the coordinator saw.

The sentences are computed from the sites' accuracies and the coordinator's recording, so they are also true of a run in
which nobody gained or a prototype shows. Limit: a search of bytes finds no values that could be computed from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from agreement import Method
from protoseal.evaluation.coordinator_view.recording import SEARCHED, Uploads
from protoseal.reports.result_files import RunResult, SiteFigures
from protoseal.reports.tables import percent

_CONTROLS = {
    Method.LOCAL.value: "when each trains alone (local)",
    Method.SELF.value: "when each is pulled towards its own prototypes alone (self)",
}


def closing_sentences(result: RunResult, uploads: Uploads) -> tuple[str, str, str]:
    """Return the sentences on a run with both controls; ``uploads`` is the content of its coordinator's recording."""
    return _gain(result), _sent(result.sites, uploads), _seen(result, uploads)


def _gain(result: RunResult) -> str:
    accuracy, controls = result.mean_accuracy or 0.0, {name: result.compared[name] for name in _CONTROLS}
    ahead = sum(_is_ahead(site) for site in result.sites)
    beside = f"{ahead} of {len(result.sites)} sites do better than under both controls"
    found = (
        "The sites gained on average"
        if accuracy > max(controls.values())
        else "The sites did not gain on average"
    )
    means = ", and ".join(f"{percent(mean)} % {_CONTROLS[name]}" for name, mean in controls.items())
    return (
        f"{found}, and {beside}: with the federation they classify {percent(accuracy)} % of their test images "
        f"correctly, against {means}."
    )


def _is_ahead(site: SiteFigures) -> bool:
    return site.accuracy is not None and site.accuracy > max(site.compared[name] for name in _CONTROLS)


def _sent(sites: Sequence[SiteFigures], uploads: Uploads) -> str:
    sizes = sorted(site.bytes_up / 1e6 for site in sites)
    rotated = ", rotated prototypes of the untrained model" if uploads.rotated else ""
    in_clear = (
        f"{uploads.plain:,} numbers of prototypes and models" if uploads.plain else "no prototype or model"
    )
    return (
        f"Each site sent {sizes[0]:.1f} to {sizes[-1]:.1f} MB: its prototypes and its model's feature extractor as "
        f"ciphertexts ({uploads.ciphertexts} from all sites in all rounds){rotated}, public keys, signatures, and the "
        f"list of its classes; no image left a site, and {in_clear} did in clear."
    )


def _seen(result: RunResult, uploads: Uploads) -> str:
    also = ", and how alike the sites' prototypes of the untrained model are" if uploads.rotated else ""
    found = any(line.seen for line in result.coordinator_view if line.what == SEARCHED)
    return (
        f"The coordinator saw who took part and when, which classes each site has{also}; a search of the last rounds' "
        f"uploads, as it recorded them, {'FOUND prototypes' if found else 'found no prototype'} of a site."
    )
