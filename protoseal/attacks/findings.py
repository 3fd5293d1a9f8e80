"""Findings of an attack report: the worst verdicts by configuration, adversary, attack and question.

Questions on what an adversary can learn are apart from what the protocol tells every member by design, and from
sabotage: what a malicious site can do to others.

A finding never says more than the verdicts: one successful case outweighs an undecided one, which outweighs one that
was held off. Limit: an attack that did not run has no finding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from protoseal.attacks.cases import Verdict
from protoseal.attacks.readings import Adversary
from protoseal.attacks.records import AttackReport, CaseRecord

UNPROTECTED = "plain"
MEMBERS: Mapping[str, tuple[str, ...]] = {
    Adversary.HALF: (Adversary.PEER,),
    Adversary.PEERS: (Adversary.PEER, Adversary.HALF),
    Adversary.COLLUSION: (Adversary.COORDINATOR, Adversary.PEER),
}
"""Adversaries that a coalition contains."""
WORST_FIRST = (Verdict.NOT_DEFENDED, Verdict.TOO_WEAK, Verdict.NOISY_VALUES, Verdict.DEFENDED)
WORDS: Mapping[Verdict | None, str] = {
    Verdict.DEFENDED: "defended",
    Verdict.NOT_DEFENDED: "not defended",
    Verdict.NOISY_VALUES: "noisy values alone",
    Verdict.TOO_WEAK: "undecided",
    None: "not run",
}
"""Verdicts as readers of a report see them; None means that no attack ran."""
_EVERYONE_IS_TOLD = "The coordinator and every site are told who takes part, and which classes each site "
TOLD_BY_DESIGN: Mapping[str | None, str] = {
    None: f"{_EVERYONE_IS_TOLD}has. This is no attack, and no protection covers it.",
    "local": f"{_EVERYONE_IS_TOLD}releases with noise. This is no attack. No protection covers who takes part; ε covers"
    " the list of classes.",
    "trained": f"{_EVERYONE_IS_TOLD}states. This is no attack, and no guarantee covers it.",
    "distributed": f"{_EVERYONE_IS_TOLD}states, with shared noise all of them. This is no attack, and no protection"
    " covers who takes part.",
}
"""Statement on what is no attack, for the first screen, by the kind of noise (:meth:`Judged.noise_kind`)."""
MOST_SEEDS = 100
"""Most seeds that are proposed: a value that needs more is too near the threshold."""
_SABOTAGE = "poisoning"
"""Suite of sabotage."""
_AUDIT = "audit"
"""Suite of the noise."""


class Subject(StrEnum):
    """Kinds of questions, by the heading of their tables."""

    LEARNT = "What each adversary can learn"
    BY_DESIGN = "What every member is told by design"
    SABOTAGE = "Sabotage: what malicious sites can do to the others"


@dataclass(frozen=True)
class Finding:
    """Worst of several cases.

    ``samples`` are the sample numbers with its verdict; empty if no case has one, or if several numbers have the same
    verdict and no number has another.
    """

    case: CaseRecord
    samples: tuple[int, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Verdict of the worst case."""
        return self.case.verdict


@dataclass(frozen=True)
class Standing:
    """Findings on one adversary on one configuration, by attack or by question; none if no attack ran."""

    adversary: str
    findings: dict[str, Finding]

    @property
    def verdict(self) -> Verdict | None:
        """Worst verdict of all findings; None without any."""
        return min(
            (finding.verdict for finding in self.findings.values()), key=WORST_FIRST.index, default=None
        )

    def with_verdict(self, verdict: Verdict) -> dict[str, Finding]:
        """Return the findings that have the verdict."""
        return {name: finding for name, finding in self.findings.items() if finding.verdict is verdict}


@dataclass(frozen=True)
class Judged:
    """Configuration that the report judges in short, with its cases."""

    configuration: str
    cases: Sequence[CaseRecord] = field(repr=False)

    @property
    def standings(self) -> list[Standing]:
        """Findings by question on what each adversary of the trust model can learn; the worst adversary first.

        A coalition can do what its member can, so that it has a member's finding where that is worse than its own.
        """
        learnt = self._cases_on(Subject.LEARNT)
        names = dict.fromkeys([*map(str, Adversary), *(case.adversary for case in learnt)])
        own = {
            name: Standing(name, _findings((case for case in learnt if case.adversary == name), _question))
            for name in names
        }
        standings = [_add_members(name, own) for name in names]
        return sorted(standings, key=lambda standing: [*WORST_FIRST, None].index(standing.verdict))

    def noise_kind(self, report: AttackReport) -> str | None:
        """Return ``local`` or ``distributed``, or ``trained`` where features have no guarantee; None without noise."""
        if all(case.epsilon is None for case in self.cases):
            return None
        privacy = report.config.get("privacy") or {}
        return "trained" if privacy.get("extractor") == "trained" else str(privacy.get("noise", "local"))

    @property
    def by_design(self) -> Standing:
        """Findings by question on what the protocol itself tells the coordinator and every site."""
        return Standing("every member", _findings(self._cases_on(Subject.BY_DESIGN), _question))

    @property
    def sabotage(self) -> Standing:
        """Findings by question on what a malicious site can do to others."""
        return Standing(Adversary.PEER, _findings(self._cases_on(Subject.SABOTAGE), _question))

    @property
    def noise(self) -> list[CaseRecord]:
        """Cases that compare the claimed noise with what was measured."""
        return [case for case in self.cases if case.suite == _AUDIT]

    def _cases_on(self, subject: Subject) -> list[CaseRecord]:
        return [case for case in self.cases if choose_subject(case) is subject]


