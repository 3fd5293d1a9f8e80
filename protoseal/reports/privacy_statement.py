"""Sentences on privacy: what is protected from whom, how surely and at what cost, or NO GUARANTEE.

``budget plan``, ``budget show``, the statement of a site and the report of a run take their sentences from here. Limit:
the sentences repeat a plan or the ledgers of sites, and docs/explanation/privacy.md defines what an ε covers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agreement.registry.methods import CONTROLS
from agreement.sections.privacy import Noise
from privacy.accounting.events import Unit
from protoseal.reports.result_files import RunResult, SiteFigures

NO_GUARANTEE = "NO GUARANTEE"
FALSE_ALARMS = (0.01, 0.1)
"""Shares of non-members that the attackers of a sentence pick out wrongly."""
_ALONE = frozenset(method.value for method in CONTROLS)


@dataclass(frozen=True)
class Members:
    """Words for the unit of a guarantee: the protected fact, those for whom it is true, and those for whom it is not.

    ``one`` is a single unit that is added to a data set or removed from it, and ``meaning`` explains it. ``limit`` is a
    sentence on what the unit leaves out, or empty.
    """

    fact: str
    inside: str
    outside: str
    one: str
    meaning: str
    limit: str


def describe_unit(unit: Unit, place: str) -> Members:
    """Return the words for one ``unit`` of the data set that ``place`` names."""
    return {
        Unit.RECORD: Members(
            f"any one record is in {place}",
            "records that are in it",
            "records that are not in it",
            "one record",
            "one labelled example of the training data, such as an image with its diagnosis",
            "This protects single records, not people with several records. ",
        ),
        Unit.SUBJECT: Members(
            f"any one person has records in {place}",
            "people who have records in it",
            "people who have no records in it",
            "one person",
            "all records that the site has of that person, whatever their classes",
            "",
        ),
        Unit.SITE: Members(
            "the site has any records behind what it sends",
            "sites that have records",
            "sites that have no records",
            "one site",
            "all records of the site together",
            "",
        ),
    }[unit]


def describe_observers(colluding: int | None, sent: str) -> str:
    """Return from whom a guarantee protects; ``colluding`` is None for noise of each site's own.

    ``sent`` describes the values that an observer sees where the site adds all of the noise by itself.
    """
    if colluding is None:
        return f"anyone who sees {sent}: the coordinator, other sites, and whoever they pass it on to"
    if colluding == 0:
        return (
            "the coordinator and outsiders, who see only sums over the sites, but not from a site that reads"
            " its own results"
        )
    sites = (
        "one site that helps them or reads" if colluding == 1 else f"{colluding} sites that help them or read"
    )
    return (
        f"the coordinator and outsiders, who see only sums over the sites, with up to {sites} its own results"
    )


def describe_conditions(colluding: int | None, noise: str, model: str) -> str:
    """Return the conditions of a guarantee as a clause, which holds for noise of each site's own and for shared noise.

    ``noise`` and ``model`` say that noise is added, and that the initial model has not seen the records.
    """
    shared = "" if colluding is None else ", by the other sites too and under masks that are not broken,"
    return f"If the {noise} really added{shared} and the initial model {model}"


def describe_guarantee(
    condition: str, members: Members, observer: str, shares: Mapping[float, float], cost: str
) -> str:
    """Return the sentences of a guarantee that holds under the clause ``condition``.

    ``shares`` has the largest share of members that any attack picks out, by its share of :data:`FALSE_ALARMS`;
    ``cost`` is a sentence on ε and δ.
    """
    few, many = (out_of_hundred(shares[alarms]) for alarms in FALSE_ALARMS)
    return (
        f"{condition}, then whether {members.fact} is protected from {observer}. When such an attacker wrongly picks"
        f" out 1 in 100 {members.outside}, it correctly picks out at most {few} in 100 {members.inside} (blind"
        f" guessing: 1); with 10 in 100 wrongly picked out, at most {many} (blind guessing: 10). {members.limit}{cost}"
    )


def out_of_hundred(share: float) -> str:
    """Return a share as a number out of 100, rounded up, so that "at most" stays true."""
    # A share that is 5 % but for rounding must not become 5.1.
    hundredths = 100 * share - 1e-6  # what float64 loses
    return f"{math.ceil(hundredths)}" if hundredths >= 10 else f"{math.ceil(10 * hundredths) / 10:g}"


def privacy_statement(result: RunResult) -> tuple[str, ...]:
    """Return the sentences on a run, from ``result.json``; one without a guarantee begins with ``NO GUARANTEE``."""
    if result.method in _ALONE:
        return (f"Nothing left a site: “{result.method}” trains each site by itself.",)
    agreed = result.config["privacy"]
    if agreed is None:
        return (_describe_exact(),)
    spent = [site for site in result.sites if site.epsilon is not None]
    if not spent:
        return (f"{NO_GUARANTEE}: no site has recorded a round, so no spending is known.",)
    bounded = [site for site in spent if site.guaranteed]
    unbounded = [site for site in result.sites if site not in bounded]
    shared = agreed["noise"] == Noise.DISTRIBUTED
    return (
        *([_describe_unbounded(unbounded, result)] if unbounded else []),
        *(
            [
                _describe_bounded(
                    bounded, result, Unit(agreed["unit"]), agreed["colluding"] if shared else None
                )
            ]
            if bounded
            else []
        ),
    )


def _describe_exact() -> str:
    return (
        f"{NO_GUARANTEE}: this run is not differentially private. Its agreement has no [privacy] section, so "
        "the sites' contributions and results have no noise, and no ε bounds what other parties learn from "
        "them over all rounds."
    )


def _describe_unbounded(sites: Sequence[SiteFigures], result: RunResult) -> str:
    return (
        f"{NO_GUARANTEE} for {_name_sites(sites, result)}: features were trained on the records without noise, this "
        "or another run on the same data released exact values, or no round is recorded. An ε beside such a "
        "site counts only its noisy releases and bounds nothing."
    )


def _describe_bounded(
    sites: Sequence[SiteFigures], result: RunResult, unit: Unit, colluding: int | None
) -> str:
    epsilon = max(site.epsilon or 0.0 for site in sites)
    deltas = [site.delta for site in sites if site.delta is not None]
    at = f" at δ = {max(deltas):g}" if deltas else ""
    members = describe_unit(unit, "a site's data set")
    return (
        f"{describe_conditions(colluding, 'recorded noise was', 'had not seen these records before')}, then whether"
        f" {members.fact} is protected from {describe_observers(colluding, 'what the ledgers record as sent')}. At most"
        f" ε = {epsilon:.3g}{at} was spent by {_name_sites(sites, result)} by the end of this run, over all runs in the"
        " ledger of the same data."
        f" Adding or removing {members.one} changes the probability of anything that they see by a factor of e^ε at"
        f" most, and by δ besides. {members.limit}"
    ).rstrip()


def _name_sites(sites: Sequence[SiteFigures], result: RunResult) -> str:
    return "every site" if len(sites) == len(result.sites) else ", ".join(site.name for site in sites)
