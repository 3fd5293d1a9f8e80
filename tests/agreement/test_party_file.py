"""The coordinator's file and a site's: their agreement, their paths, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agreement import ConfigError
from secure_client.config import load_site
from tests.support.config_files import AGREEMENT, COORDINATOR, FEDPC, SITE, load_party, toml, write


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    return write(tmp_path / "agreement.toml", AGREEMENT).parent


def test_paths_are_taken_from_the_file_that_names_them(agreed: Path) -> None:
    site = load_party(agreed, SITE, data="npz:d.npz+folder:f")
    assert site.ca == agreed / "ca.pem"
    assert site.data == f"npz:{agreed}/d.npz+folder:{agreed}/f"


def test_the_agreement_may_stand_in_the_file_itself(tmp_path: Path) -> None:
    inline = (
        "{" + ", ".join(f"{k} = {json.dumps(v)}" for k, v in AGREEMENT.items() if k != "preprocessing") + "}"
    )
    own = inline.removesuffix("}") + ', training = { model = "mine:build" } }'
    path = tmp_path / "site.toml"
    path.write_text(f"agreement = {own}\n{toml(SITE)}", encoding="utf-8")
    assert load_site(path).agreement.run == "run-1"


def test_a_site_refuses_an_agreement_with_fewer_holders_than_it_insists_on(agreed: Path) -> None:
    assert load_party(agreed, SITE, min_holders=3).min_holders == 3
    with pytest.raises(ConfigError, match="min_holders"):
        load_party(agreed, SITE, min_holders=4)


@pytest.mark.parametrize("protection", ["plain", "masked"])
def test_site_file_without_min_holders_agreement_of_two_is_refused(tmp_path: Path, protection: str) -> None:
    few = {"min_holders": 2, "min_sites": 2, "allow_fewer_holders_reveals_peers": True}
    write(tmp_path / "agreement.toml", {**AGREEMENT, **few, "protection": protection})
    with pytest.raises(ConfigError, match="min_holders"):
        load_party(tmp_path, SITE)
    assert load_party(tmp_path, SITE, min_holders=2).agreement.min_holders == 2


def test_a_site_may_insist_on_more_sites_in_a_round(agreed: Path) -> None:
    assert load_party(agreed, SITE, min_sites=5).required_sites == 5
    assert load_party(agreed, SITE, min_sites=2).required_sites == 3


@pytest.mark.parametrize(
    ("base", "changes", "said"),
    [
        (SITE, {"coordinator": "localhost"}, "is not of the form host:port"),
        *(
            (SITE, {"coordinator": host}, said)
            for host, said in {
                "localhost:84430": "65535",
                "klinik-münchen.example:8443": "xn--klinik-mnchen-3ob.example:8443",
                "::1:8443": "[::1]:8443",
                "https://localhost:8443": "'localhost:8443'",
                "local host:8443": "local host",
                ":8443": "host:port",
                "localhost:": "host:port",
                "localhost:٣": "host:port",
            }.items()
        ),
        (SITE, {"device": "gpu"}, "device: 'gpu'"),
        (SITE, {"pins": "abc"}, "pins: has to be a table"),
        (SITE, {"privacy": "abc"}, "privacy: has to be a table"),
        (SITE, {"pins": {"log_level": "debug"}}, "above the first [table]"),
        (SITE, {"pins": {"out": "out"}}, "above the first [table]"),
        (SITE, {"class_names": {"log_level": "debug"}}, "above the first [table]"),
        (SITE, {"class_names": {"min_sites": 3}}, "above the first [table]"),
        (SITE, {"table": {"log_level": "debug"}}, "above the first [table]"),
        (SITE, {"epsilon": 1.0}, "of [privacy]"),
        (COORDINATOR, {"deadlines": {"workers": 1}}, "above the first [table]"),
        (COORDINATOR, {"train": 3.0}, "of [deadlines]"),
        (SITE, {"nmae": "x"}, "did you mean 'name'"),
        (SITE, {"pins": {"south": "abc"}}, "the pin of 'south' is not a SHA-256 fingerprint"),
        (COORDINATOR, {"sites": ["north", "south"]}, "2 listed, but the agreement's min_sites is 3"),
        (COORDINATOR, {"sites": ["north", "north", "south"]}, "'north' is listed more than once"),
        (COORDINATOR, {"deadlines": {"tran": 3.0}}, "did you mean 'train'"),
        (COORDINATOR, {"sites": [f"site-{n}" for n in range(300)]}, "the agreement's max_sites is 256"),
        (COORDINATOR, {"max_attempts": 0}, "max_attempts"),
        (COORDINATOR, {"deadlines": {"train": 3600.0}}, "deadlines.train"),
        (COORDINATOR, {"deadlines": {"values": 300.0}}, "deadlines.values"),
        (COORDINATOR, {"deadlines": {"result": 20.0}}, "deadlines.result"),
    ],
)
def test_a_wrong_party_file_is_refused_in_a_line(
    agreed: Path, base: dict[str, Any], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_party(agreed, base, **changes)
    (line,) = str(refused.value).splitlines()
    assert said in line


def test_a_class_by_the_name_of_a_key_is_no_misplaced_key(agreed: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_party(agreed, SITE, class_names={"out": "a"}, device="gpu")
    assert "class_names" not in str(refused.value)
    assert "[table]" not in str(refused.value)


def test_a_method_of_simulations_is_refused_at_once(tmp_path: Path) -> None:
    write(tmp_path / "agreement.toml", {**AGREEMENT, "method": "fedavg", "protection": "masked"})
    with pytest.raises(ConfigError, match="simulate"):
        load_party(tmp_path, COORDINATOR)


@pytest.mark.parametrize(
    "changes",
    [
        {"protection": "plain"},
        {"timing": {"answers_show_duration": True}},
        {"timing": {"training_deadline": 1.0, "answer_deadline": 1.0}},
    ],
)
def test_coordinator_need_not_wait_for_longer_than_sites_hold_their_answers(
    agreed: Path, changes: dict[str, Any]
) -> None:
    write(agreed / "agreement.toml", AGREEMENT | changes)
    short = dict.fromkeys(("train", "values", "result"), 20.0)
    assert load_party(agreed, COORDINATOR, deadlines=short).deadlines.result == 20.0


def test_a_threshold_that_so_many_sites_cannot_keep_is_refused(tmp_path: Path) -> None:
    """The threshold matters to PFPL alone, among the methods that are computed on ciphertexts."""
    sites = [f"site-{n}" for n in range(60)]
    for changes in ({}, FEDPC | {"protection": "ckks"}):
        write(tmp_path / "agreement.toml", AGREEMENT | {"agreement_threshold": 1e-6} | changes)
        if changes:
            assert len(load_party(tmp_path, COORDINATOR, sites=sites).sites) == 60
        else:
            with pytest.raises(ConfigError, match="1e-06"):
                load_party(tmp_path, COORDINATOR, sites=sites)


def test_more_sites_than_pfpl_on_ciphertexts_serves_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "agreement.toml", AGREEMENT | {"max_sites": 300})
    with pytest.raises(ConfigError, match="256"):
        load_party(tmp_path, COORDINATOR, sites=[f"site-{n}" for n in range(300)])
