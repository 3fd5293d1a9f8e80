"""Privacy statement of a site: a page for a privacy officer, and its fields as the registry of OpenDP names them.

Every sentence follows from the ledger of the site's data set; the agreement adds what its run plans. Limit: the ledger
says what was paid for, and not that the program added the noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from privacy.accounting.accounting_rules import Accounting
from privacy.accounting.events import DpSgd, GaussianRelease, Unit
from privacy.ledger.budget_account import Account
from privacy.ledger.lines import NEIGHBOURS, Entry, Limit
from protoseal.reports.ledger_facts import (
    PaidItem,
    RunFacts,
    StatementFacts,
    charged_elsewhere,
    day,
    limit_changes,
)
from protoseal.reports.privacy_statement import (
    NO_GUARANTEE,
    describe_conditions,
    describe_guarantee,
    describe_observers,
    out_of_hundred,
)
from secure_client.privacy.cost import PROTOTYPES, TRAINING, planned_epsilon
from secure_client.privacy.kept_releases import FOLDER as RELEASES
from secure_client.privacy.releases import WEIGHTS

SENT = "what the ledger records as sent"
_NOT_A_SUM = "The costs of single runs do not simply add up to that number."
USELESS = 0.5
"""Share of people with ten records each, at 1 % of wrong picks, beyond which a statement calls them unprotected."""
CONFIRM = "The program cannot know, and the site has to confirm before it shows this page"
_PAID = (PROTOTYPES, TRAINING)
_FEWER = "the run ended early, or has not ended, or the site missed the round of a release"


@dataclass(frozen=True)
class StatementSection:
    """Part of a page: sentences, then a table whose first row is its heads, then a list."""

    title: str
    sentences: tuple[str, ...]
    table: tuple[tuple[str, ...], ...] = ()
    items: tuple[str, ...] = ()


def headline(facts: StatementFacts) -> str:
    """Return the sentences to read aloud: what is protected from whom, how surely, at what cost; or NO GUARANTEE."""
    if facts.why_none is not None:
        return f"{NO_GUARANTEE} for any {facts.unit} of {facts.data}: {facts.why_none}."
    if facts.account is None or facts.recognised is None:
        return f"Nothing of {facts.data} has left this site, by what its ledger records; nothing is spent."
    limit = facts.account.limit
    cost = (
        f"Spent is ε = {facts.epsilon:.4g} of the {limit.epsilon:g} that this site allows, at δ = {limit.delta:g}"
        f" ({_describe_dates(facts.runs)}). Lower is safer; the limit is the site's choice and no legal threshold."
    )
    condition = describe_conditions(
        facts.colluding, "recorded noise was", "had not seen these records before"
    )
    # Privacy loss distributions compose only what was fixed in advance; a filter also what followed from results.
    if limit.accountant is Accounting.PLANNED:
        condition += ", and if all agreements were fixed before anything was released"
    condition += ", and if the site confirms the other points below"
    sentence = describe_guarantee(
        condition, facts.members, describe_observers(facts.colluding, SENT), facts.recognised.shares, cost
    )
    if charged_elsewhere(facts.account) is None:
        return sentence
    return f"{sentence} Other ledgers charge some of these records too, and for them the costs add up."


def _describe_dates(runs: Sequence[RunFacts]) -> str:
    first, last = min(run.first for run in runs), max(run.last for run in runs)
    dates = f"on {first}" if first == last else f"from {first} to {last}"
    return f"{len(runs)} run{'s' * (len(runs) != 1)}, {dates}"


def sections(facts: StatementFacts) -> tuple[StatementSection, ...]:
    """Return the parts of the page after its headline."""
    guaranteed = (
        [_protected_section(facts), _certainty_section(facts)] if facts.recognised is not None else []
    )
    recorded = [] if facts.account is None else [_spent_section(facts, facts.account)]
    mechanism = [_mechanism_section(facts)] if facts.released else []
    confirmed = tuple(list_to_confirm(facts))
    return (
        *([StatementSection(CONFIRM, (), items=confirmed)] if confirmed else []),
        *guaranteed,
        *recorded,
        StatementSection("What is not covered", (), items=tuple(list_not_covered(facts))),
        *mechanism,
    )


def _protected_section(facts: StatementFacts) -> StatementSection:
    trained = ", and the model, which was trained by DP-SGD" if facts.trains else ""
    return StatementSection(
        "What is protected, and from whom",
        (
            f"The unit of protection is {facts.members.one}: {facts.members.meaning}. Neighbouring data sets differ by"
            f" one such unit ({NEIGHBOURS}).",
            "The guarantee covers all that this ledger records as sent: noisy averages of features of each class"
            " (prototypes), noisy counts of each class, and the list of classes, which follows from these"
            f" counts{trained}. Whatever others compute from what was sent is covered as well.",
            "The content of a unit, labels included, is covered like its presence, but less surely: other content"
            " counts as two changes, one unit removed and one added.",
            "The guarantee holds whatever the attacker knows already, even if all records, the one in question too, are"
            " known and only whether that one was used is not.",
            *_describe_shared(facts.colluding),
        ),
    )


def _describe_shared(colluding: int | None) -> Iterator[str]:
    if colluding is None:
        return
    yield (
        f"The sites share the noise of their sums. More than {colluding} sites that pool what they know, or help the"
        " coordinator, face less noise than is counted here, and enough of them hardly any."
    )


def _certainty_section(facts: StatementFacts) -> StatementSection:
    recognised = facts.recognised
    if recognised is None:
        raise ValueError("nothing is guaranteed")
    rows = tuple(
        (f"1 of {1 / alarms:g} {facts.members.outside}", out_of_hundred(share))
        for alarms, share in recognised.shares.items()
    )
    ground = (
        f"The table follows from ε = {recognised.filtered[0]:.4g} at δ = {recognised.filtered[1]:g} alone: the largest"
        " limit that this ledger had, or what is spent if that is more. The spent ε is no bound by itself, because the"
        " agreements of the runs may depend on earlier results. The truth may be better."
        if recognised.filtered is not None
        else "The table follows from the noise of all releases together and is the limit: no attack on what was sent"
        " does better, whatever the records are, and a real one usually does worse."
    )
    return StatementSection(
        "How surely",
        (
            "An attacker who wants to know who is in the data also picks out some who are not. The more of these it"
            " accepts, the more members it picks out. Blind guessing picks out equal shares of both.",
            ground,
        ),
        table=(("wrongly picked out", f"correctly picked out at most, of 100 {facts.members.inside}"), *rows),
    )


def _spent_section(facts: StatementFacts, account: Account) -> StatementSection:
    limit = account.limit
    rows = tuple(
        (
            repr(run.name),
            run.dates,
            "; ".join([*(released.in_words for released in run.released), *(["exact values"] * run.exact)]),
            "no bound" if run.exact else f"{run.epsilon:.4g}",
        )
        for run in facts.runs
    )
    counts = "" if facts.why_none is None else " This ε counts the noisy releases alone and bounds nothing."
    return StatementSection(
        "What was spent",
        (
            f"All runs together have spent ε = {facts.epsilon:.4g} of a limit of {limit.epsilon:g}, at"
            f" δ = {limit.delta:g}.{counts}",
            *([_NOT_A_SUM] if len(facts.runs) > 1 else []),
            *_describe_limits(account),
            *_describe_plan(facts),
        ),
        table=(("run", "dates", "paid for", "ε of this run alone"), *rows) if rows else (),
    )


def _describe_limits(account: Account) -> Iterator[str]:
    """Yield when the limit was set, and each change of it with its reason."""
    first, began = account.budget.limit, account.budget.time
    yield f"The limit was set {'' if began is None else f'on {_minute(began)}, '}before the first release: {first}."
    for change in limit_changes(account):
        allowance = change.allowance
        lines = account.lines[: account.lines.index(allowance)]
        paid = sum(isinstance(line, Entry) for line in lines)
        yield (
            f"It was {change.verb} on {_minute(allowance.time)}, after {paid} of {len(account.entries)} payments, to"
            f" {allowance.limit}. The reason given was: {allowance.reason!r}."
        )
        if change.to_filter:
            yield (
                "If somebody decided this change of the accountant after looking at results, the guarantee of all runs"
                f" together is (ε, 2δ), with 2δ = {2 * allowance.limit.delta:g}. A table"
                " of picked-out members that follows from the limit counts this."
            )


def _minute(time: str) -> str:
    return f"{day(time)} at {time[11:16]} UTC"


def _describe_plan(facts: StatementFacts) -> Iterator[str]:
    """Yield how the spending of the agreement's run compares with its plan, as far as it has one."""
    agreement, account = facts.agreement, facts.account
    if agreement is None or account is None:
        return
    agreed_runs = [run for run in facts.runs if run.agreement_hash == agreement.hash()]
    name = f"Run {agreement.run!r} (method {agreement.method.value}, protection {agreement.protection.value})"
    if agreement.privacy is None:
        left = "exact values left in it" if agreed_runs else "no exact value has left in it yet"
        yield f"{name} adds no noise: {left}."
        return
    rounds = {
        what: [
            number
            for run in agreed_runs
            for item in run.released
            if item.what == what
            for number in item.rounds
        ]
        for what in _PAID
    }
    # By distinct rounds: a repeated attempt pays again for a round that the plan counts once.
    paid = {what: len(set(rounds[what])) for what in _PAID}
    planned = {
        PROTOTYPES: agreement.releases,
        TRAINING: agreement.rounds * (agreement.privacy.dp_sgd is not None),
    }
    cost = planned_epsilon(agreement, agreement.privacy, account.limit.delta, account.limit.accountant)
    again = any(len(rounds[what]) > paid[what] for what in _PAID)
    whole = all(paid[what] >= planned[what] for what in _PAID)
    spent = (", and spent more" if again else ", and spent all of it") if whole else ""
    training = f" and {paid[TRAINING]} of {planned[TRAINING]} planned trainings" if planned[TRAINING] else ""
    yield (
        f"{name} planned to spend ε = {cost:.4g}{spent}. Paid for are {paid[PROTOTYPES]} of"
        f" {planned[PROTOTYPES]} planned releases{training}{'' if whole else f'; {_FEWER}'}"
        f"{'; some were paid for again, in repeated attempts' if again else ''}."
    )


