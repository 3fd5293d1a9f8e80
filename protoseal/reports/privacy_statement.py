"""Sentences on the privacy of a run, from its ``result.json`` alone: ε and δ, of what unit, or that nothing bounds it.

Limit: the sentences repeat the ledgers of the sites. docs/explanation/privacy.md defines what an ε covers.
"""

from __future__ import annotations

from collections.abc import Sequence

from agreement.methods import CONTROLS
from agreement.sections.privacy import Noise
from protoseal.reports.result_files import RunResult, SiteFigures

NO_GUARANTEE = "NO GUARANTEE"
_ALONE = frozenset(method.value for method in CONTROLS)


def privacy_statement(result: RunResult) -> tuple[str, ...]:
    """Return one sentence or more, of which those without a guarantee begin with ``NO GUARANTEE``."""
    if result.method in _ALONE:
        return (f"Nothing left a site: “{result.method}” trains each site by itself.",)
    agreed = result.config["privacy"]
    if agreed is None:
        return (_exact(),)
    spent = [site for site in result.sites if site.epsilon is not None]
    if not spent:
        return (f"{NO_GUARANTEE}: no site has recorded a round, and with it what it spent.",)
    kept = [site for site in spent if site.guaranteed]
    lost = [site for site in result.sites if site not in kept]
    return (
        *([_unbounded(lost, result)] if lost else []),
        *([_bounded(kept, result, agreed["unit"])] if kept else []),
        *([_shared(agreed)] if kept and agreed["noise"] == Noise.DISTRIBUTED else []),
    )


def _exact() -> str:
    return (
        f"{NO_GUARANTEE}: this run is not differentially private. Its agreement has no [privacy], so that no noise is"
        " in what sites contributed and received, and no ε bounds what others learn from it over all rounds."
    )


def _unbounded(sites: Sequence[SiteFigures], result: RunResult) -> str:
    return (
        f"{NO_GUARANTEE} for {_names(sites, result)}: features were trained on the records without noise, exact values"
        " have left in this or another run on the same data, or nothing is recorded. An ε beside such a site counts"
        " what its noisy releases took, and bounds nothing."
    )


def _bounded(sites: Sequence[SiteFigures], result: RunResult, unit: str) -> str:
    epsilon = max(site.epsilon or 0.0 for site in sites)
    deltas = [site.delta for site in sites if site.delta is not None]
    at = f" at δ = {max(deltas):g}" if deltas else ""
    return (
        f"Differentially private for one {unit} added or removed: {_names(sites, result)} spent at most"
        f" ε = {epsilon:.3g}{at} by the end of this run, over all runs in the ledger of the same data."
    )


def _shared(agreed: dict[str, object]) -> str:
    colluding = agreed["colluding"]
    return (
        "The sites share this noise: the guarantee is against whoever sees sums alone and is told the parts of"
        f" {colluding} sites at most, a site that looks at its own answer being one of them."
    )


def _names(sites: Sequence[SiteFigures], result: RunResult) -> str:
    return "every site" if len(sites) == len(result.sites) else ", ".join(site.name for site in sites)
