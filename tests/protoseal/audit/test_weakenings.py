"""Table of weakenings: doubles in the run path, and what finds them.

A double changes how a run uses its mechanisms (:mod:`tests.support.weakenings`). The columns are the audit of the run
(`protoseal budget audit run`), the audit case of `protoseal attack`, the audit of the mechanism (`protoseal budget
audit prototypes` and `training`), and the first test that fails with the double patched into every process. That last
column was measured by hand. docs/explanation/privacy-audit.md shows the same table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from agreement import DpSgdSection
from privacy.mechanisms.prototype_query import PrototypeQuery
from protoseal.attacks.noise_audit import NoiseAudit
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import record_run
from protoseal.audit.canary_audit import (
    AuditedMechanism,
    AuditPlan,
    AuditVerdict,
    audit_mechanism,
    plan_audit,
)
from protoseal.audit.prototype_canaries import AuditedQuery
from protoseal.audit.run_audit import audit_run
from protoseal.audit.run_checks import CheckOutcome, RunAudit
from protoseal.audit.site_evidence import load_simulation_evidence
from protoseal.audit.training_canaries import AuditedTraining
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import simulate
from tests.support.simulations import config_in
from tests.support.training_weakenings import TRAINING_DOUBLES
from tests.support.weakenings import RELEASE_DOUBLES

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "privacy-audit.md"
LEVEL = 1e-4
CANARIES = 30_000
FOUND, STANDS, NOT_COVERED = CheckOutcome.FOUND, CheckOutcome.STANDS, CheckOutcome.NOT_COVERED
RELEASES = """
method = "pfpl"
protection = "masked"
dataset = "digits"
split = "shots:n=4,k=40"
sites = 4
rounds = 2
dim = 32
device = "cpu"
batched = "never"
[training]
model = "small-cnn"
norm = "group"
optimiser = "sgd"
lr = 0.05
local_epochs = 1
[privacy]
clip = 0.3
noise_multiplier = 1.0
min_count = 1.0
release_every = 1
"""
"""Two releases of four classes at each of four sites; most records are longer than the clip."""
TRAINING = """
method = "pfpl"
protection = "masked"
dataset = "digits"
split = "iid:per=60"
sites = 3
rounds = 2
dim = 16
device = "cpu"
batched = "never"
[training]
model = "small-cnn"
norm = "group"
optimiser = "sgd"
lr = 0.1
batch_size = 16
local_epochs = 6
[privacy]
clip = 2.0
noise_multiplier = 4.0
min_count = 1.0
extractor = "private"
[privacy.dp_sgd]
noise_multiplier = 2.0
clip = 0.5
sampling_rate = 0.2
"""
"""Sixty steps of DP-SGD at each of three sites."""


@dataclass(frozen=True)
class Row:
    """Outcomes of one weakness; ``check`` is the audit's weakness that names it, and ``test`` what fails, if anything.

    With ``noise`` the run has this noise multiplier of releases instead of the usual one.
    """

    layer: str
    run: CheckOutcome
    check: str
    mechanism: CheckOutcome
    test: str
    noise: float | None = None


NOISE, SHAPE = "noise that is too small", "noise that is not Gaussian, or not independent"
REPEATED, SHARED = "noise that repeats", "noise that sites share"
SENT, PAID = "values beside the draw", "releases that the ledger does not charge"
CLIPPING, MEANS = "records or units that are not clipped", "means that are clipped in place of records"
SEED, TWICE = "noise from a known seed", "a single record that is counted twice, or not clipped"
OF_RELEASES = "test_release_noise_is_what_its_entry_claims"
OF_RECORDS = "test_release_sums_every_record_once_and_clipped"
OF_SAMPLES = "test_poisson_sample_draws_each_record_by_itself"
OF_RATES = "test_poisson_sample_of_extreme_rates"
OF_STEPS = "test_noise_that_reaches_the_parameters_has_the_agreed_deviation"
OF_DRAWS = "test_draw_noise_is_whole_steps_and_fresh"
OF_GRADIENTS = "test_step_one_record_changes_the_sum_by_the_clip_at_most"
OF_PLAN = "test_every_round_is_paid_as_planned"
OF_PAYMENT = "test_release_draws_nothing_before_it_is_paid"
OF_COST = "test_release_is_recorded_with_its_cost"
OF_ROWS = "test_train_round_sends_noisy_and_paid_prototypes"
OF_PERIOD = "test_train_round_release_serves_its_rounds_and_attempts"
OF_PRESENCE = "test_held_classes_follow_from_noisy_counts"
OF_MEANS = "test_frozen_features_average_their_releases_over_restarts"
NONE = "none"

RELEASE_ROWS: dict[str, Row] = {
    "a tenth of the noise": Row("release", FOUND, NOISE, STANDS, OF_RELEASES),
    "half of the noise": Row("release", FOUND, NOISE, STANDS, OF_RELEASES),
    "noise on sums, none on counts": Row("release", FOUND, NOISE, STANDS, OF_RELEASES),
    "noise on counts, none on sums": Row("release", FOUND, NOISE, STANDS, OF_RELEASES),
    "noise on the first classes only": Row("release", FOUND, NOISE, STANDS, OF_RELEASES),
    "noise on half of the coordinates": Row("release", FOUND, NOISE, STANDS, OF_RELEASES),
    "noise in proportion to a class's size": Row("release", FOUND, NOISE, STANDS, OF_RELEASES),
    "noise that is equal in all classes": Row("release", FOUND, SHAPE, STANDS, OF_RELEASES),
    "noise that is equal in all coordinates": Row("release", FOUND, SHAPE, STANDS, OF_RELEASES),
    "noise of uniform shape": Row("release", FOUND, SHAPE, STANDS, NONE),
    "noise from one seed at all sites": Row("context", FOUND, SHARED, STANDS, OF_RECORDS),
    "noise from a seed of each site": Row("context", NOT_COVERED, SEED, STANDS, OF_RECORDS),
    "the same noise in two rounds": Row("context", FOUND, REPEATED, STANDS, OF_RELEASES),
    "the same noise at two sites": Row("context", FOUND, SHARED, STANDS, OF_RELEASES),
    "correlated noise in two rounds": Row("context", FOUND, REPEATED, STANDS, OF_RELEASES),
    "correlated noise at two sites": Row("context", FOUND, SHARED, STANDS, OF_RELEASES),
    "exact rows in place of released rows": Row("release", FOUND, SENT, STANDS, OF_ROWS),
    "rows of an earlier release": Row("release", FOUND, SENT, STANDS, OF_PERIOD),
    "features of another model": Row("release", FOUND, CLIPPING, STANDS, NONE),
    "classes present by exact counts": Row("presence", FOUND, SENT, STANDS, OF_PRESENCE),
    "division by exact counts": Row("division", FOUND, SENT, STANDS, OF_MEANS),
    "no clipping": Row("clipping", FOUND, CLIPPING, STANDS, OF_RELEASES),
    "clipping of single coordinates": Row("clipping", FOUND, CLIPPING, STANDS, OF_RECORDS),
    "clipping of means": Row("clipping", FOUND, MEANS, STANDS, OF_RECORDS, noise=0.1),
    "a record counted twice": Row("clipping", NOT_COVERED, TWICE, STANDS, OF_RECORDS),
    "no entry": Row("accounting", FOUND, PAID, STANDS, OF_PAYMENT),
    "an entry with a smaller cost": Row("accounting", FOUND, PAID, STANDS, OF_COST),
    "the mean of two draws for one entry": Row("accounting", FOUND, NOISE, STANDS, OF_RELEASES),
}
TRAINING_ROWS: dict[str, Row] = {
    "samples of a fixed size": Row("sampler", FOUND, "samples of a fixed size", STANDS, OF_SAMPLES),
    "successive batches": Row(
        "sampler", FOUND, "successive steps that share too few or too many units", STANDS, OF_SAMPLES
    ),
    "shuffled epochs": Row(
        "sampler", FOUND, "batches of epochs, or the same batches again", STANDS, OF_SAMPLES
    ),
    "a rate too high": Row("sampler", FOUND, "a sampling rate above the agreed one", STANDS, OF_SAMPLES),
    "a record twice in a step": Row(
        "sampler", FOUND, "a unit counted more than once in a step", STANDS, OF_RATES
    ),
    "half of training's noise": Row("training", FOUND, "training's noise that is too small", FOUND, OF_STEPS),
    "the same noise in every step": Row("training", FOUND, "training's noise that repeats", STANDS, OF_DRAWS),
    "gradients without a clip": Row("clipping", FOUND, "gradients longer than the clip", FOUND, OF_GRADIENTS),
    "gradients clipped by coordinate": Row(
        "clipping", FOUND, "gradients longer than the clip", FOUND, OF_GRADIENTS
    ),
    "gradients clipped too late": Row(
        "clipping", FOUND, "gradients longer than the clip", STANDS, OF_GRADIENTS
    ),
    "training without an entry": Row(
        "accounting", FOUND, "training that the ledger does not charge", STANDS, OF_PLAN
    ),
    "training with a smaller cost": Row(
        "accounting", FOUND, "training that the ledger does not charge", STANDS, OF_PLAN
    ),
}
ROWS = RELEASE_ROWS | TRAINING_ROWS
DOUBLES = RELEASE_DOUBLES | TRAINING_DOUBLES
FAST = ("half of the noise",)


def config_of(name: str, out: Path) -> SimulationConfig:
    """Return the configuration of a row's run; unknown names are of runs without a double."""
    text = TRAINING if name in TRAINING_ROWS else RELEASES
    row = ROWS.get(name)
    if row is not None and row.noise is not None:
        text = text.replace("noise_multiplier = 1.0", f"noise_multiplier = {row.noise}")
    return config_in(text, out, keep_releases=True)


