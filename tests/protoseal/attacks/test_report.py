"""Tests of the attack report's page and findings, from made-up records."""

from __future__ import annotations

import base64
import io
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protoseal.attacks.cases import Curve, Measurement, Picture, Verdict, judge
from protoseal.attacks.findings import (
    TOLD_BY_DESIGN,
    Standing,
    describe_verdict,
    explain_undecided,
    find_worst,
    group_undefended,
    list_columns,
    list_judged,
    pick_worst,
    seeds_to_decide,
)
from protoseal.attacks.readings import Adversary
from protoseal.attacks.records import AttackReport, CaseRecord
from protoseal.attacks.report import samples_text, sort_worst_first, write_report

NASTY = '"><script>alert(1)</script>'
RATES = tuple(np.geomspace(1e-3, 1, 5).tolist())
VOID = {"meta", "img", "br"}
LOADING = {"script", "link", "iframe", "object", "embed", "base", "form"}


def measurement(value: float, half: float) -> Measurement:
    return Measurement(value=value, low=value - half, high=value + half, trials=40)


def case(value: float = 0.5, half: float = 0.02, undefended: float = 0.95, **fields: Any) -> CaseRecord:
    """Return a case whose verdict follows from its values, at chance 0.5 with margin 0.1."""
    measured, baseline = measurement(value, half), measurement(undefended, 0.02)
    verdict = judge(measured, baseline, chance=0.5, margin=0.1)
    made: dict[str, Any] = {
        "attack": "membership",
        "suite": "records",
        "question": "Was this record used?",
        "ability": "tell whether a record was used",
        "adversary": str(Adversary.COORDINATOR),
        "reading": "its prototypes",
        "protection": "masked",
        "epsilon": None,
        "metric": "AUC",
        "value": measured.value,
        "low": measured.low,
        "high": measured.high,
        "trials": measured.trials,
        "undefended": baseline.value,
        "undefended_low": baseline.low,
        "undefended_high": baseline.high,
        "chance": 0.5,
        "margin": 0.1,
        "defended": {Verdict.DEFENDED: True, Verdict.NOT_DEFENDED: False}.get(verdict),
        "verdict": verdict,
        "not_covered": "Records that the adversary planted.",
        "own_reference": False,
    }
    return CaseRecord(**made | {"family": fields.get("attack", made["attack"])} | fields)


def report(*cases: CaseRecord, **fields: Any) -> AttackReport:
    """Return a report of protection ``masked``, whose configuration has noise unless ``fields`` say otherwise."""
    made: dict[str, Any] = {
        "method": "pfpl",
        "protection": "masked",
        "dataset": "digits",
        "public_records": True,
        "pictures": True,
        "sites": 4,
        "seeds": (0, 1),
        "delta": 1e-5,
        "command": "protoseal attack all",
        "config": {"privacy": {"noise": "local"}},
        "seconds": 2.0,
        "cases": cases,
        "complete": True,
    }
    return AttackReport(**made | fields)


def sabotage(value: float = 0.9, **fields: Any) -> CaseRecord:
    """Return a case of a malicious site."""
    made = {
        "attack": "backdoor",
        "suite": "poisoning",
        "question": "Do marks work?",
        "ability": "plant marks",
    }
    return case(value, adversary=str(Adversary.PEER), epsilon=3.0, own_reference=True, **made | fields)


def undefended(**fields: Any) -> CaseRecord:
    """Return a successful case by the coordinator without any defence."""
    return case(0.95, protection="plain", **fields)


