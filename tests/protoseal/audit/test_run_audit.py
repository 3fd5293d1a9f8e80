"""Audit of a run: true runs stand, and each double in the run path is found by what the sites kept.

The audit's exact sums equal the mechanism's before noise, though no code of theirs is shared.
"""

from __future__ import annotations

import tempfile
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agreement import Agreement, DpSgdSection, Extractor, Method, PrivacySection, Protection
from agreement.sections.privacy import Noise
from privacy.accounting.events import Unit
from privacy.ledger.lines import Entry
from privacy.mechanisms.grid import Ints
from privacy.mechanisms.joint_clipping import joint_sums
from privacy.mechanisms.prototype_query import PrototypeQuery
from protoseal.audit.canary_audit import AuditVerdict
from protoseal.audit.exact_sums import Claim, Records, exact_sums
from protoseal.audit.release_checks import CLIPPING, DEPENDENT, REPEATED, SHARED
from protoseal.audit.run_audit import CENTRES, MODELS, audit_run
from protoseal.audit.run_checks import NOISE, PAID, SENT, CheckOutcome, RunAudit
from protoseal.audit.sent_checks import check_paid, check_sent
from protoseal.audit.site_evidence import SiteEvidence, collect_evidence
from protoseal.audit.training_checks import SUCCESSION
from protoseal.simulation.local_federation import LocalFederation
from protoseal_wire.messages import Phase
from secure_client.data import SiteData
from secure_client.privacy.kept_releases import Sent
from tests.conformance.federations import data_for, private_agreement
from tests.support.marks import full_but
from tests.support.served import protections_for
from tests.support.training_weakenings import UNRECORDED_DOUBLES
from tests.support.weakenings import OTHER_DOUBLES, RELEASE_DOUBLES

LEVEL = 1e-5
"""Probability with which a true run is refuted: tests are run often."""
DIM, CLASSES, SITES, ROUNDS = 32, 4, 4, 4
PRIVACY = PrivacySection(clip=0.5, noise_multiplier=2.0, min_count=1.0, release_every=2)
"""Noise that hides six records of a class, whose features are several times as long as the clip."""


def kept_agreement(
    method: Method, protection: Protection, unit: Unit = Unit.RECORD, **privacy: Any
) -> Agreement:
    """Return the agreement of a run with noise; FedPLCC's models must train, since they are averaged."""
    extractor = Extractor.TRAINED if method is Method.FEDPLCC else Extractor.FROZEN
    agreed = PrivacySection.model_validate({**dict(PRIVACY), "unit": unit, "extractor": extractor, **privacy})
    return private_agreement(
        protection, method, classes=CLASSES, dim=DIM, rounds=ROUNDS, privacy=agreed, norm_bound=40.0
    )


def kept_data(agreement: Agreement) -> dict[str, SiteData]:
    """Return real scans of every class at every site, in subjects of three records."""
    data = data_for(agreement, np.ones((SITES, CLASSES), dtype=np.bool_))
    return {
        name: replace(
            site, subjects=np.arange(site.train_samples, dtype=np.int64) % (site.train_samples // 3)
        )
        for name, site in data.items()
    }


def kept_run(agreement: Agreement, folder: Path) -> dict[str, SiteEvidence]:
    """Run a federation, and return what its sites kept."""
    data = kept_data(agreement)
    state = Path(tempfile.mkdtemp(dir=folder))
    with LocalFederation(agreement, data, keep_releases=True, state=state) as federation:
        federation.run()
        return collect_evidence(federation, data)


def audited(agreement: Agreement, folder: Path) -> RunAudit:
    """Run a federation, and audit it."""
    return audit_run(agreement.run, kept_run(agreement, folder), LEVEL)


def weaknesses(audit: RunAudit) -> set[str]:
    """Return the names of the weaknesses that an audit found."""
    return {check.weakness for _, check in audit.checks_with(CheckOutcome.FOUND)}


METHODS = (Method.PFPL, Method.FEDPC, Method.FEDPLCC)
RUNS = [
    (method, protection, [*Unit][(row + column + 1) % 3])
    for row, method in enumerate(METHODS)
    for column, protection in enumerate(protections_for(METHODS))
]
"""Every two of method, protection and unit stand together once."""
FOUND = {
    "the same noise in another order": REPEATED,
    "a half with the noise of the other": REPEATED,
    "a class with a combination of noise": DEPENDENT,
    "a class that shares its noise": SHARED,
    "features of the model that trains": MODELS,
    "rows that are zero by an exact count": SENT,
    "another payload than the protected one": SENT,
    "rows changed after their release": SENT,
    "no entry at all": PAID,
}
"""Weakness under which a double is found; :mod:`tests.protoseal.audit.test_weakenings` plays the others."""
FAST = ("rows that are zero by an exact count", "no entry at all")


@pytest.mark.parametrize(
    ("method", "protection", "unit"), full_but(RUNS, (Method.FEDPLCC, Protection.MASKED, Unit.SUBJECT))
)
def test_audit_run_true_run_stands(
    tmp_path: Path, method: Method, protection: Protection, unit: Unit
) -> None:
    audit = audited(kept_agreement(method, protection, unit), tmp_path)
    assert (audit.verdict, weaknesses(audit)) == (AuditVerdict.STANDS, set())


def test_check_sent_site_without_release_may_send_no_rows(tmp_path: Path) -> None:
    """Its values need no entry in the ledger; a row, or a class, would be one without a release."""
    agreement = kept_agreement(Method.PFPL, Protection.PLAIN, release_every=None)
    evidence = kept_run(agreement, tmp_path)
    name, whole = next(iter(evidence.items()))
    unpaid = copy(whole.account)
    assert unpaid is not None
    unpaid.lines = ()
    sent = [replace(each, released=2) for each in whole.answers if each.round > 1]
    late = replace(whole, draws=(), answers=sent, account=unpaid)
    assert not weaknesses(audit_run(agreement.run, {name: late}, LEVEL))
    for phase in (Phase.PRESENCE, Phase.VALUES):
        forged = [
            replace(each, arrays=tuple(np.ones_like(array) for array in each.arrays))
            if each.phase is phase
            else each
            for each in sent
        ]
        audit = audit_run(agreement.run, {name: replace(late, answers=forged)}, LEVEL)
        assert weaknesses(audit) == {SENT}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SiteEvidence]:
    """Return what the sites of one true run kept."""
    return kept_run(kept_agreement(Method.PFPL, Protection.PLAIN), tmp_path_factory.mktemp("run"))


