"""Runs with wrong settings say so in their results, with the remedy; runs with sound settings say nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from markupsafe import escape

from agreement import Method
from protoseal.reports.report import write_report
from protoseal.reports.result_files import RunResult, read_result
from protoseal.simulation.experiment import simulate
from protoseal.simulation.local_federation import RunOutcome
from protoseal.simulation.run_folder import SavedRun
from secure_client.diagnosis.diagnoses import Symptom
from secure_client.output.site_log import SiteLog, SiteRound
from tests.support.marks import full_but
from tests.support.simulations import config_in
from tests.support.small import small_agreement

DEMO = Path(__file__).parents[3] / "experiments" / "digits.toml"
ON_CPU = """
workers = 1
device = "cpu"
batched = "never"
"""
DATA = f"""
dataset = "digits"
{ON_CPU}"""
PFPL = f"""
method = "pfpl"
rounds = 4
sites = 3
split = "mixed:n=10,max=10"
dim = 32
{DATA}"""
FEDPC = f"""
method = "fedpc"
rounds = 4
sites = 5
split = "dirichlet:0.3"
dim = 64
norm_bound = 100.0
{DATA}"""
FEW_STEPS = FEDPC.replace("fedpc", "pfpl").replace("rounds = 4", "rounds = 2")
SMALL_STEPS = '[training]\nmodel = "small-cnn"\noptimiser = "sgd"\nbatch_size = 4\nlocal_epochs = 2\n'
ONE_EPOCH = (
    '[training]\nmodel = "small-cnn"\noptimiser = "sgd"\nlr = 0.01\nbatch_size = 32\nlocal_epochs = 1\n'
)
ADAM = '[training]\nmodel = "small-cnn"\noptimiser = "adam"\nlr = 0.001\nbatch_size = 10\nlocal_epochs = 2\n'
MISSET = {
    "alignment of pfpl": (
        f"{PFPL}[pfpl]\nlambda = 1000.0\n{SMALL_STEPS}lr = 0.02\n",
        Symptom.DROWNED,
        "lower lambda (now 1000) in [pfpl]",
    ),
    "alignment of fedpc": (
        f"{FEDPC}[fedpc]\nalignment = 0.5\nliteral = true\n{ADAM}",
        Symptom.DROWNED,
        "lower alignment (now 0.5) in [fedpc], or remove literal",
    ),
    "low learning rate": (
        f"{PFPL}{SMALL_STEPS}lr = 0.0001\n",
        Symptom.NOT_FALLING,
        "raise lr (now 0.0001) in [training]",
    ),
    "few steps": (
        f"{FEW_STEPS}{ONE_EPOCH}",
        Symptom.CHANCE,
        "raise rounds (now 2)",
    ),
    "low norm bound": (
        f"norm_bound = 0.5\n{PFPL}{SMALL_STEPS}lr = 0.02\n",
        Symptom.NORM_BOUND,
        "raise norm_bound (now 0.5)",
    ),
}
SOUND = {
    "pfpl": f"compare = ['local']\n{PFPL}[pfpl]\nlambda = 10.0\n{SMALL_STEPS}lr = 0.02\n",
    "fedpc": f"{FEDPC}{ADAM}",
    "one round": f"{PFPL}{SMALL_STEPS}lr = 0.02\n".replace("rounds = 4", "rounds = 1"),
    "demo": ON_CPU + DEMO.read_text(encoding="utf-8"),
}


def run(text: str, out: Path) -> RunResult:
    return simulate(config_in(text, out))


@pytest.mark.parametrize("name", full_but(MISSET, "low learning rate"))
def test_simulate_misset_run_names_symptom_and_remedy(tmp_path: Path, name: str) -> None:
    text, symptom, remedy = MISSET[name]
    result = run(text, tmp_path / "out")
    assert [(diagnosis.method, diagnosis.symptom) for diagnosis in result.diagnoses] == [
        (result.method, symptom)
    ]
    (diagnosis,) = result.diagnoses
    assert remedy in diagnosis.remedy
    assert read_result(tmp_path / "out").diagnoses == (diagnosis,)
    assert escape(diagnosis.text) in write_report(tmp_path / "out").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", full_but(SOUND, "one round"))
def test_simulate_sound_run_has_no_diagnosis(tmp_path: Path, name: str) -> None:
    assert run(SOUND[name], tmp_path / "out").diagnoses == ()


def test_saved_run_rounds_after_best_one_are_diagnosed() -> None:
    """A run whose best round is the first has nothing else to show a loss that does not fall."""
    rounds = tuple(
        SiteRound(
            round=number,
            attempt=1,
            sites=4,
            withheld=(),
            seconds={},
            accuracy=0.9,
            accuracy_classifier=0.9,
            accuracy_prototype=None,
            loss=2.0,
            loss_classification=2.0,
            loss_constant=2.0,
        )
        for number in (1, 2, 3)
    )
    log = SiteLog(name="a", model="small-cnn", train_samples=1, bytes_up=0, bytes_down=0, rounds=rounds)
    run = SavedRun(Method.PFPL, small_agreement(), RunOutcome({"a": log}, [], [], best_round=1), "")
    assert [diagnosis.symptom for diagnosis in run.diagnoses] == [Symptom.NOT_FALLING]
