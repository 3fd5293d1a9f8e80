"""A site's privacy statement: each sentence follows the ledger and the agreement, and changes with them.

The table alters one fact at a time. A statement that keeps a sentence of the unaltered ledger is false, and fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from agreement import Method, PrivacySection, load_agreement
from agreement.storage.anchor_record import AnchorRecord
from privacy.accounting.accounting_rules import Accounting, accountant_for
from privacy.accounting.events import DpSgd, Event, GaussianRelease, Unit
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Fact, Limit, ReleaseName, Spending
from privacy.mechanisms.cell_query import Cells
from protoseal.commands.budget_statement import read_ledger_facts
from protoseal.reports.ledger_facts import StatementFacts
from protoseal.reports.privacy_statement import out_of_hundred
from protoseal.reports.site_statement import headline
from protoseal.reports.statement_files import statement_text, statement_to_json
from secure_client.privacy.cost import simulated_budget
from secure_client.privacy.ledger_anchors import OWN, own_anchor, record_beside
from secure_client.privacy.releases import Releases, open_releases
from tests.support.config_files import AGREEMENT, write
from tests.support.small import small_agreement

FACTS: dict[str, Fact] = {
    "clip": 5.0,
    "count_weight": 2.0,
    "classes": 10,
    "dim": 64,
    "extractor": "frozen",
    "weights": "ab" * 32,
    "guarantee": "record",
}
RELEASE, TRAINING = GaussianRelease(2.0, 650), DpSgd(4.0, 0.1, 20)
Batch = tuple[NDArray[np.float64], NDArray[np.int64]]
NO_CENTRES = Cells.around(np.zeros((0, 8)), np.zeros(0, dtype=np.int64), 3)
HASH, LIMIT = bytes(32), Limit(9.0, 1e-5)


@dataclass(frozen=True)
class Recorded:
    """The content of a ledger. ``events`` are (what, event) pairs, one a round; ``then`` does more with the ledger."""

    dataset: str = "scans"
    limit: Limit = LIMIT
    runs: tuple[tuple[str, bytes], ...] = (("run-1", HASH),)
    events: tuple[tuple[str, Event], ...] = (("prototypes", RELEASE),) * 2
    facts: dict[str, Fact] = field(default_factory=lambda: dict(FACTS))
    days: tuple[str, ...] = ("2026-03-02",)
    then: Callable[[Ledger, Path], object] = lambda ledger, path: None

    def but(self, **facts: Fact) -> Recorded:
        """Return these with other facts in each entry."""
        return replace(self, facts=self.facts | facts)


@pytest.fixture
def stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Recorded], StatementFacts]:
    """Return the facts that a statement has of a ledger with the recorded content."""

    def state(recorded: Recorded) -> StatementFacts:
        path = tmp_path / "scans.jsonl"
        path.unlink(missing_ok=True)
        days = iter([recorded.days[0], *recorded.days])
        last = [recorded.days[0]]

        def now() -> str:
            last[0] = next(days, last[0])
            return f"{last[0]}T10:00:00Z"

        monkeypatch.setattr("privacy.ledger.ledger.now", now)
        limit = recorded.limit
        ledger = Ledger(path, recorded.dataset, limit, epsilon=accountant_for(limit.accountant))
        for run, agreement in recorded.runs:
            for number, (what, event) in enumerate(recorded.events, 1):
                ledger.spend(Spending(ReleaseName(run, number, what), agreement, event, recorded.facts))
        recorded.then(ledger, path)
        return read_ledger_facts(path)

    return state


def sentences(facts: StatementFacts) -> str:
    """Return all text of a statement, and of its fields, without line breaks."""
    return " ".join(statement_text(facts).split()) + json.dumps(statement_to_json(facts), ensure_ascii=False)


def lose_last_entry(ledger: Ledger, path: Path) -> None:
    with AnchorRecord.open(record_beside(path)) as record:
        record.note({OWN: own_anchor("scans", ledger.anchor)})
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:-1]) + b"\n")


def allowing(*epsilons: float) -> Callable[[Ledger, Path], None]:
    def allow(ledger: Ledger, path: Path) -> None:
        for epsilon in epsilons:
            ledger.allow(Limit(epsilon, 1e-5), "board")

    return allow


def overlap(ledger: Ledger, path: Path) -> None:
    told = "data set 'b' in b.jsonl"
    ledger.spend(
        Spending(ReleaseName("run-1", 3, "prototypes"), HASH, RELEASE, FACTS | {"records_elsewhere": told})
    )


BASE = Recorded()
TWO = (("run-1", HASH), ("run-2", b"1" * 32))
TRAINED = (("training", TRAINING), ("prototypes", RELEASE))
SHARED = BASE.but(noise="distributed", colluding=1)
FILTER = Accounting.RENYI
FILTERED = replace(BASE, events=TRAINED, runs=TWO, limit=Limit(30.0, 1e-5, accountant=FILTER))
PLANNED = replace(FILTERED, limit=Limit(3.2, 1e-5, accountant=Accounting.PLANNED))
ALTERED: dict[str, tuple[Recorded, Recorded, str, str]] = {
    # what was altered: the ledger before and after, a fragment that was true, and one that is true now
    "the data set": (BASE, replace(BASE, dataset="lungs"), "data set 'scans'", "data set 'lungs'"),
    "the unit": (
        BASE,
        replace(BASE.but(guarantee="subject"), limit=Limit(9.0, 1e-5, Unit.SUBJECT)),
        "whether any one record is in",
        "whether any one person has records in",
    ),
    "the unit's definition": (
        BASE,
        replace(BASE.but(guarantee="site"), limit=Limit(9.0, 1e-5, Unit.SITE)),
        "The unit of protection is one record:",
        "The unit of protection is one site: all records of the site together.",
    ),
    "training beside frozen features": (
        replace(BASE.but(extractor="private"), events=TRAINED),
        replace(BASE, events=TRAINED),
        "Files that stay at this site: accuracy figures, numbers of samples and log, and with keep_releases the folder"
        " releases (draws, models and steps of training).",
        "the classifier in model.safetensors, which trains without noise",
    ),
    "the unit of the mechanism": (
        BASE,
        replace(BASE.but(guarantee="subject"), limit=Limit(9.0, 1e-5, Unit.SUBJECT)),
        "what one record changes",
        "what one subject changes",
    ),
    "whom the unit leaves out": (
        BASE,
        replace(BASE.but(guarantee="subject"), limit=Limit(9.0, 1e-5, Unit.SUBJECT)),
        "This protects single records, not people with several records.",
        "A person with records at several sites",
    ),
    "δ": (
        BASE,
        replace(BASE, limit=Limit(9.0, 1e-6)),
        "of the 9 that this site allows, at δ = 1e-05",
        "of the 9 that this site allows, at δ = 1e-06",
    ),
    "the limit": (BASE, replace(BASE, limit=Limit(8.0, 1e-5)), "of a limit of 9", "of a limit of 8"),
    "the number of releases": (
        BASE,
        replace(BASE, events=BASE.events * 2),
        "prototypes, 2 releases",
        "prototypes, 4 releases",
    ),
    "what attacks recognise": (
        BASE,
        replace(BASE, events=BASE.events * 2),
        "picks out at most 5.3 in 100 records that are in it (blind guessing: 1)",
        "picks out at most 9.3 in 100 records that are in it (blind guessing: 1)",
    ),
    "the noise": (
        BASE,
        replace(BASE, events=(("prototypes", GaussianRelease(3.0, 650)),) * 2),
        "noise of 2 times what one record",
        "noise of 3 times what one record",
    ),
    "a person with ten records": (
        BASE,
        replace(BASE, events=(("prototypes", GaussianRelease(20.0, 650)),) * 2),
        "this statement gives no useful protection. Of 100 people with ten records each, up to 100 are picked out",
        "protected less than a record. Of 100 people with ten records each, up to 5.3 are picked out",
    ),
    "ten records beside training": (
        BASE,
        replace(BASE, events=TRAINED),
        "For a person with ten records",
        "People with several records are protected less than a record. If any person",
    ),
    "what attacks recognise with more wrong picks": (
        BASE,
        replace(BASE, events=BASE.events * 2),
        "with 10 in 100 wrongly picked out, at most 29 (blind guessing: 10)",
        "with 10 in 100 wrongly picked out, at most 39 (blind guessing: 10)",
    ),
    "whose noise must really be there": (
        BASE,
        SHARED,
        "If the recorded noise was really added and the initial model had not seen these records before, and if",
        "really added, by the other sites too and under masks that are not broken, and the initial model",
    ),
    "agreements that must be fixed beforehand": (
        BASE,
        replace(BASE, limit=Limit(9.0, 1e-5, accountant=Accounting.PLANNED)),
        "these records before, and if the site confirms",
        "these records before, and if all agreements were fixed before anything was released, and if the site confirms",
    ),
    "what the site confirms": (
        BASE,
        replace(BASE, events=()),
        "That the recorded noise was really added. “protoseal budget audit run” looks for it",
        "Nothing of data set 'scans' has left this site",
    ),
    "conditions of no guarantee": (
        BASE,
        replace(BASE, then=lambda ledger, path: ledger.record_exposure("run-7", HASH)),
        "The program cannot know, and the site has to confirm before it shows this page",
        "Everything that this site sent",
    ),
    "the factor without a guarantee": (
        BASE,
        BASE.but(guarantee="none"),
        "This pair follows from the same noise as the table",
        "This ε counts the noisy releases alone and bounds nothing.",
    ),
    "the count weight": (BASE, BASE.but(count_weight=3.0), "deviation of 10.77", "deviation of 11.66"),
    "false alarms": (
        BASE,
        replace(BASE, events=BASE.events * 2),
        "1 of 10 records that are not in it 29 ",
        "1 of 10 records that are not in it 39 ",
    ),
    "the factor of a probability": (
        BASE,
        replace(BASE, events=BASE.events[:1]),
        "e^ε = 19 at",
        "e^ε = 7.34 at",
    ),
    "the clip": (BASE, BASE.but(clip=6.0), "shortened to norm 5", "shortened to norm 6"),
    "the classes": (BASE, BASE.but(classes=5), "of 10 classes, with 64", "of 5 classes in up to 2 cells"),
    "the initial model": (BASE, BASE.but(weights="cd" * 32), "ab" * 32, "cd" * 32),
    "whose noise it is": (
        BASE,
        SHARED,
        "protected from anyone who sees what the ledger records as sent",
        "protected from the coordinator and outsiders, who see only sums over the sites, with up to one site",
    ),
    "who shares the noise": (
        BASE,
        SHARED,
        "adds all of the noise before anything leaves",
        "The sites share the noise of their sums.",
    ),
    "colluding sites": (SHARED, SHARED.but(colluding=2), "More than 1 sites", "More than 2 sites"),
    "sites that read results": (
        SHARED,
        SHARED.but(colluding=0),
        "with up to one site that helps them or reads its own results",
        "but not from a site that reads its own results",
    ),
    "training": (
        BASE,
        replace(BASE.but(extractor="private"), events=TRAINED),
        "the classifier in model.safetensors, which trains without noise",
        "training, 20 steps of DP-SGD with noise multiplier 4 and sampling rate 0.1",
    ),
    "what is covered": (
        BASE,
        replace(BASE, events=TRAINED),
        '"data_product_type": "Summary statistics"',
        "and the model, which was trained by DP-SGD",
    ),
    "the dates": (
        BASE,
        replace(BASE, days=("2026-03-02", "2026-03-05")),
        "on 2026-03-02)",
        "from 2026-03-02 to 2026-03-05)",
    ),
    "the runs": (
        BASE,
        replace(BASE, runs=TWO, days=("2026-03-02",) * 2 + ("2026-04-01",)),
        "(1 run, on",
        "(2 runs, from 2026-03-02 to 2026-04-01)",
    ),
    "a raised limit": (
        BASE,
        replace(BASE, then=lambda ledger, path: ledger.allow(Limit(12.0, 1e-5), "board of 3 March")),
        "of a limit of 9",
        "It was raised on 2026-03-02 at 10:00 UTC, after 2 of 2 payments, to epsilon 12 at delta 1e-05 for one record.",
    ),
    "an accountant that assumes plans": (
        BASE,
        replace(BASE, limit=Limit(9.0, 1e-5, accountant=Accounting.PLANNED)),
        "all entries of the ledger. The classes",
        "valid only if all agreements were fixed before the first of them released anything",
    ),
    "a Rényi filter": (
        replace(BASE, limit=Limit(9.0, 1e-5, accountant=Accounting.PLANNED)),
        replace(BASE, limit=Limit(9.0, 1e-5, accountant=Accounting.RENYI)),
        "valid only if all agreements were fixed",
        "a Rényi filter over all entries of the ledger",
    ),
    "a weaker accountant": (
        replace(BASE, events=TRAINED, runs=TWO, limit=Limit(30.0, 1e-5, accountant=Accounting.PLANNED)),
        replace(BASE, events=TRAINED, runs=TWO, limit=Limit(30.0, 1e-5, accountant=Accounting.RENYI)),
        "follows from the noise of all releases together",
        "follows from ε = 30 at δ = 1e-05 alone: the largest limit that this ledger had",
    ),
    "a limit below what is spent under a filter": (
        replace(
            FILTERED, then=lambda ledger, path: ledger.allow(Limit(40.0, 1e-5, accountant=FILTER), "more")
        ),
        replace(
            FILTERED, then=lambda ledger, path: ledger.allow(Limit(0.5, 1e-5, accountant=FILTER), "stop")
        ),
        "follows from ε = 40 at δ = 1e-05 alone",
        "follows from ε = 30 at δ = 1e-05 alone",
    ),
    "the δ of an earlier limit under a filter": (
        replace(
            FILTERED, then=lambda ledger, path: ledger.allow(Limit(30.0, 1e-6, accountant=FILTER), "less")
        ),
        replace(
            FILTERED, then=lambda ledger, path: ledger.allow(Limit(30.0, 1e-3, accountant=FILTER), "more")
        ),
        "at most, and by δ = 1e-05 besides",
        "at most, and by δ = 0.001 besides",
    ),
    "a filter that finds more spent than any limit": (
        replace(
            PLANNED, then=lambda ledger, path: ledger.allow(Limit(30.0, 1e-5, accountant=FILTER), "adapt")
        ),
        replace(
            PLANNED, then=lambda ledger, path: ledger.allow(Limit(2.0, 1e-5, accountant=FILTER), "adapt")
        ),
        "follows from ε = 30 at δ = 2e-05 alone",
        "follows from ε = 3.661 at δ = 2e-05 alone",
    ),
    "a change to a filter": (
        replace(BASE, then=lambda ledger, path: ledger.allow(Limit(8.0, 1e-5), "less")),
        replace(BASE, then=lambda ledger, path: ledger.allow(Limit(9.0, 1e-5, accountant=FILTER), "adapt")),
        "to epsilon 8 at",
        "the guarantee of all runs together is (ε, 2δ), with 2δ = 2e-05.",
    ),
    "a raised δ": (
        replace(BASE, then=lambda ledger, path: ledger.allow(Limit(9.0, 1e-6), "less")),
        replace(BASE, then=lambda ledger, path: ledger.allow(Limit(9.0, 1e-2), "more")),
        "It was changed on 2026-03-02 at 10:00 UTC",
        "It was raised on 2026-03-02 at 10:00 UTC",
    ),
    "a limit that was lowered and raised again": (
        replace(BASE, then=allowing(8.5, 8.0)),
        replace(BASE, then=allowing(8.0, 8.5)),
        "It was changed on 2026-03-02 at 10:00 UTC, after 2 of 2 payments, to epsilon 8.5",
        "That the limit was raised, if somebody raised it after looking",
    ),
    "ledgers that two runs note": (
        BASE.but(records_elsewhere="data set 'a' in a.jsonl"),
        replace(BASE.but(records_elsewhere="data set 'a' in a.jsonl"), then=overlap),
        "charge too (data set 'a' in a.jsonl), for",
        "charge too (data set 'a' in a.jsonl; data set 'b' in b.jsonl), for",
    ),
    "exact values": (
        BASE,
        replace(BASE, then=lambda ledger, path: ledger.record_exposure("run-7", HASH)),
        "whether any one record is in",
        "NO GUARANTEE for any record of data set 'scans': exact values left in run 'run-7' on 2026-03-02.",
    ),
    "the cost of a run with exact values": (
        BASE,
        replace(BASE, then=lambda ledger, path: ledger.record_exposure("run-1", HASH)),
        "multiplier 2 2.943 ",
        "multiplier 2; exact values no bound ",
    ),
    "a limit that was raised after a look": (
        replace(BASE, then=lambda ledger, path: ledger.allow(Limit(8.0, 1e-5), "less")),
        replace(BASE, then=lambda ledger, path: ledger.allow(Limit(12.0, 1e-5), "more")),
        "It was changed on 2026-03-02 at 10:00 UTC, after 2 of 2 payments, to epsilon 8",
        "That the limit was raised, if somebody raised it after looking",
    ),
    "the cost of each run": (
        replace(BASE, events=BASE.events * 2),
        replace(BASE, runs=TWO),
        "prototypes, 4 releases with noise multiplier 2 4.377 ",
        "prototypes, 2 releases with noise multiplier 2 2.943 'run-2'",
    ),
    "features that were trained": (
        BASE,
        BASE.but(guarantee="none"),
        "whether any one record is in",
        "NO GUARANTEE for any record of data set 'scans': something was released of features",
    ),
    "an entry for another unit": (
        BASE,
        BASE.but(guarantee="site"),
        "whether any one record is in",
        "NO GUARANTEE for any record of data set 'scans': an entry counts for one site",
    ),
    "a lost ledger": (
        BASE,
        replace(BASE, then=lambda ledger, path: ledger.record_loss(5)),
        "whether any one record is in",
        "NO GUARANTEE for any record of data set 'scans': an earlier ledger",
    ),
    "a missing entry": (
        BASE,
        replace(BASE, then=lose_last_entry),
        "whether any one record is in",
        "NO GUARANTEE for any record of data set 'scans': the ledger lacks entry 2",
    ),
    "a torn end": (
        BASE,
        replace(BASE, then=lambda ledger, path: path.write_bytes(path.read_bytes()[:-9])),
        "whether any one record is in",
        "NO GUARANTEE for any record of data set 'scans': the last line of the ledger is incomplete",
    ),
    "nothing released": (
        BASE,
        replace(BASE, events=()),
        "whether any one record is in",
        "Nothing of data set 'scans' has left",
    ),
}


@pytest.mark.parametrize("name", ALTERED)
def test_statement_altered_fact_alters_its_sentence(
    name: str, stated: Callable[[Recorded], StatementFacts]
) -> None:
    before, after, once, now = ALTERED[name]
    was, is_now = sentences(stated(before)), sentences(stated(after))
    assert once in was
    assert once not in is_now
    assert now in is_now
    assert now not in was


def test_statement_overlapping_ledgers_are_named(
    stated: Callable[[Recorded], StatementFacts],
) -> None:
    told = "data set 'x-rays' in x-rays.jsonl"
    noted = stated(BASE.but(records="a sketch", records_elsewhere=told))
    expected = f"Records that other ledgers charge too ({told}), for which the costs add up."
    was, is_now = sentences(stated(BASE)), sentences(noted)
    assert expected in is_now
    assert expected not in was
    assert headline(noted).endswith("and for them the costs add up.")
    assert headline(noted).startswith(headline(stated(BASE)))
    assert "a sketch" not in is_now


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.01, "1"), (0.0100004, "1.1"), (0.0231, "2.4"), (0.2831, "29"), (0.99001, "100"), (1.0, "100")],
)
def test_out_of_hundred_rounds_up(share: float, said: str) -> None:
    assert out_of_hundred(share) == said


NOTHING = [name for name, (_, _, _, now) in ALTERED.items() if now.startswith("NO GUARANTEE")]


@pytest.mark.parametrize("name", NOTHING)
def test_statement_without_guarantee_claims_none(
    name: str, stated: Callable[[Recorded], StatementFacts]
) -> None:
    facts = stated(ALTERED[name][1])
    fields = statement_to_json(facts)
    assert (fields["guaranteed"], fields["recognised"], fields["registry"]) == (False, None, None)
    assert headline(facts).startswith("NO GUARANTEE")
    text = sentences(facts)
    assert "picks out at most" not in text
    assert "picked out at most" not in text
    assert "protected less" not in text
    assert "This ε counts the noisy releases alone and bounds nothing." in text
    assert "Everything that this site sent, and which classes" in text


PRIVATE = AGREEMENT | {
    "dim": 64,
    "classes": [str(number) for number in range(10)],
    "rounds": 4,
    "training": {"norm": "group"},
    "privacy": {"clip": 5.0, "noise_multiplier": 2.0, "count_weight": 2.0, "release_every": 2},
}


def planning(facts: StatementFacts, tmp_path: Path, **changes: object) -> tuple[StatementFacts, str]:
    """Return the facts with an agreement, as if the ledger's run were its own, and the sentence on its plan."""
    agreement = load_agreement(write(tmp_path / "agreement.toml", PRIVATE | changes))
    runs = tuple(replace(run, agreement_hash=agreement.hash()) for run in facts.runs)
    found = replace(facts, agreement=agreement, runs=runs)
    return found, " ".join(statement_text(found).split())


