"""A site's privacy statement: each sentence follows the ledger and the agreement, and changes with them.

The table alters one fact at a time. A statement that keeps a sentence of the unaltered ledger is false, and fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agreement import load_agreement
from agreement.storage.anchor_record import AnchorRecord
from privacy.accounting.accounting_rules import Accounting, accountant_for
from privacy.accounting.events import GaussianRelease, Unit
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Limit, ReleaseName, Spending
from protoseal.reports.ledger_facts import StatementFacts
from protoseal.reports.privacy_statement import out_of_hundred
from protoseal.reports.site_statement import headline
from protoseal.reports.statement_files import statement_text, statement_to_json
from secure_client.privacy.ledger_anchors import OWN, own_anchor, record_beside
from tests.protoseal.reports.recorded_ledgers import (
    BASE,
    FACTS,
    HASH,
    RELEASE,
    SHARED,
    TRAINED,
    TWO,
    Recorded,
    sentences,
)
from tests.support.config_files import AGREEMENT, write


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