@dataclass(frozen=True)
class Column:
    """Cases of one adversary on one configuration. ``judged`` is true if the report judges it in short."""

    adversary: str
    configuration: str
    judged: bool
    cases: Sequence[CaseRecord] = field(repr=False)

    @property
    def standing(self) -> Standing:
        """Findings of the column's attacks."""
        return Standing(self.adversary, _findings(self.cases, lambda case: case.family))

    def of(self, attack: str) -> list[CaseRecord]:
        """Return all readings and sample numbers of one attack."""
        return [case for case in self.cases if case.family == attack]


def find_worst(cases: Sequence[CaseRecord]) -> Finding:
    """Return the finding of one case or more.

    Numbers of samples with which an attack fails even undefended say nothing, if there are others.
    """
    able = {case.family for case in cases if _tells(case)}
    telling = [case for case in cases if _tells(case) or case.family not in able]
    worst = pick_worst(telling)
    counts = {case.samples_behind for case in cases}
    same = {case.samples_behind for case in telling if case.verdict is worst.verdict}
    # One verdict for all numbers of samples needs no list of them.
    all_alike = None in same or (same == counts and len(counts) > 1)
    return Finding(worst, () if all_alike else tuple(sorted(count for count in same if count)))


def _tells(case: CaseRecord) -> bool:
    return succeeds_undefended(case) or case.verdict is Verdict.NOT_DEFENDED


def pick_worst(cases: Iterable[CaseRecord]) -> CaseRecord:
    """Return the case with the worst verdict; among those, the one that exceeds the success threshold most."""
    return min(
        cases, key=lambda case: (WORST_FIRST.index(case.verdict), case.chance + case.margin - case.value)
    )


def list_judged(report: AttackReport) -> list[Judged]:
    """Return the configurations to judge in short, the weakest first.

    These are the report's protection, with each ε if its configuration has noise. If that is just the undefended
    system, or has no cases, all other configurations are judged.
    """
    others = [case for case in report.cases if not is_exact_plain(case)]
    own = _select_own_cases(report)
    cases = others if others and all(map(is_exact_plain, own)) else own
    by_configuration: dict[str, list[CaseRecord]] = {}
    for case in sorted(cases, key=_strength):
        by_configuration.setdefault(case.configuration, []).append(case)
    return [Judged(*item) for item in by_configuration.items()] or [Judged(report.protection, ())]


def _select_own_cases(report: AttackReport) -> list[CaseRecord]:
    """Return the cases on the report's protection; with noise if any have it and the configuration has it."""
    cases = [case for case in report.cases if case.protection == report.protection]
    noisy = [case for case in cases if case.epsilon is not None]
    if not noisy or report.config.get("privacy", noisy) is None:
        return [case for case in cases if case.epsilon is None]
    return noisy


def choose_subject(case: CaseRecord) -> Subject:
    """Return what the attack's question is about."""
    if case.suite == _SABOTAGE:
        return Subject.SABOTAGE
    return Subject.BY_DESIGN if case.by_design else Subject.LEARNT


def describe_verdict(case: CaseRecord) -> str:
    """Return the verdict as a reader sees it: with noise, "defended" is about the noise that this run drew."""
    in_this_run = case.verdict is Verdict.DEFENDED and case.epsilon is not None
    return WORDS[case.verdict] + (" in this run" if in_this_run else "")


def explain_undecided(case: CaseRecord, seeds: Sequence[int]) -> str:
    """Return why the verdict is undecided, and which seeds would decide it; empty for another verdict."""
    if case.verdict is not Verdict.TOO_WEAK:
        return ""
    needed = seeds_to_decide(case, len(seeds))
    if needed is not None:
        return f"--seeds {min(seeds)}-{min(seeds) + needed - 1} would decide, if values stay"
    if case.undefended < case.chance + case.margin:
        return "this attack fails even undefended, so it proves nothing; repeating it will not help"
    return "too near the threshold: no practical number of seeds would decide"