class Page(HTMLParser):
    """Elements of a page: each start tag with its attributes, and the text that a reader sees."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.pieces: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(" ".join(self.pieces).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the tag; it stays open until its end tag."""
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost tag, which must have this name."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep what is no style sheet."""
        if "style" not in self.open:
            self.pieces.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of each such tag."""
        return [attributes for name, attributes in self.tags if name == tag]


def png() -> str:
    """Return a small PNG in base64."""
    out = io.BytesIO()
    Image.new("L", (8, 8)).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Return the page of a report with every kind of case, figure and picture, and free text that looks like HTML."""
    line = Curve(x=RATES, y=RATES)
    pictures = (Picture(title=NASTY, images={"original": png(), NASTY: png()}),)
    coordinator = [
        case(0.52, epsilon=3.0, curves={NASTY: line, "allowed by ε": line}, details={NASTY: 0.1}),
        undefended(curves={"ROC": line}, pictures=pictures),
    ]
    inversion = [
        case(
            value,
            attack=f"inversion, {count} sample{'s' * (count > 1)}",
            family="inversion",
            question=f"Can it draw {NASTY}?",
            ability=f"draw {NASTY}",
            adversary=str(Adversary.PEERS),
            epsilon=3.0,
            samples_behind=count,
        )
        for count, value in ((1, 0.9), (4, 0.5))
    ]
    weak = case(
        0.5, attack="property", undefended=0.55, epsilon=3.0, adversary=str(Adversary.PEER), suite=NASTY
    )
    found = report(
        *coordinator, *inversion, weak, sabotage(), command=NASTY, config={"privacy": {NASTY: NASTY}}
    )
    return Page(write_report(tmp_path_factory.mktemp("attacks"), found))


def test_report_loads_and_runs_nothing(page: Page) -> None:
    """Free text of cases stays text, and every image is in the page."""
    assert not page.open
    assert not LOADING & {tag for tag, _ in page.tags}
    assert all(str(each["src"]).startswith("data:image/") for each in page.all("img"))
    assert not [name for _, each in page.tags for name in each if name.startswith("on")]
    assert page.text.count(NASTY) >= 8


def test_report_headers_images_and_links_are_accessible(page: Page) -> None:
    """Tables have scoped headers, images have a description, and each link has its target."""
    assert all(each.get("scope") for each in page.all("th"))
    assert all(each.get("alt") for each in page.all("img"))
    targets = {each["id"] for _, each in page.tags if "id" in each}
    assert {str(each["href"])[1:] for each in page.all("a")} == targets


def test_report_has_a_figure_of_each_kind(page: Page) -> None:
    """Intervals for all four attacks, values over samples, an ROC and two pictures."""
    images = [str(each["src"])[:15] for each in page.all("img")]
    assert images.count("data:image/svg+") == 4 + 1 + 1
    assert images.count("data:image/png;") == 2


def test_report_first_block_has_a_statement_for_each_standing(page: Page) -> None:
    """The answer names who succeeded at what, who is undecided, who was held off, and who did not try."""
    short = page.text[: page.text.index("What each adversary can learn")]
    words = (
        f"Not safe against {Adversary.PEERS}",
        f"draw {NASTY}",
        f"Undecided for {Adversary.PEER}",
        "tell whether a record was used",
        f"No success for {Adversary.COORDINATOR}",
        "tell whether a record was used",
        f"Nothing known about {Adversary.COLLUSION}",
        "Not safe against sabotage",
        "plant marks",
    )
    places = [0]
    for each in words:
        places.append(short.index(each, places[-1]))


def test_report_sabotage_has_its_own_tables(page: Page) -> None:
    """A question on sabotage is in the table, the matrix and the section of sabotage, and in no other."""
    tables = [str(each["aria-label"]) for each in page.all("div") if "aria-label" in each]
    assert len([name for name in tables if "can learn" in name]) == 2
    assert len([name for name in tables if "Sabotage" in name]) == 2
    assert page.text.count("Do marks work?") == 1 + 1


def test_report_undecided_has_one_label(page: Page) -> None:
    """The value in ``attacks.json`` is explained once, and the page says undecided elsewhere."""
    assert page.text.count("too weak to tell") == 1
    assert f"undecided ({Verdict.TOO_WEAK.value})" in page.text