def _mechanism_section(facts: StatementFacts) -> StatementSection:
    limit = Limit(1.0, 0.5) if facts.account is None else facts.account.limit
    return StatementSection(
        "Mechanism and composition, for specialists",
        (
            *list_mechanisms(facts),
            f"Composition: {describe_composition(limit)}",
            *_describe_factor(facts, limit),
        ),
    )


def _describe_factor(facts: StatementFacts, limit: Limit) -> Iterator[str]:
    if facts.recognised is None:
        return
    # Under a Rényi filter the limit is guaranteed, and what happens to be spent is not.
    epsilon, delta = facts.recognised.filtered or (facts.epsilon, limit.delta)
    yield (
        f"(ε, δ): {facts.members.one}, added or removed, changes the probability of anything that the attacker sees by"
        f" a factor of e^ε = {math.exp(min(epsilon, 700)):.3g} at most, and by δ = {delta:g} besides."
    )
    if facts.recognised.filtered is None:
        yield "This pair follows from the same noise as the table, which is the sharper bound."


def list_mechanisms(facts: StatementFacts) -> list[str]:
    """Return each mechanism of the ledger once, in words."""
    return list(dict.fromkeys(_describe_mechanism(released, facts.unit) for released in facts.released))


def _describe_mechanism(released: PaidItem, unit: Unit) -> str:
    """Return the mechanism of a release or of training in words, with the numbers that its entry states."""
    event, stated = released.event, released.facts
    if isinstance(event, DpSgd):
        clip = f", clipped to norm {stated['clip']:g}," if "clip" in stated else ""
        return (
            f"Training: DP-SGD. Each step takes every {unit} with probability {event.sampling_rate:g}, independently,"
            f" and adds Gaussian noise to the sum of their gradients{clip} of {event.noise_multiplier:g} times what one"
            " of them changes."
        )
    return f"Releases: {_describe_query(stated, event, unit)}"