def run_audit_of(config: SimulationConfig) -> RunAudit:
    simulate(config)
    ((run, sites),) = load_simulation_evidence(config.out, None)
    return audit_run(run, sites, LEVEL)


def outcome_of(made: RunAudit, check: str) -> CheckOutcome:
    """Return the outcome of a run's audit for a weakness: found if the named check, among others, finds it."""
    names = {outcome: {found.weakness for _, found in made.checks_with(outcome)} for outcome in CheckOutcome}
    if made.verdict is AuditVerdict.REFUTED:
        assert check in names[FOUND], names[FOUND]
        return FOUND
    return NOT_COVERED if check in names[NOT_COVERED] else STANDS


def test_weakenings_table_has_every_double() -> None:
    assert ROWS.keys() == DOUBLES.keys()


@pytest.mark.full
@pytest.mark.parametrize("text", [RELEASES, TRAINING], ids=["releases", "training"])
def test_weakenings_true_run_stands(tmp_path: Path, text: str) -> None:
    made = run_audit_of(config_in(text, tmp_path / "run", keep_releases=True))
    assert (made.verdict, made.checks_with(FOUND)) == (AuditVerdict.STANDS, [])


@pytest.mark.parametrize("name", FAST)
def test_weakenings_run_audit_reads_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    DOUBLES[name](monkeypatch)
    made = run_audit_of(config_of(name, tmp_path / "run"))
    assert outcome_of(made, ROWS[name].check) is ROWS[name].run