def test_report_without_cases_claims_nothing(tmp_path: Path) -> None:
    """No adversary is called held off before an attack has run."""
    text = Page(write_report(tmp_path, report(complete=False))).text
    assert "Incomplete" in text
    assert "says nothing about its safety" in text
    assert "No success for" not in text[: text.index("Words and verdicts")]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [((0.5, 0.9), Verdict.NOT_DEFENDED), ((0.5, 0.59), Verdict.TOO_WEAK), ((0.5, 0.51), Verdict.DEFENDED)],
)
def test_find_worst_is_the_worst_verdict(values: tuple[float, float], verdict: Verdict) -> None:
    """One successful reading decides, and an undecided one is never passed over."""
    found = find_worst([case(value, half=0.03) for value in values])
    assert (found.verdict, found.case.value) == (verdict, values[1])


def test_standing_is_never_better_than_its_attacks() -> None:
    """An adversary with one attack held off and one too weak is undecided; without attacks it has no verdict."""
    cases = [case(epsilon=1.0), case(attack="other", undefended=0.5, epsilon=1.0)]
    standings = {each.adversary: each for each in list_judged(report(*cases))[0].standings}
    assert standings[Adversary.COORDINATOR].verdict is Verdict.TOO_WEAK
    assert {name: each.verdict for name, each in standings.items() if name != Adversary.COORDINATOR} == {
        str(name): None for name in Adversary if name is not Adversary.COORDINATOR
    }


def test_find_worst_names_the_numbers_of_samples() -> None:
    """The finding names the numbers that are worse than others, or the only one; none if several are alike."""
    cases = [
        case(value, samples_behind=count, attack=f"x, {count} samples", family="x")
        for count, value in ((2, 0.9), (5, 0.5))
    ]
    assert find_worst(cases).samples == (2,)
    assert find_worst(cases[:1]).samples == (2,)
    assert find_worst([cases[0], case(0.8, samples_behind=3, attack="x, 3 samples")]).samples == ()
    weak = case(0.5, undefended=0.55, samples_behind=20, attack="x, 20 samples", family="x")
    assert weak.verdict is Verdict.TOO_WEAK
    assert find_worst([cases[1], weak]).verdict is Verdict.DEFENDED
    assert find_worst([cases[1], weak]).samples == (5,)
    assert samples_text((1,)) == "of 1 record"
    assert samples_text((1, 2, 5)) == "of 1, 2 or 5 records"


EXACT, NOISY, OTHER = case(), case(epsilon=3.0), case(protection="ckks")


@pytest.mark.parametrize(
    ("cases", "fields", "judged"),
    [
        ([EXACT, NOISY, OTHER], {}, [NOISY]),
        ([NOISY, case(epsilon=8.0)], {}, [case(epsilon=8.0), NOISY]),
        ([EXACT, NOISY, OTHER], {"config": {"privacy": None}}, [EXACT]),
        ([EXACT, undefended()], {}, [EXACT]),
        ([undefended(), OTHER], {"protection": "plain", "config": {"privacy": None}}, [OTHER]),
        ([undefended(), OTHER], {}, [OTHER]),
        ([undefended()], {"protection": "plain", "config": {"privacy": None}}, [undefended()]),
    ],
)
def test_list_judged_prefers_the_reports_own_configuration(
    cases: list[CaseRecord], fields: dict[str, Any], judged: list[CaseRecord]
) -> None:
    """Noise counts only if the configuration has it; another configuration stands in for the undefended only."""
    found = list_judged(report(*cases, **fields))
    assert [list(each.cases) for each in found] == [[each] for each in judged]
    assert [each.configuration for each in found] == [each.configuration for each in judged]


def test_list_judged_undefended_cases_judge_no_protection() -> None:
    """An interrupted report does not judge its protection by the undefended cases."""
    assert [list(each.cases) for each in list_judged(report(undefended()))] == [[]]


def test_list_columns_go_from_weak_to_strong() -> None:
    """The undefended case is no column; plain comes before a protection, and no noise before noise."""
    peer = str(Adversary.PEER)
    cases = [NOISY, OTHER, case(epsilon=8.0), EXACT, case(protection="plain", adversary=peer), undefended()]
    assert [(each.adversary, each.configuration) for each in list_columns(report(*cases))] == [
        (Adversary.COORDINATOR, "ckks, no noise"),
        (Adversary.COORDINATOR, "masked, no noise"),
        (Adversary.COORDINATOR, "masked, ε = 8"),
        (Adversary.COORDINATOR, "masked, ε = 3"),
        (peer, "plain, no noise"),
    ]