def values_of(evidence: SiteEvidence, *, sends_rows: bool) -> Sent:
    """Return a site's values of a round with rows, or of one without."""
    return next(
        answer
        for answer in evidence.answers
        if answer.phase is Phase.VALUES and bool(answer.arrays[0].any()) is sends_rows
    )


def with_answer(evidence: SiteEvidence, old: Sent, arrays: tuple[Any, ...]) -> SiteEvidence:
    answers = [replace(old, arrays=arrays) if answer is old else answer for answer in evidence.answers]
    return replace(evidence, answers=answers)


def test_audit_run_partial_record_does_not_stand(recorded: dict[str, SiteEvidence]) -> None:
    first = min(recorded)
    evidence = recorded[first]
    statements = [answer for answer in evidence.answers if answer.phase is Phase.PRESENCE]
    silent, rows = (values_of(evidence, sends_rows=sends) for sends in (False, True))
    for changed, verdict in (
        (evidence, AuditVerdict.STANDS),
        (replace(evidence, answers=statements), AuditVerdict.TOO_WEAK),
        (replace(evidence, draws=evidence.draws[:1]), AuditVerdict.TOO_WEAK),
        (with_answer(evidence, silent, rows.arrays), AuditVerdict.REFUTED),
    ):
        audit = audit_run(evidence.agreement.run, {**recorded, first: changed}, LEVEL)
        assert audit.verdict is verdict


def test_check_sent_tiny_value_where_zero_is_due_is_refuted(recorded: dict[str, SiteEvidence]) -> None:
    """A value within the tolerance of rounding would still tell the coordinator that a class is present."""
    evidence = recorded[min(recorded)]
    silent = values_of(evidence, sends_rows=False)
    tiny = tuple(np.full_like(array, 1e-12) for array in silent.arrays)
    outcomes = {check.outcome for check in check_sent(with_answer(evidence, silent, tiny))}
    assert outcomes == {CheckOutcome.FOUND}


def test_check_paid_draw_twice_under_one_entry_is_refuted(recorded: dict[str, SiteEvidence]) -> None:
    evidence = recorded[min(recorded)]
    twice = replace(evidence, draws=[*evidence.draws, evidence.draws[0]])
    assert [check.outcome for check in check_paid(twice)] == [CheckOutcome.FOUND]


def test_check_paid_cheaper_entry_without_draw_is_refuted(recorded: dict[str, SiteEvidence]) -> None:
    """Without a kept draw, no ε is owed that the charged one could fall below."""
    evidence = recorded[min(recorded)]
    account = copy(evidence.account)
    assert account is not None
    account.lines = tuple(
        replace(
            line,
            spending=replace(
                line.spending,
                event=replace(line.spending.event, noise_multiplier=2 * PRIVACY.noise_multiplier),
            ),
        )
        for line in account.lines
        if isinstance(line, Entry)
    )
    outcomes = [check.outcome for check in check_paid(replace(evidence, draws=(), account=account))]
    assert outcomes == [CheckOutcome.FOUND]


@pytest.mark.full
def test_audit_run_shared_noise_is_not_covered(tmp_path: Path) -> None:
    agreement = kept_agreement(Method.FEDPC, Protection.MASKED, noise=Noise.DISTRIBUTED, release_every=None)
    audit = audited(agreement, tmp_path)
    assert (audit.verdict, weaknesses(audit)) == (AuditVerdict.TOO_WEAK, set())


