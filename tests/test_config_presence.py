"""Hidden presence in configuration files: where it is refused, by name, and what an agreement has to say for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from algorithms.pfpl import Weighting
from protoseal.config import (
    SIMULATED,
    Agreement,
    ConfigError,
    Family,
    Method,
    PfplSection,
    Presence,
    Protection,
    SiteConfig,
)
from protoseal.config.presence import ALLOWED_BY
from protoseal.config.simulation import load_simulation
from protoseal.terms import stated_classes
from tests.conformance.grouped_runs import grouped_agreement
from tests.conformance.runs import HIDDEN, agreement_for
from tests.support.config_files import AGREEMENT, SITE, load_party, problem, write


def pfpl(**settings: Any) -> Agreement:
    return agreement_for(Protection.CKKS, Weighting.DISTANCE, classes=3, dim=8, **settings)


@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_it_needs_ckks(tmp_path: Path, protection: str) -> None:
    line = problem(tmp_path, protection=protection, presence="hidden", **{ALLOWED_BY: True})
    assert f"presence 'hidden' needs protection 'ckks': under '{protection}'" in line


@pytest.mark.parametrize(
    "method",
    [
        method
        for method in Method
        if method.traits.family in (Family.GROUPS, Family.CLUSTERS) and method is not Method.AVERAGE
    ],
)
def test_methods_that_cluster_are_refused(method: Method) -> None:
    with pytest.raises(ValidationError, match=f"'hidden' is not for method {method.value}: its clustering"):
        grouped_agreement(Protection.CKKS, method=method, classes=3, dim=8, rounds=1, **HIDDEN)


@pytest.mark.parametrize("method", [Method.FEDDBP, Method.FEDPROTO, Method.FEDPROTO_AVERAGED])
def test_prototypes_need_the_permission(method: Method) -> None:
    options: dict[str, Any] = {"method": method, "classes": 3, "dim": 8, "rounds": 1}
    with pytest.raises(ValidationError, match=f"a curious site reads there .* say {ALLOWED_BY} = true"):
        grouped_agreement(Protection.CKKS, presence=Presence.HIDDEN, **options)
    assert grouped_agreement(Protection.CKKS, **options, **HIDDEN).hidden


def test_so_does_pfpl(tmp_path: Path) -> None:
    line = problem(tmp_path, presence="hidden")
    assert "exact without [privacy] and noisy with it" in line
    assert f"{ALLOWED_BY} = true" in line
    assert pfpl(**HIDDEN).hidden
    assert pfpl(**HIDDEN).summary.endswith("min_sites 3, presence hidden")
    assert not pfpl().hidden
    assert "presence" not in pfpl().summary


def test_models_have_no_presence_and_need_no_permission() -> None:
    agreement = grouped_agreement(
        Protection.CKKS, method=Method.FEDAVG, classes=3, dim=8, rounds=1, presence=Presence.HIDDEN
    )
    assert agreement.hidden


def test_complement_needs_three_holders() -> None:
    few = {"min_holders": 2, "min_sites": 2, "allow_fewer_holders_reveals_peers": True}
    with pytest.raises(
        ValidationError, match="with weighting 'complement' needs to know of classes with two"
    ):
        pfpl(**HIDDEN, **few, pfpl=PfplSection(weighting=Weighting.COMPLEMENT))
    assert pfpl(**HIDDEN, **few).hidden
    assert pfpl(**HIDDEN, pfpl=PfplSection(weighting=Weighting.COMPLEMENT)).hidden


def test_an_unknown_presence_is_refused(tmp_path: Path) -> None:
    assert "unknown presence 'hiden'; did you mean 'hidden'?" in problem(tmp_path, presence="hiden")


def test_an_agreement_without_the_permission_has_the_text_that_it_had() -> None:
    assert ALLOWED_BY not in pfpl().to_json()
    text = pfpl(**HIDDEN).to_json()
    assert f'"{ALLOWED_BY}":true' in text
    again = Agreement.from_json(text, source="test")
    assert again == pfpl(**HIDDEN)
    assert again.hash() != pfpl().hash()


def test_a_site_that_insists_on_holders_takes_no_part(tmp_path: Path) -> None:
    """Nobody can hold its peers to it."""
    write(tmp_path / "agreement.toml", AGREEMENT | {"presence": "hidden", ALLOWED_BY: True})
    with pytest.raises(ConfigError, match=r"insists on 3 holders .* with presence 'hidden' nobody keeps"):
        load_party(tmp_path, SITE, min_holders=3)
    easy = {name: value for name, value in SITE.items() if name != "min_holders"}
    site: SiteConfig = load_party(tmp_path, easy)
    assert site.agreement.hidden


def test_a_simulation_hides_it_too() -> None:
    asked: dict[str, Any] = {"protection": "ckks", "presence": "hidden", ALLOWED_BY: True}
    config = load_simulation(None, asked)
    agreement = config.agreement(
        method=Method.PFPL, seed=1, classes=["0", "1"], preprocessing=pfpl().preprocessing
    )
    assert agreement.hidden
    for changes, why in (
        ({"protection": "plain"}, "needs protection 'ckks'"),
        ({"compare": ["fedplcc"]}, "not for method fedplcc"),
        ({ALLOWED_BY: False}, "a curious site reads"),
    ):
        with pytest.raises(ConfigError, match=why):
            load_simulation(None, asked | changes)
    beside = [method.value for method in SIMULATED if method.traits.family is Family.SUMS]
    assert len(load_simulation(None, asked | {"compare": beside}).methods) == 1 + len(beside)


def test_what_a_site_states_is_nothing() -> None:
    held = np.array([True, False, True])
    assert stated_classes(pfpl(), held).tolist() == [True, False, True]
    assert stated_classes(pfpl(**HIDDEN), held).tolist() == [False] * 3