@pytest.mark.parametrize(("value", "verdict"), [(0.95, Verdict.NOT_DEFENDED), (0.55, Verdict.TOO_WEAK)])
def test_group_undefended_rebuilds_a_missing_baseline(value: float, verdict: Verdict) -> None:
    """A case has the undefended value beside its own, with the verdict that it deserves."""
    (made,) = group_undefended([case(undefended=value)])["membership"]
    assert (made.value, made.verdict, made.epsilon) == (value, verdict, None)
    assert pick_worst([made]) == made


def test_group_undefended_uses_a_cases_own_reference() -> None:
    """The coordinator's case on the undefended system is then a column like any other."""
    own = case(0.5, protection="plain", undefended=0.9, own_reference=True)
    (made,) = group_undefended([own])["membership"]
    assert made.value == own.undefended
    assert [column.cases for column in list_columns(report(own))] == [[own]]
    assert not list_columns(report(undefended()))


def test_explain_undecided_names_seeds_or_why_none_help() -> None:
    """An attack that fails undefended differs from one whose interval is too wide."""
    undecided = (case(undefended=0.5), case(0.59, half=0.05), case(0.5999, half=0.05))
    fails, wide, near, decided = (explain_undecided(each, (2, 3)) for each in (*undecided, case()))
    assert len({fails, wide, near}) == 3
    assert "--seeds 2-51" in wide
    assert "--seeds" not in fails + near
    assert not decided


@pytest.mark.parametrize(
    ("value", "half", "undefended"),
    [(0.58, 0.03, 0.95), (0.61, 0.14, 0.5), (0.55, 0.051, 0.6001), (0.75, 0.25, 0.95)],
)
def test_seeds_to_decide_is_the_least_number(value: float, half: float, undefended: float) -> None:
    """Intervals that shrink with the root of the number of seeds exclude what they have to then, and not earlier."""

    def verdict(seeds: int) -> Verdict:
        shrunk = (2 / seeds) ** 0.5
        measured = measurement(value, half * shrunk)
        return judge(measured, measurement(undefended, 0.02 * shrunk), chance=0.5, margin=0.1)

    needed = seeds_to_decide(case(value, half, undefended), 2)
    assert needed is not None
    assert verdict(needed - 1) is Verdict.TOO_WEAK
    assert verdict(needed) is not Verdict.TOO_WEAK


def test_report_told_by_design_is_no_success(tmp_path: Path) -> None:
    """The finding stands apart from what each adversary can learn, in the first block and in the tables."""
    told = case(
        0.99,
        attack="presence",
        question="Which classes?",
        ability="list classes",
        epsilon=3.0,
        by_design=True,
    )
    (judged,) = list_judged(report(told, case(0.5, epsilon=3.0)))
    assert {each.verdict for each in judged.standings} == {Verdict.DEFENDED, None}
    assert set(judged.by_design.findings) == {told.question}
    short = Page(write_report(tmp_path, report(told))).text
    assert "Not safe against" not in short
    assert short.index("Told by design") < short.index("list classes")


def test_report_defence_by_noise_is_about_this_run(tmp_path: Path) -> None:
    """A verdict with noise says so, and the page has the claimed ε beside what was measured."""
    words = [describe_verdict(each) for each in (case(), case(epsilon=3.0), case(0.9, epsilon=3.0))]
    assert words == ["defended", "defended in this run", "not defended"]
    measured = case(0.5, attack="audit", suite="audit", epsilon=3.0, details={"ε at least": 0.25})
    for found, bound in (([measured], True), ([case(epsilon=3.0)], False)):
        text = Page(write_report(tmp_path, report(*found))).text
        claimed = text.index("Noise claimed masked, ε = 3")
        assert ("ε at least 0.250" in text[claimed : text.index("What each adversary can learn")]) == bound


