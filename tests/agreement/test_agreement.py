"""The configuration files: what is refused, by what name, and what the agreement's hash covers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agreement import (
    CONTROLS,
    SIMULATED,
    Agreement,
    ConfigError,
    DpSgdSection,
    Extractor,
    Method,
    PfplSection,
    PrivacySection,
    Protection,
    load_agreement,
)
from agreement.derived.payload_shapes import values_shape
from crypto.protection import Offer
from protoseal.simulation.config import load_simulation
from secure_client.config import load_site
from secure_server.config import load_coordinator
from tests.support.config_files import AGREEMENT, COORDINATOR, FEDPC, SITE, agreement, problem, write
from tests.support.small import small_agreement

ROOT = Path(__file__).parents[2]
KNOWN_HASH = "f64c3050b314b57f098501815db5e31db66fac3429d8f2a24e2b1840af6db9ba"


def test_agreement_refuses_a_sites_epsilon(tmp_path: Path) -> None:
    wanted = {"clip": 1.0, "noise_multiplier": 6.0, "epsilon": 3.0}
    assert "privacy.epsilon" in problem(tmp_path, privacy=wanted)


def test_rounds_whose_sums_have_prototypes() -> None:
    base = small_agreement(rounds=7).model_copy(update={"method": Method.FEDDBP})
    noise = PrivacySection(clip=1.0, noise_multiplier=6.0, release_every=3)
    frozen = base.training.model_copy(update={"frozen_extractor": True})
    cases = {
        (1, 2, 3, 4, 5, 6, 7): base,
        (1, 4, 7): base.model_copy(update={"privacy": noise}),
        (1,): base.model_copy(update={"training": frozen}),
    }
    for rounds, agreed in cases.items():
        assert tuple(number for number in range(1, 8) if agreed.sends_rows(number)) == rounds
        assert [n for n in range(8) if agreed.repeats_rows(n)] == ([] if len(rounds) == 7 else list(rounds))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"method": "fedplcc", "averaging": {"parameters": 1}}, "averages models with their classifiers"),
        ({"method": "fedrep", "averaging": {"parameters": 1}}, "extractors"),
        ({"method": "feddbp"}, "decision = false"),
        ({"privacy": {"clip": 1.0, "noise_multiplier": 6.0}}, r"\[privacy\]"),
    ],
)
def test_a_frozen_extractor_is_refused_where_more_has_to_train(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    table = {"protection": "plain", **changes, "training": {"model": "small-cnn", "frozen_extractor": True}}
    with pytest.raises(ConfigError, match=f"frozen_extractor.*{named}|{named}.*frozen_extractor"):
        load_agreement(write(tmp_path / "agreement.toml", AGREEMENT | table))


@pytest.mark.parametrize(
    "method", [method for method in sorted(SIMULATED, key=str) if method is not Method.AVERAGE]
)
@pytest.mark.parametrize("side", ["coordinator", "site"])
def test_deployment_refuses_methods_for_comparison(tmp_path: Path, method: Method, side: str) -> None:
    protection = "ckks" if method in CONTROLS else "plain"
    averaging = {"parameters": int(method.averages)}
    table = {"method": method.value, "protection": protection, "averaging": averaging}
    write(tmp_path / "agreement.toml", AGREEMENT | table)
    table = {"agreement": "agreement.toml"} | (COORDINATOR if side == "coordinator" else SITE)
    load = load_coordinator if side == "coordinator" else load_site
    with pytest.raises(ConfigError, match=f"'{method}' is a comparison.*choose feddbp, fedpc, fedplcc, pfpl"):
        load(write(tmp_path / "party.toml", table))


def test_ckks_refuses_weightings_that_need_inner_products(tmp_path: Path) -> None:
    pfpl = {"weighting": "inverse"}
    line = problem(tmp_path, pfpl=pfpl)
    assert "'inverse'" in line
    assert (
        "needs 'gram', but protection 'ckks' offers 'clustering' or 'cosine weights' or 'distance weights' or"
        in line
    )
    agreement(tmp_path, pfpl=pfpl, protection="plain")


@pytest.mark.parametrize("protection", ["plain", "masked", "ckks"])
def test_every_protection_serves_fedpc(tmp_path: Path, protection: str) -> None:
    assert agreement(tmp_path, **FEDPC | {"protection": protection}).layout.model == 1000


def test_a_protection_that_lacks_what_a_method_needs_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Protection.CKKS.groups
    assert rounds is not None
    fewer = replace(rounds, computes=rounds.computes - {Offer.COSINE_WEIGHTS})
    monkeypatch.setitem(vars(Protection.CKKS), "groups", fewer)
    line = problem(tmp_path, **FEDPC | {"protection": "ckks"})
    assert (
        "method fedpc needs 'clustering' and 'cosine weights' and 'sum', but protection 'ckks' offers" in line
    )


@pytest.mark.parametrize(
    ("weighting", "form"),
    [
        ("uniform", "pairwise masked sums; no secret shared among sites"),
        ("complement", "rotated rows; one secret shared by all sites"),
    ],
)
def test_the_summary_that_both_checks_print_names_the_form_that_runs(
    tmp_path: Path, weighting: str, form: str
) -> None:
    assert form in agreement(tmp_path, protection="masked", pfpl={"weighting": weighting}).summary


@pytest.mark.parametrize("weighting", ["complement", "distance", "inverse", "uniform"])
def test_masked_serves_every_weighting(tmp_path: Path, weighting: str) -> None:
    agreed = agreement(tmp_path, protection="masked", pfpl={"weighting": weighting})
    summed = weighting == "uniform"
    assert (agreed.needs_group_secret, agreed.sums) == (not summed, summed)
    assert agreed.layout.length == (len(agreed.classes) * agreed.dim if summed else 0)


@pytest.mark.parametrize(
    ("pfpl", "weight"),
    [
        ({}, 0.1),
        ({"alpha": 0.5}, 0.1),
        ({"lambda": 3.0}, 3.0),
        (PfplSection(), 0.1),
        (PfplSection.model_validate({"lambda": 3.0}), 3.0),
    ],
)
def test_dp_sgd_has_its_own_weight_of_pfpls_alignment(pfpl: Any, weight: float) -> None:
    by_dp_sgd = DpSgdSection(noise_multiplier=1.0, clip=1.0, sampling_rate=0.1)
    private = PrivacySection(clip=1.0, noise_multiplier=1.0, extractor=Extractor.PRIVATE, dp_sgd=by_dp_sgd)
    fields = dict(small_agreement()) | {"pfpl": pfpl, "privacy": private}
    found = Agreement.model_validate(fields)
    assert found.pfpl.alignment == weight
    assert ("alignment" in found.pfpl.model_fields_set) is (
        weight == 3.0
    )  # else it is read anew without [privacy]
    assert Agreement.from_json(found.to_json(), source="written").pfpl == found.pfpl
    exact = Agreement.model_validate(fields | {"privacy": None})
    assert exact.pfpl.alignment == 3.0


@pytest.mark.parametrize(
    ("training", "rate"), [({}, 0.001), ({"optimiser": "sgd"}, 0.01), ({"optimiser": "sgd", "lr": 0.5}, 0.5)]
)
def test_each_optimiser_has_its_own_learning_rate(
    tmp_path: Path, training: dict[str, Any], rate: float
) -> None:
    assert agreement(tmp_path, training=training).training.lr == rate


@pytest.mark.parametrize("training", [{"optimiser": "adam"}, {"optimiser": "sgd", "momentum": 0.5}, {}])
def test_an_agreement_survives_a_json_round_trip(tmp_path: Path, training: dict[str, Any]) -> None:
    agreed = agreement(tmp_path, training=training)
    again = Agreement.from_json(agreed.to_json(), source="written")
    assert (again, again.hash()) == (agreed, agreed.hash())
    assert ("momentum" in json.loads(agreed.to_json())["training"]) is (training.get("optimiser") == "sgd")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"averaging": {}}, "set parameters in [averaging]"),
        ({"averaging": {}}, "`protoseal client check` prints the right number"),
        ({"averaging": {"buffers": 3}}, "buffers is set, but parameters is not"),
        ({"fedpc": {"alignment": 1.0}}, "fedpc.alignment"),
        ({"fedpc": {"group": 2}}, "did you mean 'groups'"),
        ({"masking": {"ring_bits": 48}}, "masking.ring_bits"),
        (
            {"masking": {"ring_bits": 32}, "norm_bound": 1000.0},
            "masked sums do not fit ring_bits = 32",
        ),
        ({"method": "average"}, "fedpc with groups = 1 and alignment = 0"),
    ],
)
def test_a_wrong_fedpc_agreement_is_refused_in_a_line(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    assert said in problem(tmp_path, **FEDPC | changes)


@pytest.mark.parametrize(
    ("changes", "ring"),
    [
        ({"method": "feddbp"}, 32),
        ({"method": "feddbp", "max_sites": 1024}, 32),
        ({"method": "feddbp", "norm_bound": 63.9}, 32),
        ({"method": "feddbp", "norm_bound": 64.0}, 64),
        ({}, 32),
        ({"averaging": {"parameters": 9, "parameter_bound": 63.9}}, 32),
        ({"averaging": {"parameters": 9, "parameter_bound": 64.0}}, 64),
        ({"max_sites": 255, "averaging": {"parameters": 9, "parameter_bound": 64.0}}, 32),
        ({"max_sites": 255, "averaging": {"parameters": 9, "buffers": 1}}, 64),
        ({"max_sites": 255, "masking": {"ring_bits": 64}}, 64),
    ],
)
def test_words_are_as_narrow_as_bounds_and_sites_allow(
    tmp_path: Path, changes: dict[str, Any], ring: int
) -> None:
    """2^14 over the sites that a run may have is where 32 bits end; one part of a sum that is beyond it decides."""
    agreed = agreement(tmp_path, **FEDPC | {"norm_bound": 10.0} | changes)
    assert (agreed.ring_bits, agreed.fixed_point().ring_bits) == (ring, ring)
    assert values_shape(agreed, 1).words == ((ring, agreed.layout.length),)
    again = Agreement.from_json(agreed.to_json(), source="written")
    assert (again.hash(), again.ring_bits) == (agreed.hash(), ring)


def test_small_bounds_fit_a_ring_of_32_bits(tmp_path: Path) -> None:
    small = {"parameters": 1000, "parameter_bound": 16.0}
    agreed = agreement(tmp_path, **FEDPC | {"averaging": small, "masking": {"ring_bits": 32}})
    assert min(agreed.fixed_point().fraction_bits) >= 16


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"protecton": "ckks"}, "did you mean 'protection'"),
        ({"method": "pfl"}, "did you mean 'pfpl'"),
        ({"pfpl": {"alhpa": 0.3}}, "did you mean 'alpha'"),
        ({"pfpl": {"alpha": 1.5}}, "pfpl.alpha"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": "3"}, "rounds"),
        ({"classes": ["a", "a"]}, "class 'a' is named more than once"),
        ({"classes": ["a"]}, "classes"),
        ({"min_holders": 2}, "allow_fewer_holders_reveals_peers"),
        ({"min_sites": 2}, "min_sites (2) is below min_holders (3)"),
        ({"federation": "Hospital Net"}, "federation"),
        ({"preprocessing": {"image_size": 8, "channels": 3, "mean": [0.5], "std": [0.5]}}, "3 channels"),
        ({"training": {"model": "small-cn"}}, "did you mean 'small-cnn'"),
        ({"training": {"lr": -1.0}}, "training.lr"),
        ({"training": {"optimiser": "adam", "momentum": 0.9}}, "training: momentum is a setting of SGD"),
        ({"feddbp": {"share": False, "decision": False}}, "feddbp: share and decision are both false"),
    ],
)
def test_a_wrong_agreement_is_refused_in_a_line_that_names_the_key(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    assert said in problem(tmp_path, **changes)


def test_few_holders_need_an_explicit_setting(tmp_path: Path) -> None:
    few = {"min_holders": 1, "min_sites": 2}
    assert agreement(tmp_path, **few, allow_fewer_holders_reveals_peers=True).min_holders == 1
    assert agreement(tmp_path, **few, protection="plain").min_holders == 1


def test_a_missing_file_and_broken_toml_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none") as missing:
        load_agreement(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("rounds = = 3", encoding="utf-8")
    with pytest.raises(ConfigError, match="broken") as broken:
        load_agreement(tmp_path / "broken.toml")
    assert all("\n" not in str(refused.value) for refused in (missing, broken))


# The hash


def test_the_hash_is_the_one_written_down(tmp_path: Path) -> None:
    assert agreement(tmp_path).hash().hex() == KNOWN_HASH


@pytest.mark.parametrize(
    "changes",
    [
        {"federation": "other"},
        {"run": "run-2"},
        {"protection": "plain"},
        {"rounds": 4},
        {"classes": ["b", "a"]},
        {"dim": 9},
        {"min_holders": 4, "min_sites": 4},
        {"min_sites": 4},
        {"max_sites": 300},
        {"norm_bound": 110.0},
        {"agreement_threshold": 2e-4},
        {"allow_fewer_holders_reveals_peers": True},
        {"preprocessing": AGREEMENT["preprocessing"] | {"mean": [0.4]}},
        {"pfpl": {"alpha": 0.4}},
        {"pfpl": {"lambda": 2.0}},
        {"pfpl": {"weighting": "uniform"}},
        {"pfpl": {"literal": True}},
        {"pfpl": {"literal": True, "lambda": 3.0}},
        {"training": {"init_seed": 1}},
        {"training": {"batch_size": 33}},
        {"training": {"optimiser": "sgd"}},
        {"fedpc": {"groups": 2}},
        {"fedpc": {"alignment": 0.25}},
        {"fedpc": {"predicts": "aggregated"}},
        {"feddbp": {"own": 0.5}},
        {"fedplcc": {"contrast": 2.0}},
        {"baselines": {"ditto": 0.2}},
        {"averaging": {"parameters": 1000}},
        {"averaging": {"most_samples": 10}},
        {"masking": {"ring_bits": 32}},
    ],
)
def test_every_setting_changes_the_hash(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert agreement(tmp_path, **changes).hash() != agreement(tmp_path).hash()


def test_writing_out_a_default_does_not_change_the_hash(tmp_path: Path) -> None:
    assert agreement(tmp_path, norm_bound=50.0).hash() == agreement(tmp_path).hash()
    again = Agreement.from_json(agreement(tmp_path).to_json(), source="test")
    assert again.hash() == agreement(tmp_path).hash()


# Simulations, experiments


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = write(tmp_path / "simulation.toml", {"rounds": 7, "sites": 4})
    config = load_simulation(path, {"rounds": 2, "seeds": None})
    assert (config.rounds, config.sites, config.seeds) == (2, 4, (0,))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"method": "feddpb"}, "did you mean 'feddbp'"),
        ({"protection": "mask"}, "unknown protection 'mask'"),
        ({"sites": 2}, "sites = 2 is below 3"),
        ({"compare": ("fedavgg",)}, "did you mean 'fedavg'"),
    ],
)
def test_a_wrong_simulation_is_refused(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_simulation(None, flags)


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").rglob("*.toml")), ids=lambda path: path.stem)
def test_the_experiments_load(path: Path) -> None:
    assert load_simulation(path, {}).rounds


def test_no_two_experiments_have_the_same_folder() -> None:
    folders = [load_simulation(path, {}).out for path in (ROOT / "experiments").rglob("*.toml")]
    assert len(folders) == len(set(folders)) > 15
