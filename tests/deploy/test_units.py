"""The systemd units, read by a small parser: what they start, what they may do, and whether the samples fit them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath

import click
import pytest

from protoseal.commands.passphrase_input import CREDENTIAL
from secure_client.config import load_site
from secure_server.config import load_coordinator
from tests.deploy.commands import parse_command
from tests.deploy.test_samples import SAMPLES
from tests.deploy.walkthrough import ROOT

FOLDER = ROOT / "deploy" / "systemd"
UNITS = {"protoseal-coordinator.service": "coordinator", "protoseal-site@.service": "north"}
"""Each with the party that it is for, the instance of the template."""
HARDENED = {
    **dict.fromkeys(
        ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "PrivateDevices", "RestrictNamespaces"), "yes"
    ),
    **dict.fromkeys(("ProtectKernelTunables", "ProtectKernelModules", "ProtectControlGroups"), "yes"),
    **dict.fromkeys(("RestrictSUIDSGID", "RestrictRealtime", "LockPersonality", "ProtectKernelLogs"), "yes"),
    "ProtectSystem": "strict",
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "SystemCallFilter": "@system-service",
    "SystemCallArchitectures": "native",
    "LimitCORE": "0",
    "UMask": "0077",
    "StateDirectoryMode": "0700",
}
FILES = 65_536
Unit = Mapping[str, Mapping[str, str]]


def read_unit(text: str, instance: str) -> Unit:
    """Sections and their settings, ``%i`` replaced; ``ValueError`` for a setting that is given twice."""
    sections: dict[str, dict[str, str]] = {}
    for line in text.replace("%i", instance).splitlines():
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            if key in section:
                raise ValueError(f"{key} is given twice")
            section[key] = value
    return sections


def unit_problems(unit: Unit, party: str) -> list[str]:
    """Return the problems of a party's unit, whose files are the samples for services."""
    service = unit["Service"]
    few_files = party == "coordinator" and int(service.get("LimitNOFILE", 0)) < FILES
    return [
        *(f"{key} is not {value!r}" for key, value in HARDENED.items() if service.get(key) != value),
        *(["has few files for connections"] if few_files else []),
        *_start_problems(service, party),
        *_secret_problems(service, party),
        *_state_problems(service, party),
        *_restart_problems(unit),
    ]


def _start_problems(service: Mapping[str, str], party: str) -> list[str]:
    program, *arguments = shlex.split(service["ExecStart"])
    folder = PurePosixPath("/etc/protoseal") / party
    try:
        config = PurePosixPath(str(parse_command(arguments)["config"]))
    except click.ClickException as error:
        return [f"starts what is no command: {error.message}"]
    right = program == "/opt/protoseal/bin/protoseal" and config.parent == folder
    inside = service["WorkingDirectory"] == str(folder)
    return [] if right and inside else [f"starts {service['ExecStart']} in {service['WorkingDirectory']}"]


def _secret_problems(service: Mapping[str, str], party: str) -> list[str]:
    root = service.get("User", "root") in ("root", "0")
    wanted = f"{CREDENTIAL}:/etc/protoseal/secrets/{party}"
    return [
        *(["runs as root"] if root else []),
        *([] if service.get("LoadCredential") == wanted else ["is not given its passphrase as a credential"]),
        *(["has a secret in its environment"] if "PASSPHRASE" in service.get("Environment", "") else []),
    ]


def _state_problems(service: Mapping[str, str], party: str) -> list[str]:
    state = PurePosixPath("/var/lib") / service.get("StateDirectory", "none")
    if party == "coordinator":
        written = [load_coordinator(SAMPLES / "service-coordinator.toml").state_dir]
    else:
        site = load_site(SAMPLES / "service-site.toml")
        written = [site.state_dir, site.out]
    return [f"may not write to {path}" for path in written if not PurePosixPath(path).is_relative_to(state)]


def _restart_problems(unit: Unit) -> list[str]:
    service, limits = unit["Service"], unit["Unit"]
    bounded = int(limits.get("StartLimitBurst", 0)) > 0 and limits.get("StartLimitIntervalSec") == "1h"
    fair = service.get("Restart") == "on-failure" and int(service.get("RestartSec", 0)) >= 10
    return [] if bounded and fair else ["is not started again after a failure, or without limit"]


def text_of(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def test_there_is_a_unit_for_each_kind_of_party() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(UNITS)


@pytest.mark.parametrize("name", UNITS)
def test_systemd_unit_is_in_order(name: str) -> None:
    assert unit_problems(read_unit(text_of(name), UNITS[name]), UNITS[name]) == []


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("NoNewPrivileges=yes", "NoNewPrivileges=no"), "NoNewPrivileges is not 'yes'"),
        (("ProtectSystem=strict", "ProtectSystem=full"), "ProtectSystem is not 'strict'"),
        (("User=protoseal", "User=root"), "runs as root"),
        (("User=protoseal\n", ""), "runs as root"),
        (("LoadCredential=passphrase:", "LoadCredential=password:"), "is not given its passphrase"),
        (("Environment=", "Environment=PROTOSEAL_KEY_PASSPHRASE=open "), "has a secret in its environment"),
        (("StateDirectory=protoseal/", "StateDirectory=protoseal-"), "may not write to /var/lib/protoseal/"),
        ((" run --config", " rum --config"), "No such command 'rum'"),
        (("--config", "--konfig"), "No such option"),
        (("/opt/protoseal/bin/protoseal", "/usr/bin/protoseal"), "starts /usr/bin/protoseal"),
        (("Restart=on-failure", "Restart=no"), "is not started again"),
        (("StartLimitBurst=10", "StartLimitBurst=0"), "without limit"),
        (("RestartSec=30", "RestartSec=0"), "without limit"),
    ],
)
def test_systemd_unit_checks_report_a_bad_unit(name: str, change: tuple[str, str], said: str) -> None:
    weak = text_of(name).replace(*change)
    assert weak != text_of(name)
    found = unit_problems(read_unit(weak, UNITS[name]), UNITS[name])
    assert any(said in problem for problem in found), found


def test_a_coordinator_of_few_files_is_found_out() -> None:
    weak = read_unit(text_of("protoseal-coordinator.service").replace("LimitNOFILE=65536\n", ""), "")
    assert unit_problems(weak, "coordinator") == ["has few files for connections"]


def test_a_setting_given_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="User"):
        read_unit("[Service]\nUser=a\nUser=root\n", "north")


def test_the_coordinators_settings_and_a_sites_differ_where_they_must_and_nowhere_else() -> None:
    ours, theirs = (read_unit(text_of(name), party)["Service"] for name, party in UNITS.items())
    differing = {key for key in set(ours) | set(theirs) if ours.get(key) != theirs.get(key)}
    paths = {"WorkingDirectory", "ExecStart", "LoadCredential", "StateDirectory", "Environment"}
    assert differing == paths | {"MemoryDenyWriteExecute", "LimitNOFILE", "RestartPreventExitStatus"}