MEMBERS_OF_PEERS = (Adversary.PEER, Adversary.HALF, Adversary.PEERS, Adversary.COLLUSION)
"""One other site, and all coalitions with it."""


def test_report_noisy_values_are_no_break_and_exact_ones_are(tmp_path: Path) -> None:
    """A site's own noise makes what is read a neutral statement, also for a coalition with the reader."""
    peer = str(Adversary.PEER)
    read = case(0.9, epsilon=3.0, adversary=peer, verdict=Verdict.NOISY_VALUES)
    assert {name: each.verdict for name, each in standings_of(read).items() if each.verdict} == dict.fromkeys(
        map(str, MEMBERS_OF_PEERS), Verdict.NOISY_VALUES
    )
    for each, red in ((read, False), (case(0.9, epsilon=3.0, adversary=peer), True)):
        text = Page(write_report(tmp_path, report(each))).text
        assert ("Not safe against" in text) == red
        assert (f"Noisy values alone for {peer}" in text) != red


@pytest.mark.parametrize(
    ("privacy", "kind"),
    [
        ({"noise": "local"}, "local"),
        ({"noise": "distributed"}, "distributed"),
        ({"noise": "local", "extractor": "trained"}, "trained"),
        (None, None),
    ],
)
def test_report_class_list_statement_follows_the_noise(
    tmp_path: Path, privacy: dict[str, str] | None, kind: str | None
) -> None:
    """Each kind of noise has the sentence that holds for it, and no other."""
    found = report(case(epsilon=3.0 if privacy else None), config={"privacy": privacy})
    text = Page(write_report(tmp_path, found)).text
    assert [name for name, words in TOLD_BY_DESIGN.items() if words in text] == [kind]


def standings_of(*cases: CaseRecord) -> dict[str, Standing]:
    """Return the standings of the one configuration of the cases, by adversary."""
    (judged,) = list_judged(report(*cases))
    return {each.adversary: each for each in judged.standings}


def test_standings_coalition_can_do_what_its_member_can() -> None:
    """A coalition has the finding of a member that succeeds, and none of one that fails."""
    able, unable = case(0.9, epsilon=1.0), case(0.5, epsilon=1.0, question="Another?")
    held_off = case(0.5, epsilon=1.0, adversary=str(Adversary.COLLUSION))
    for own in ([], [held_off]):
        standings = standings_of(able, unable, *own)
        assert {name: each.case for name, each in standings[Adversary.COLLUSION].findings.items()} == {
            able.question: able
        }
        assert set(standings[Adversary.COORDINATOR].findings) == {able.question, "Another?"}
        assert not standings[Adversary.PEERS].findings


def test_standings_sabotage_leaks_nothing() -> None:
    """A malicious site's success is no finding on what it can learn, and the reverse."""
    poison, learnt = sabotage(), case(0.5, epsilon=3.0, adversary=str(Adversary.PEER))
    (judged,) = list_judged(report(poison, learnt))
    assert judged.sabotage.verdict is Verdict.NOT_DEFENDED
    assert set(judged.sabotage.findings) == {poison.question}
    assert standings_of(poison, learnt)[Adversary.PEER].verdict is Verdict.DEFENDED
    assert standings_of(poison)[Adversary.PEER].verdict is None


def test_sort_worst_first_ends_with_unanswered_questions() -> None:
    """The worst answer of any adversary counts, and equals keep their order."""
    cases = [
        case(0.5, epsilon=1.0, question="held off"),
        case(0.5, undefended=0.5, epsilon=1.0, question="undecided"),
        case(0.5, epsilon=1.0, question="succeeds for a peer"),
        case(0.9, epsilon=1.0, question="succeeds for a peer", adversary=str(Adversary.PEER)),
    ]
    asked = ["not tried", *(each.question for each in cases)]
    assert sort_worst_first(asked, list(standings_of(*cases).values())) == [
        "succeeds for a peer",
        "undecided",
        "held off",
        "not tried",
    ]
