"""Sentences on a run's privacy: of each kind of run the right ones, with the numbers of its result."""

from __future__ import annotations

from typing import Any

import pytest

from agreement.sections.privacy import PrivacySection
from protoseal.reports.privacy_statement import NO_GUARANTEE, privacy_statement
from protoseal.reports.result_files import RunResult, SiteFigures
from tests.protoseal.reports.test_run_results import RESULT

NOISY = PrivacySection(clip=1.0, noise_multiplier=5.0).model_dump(mode="json")


def site(name: str, epsilon: float | None = None, *, guaranteed: bool = False) -> SiteFigures:
    delta = None if epsilon is None else 1e-6
    return RESULT.sites[0].model_copy(
        update={"name": name, "epsilon": epsilon, "delta": delta, "guaranteed": guaranteed}
    )


def run(privacy: dict[str, Any] | None, *sites: SiteFigures, method: str = "pfpl") -> RunResult:
    return RESULT.model_copy(
        update={"config": RESULT.config | {"privacy": privacy}, "sites": sites, "method": method}
    )


@pytest.mark.parametrize(
    "result",
    [
        run(None, site("a"), site("b")),
        run(None, site("a", 2.0), site("b")),  # a keeps a ledger, of earlier runs with noise
        run(NOISY, site("a"), site("b")),
        run(NOISY, site("a", 2.0), site("b", 3.0)),
    ],
)
def test_privacy_statement_without_guarantee_says_so_first(result: RunResult) -> None:
    (sentence,) = privacy_statement(result)
    assert sentence.startswith(NO_GUARANTEE)
    assert "ε =" not in sentence


@pytest.mark.parametrize(
    ("unit", "named"), [("record", "one record "), ("subject", "one person "), ("site", "one site ")]
)
def test_privacy_statement_private_run_names_unit_and_epsilon(unit: str, named: str) -> None:
    (sentence,) = privacy_statement(
        run(NOISY | {"unit": unit}, site("a", 2.0, guaranteed=True), site("b", 3.25, guaranteed=True))
    )
    assert sentence.startswith("If the recorded noise was really added and the initial model had not seen")
    assert named in sentence
    assert ("not people with several records" in sentence) == (unit == "record")
    assert "ε = 3.25 at δ = 1e-06" in sentence


def test_privacy_statement_names_sites_without_guarantee() -> None:
    first, second = privacy_statement(run(NOISY, site("a", 2.0, guaranteed=True), site("b", 9.0), site("c")))
    assert first.startswith(f"{NO_GUARANTEE} for b, c:")
    assert "was spent by a by the end" in second
    assert "ε = 2 " in second


def test_privacy_statement_shared_noise_names_observers() -> None:
    shared = {**NOISY, "noise": "distributed", "colluding": 2}
    (whom,) = privacy_statement(run(shared, site("a", 2.0, guaranteed=True)))
    assert "with up to 2 sites" in whom


@pytest.mark.parametrize("method", ["local", "self"])
def test_privacy_statement_control_sends_nothing(method: str) -> None:
    (sentence,) = privacy_statement(run(None, site("a"), method=method))
    assert NO_GUARANTEE not in sentence
    assert "Nothing left" in sentence


def test_privacy_statement_reads_agreement_as_text() -> None:
    assert RESULT.config["privacy"] is None
    assert privacy_statement(RESULT)[0].startswith(NO_GUARANTEE)