def _describe_query(stated: Mapping[str, object], event: GaussianRelease, unit: Unit) -> str:
    clip, weight = stated.get("clip"), stated.get("count_weight")
    noise = f"discrete Gaussian noise of {event.noise_multiplier:g} times what one {unit} changes"
    if isinstance(clip, float) and isinstance(weight, float):
        deviation = event.noise_multiplier * math.hypot(clip, weight)
        noise += f", a standard deviation of {deviation:.4g}"
    classes, dim = stated.get("classes"), stated.get("dim")
    of = ""
    if isinstance(classes, int) and isinstance(dim, int):
        parts = event.coordinates // (classes * (dim + 1))
        cells = f" in up to {parts} cells (parts of a class) each" if parts > 1 else ""
        of = f" of {classes} classes{cells}, with {dim} features,"
    shortened = f" Features are shortened to norm {clip:g} before." if isinstance(clip, float) else ""
    return f"sums of features and counts of {unit}s{of} with {noise}.{shortened}"


def describe_composition(limit: Limit) -> str:
    """Return how the costs of all entries add up under the ledger's accountant, and what it assumes."""
    if limit.accountant is Accounting.RENYI:
        return (
            "a Rényi filter over all entries of the ledger, valid if agreements follow from earlier results."
        )
    together = "privacy loss distributions of all entries of the ledger"
    if limit.accountant is Accounting.PLANNED:
        return (
            f"{together}, valid only if all agreements were fixed before the first of them released anything."
        )
    return f"{together}. The classes of one release partition the records and cost as much as one."


