"""The sample configurations: each one loads, says what its comments say, and fits the others."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agreement import Agreement, ConfigError, Method, Protection, load_agreement
from agreement.toml_loading import Section, validate
from crypto.pki.issuing import CA_FILE, KEY_FILE
from privacy.accounting.events import DpSgd
from protoseal.reports.result_files import site_folder
from protoseal.simulation.config import SimulationConfig
from protoseal.splits import mixed
from secure_client.checkpoints.learner_factory import build_agreed_model
from secure_client.config import load_site
from secure_client.data.published import make_digit_domains
from secure_client.models.prototype_model import build_model
from secure_client.output.site_log import read_site_log
from secure_client.privacy.cost import planned_epsilon, training_event
from secure_client.training.averaged_parameters import AveragedPart
from secure_server.config import load_coordinator
from tests.deploy.walkthrough import ROOT, SITES
from tests.support.simulations import run_federation

SAMPLES = ROOT / "deploy" / "samples"
AGREEMENTS = sorted(path.name for path in SAMPLES.glob("agreement*.toml"))
COORDINATORS, SITE_FILES = (
    ("coordinator.toml", "service-coordinator.toml"),
    ("site.toml", "service-site.toml"),
)
PRIVATE, PRIVATE_SITE = "agreement-private.toml", "site-private.toml"
WITH_NOISE = (PRIVATE, "agreement-dpsgd.toml")
LOADERS: dict[str, Callable[[Path], object]] = {
    **dict.fromkeys(AGREEMENTS, load_agreement),
    **dict.fromkeys(COORDINATORS, load_coordinator),
    **dict.fromkeys((*SITE_FILES, PRIVATE_SITE), load_site),
}


def test_every_sample_is_loaded_by_a_test() -> None:
    assert {path.name for path in SAMPLES.iterdir()} == set(LOADERS)


@pytest.mark.parametrize("name", LOADERS)
def test_sample_configuration_loads(name: str) -> None:
    LOADERS[name](SAMPLES / name)


@pytest.mark.parametrize("name", LOADERS)
def test_a_setting_that_a_sample_comments_out_is_one_that_there_is(name: str, tmp_path: Path) -> None:
    shutil.copytree(SAMPLES, tmp_path, dirs_exist_ok=True)
    text = (SAMPLES / name).read_text(encoding="utf-8")
    enabled = re.sub(r"^# (\[\w+\]|\w+ = )", r"\1", text, flags=re.M)
    enabled = re.sub(r'"SHA-256 fingerprint of [^"]*"', f'"{"ab" * 32}"', enabled)
    (tmp_path / name).write_text(enabled, encoding="utf-8")
    LOADERS[name](tmp_path / name)

    (tmp_path / name).write_text(f"{enabled}\n[no-such-table]\nkey = 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="no-such-table"):
        LOADERS[name](tmp_path / name)


@pytest.mark.parametrize(
    ("name", "method", "protection"),
    [
        ("agreement.toml", Method.PFPL, Protection.CKKS),
        ("agreement-masked.toml", Method.PFPL, Protection.MASKED),
        ("agreement-private.toml", Method.FEDPC, Protection.MASKED),
        ("agreement-dpsgd.toml", Method.PFPL, Protection.CKKS),
        ("agreement-fedpc.toml", Method.FEDPC, Protection.MASKED),
        ("agreement-feddbp.toml", Method.FEDDBP, Protection.MASKED),
        ("agreement-fedplcc.toml", Method.FEDPLCC, Protection.MASKED),
    ],
)
def test_an_agreement_is_what_the_walk_through_says(
    name: str, method: Method, protection: Protection
) -> None:
    agreed = load_agreement(SAMPLES / name)
    assert (agreed.method, agreed.protection) == (method, protection)
    assert agreed.min_holders >= 3


def settings_of(table: Mapping[str, Any], *above: str) -> Iterator[tuple[str, ...]]:
    """Yield the path of each setting in a table and its sections."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from settings_of(value, *above, key)
        else:
            yield (*above, key)


