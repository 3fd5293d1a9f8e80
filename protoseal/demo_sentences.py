"""Three sentences on the demo's run in plain words: who gained, what left each site, what the coordinator saw.

The sentences are computed from the sites' accuracies and the coordinator's recording, so they are also true of a run in
which nobody gained or a prototype shows. Limit: a search of bytes finds no values that could be computed from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from agreement import Method
from protoseal.audit.coordinator_view import PRESENCE, SEARCHED, Uploads
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
    if result.mean_accuracy is None:
        raise ValueError("the run has no accuracy: it was not tested")
    accuracy, controls = result.mean_accuracy, {name: result.compared[name] for name in _CONTROLS}
    ahead = sum(_is_ahead(site) for site in result.sites)
    found = (
        "The sites gained on average"
        if accuracy > max(controls.values())
        else "The sites did not gain on average"
    )
    means = ", and ".join(f"{percent(mean)} % {_CONTROLS[name]}" for name, mean in controls.items())
    return (
        f"{found}, and {ahead} of {len(result.sites)} did better than under both controls: in the federation a site "
        f"classifies {percent(accuracy)} % of its test images correctly on average, against {means}."
    )


def _is_ahead(site: SiteFigures) -> bool:
    return site.accuracy is not None and site.accuracy > max(site.compared[name] for name in _CONTROLS)


def _sent(sites: Sequence[SiteFigures], uploads: Uploads) -> str:
    sizes = sorted(site.bytes_up / 1e6 for site in sites)
    of_models = "of prototypes and of models' feature extractors"
    sent = [
        *([f"{uploads.ciphertexts:,} ciphertexts {of_models}"] if uploads.ciphertexts else []),
        *([f"{uploads.masked:,} masked numbers {of_models}"] if uploads.masked else []),
        *(["rotated prototypes of the untrained model"] if uploads.rotated else []),
        f"{uploads.plain:,} numbers {of_models} in clear"
        if uploads.plain
        else "no prototype or model in clear",
    ]
    return (
        f"Each site sent {sizes[0]:.1f} to {sizes[-1]:.1f} MB, and all sites in all rounds sent {_listed(sent)}; "
        "images are part of no message."
    )


def _listed(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _seen(result: RunResult, uploads: Uploads) -> str:
    saw = [
        "who took part and when",
        *(["which classes each site has"] if _has_seen(result, PRESENCE) else []),
        *(["how alike the sites' prototypes of the untrained model are"] if uploads.rotated else []),
    ]
    found = "FOUND prototypes" if _has_seen(result, SEARCHED) else "found no prototype"
    return (
        f"The coordinator saw {_listed(saw)}; a search of the last rounds' uploads, as it recorded them, {found} of a "
        "site."
    )


def _has_seen(result: RunResult, what: str) -> bool:
    """Return the verdict of the recording's line; raise ``ValueError`` without such a line."""
    (line,) = (each for each in result.coordinator_view if each.what == what)
    return line.seen