@pytest.mark.full
@pytest.mark.parametrize("name", ROWS)
def test_weakenings_audits_of_a_recorded_run_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    DOUBLES[name](monkeypatch)
    run = record_run(config_of(name, tmp_path / "run"), 0)
    made = audit_run(run.agreement.run, run.evidence, LEVEL)
    assert outcome_of(made, ROWS[name].check) is ROWS[name].run
    (measured,) = NoiseAudit().measure(run, Adversary.COORDINATOR)
    assert (measured.value > 0) is (ROWS[name].run is FOUND)


@cache
def planned(training: bool, canaries: int, level: float) -> tuple[AuditedMechanism, AuditPlan]:
    settings = DpSgdSection(noise_multiplier=4.383, clip=1.0, sampling_rate=0.75)
    audited: AuditedMechanism = (
        AuditedTraining(settings, epochs=6)
        if training
        else AuditedQuery(PrototypeQuery(1.0, 1.0, 1.5, min_count=1.0), releases=2, dim=4)
    )
    return audited, plan_audit(audited, canaries, level)


@pytest.mark.full
@pytest.mark.parametrize("name", ROWS)
def test_weakenings_mechanism_audit_agrees(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    # With as few canaries as the other rows, half of training's noise passes once in a few runs.
    half = name == "half of training's noise"
    audited, plan = planned(name in TRAINING_ROWS, *((80_000, 0.01) if half else (CANARIES, LEVEL)))
    assert not half or plan.missed < LEVEL
    DOUBLES[name](monkeypatch)
    refuted = audit_mechanism(audited, plan).verdict is AuditVerdict.REFUTED
    assert refuted is (ROWS[name].mechanism is FOUND)


@pytest.mark.parametrize("test", sorted({row.test for row in ROWS.values()} - {NONE}))
def test_weakenings_named_tests_exist(test: str) -> None:
    files = (Path(__file__).parents[2] / "secure_client").rglob("test_*.py")
    assert any(f"def {test}(" in file.read_text(encoding="utf-8") for file in files)


def test_weakenings_page_shows_table() -> None:
    shown = re.findall(
        r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE.read_text("utf-8"), re.M
    )
    rows = [
        (row.layer, name, row.run, row.run, row.mechanism, "stands" if row.test == NONE else f"`{row.test}`")
        for name, row in ROWS.items()
    ]
    assert [cells for cells in shown if cells[1] in ROWS] == rows