def without(table: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return the table without one of its settings."""
    rest = dict(table)
    if path[1:]:
        rest[path[0]] = without(table[path[0]], path[1:])
    else:
        del rest[path[0]]
    return rest


def judged(model: type[Section], table: dict[str, Any]) -> tuple[set[str], set[str]]:
    """Return the settings that equal their default, and those that differ from it; required ones have none."""
    whole = validate(model, table, source="sample", directory=SAMPLES)
    equal: set[str] = set()
    differing: set[str] = set()
    for path in settings_of(table):
        try:
            default = validate(model, without(table, path), source="sample", directory=SAMPLES)
        except ConfigError:
            continue
        (equal if default == whole else differing).add(".".join(path))
    return equal, differing


def lines_of(text: str) -> dict[str, str]:
    """Return the line that sets each setting."""
    lines: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        if heading := re.match(r"\[([\w.]+)\]", line):
            section = f"{heading[1]}."
        elif key := re.match(r"(\w+) = ", line):
            lines[section + key[1]] = line
    return lines


TUTORIALS = ("first-private-run.md", "tables.md")
SHOWN = {"min_holders", "min_sites", "privacy.extractor"}
"""Settings that a reader of an agreement must see, whatever the default: they say who is protected from whom."""
DIFFERING = {
    "agreement-dpsgd.toml": {
        *(f"training.{name}" for name in ("lr", "momentum", "batch_size", "local_epochs", "norm")),
        "privacy.release_every",
    },
    "agreement-masked.toml": {"pfpl.weighting"},
    PRIVATE: {"training.model", "training.norm"},
    "first-private-run.md": {
        *("method", "protection", "dataset", "rounds", "compare"),
        *("training.model", "training.norm"),
    },
    "tables.md": {
        *("method", "protection", "dataset", "rounds", "compare", "classes", "dim"),
        *("training.model", "training.local_epochs"),
    },
}
"""Settings whose default would be another value, by file; the reason stands beside each."""


def text_of(name: str) -> str:
    """Return the text of a sample, or of the configuration that a tutorial writes."""
    if name in AGREEMENTS:
        return (SAMPLES / name).read_text(encoding="utf-8")
    page = (ROOT / "docs" / "tutorials" / name).read_text(encoding="utf-8")
    return page.partition(".toml <<'END'\n")[2].partition("\nEND\n")[0]


@pytest.mark.parametrize("name", [*AGREEMENTS, *TUTORIALS])
def test_a_sample_sets_only_what_its_default_would_not_serve_and_says_why(name: str) -> None:
    text = text_of(name)
    equal, differing = judged(Agreement if name in AGREEMENTS else SimulationConfig, tomllib.loads(text))
    assert equal <= SHOWN
    assert differing == DIFFERING.get(name, set())
    assert all("#" in line for setting, line in lines_of(text).items() if setting in differing)


def test_agreements_are_of_one_federation_and_of_different_runs() -> None:
    agreements = [load_agreement(SAMPLES / name) for name in AGREEMENTS]
    assert len({each.run for each in agreements}) == len(agreements) == 7
    assert len({(each.federation, each.classes, each.dim, each.preprocessing) for each in agreements}) == 1


@pytest.mark.parametrize("name", ["agreement-fedpc.toml", PRIVATE])
def test_fedpc_averages_what_its_model_has(name: str) -> None:
    agreed = load_agreement(SAMPLES / name)
    averaged = AveragedPart(build_agreed_model(agreed, agreed.training.model), agreed.method.traits.averaged)
    assert (agreed.averaging.parameters, agreed.averaging.buffers) == averaged.sizes


def test_fedplcc_averages_a_whole_model() -> None:
    agreed = load_agreement(SAMPLES / "agreement-fedplcc.toml")
    assert agreed.training.model == "small-cnn"
    assert agreed.preprocessing is not None
    shape = agreed.preprocessing
    model = build_model(
        "small-cnn",
        classes=len(agreed.classes),
        dim=agreed.dim,
        channels=shape.channels,
        image_size=shape.image_size,
        seed=0,
    )
    assert agreed.averaging.parameters == sum(each.numel() for each in model.parameters())
    assert agreed.averaging.buffers == sum(each.numel() for each in model.buffers()) == 0


@pytest.mark.full
def test_fedpc_sample_learns_from_the_walkthroughs_scans(tmp_path: Path) -> None:
    agreed = load_agreement(SAMPLES / "agreement-fedpc.toml")
    sites = mixed(make_digit_domains(seed=0), sites=3, n=9, max_per_class=25, seed=0)
    run_federation(agreed, {site.name: site.to_data(agreed.preprocessing) for site in sites}, tmp_path)
    for site in sites:
        log = read_site_log(site_folder(tmp_path, site.name))
        assert [each.round for each in log.rounds] == list(range(1, agreed.rounds + 1))
        assert log.rounds[-1].accuracy_classifier is not None
        assert log.rounds[-1].accuracy_classifier > 0.6  # of ten digits, so 0.1 is chance


SERVING = [
    (coordinator, site, name)
    for coordinator, site in zip(COORDINATORS, SITE_FILES, strict=True)
    for name in AGREEMENTS
    if name not in WITH_NOISE
] + [(coordinator, PRIVATE_SITE, name) for coordinator in COORDINATORS[:1] for name in WITH_NOISE]


@pytest.mark.parametrize(("coordinator_file", "site_file", "name"), SERVING)
def test_the_parties_files_serve_every_agreement_and_each_other(
    tmp_path: Path, name: str, coordinator_file: str, site_file: str
) -> None:
    shutil.copytree(SAMPLES, tmp_path, dirs_exist_ok=True)
    for file in ("agreement.toml", PRIVATE):
        shutil.copy(SAMPLES / name, tmp_path / file)
    coordinator, site = load_coordinator(tmp_path / coordinator_file), load_site(tmp_path / site_file)
    assert coordinator.agreement.hash() == site.agreement.hash() == load_agreement(SAMPLES / name).hash()
    assert set(coordinator.sites) == set(SITES)
    assert site.name in coordinator.sites
    assert site.coordinator.rpartition(":")[2] == coordinator.listen.rpartition(":")[2]


@pytest.mark.parametrize("name", SITE_FILES)
def test_a_site_without_a_budget_refuses_to_release(tmp_path: Path, name: str) -> None:
    shutil.copytree(SAMPLES, tmp_path, dirs_exist_ok=True)
    shutil.copy(SAMPLES / PRIVATE, tmp_path / "agreement.toml")
    with pytest.raises(ConfigError, match=r"\[privacy\]"):
        load_site(tmp_path / name)


@pytest.mark.parametrize("name", [*COORDINATORS, *SITE_FILES, PRIVATE_SITE])
def test_files_are_called_what_the_pki_commands_call_them(name: str) -> None:
    party = LOADERS[name](SAMPLES / name)
    assert Path(vars(party)["ca"]).name == CA_FILE
    assert Path(vars(party)["key"]).name == KEY_FILE
    assert Path(vars(party)["certificate"]).name == "certificate.pem"


@pytest.mark.parametrize("name", WITH_NOISE)
def test_private_sample_budget_has_room_for_the_run(tmp_path: Path, name: str) -> None:
    shutil.copytree(SAMPLES, tmp_path, dirs_exist_ok=True)
    shutil.copy(SAMPLES / name, tmp_path / PRIVATE)
    site = load_site(tmp_path / PRIVATE_SITE)
    assert site.privacy is not None
    assert site.agreement.privacy is not None
    planned = planned_epsilon(site.agreement, site.agreement.privacy, site.privacy.delta)
    assert planned <= site.privacy.epsilon


def test_the_sample_that_trains_by_dp_sgd_has_the_steps_that_it_says() -> None:
    agreed = load_agreement(SAMPLES / "agreement-dpsgd.toml")
    assert agreed.privacy is not None
    training = training_event(agreed, agreed.privacy)
    assert training == DpSgd(2.5, 0.1, 20)
    assert (agreed.rounds, agreed.releases) == (10, 2)