def test_statement_early_and_repeated_runs_are_told_apart(
    tmp_path: Path, stated: Callable[[Recorded], StatementFacts]
) -> None:
    plans = "Run 'run-1' (method pfpl, protection ckks) planned to spend ε = "
    _, whole = planning(stated(BASE), tmp_path)
    assert plans in whole
    assert "and spent all of it. Paid for are 2 of 2 planned releases." in whole
    cost = accountant_for(Accounting.PLD)([RELEASE] * 3, 1e-5)
    _, early = planning(stated(BASE), tmp_path, rounds=6)
    assert f"{plans}{cost:.4g}." in early
    assert (
        "Paid for are 2 of 3 planned releases; the run ended early, or has not ended, or the site missed"
        in early
    )
    assert "spent all" not in early
    twice = replace(BASE, runs=BASE.runs * 2)
    _, again = planning(stated(twice), tmp_path)
    assert (
        "and spent more. Paid for are 2 of 2 planned releases; some were paid for again, in repeated attempts."
        in again
    )
    _, missed = planning(stated(twice), tmp_path, rounds=6)
    assert (
        "Paid for are 2 of 3 planned releases; the run ended early, or has not ended, or the site missed the round of a"
        " release; some were paid for again, in repeated attempts." in missed
    )


def test_statement_run_of_other_agreement_is_not_planned_one(
    tmp_path: Path, stated: Callable[[Recorded], StatementFacts]
) -> None:
    agreement = load_agreement(write(tmp_path / "agreement.toml", PRIVATE))
    text = " ".join(statement_text(replace(stated(BASE), agreement=agreement)).split())
    assert "Paid for are 0 of 2 planned releases; the run" in text