def seeds_to_decide(case: CaseRecord, seeds: int) -> int | None:
    """Return about how many seeds would decide a verdict that ``seeds`` seeds leave open; None if no number would.

    Values are taken to stay, and intervals to shrink with the root of the number of seeds. Limit: values move, so that
    a verdict can stay open with that many seeds.
    """
    success = case.chance + case.margin
    if case.value >= success:
        needs = [(case.value - case.low, case.value - case.chance)]
    elif case.undefended >= success:
        needs = [
            (case.high - case.value, success - case.value),
            (case.undefended - case.undefended_low, case.undefended - case.chance),
        ]
    else:
        return None
    # Each interval must shrink to the distance of its value from what the interval has to exclude.
    needed = max(seeds + 1, *(math.ceil(seeds * (width / room) ** 2) for width, room in needs))
    return needed if needed <= MOST_SEEDS else None


def is_exact_plain(case: CaseRecord) -> bool:
    """Return whether the case has neither protection nor noise."""
    return case.protection == UNPROTECTED and case.epsilon is None


def succeeds_undefended(case: CaseRecord) -> bool:
    """Return whether the attack succeeded without any defence."""
    return case.undefended_low > case.chance and case.undefended >= case.chance + case.margin


def group_undefended(cases: Sequence[CaseRecord]) -> dict[str, list[CaseRecord]]:
    """Return each attack's cases without its defence, suite by suite.

    They are those that ran, or else one for each number of samples, made from the values beside other cases.
    """
    suites = list(dict.fromkeys(case.suite for case in cases))
    by_family: dict[str, list[CaseRecord]] = {}
    for case in sorted(cases, key=lambda case: suites.index(case.suite)):
        by_family.setdefault(case.family, []).append(case)
    undefended = {}
    for name, of_family in by_family.items():
        by_samples: dict[int | None, list[CaseRecord]] = {}
        for case in of_family:
            by_samples.setdefault(case.samples_behind, []).append(_without_defence(case))
        undefended[name] = list_baselines(of_family) or [pick_worst(alike) for alike in by_samples.values()]
    return undefended


def list_baselines(cases: Sequence[CaseRecord]) -> list[CaseRecord]:
    """Return the coordinator's cases on the undefended system, if their attacks are judged beside them.

    A case that has a reference of its own, such as half the noise, is judged beside that.
    """
    exact = [case for case in cases if is_exact_plain(case) and case.adversary == Adversary.COORDINATOR]
    return [case for case in exact if not case.own_reference]


def _without_defence(case: CaseRecord) -> CaseRecord:
    """Return the case as it was undefended, without the curves, details and pictures that its record lacks."""
    changes: dict[str, Any] = {
        "reading": "",
        "protection": UNPROTECTED,
        "epsilon": None,
        "value": case.undefended,
        "low": case.undefended_low,
        "high": case.undefended_high,
        "verdict": Verdict.NOT_DEFENDED if succeeds_undefended(case) else Verdict.TOO_WEAK,
        "details": {},
        "curves": {},
        "pictures": (),
    }
    return case.model_copy(update=changes)


def list_columns(report: AttackReport) -> list[Column]:
    """Return the columns of the matrix beside the undefended one: by adversary, then from the weakest configuration."""
    names = list(dict.fromkeys([*map(str, Adversary), *(case.adversary for case in report.cases)]))
    judged = {judged.configuration for judged in list_judged(report)}
    by_column: dict[tuple[str, str], list[CaseRecord]] = {}
    baselines = {id(case) for case in list_baselines(report.cases)}
    for case in sorted(report.cases, key=lambda case: (names.index(case.adversary), _strength(case))):
        if id(case) not in baselines:
            by_column.setdefault((case.adversary, case.configuration), []).append(case)
    return [Column(*key, judged=key[1] in judged, cases=cases) for key, cases in by_column.items()]


def _strength(case: CaseRecord) -> tuple[bool, str, float]:
    """Return the sort key of a configuration: plain before others, no noise before noise, a large ε before a small."""
    noise = float("-inf") if case.epsilon is None else -case.epsilon
    return case.protection != UNPROTECTED, case.protection, noise


def _findings(cases: Iterable[CaseRecord], key: Callable[[CaseRecord], str]) -> dict[str, Finding]:
    by_key: dict[str, list[CaseRecord]] = {}
    for case in cases:
        by_key.setdefault(key(case), []).append(case)
    return {name: find_worst(of_key) for name, of_key in by_key.items()}


def _question(case: CaseRecord) -> str:
    return case.question


def _add_members(name: str, own: Mapping[str, Standing]) -> Standing:
    """Return the adversary's own standing, with its members' findings where those are worse.

    A question that no attack of the coalition asks has a member's finding only if that member succeeds.
    """
    findings = dict(own[name].findings)
    for member in MEMBERS.get(name, ()):
        for question, finding in own[member].findings.items():
            own_finding = findings.get(question)
            # What a member tried without success says nothing about a coalition that did not try it.
            if own_finding is None:
                adopts = finding.verdict in (Verdict.NOT_DEFENDED, Verdict.NOISY_VALUES)
            else:
                adopts = WORST_FIRST.index(finding.verdict) < WORST_FIRST.index(own_finding.verdict)
            if adopts:
                findings[question] = finding
    return Standing(name, findings)