def list_not_covered(facts: StatementFacts) -> Iterator[str]:
    """Yield the quantities and losses that the guarantee leaves out."""
    if facts.why_none is not None:
        yield (
            "Everything that this site sent, and which classes of records it has. Masks or encryption, where an"
            " agreement has them, keep some of it from some parties; noise bounds nothing."
        )
    else:
        yield from _name_left_out(facts)
    yield (
        "What is true of everybody. The releases show which classes of records exist here and what their averages"
        " look like, and from that something may follow about a person who is in no data set."
    )
    yield "That this site takes part, in which rounds, and the sizes and times of its messages."
    private = facts.trains and all(
        released.facts.get("extractor") == "private" for released in facts.released
    )
    classifier = "" if private else ", and the classifier in model.safetensors, which trains without noise"
    yield (
        f"Files that stay at this site: accuracy figures, numbers of samples and log{classifier}, and with"
        f" keep_releases the folder {RELEASES} (draws, models and steps of training). Who passes them on, or shows an"
        " accuracy, is not covered."
    )
    if facts.account is not None:
        elsewhere = charged_elsewhere(facts.account)
        if elsewhere is not None:
            yield f"Records that other ledgers charge too ({elsewhere}), for which the costs add up."
        if any(change.raised for change in limit_changes(facts.account)):
            yield "That the limit was raised, if somebody raised it after looking at results."


def list_to_confirm(facts: StatementFacts) -> Iterator[str]:
    """Yield the conditions of a guarantee that no ledger shows; none where nothing is guaranteed."""
    if facts.why_none is not None:
        return
    if facts.released:
        yield (
            "That the recorded noise was really added. “protoseal budget audit run” looks for it in what was sent,"
            " and names what it does not cover. The ledger does not record whether there was an audit."
        )
        yield _confirm_initial_model(facts)
    yield (
        "That nothing else about the same records was sent: in a run in which privacy protection was switched off (no"
        " [privacy] in the site's file), or under another ledger or name of the data set. If anything was, every number"
        " on this page is too favourable."
    )
    yield (
        "That nobody chose the agreed settings, which are public, or the model by looking at the records or at"
        " accuracies: no ε counts such a choice."
    )


def _name_left_out(facts: StatementFacts) -> Iterator[str]:
    """Yield what is left out because of the unit, and of shared noise."""
    if facts.unit is Unit.RECORD:
        ten = None if facts.recognised is None else facts.recognised.of_ten
        picked = (
            ""
            if ten is None
            else f" Of 100 people with ten records each, up to {out_of_hundred(ten)} are picked out"
            " when 1 in 100 others is, wrongly."
        )
        # The shares hold for one record; ten records of a person are a group, whose cost is larger.
        useless = ten is not None and ten > USELESS
        less = (
            "For a person with ten records this statement gives no useful protection."
            if useless
            else ("People with several records are protected less than a record.")
        )
        yield (
            f'{less}{picked} If any person has more than one record, ask for unit = "subject"; that takes a new run,'
            " and does not repair one that took place."
        )
    elif facts.unit is Unit.SUBJECT:
        yield "A person with records at several sites: what the sites release adds up, as several runs do."
    else:
        yield "Whether this site takes part at all, which the roster shows."
    if facts.colluding is not None:
        yield (
            "This site as a whole. If no other site has records of a class, the mean that all see is this site's own;"
            " the noise hides one record in it, not the site."
        )


def _confirm_initial_model(facts: StatementFacts) -> str:
    weights = dict.fromkeys(
        str(release.facts[WEIGHTS]) for release in facts.released if WEIGHTS in release.facts
    )
    by_hash = f" (weights with SHA-256 {', '.join(weights)})" if weights else ""
    return f"That the initial model{by_hash} was not trained on these records before. If it was, nothing is guaranteed."