def test_statement_agreement_without_noise_names_exact_values(
    tmp_path: Path, stated: Callable[[Recorded], StatementFacts]
) -> None:
    exposed = stated(
        replace(BASE, events=(), then=lambda ledger, path: ledger.record_exposure("run-1", HASH))
    )
    plain = {name: value for name, value in PRIVATE.items() if name != "privacy"}
    agreement = load_agreement(write(tmp_path / "agreement.toml", plain))
    own = replace(
        exposed,
        agreement=agreement,
        runs=tuple(replace(run, agreement_hash=agreement.hash()) for run in exposed.runs),
    )
    assert "(method pfpl, protection ckks) adds no noise: exact values left in it." in " ".join(
        statement_text(own).split()
    )
    assert "no exact value has left in it yet" in " ".join(statement_text(replace(own, runs=())).split())


# Ledgers that a site's own releases write


def subjects_of(releases: Releases, batches: list[Batch]) -> None:
    releases.release(1, batches, np.arange(8) // 2)


RELEASED: dict[str, tuple[dict[str, Any], Callable[[Releases, list[Batch]], object], tuple[str, ...]]] = {
    "local noise": (
        {},
        lambda releases, batches: releases.release(1, batches),
        (
            "whether any one record is in data set 'scans' is protected from anyone who sees what the ledger records",
            "counts of records of 3 classes, with 8 features, with discrete Gaussian noise of 6.3 times",
            "Features are shortened to norm 1 before.",
            "weights with SHA-256 abc",
        ),
    ),
    "subjects": (
        {"unit": "subject"},
        subjects_of,
        (
            "whether any one person has records in data set 'scans' is protected",
            "The unit of protection is one person",
        ),
    ),
    "a site": (
        {"unit": "site"},
        lambda releases, batches: releases.release(1, batches, np.zeros(8, dtype=np.int64)),
        ("whether the site has any records behind what it sends is protected",),
    ),
    "shared noise": (
        {"noise": "distributed", "colluding": 2},
        lambda releases, batches: releases.draw_share(1),
        ("with up to 2 sites that help them", "This site as a whole."),
    ),
    "DP-SGD": (
        {"extractor": "private", "dp_sgd": {"noise_multiplier": 4.0, "clip": 1.0, "sampling_rate": 0.25}},
        lambda releases, batches: releases.pay_for_training(1),
        ("training, 4 steps of DP-SGD with noise multiplier 4", "takes every record with probability 0.25"),
    ),
    "trained features": (
        {"extractor": "trained"},
        lambda releases, batches: releases.release(1, batches),
        ("NO GUARANTEE for any record of data set 'scans': something was released of features",),
    ),
    "the cells of FedPLCC": (
        {},
        lambda releases, batches: releases.release_cells(1, batches, NO_CENTRES),
        ("of 3 classes in up to 16 cells (parts of a class) each, with 8 features",),
    ),
}


@pytest.mark.parametrize("name", RELEASED)
def test_statement_says_what_releases_recorded(name: str, tmp_path: Path) -> None:
    changes, release, said = RELEASED[name]
    privacy = PrivacySection.model_validate_json(json.dumps({"clip": 1.0, "noise_multiplier": 6.3} | changes))
    cells = {"method": Method.FEDPLCC} if "cells" in name else {}
    agreed = small_agreement().model_copy(update={"privacy": privacy} | cells)
    budget = simulated_budget(agreed, "scans", tmp_path)
    releases = open_releases(agreed, budget)
    assert releases is not None
    releases.begin_with("abc")
    release(releases, [(np.eye(8), np.arange(8, dtype=np.int64) % 3)])
    text = " ".join(statement_text(read_ledger_facts(budget.ledger)).split())
    assert [sentence for sentence in said if sentence not in text] == []


# The fields of the registry

TIER_3 = {
    "url_slug",
    "status",
    "tier",
    "deployment.basic.name",
    "deployment.basic.data_curators",
    "deployment.basic.intended_use",
    "deployment.basic.data_product_type",
    "deployment.basic.data_product_region",
    "deployment.basic.description",
    "deployment.basic.publication_date",
    "deployment.dp_variant.variant_name",
    "deployment.dp_variant.data_domain",
    "deployment.dp_variant.unprotected_quantities",
    "deployment.privacy_loss.privacy_unit",
    "deployment.privacy_loss.privacy_unit_details",
    "deployment.privacy_loss.privacy_parameters.epsilon",
    "deployment.privacy_loss.privacy_parameters.delta",
    "deployment.privacy_loss.privacy_parameters_details",
    "deployment.deployment_model.model_name",
    "deployment.deployment_model.model_name_details",
    "deployment.deployment_model.actors",
    "deployment.deployment_model.release_type",
    "deployment.deployment_model.release_type_details",
    "deployment.deployment_model.data_source_type",
    "deployment.deployment_model.data_source_type_details",
    "deployment.deployment_model.access_type",
    "deployment.deployment_model.access_type_details",
    "deployment.accounting.post_processing",
    "deployment.accounting.composition",
    "deployment.implementation.preprocessing_and_hyperparameter_tuning",
    "deployment.implementation.mechanisms",
    "deployment.implementation.justification",
    "deployment.administrative.sources",
    "deployment.administrative.notes",
    "deployment.administrative.registry_authors",
}
"""The fields of deployments-schema.yaml at commit 3e9c812 of opendp/deployments-registry-data, but for ``rho``, which
another variant has, and the optional ``data_product_sector``."""
ENUMERATIONS = {
    "deployment.basic.data_product_type": {"Summary statistics", "Machine learning model"},
    "deployment.dp_variant.variant_name": {"Approximate DP"},
    "deployment.deployment_model.model_name": {"Federated"},
    "deployment.deployment_model.release_type": {"One release", "Many releases"},
    "deployment.deployment_model.data_source_type": {"Static", "Dynamic"},
    "deployment.deployment_model.access_type": {"Interactive", "Non-interactive"},
    "status": {"Draft"},
}


def flat(table: object, before: str = "") -> dict[str, object]:
    if not isinstance(table, dict):
        return {before[:-1]: table}
    return {
        name: value for key, each in table.items() for name, value in flat(each, f"{before}{key}.").items()
    }


@pytest.mark.parametrize(
    "recorded", [BASE, replace(BASE, events=TRAINED), SHARED], ids=["local", "dp-sgd", "shared"]
)
def test_registry_fields_are_those_of_highest_tier(
    recorded: Recorded, stated: Callable[[Recorded], StatementFacts]
) -> None:
    facts = stated(recorded)
    fields = flat(statement_to_json(facts)["registry"])
    assert set(fields) == TIER_3
    assert {name for name, allowed in ENUMERATIONS.items() if fields[name] not in allowed} == set()
    assert all(isinstance(value, str | list | float | int) and value != "" for value in fields.values())
    assert fields["deployment.privacy_loss.privacy_parameters.epsilon"] == facts.epsilon
    assert fields["deployment.privacy_loss.privacy_parameters.delta"] == 1e-5
    assert fields["deployment.basic.publication_date"] == "2026-03-02"


def test_statement_one_release_is_told_from_many(stated: Callable[[Recorded], StatementFacts]) -> None:
    once = flat(statement_to_json(stated(replace(BASE, events=BASE.events[:1])))["registry"])
    many = flat(statement_to_json(stated(BASE))["registry"])
    name = "deployment.deployment_model.release_type"
    assert (once[name], many[name]) == ("One release", "Many releases")
