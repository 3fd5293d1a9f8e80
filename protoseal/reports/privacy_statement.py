"""Sentences on the privacy of a run, from its ``result.json`` alone: ε, δ and the unit, or NO GUARANTEE.

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
    """Return the sentences; a sentence without a guarantee begins with ``NO GUARANTEE``."""
    if result.method in _ALONE:
        return (f"Nothing left a site: “{result.method}” trains each site by itself.",)
    agreed = result.config["privacy"]
    if agreed is None:
        return (_exact(),)
    spent = [site for site in result.sites if site.epsilon is not None]
    if not spent:
        return (f"{NO_GUARANTEE}: no site has recorded a round, so no spending is known.",)
    kept = [site for site in spent if site.guaranteed]
    lost = [site for site in result.sites if site not in kept]
    return (
        *([_unbounded(lost, result)] if lost else []),
        *([_bounded(kept, result, agreed["unit"])] if kept else []),
        *([_shared(agreed)] if kept and agreed["noise"] == Noise.DISTRIBUTED else []),
    )


def _exact() -> str:
    return (
        f"{NO_GUARANTEE}: this run is not differentially private. Its agreement has no [privacy] section, so "
        "the sites' contributions and results have no noise, and no ε bounds what other parties learn from "
        "them over all rounds."
    )


def _unbounded(sites: Sequence[SiteFigures], result: RunResult) -> str:
    return (
        f"{NO_GUARANTEE} for {_names(sites, result)}: features were trained on the records without noise, this "
        "or another run on the same data released exact values, or no round is recorded. An ε beside such a "
        "site counts only its noisy releases and bounds nothing."
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
        "The sites share this noise: the guarantee is against a party that sees only sums and the noise shares "
        f"of at most {colluding} sites; a site that looks at its own result counts as one of them."
    )


def _names(sites: Sequence[SiteFigures], result: RunResult) -> str:
    return "every site" if len(sites) == len(result.sites) else ", ".join(site.name for site in sites)