@pytest.mark.parametrize("double", full_but(FOUND, *FAST))
def test_audit_run_weakened_run_is_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: str
) -> None:
    OTHER_DOUBLES[double](monkeypatch)
    # Several releases of frozen features are averaged, which makes their means anew from sums and counts.
    every = ROUNDS if FOUND[double] is SENT else ROUNDS // 2
    agreement = kept_agreement(Method.PFPL, Protection.PLAIN, release_every=every)
    audit = audited(agreement, tmp_path)
    assert audit.verdict is AuditVerdict.REFUTED
    assert FOUND[double] in weaknesses(audit)


@pytest.mark.full
@pytest.mark.parametrize(
    ("double", "weakness", "protection"),
    [
        ("half of the noise", NOISE, Protection.PLAIN),
        ("half of the noise", NOISE, Protection.MASKED),
        ("the same noise in two rounds", REPEATED, Protection.MASKED),
        ("no clipping", CLIPPING, Protection.CKKS),
        ("no entry", PAID, Protection.MASKED),
    ],
)
def test_audit_run_weakened_sums_are_refuted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: str, weakness: str, protection: Protection
) -> None:
    RELEASE_DOUBLES[double](monkeypatch)
    audit = audited(kept_agreement(Method.FEDPLCC, protection), tmp_path)
    assert weakness in weaknesses(audit)


@pytest.mark.full
def test_audit_run_unbounded_unit_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OTHER_DOUBLES["subjects are not clipped as a whole"](monkeypatch)
    audit = audited(
        kept_agreement(Method.PFPL, Protection.PLAIN, Unit.SUBJECT, noise_multiplier=1.0), tmp_path
    )
    assert weaknesses(audit) & {NOISE, CLIPPING}


@pytest.mark.full
@pytest.mark.parametrize("protection", protections_for(METHODS))
def test_audit_run_trained_model_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protection: Protection
) -> None:
    OTHER_DOUBLES["models that are not the initial one"](monkeypatch)
    assert SENT in weaknesses(audited(kept_agreement(Method.FEDPC, protection), tmp_path))


@pytest.mark.full
def test_audit_run_own_centres_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    OTHER_DOUBLES["centres of a site's own"](monkeypatch)
    audit = audited(kept_agreement(Method.FEDPLCC, Protection.PLAIN), tmp_path)
    assert CENTRES in weaknesses(audit)


@pytest.mark.full
@pytest.mark.parametrize(
    ("double", "verdict", "found"),
    [
        (None, AuditVerdict.STANDS, set()),
        ("training without noise after the recorded one", AuditVerdict.REFUTED, {SUCCESSION}),
        ("training by DP-SGD in the first round alone", AuditVerdict.TOO_WEAK, set()),
    ],
)
def test_audit_run_training_needs_whole_record(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    double: str | None,
    verdict: AuditVerdict,
    found: set[str],
) -> None:
    if double is not None:
        UNRECORDED_DOUBLES[double](monkeypatch)
    settings = DpSgdSection(noise_multiplier=1.5, clip=0.02, sampling_rate=0.25)
    agreement = kept_agreement(
        Method.PFPL, Protection.PLAIN, extractor=Extractor.PRIVATE, dp_sgd=settings, release_every=None
    )
    audit = audited(agreement, tmp_path)
    assert (audit.verdict, weaknesses(audit)) == (verdict, found)


SUM_CLASSES, SUM_DIM, RECORDS = 4, 3, 60
QUERY = PrototypeQuery(clip=1.0, count_weight=0.5, noise_multiplier=2.0, min_count=1.0)
CLAIM = Claim(clip=1.0, weight=0.5, multiplier=2.0, deviation=2.0 * float(np.hypot(1.0, 0.5)), min_count=1.0)


@pytest.mark.parametrize("subjects", [None, 8], ids=["records", "subjects of several classes"])
def test_exact_sums_equal_mechanism_without_noise(subjects: int | None) -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(RECORDS, SUM_DIM))
    labels: Ints = generator.integers(0, SUM_CLASSES, RECORDS)
    owners = None if subjects is None else np.sort(np.arange(RECORDS, dtype=np.int64) % subjects)
    sums = QUERY.start(SUM_CLASSES, SUM_DIM)
    if owners is None:
        sums.add(features, labels)
    else:
        sums = joint_sums(sums, [(features, labels)], owners)
    exact = exact_sums(Records(features, labels, owners), CLAIM, SUM_CLASSES, None)
    step = QUERY.grid.step
    np.testing.assert_allclose(exact.sums, sums.vectors * step, rtol=0.0, atol=2 * RECORDS * step)
    np.testing.assert_allclose(exact.counts, sums.weights * step / QUERY.count_weight, rtol=0.0, atol=1e-3)
