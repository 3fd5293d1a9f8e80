"""Problems of a compose file for a coordinator and sites that must not reach each other."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import click
import yaml

from protoseal.commands.passphrase_input import CREDENTIAL, CREDENTIALS
from secure_client.config import SiteConfig
from secure_server.config import CoordinatorConfig
from tests.deploy.commands import parse_command
from tests.deploy.dockerfile import context_path
from tests.deploy.walkthrough import ROOT

Service = Mapping[str, Any]
COORDINATOR = "coordinator"
_FILES = 65_536
_OPENINGS = {
    "expose",
    "privileged",
    "network_mode",
    "pid",
    "ipc",
    "devices",
    "cap_add",
    "links",
    "extra_hosts",
}


class Mount(NamedTuple):
    """A line of ``volumes``, its variables replaced by their defaults."""

    source: str
    target: PurePosixPath
    read_only: bool


def read_compose() -> dict[str, Any]:
    """deploy/compose.yaml, its merges resolved; a new copy each time."""
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


def compose_problems(file: Mapping[str, Any], coordinator: CoordinatorConfig, site: SiteConfig) -> list[str]:
    """Return all problems, with each service's name; ``coordinator`` and ``site`` are the samples for services."""
    services = file["services"]
    if set(services) != {COORDINATOR, *coordinator.sites}:
        return [f"services {sorted(services)} are not the coordinator and {sorted(coordinator.sites)}"]
    found = [
        f"{name}: {what}"
        for name, service in services.items()
        for what in _service_problems(file, name, service)
    ]
    for name in coordinator.sites:
        found += [f"{name}: {what}" for what in _site_problems(services[name], _of_site(site, name))]
    server = services[COORDINATOR]
    found += [f"{COORDINATOR}: {what}" for what in _path_problems(server, written=[coordinator.state_dir])]
    port = coordinator.listen.rpartition(":")[2]
    if server.get("ports") != [f"{port}:{port}"]:
        found.append(f"{COORDINATOR}: publishes {server.get('ports')}, and listens on {port}")
    if server.get("ulimits", {}).get("nofile", {}).get("hard", 0) < _FILES:
        found.append(f"{COORDINATOR}: has few files for connections")
    return [*found, *_network_problems(file, coordinator.sites, site.coordinator.rpartition(":")[0])]


def _of_site(sample: SiteConfig, name: str) -> tuple[list[Path], Path]:
    """Return the folders in which the site of that name writes, and the path of its data."""
    data = sample.data.partition(":")[2]
    written = [Path(str(path).replace(sample.name, name)) for path in (sample.state_dir, sample.out)]
    return written, Path(data.replace(sample.name, name))


def _service_problems(file: Mapping[str, Any], name: str, service: Service) -> Iterator[str]:
    yield from _hardening_problems(service)
    yield from _image_problems(name, service)
    yield from _secret_problems(file, name, service)
    for key in sorted(_OPENINGS & set(service)):
        yield f"has {key}"
    try:
        config = PurePosixPath(str(parse_command(service["command"])["config"]))
    except click.ClickException as error:
        yield f"starts what is no command: {error.message}"
        return
    if config.parent != PurePosixPath("/etc/protoseal") / name or not _mounted(
        service, config, read_only=True
    ):
        yield f"its configuration {config} is not in a folder that is mounted read-only"
    volumes = [mount.source for mount in mounts(service) if "/" not in mount.source]
    shared = [other for other, each in file["services"].items() if other != name and _uses(each, volumes)]
    if shared or not set(volumes) <= set(file["volumes"]):
        yield f"its volumes {volumes} are shared with {shared}, or not declared"


def _hardening_problems(service: Service) -> Iterator[str]:
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", str(service.get("user"))):
        yield f"may run as root: user {service.get('user')}"
    if service.get("read_only") is not True or service.get("tmpfs") != ["/tmp"]:  # noqa: S108  # the container's own
        yield "its root can be written, or it has no /tmp"
    if service.get("cap_drop") != ["ALL"] or service.get("security_opt") != ["no-new-privileges:true"]:
        yield "keeps privileges"
    if service.get("ulimits", {}).get("core") != 0:
        yield "may leave a core"
    if not str(service.get("restart")).startswith("on-failure:") or service.get("init") is not True:
        yield "is not started again after a failure, or does not hear signals"


def _image_problems(name: str, service: Service) -> Iterator[str]:
    kind, build = ("coordinator" if name == COORDINATOR else "site"), service["build"]
    if context_path(build["context"]) != ROOT or build["dockerfile"] != f"deploy/docker/{kind}.Dockerfile":
        yield f"is built from {build}"
    if service["image"].rpartition(":")[0] != f"protoseal-{kind}" or service["image"].endswith("latest"):
        yield f"has image {service['image']}"


def _secret_problems(file: Mapping[str, Any], name: str, service: Service) -> Iterator[str]:
    if service.get("secrets") != [{"source": f"{name}-passphrase", "target": CREDENTIAL}]:
        yield f"its secrets are {service.get('secrets')}"
    declared = file["secrets"].get(f"{name}-passphrase", {}).get("file", "")
    if default(declared) != f"/etc/protoseal/secrets/{name}":
        yield f"its passphrase is {declared!r}"
    if service.get("environment") != {CREDENTIALS: "/run/secrets"}:
        yield f"its environment is {service.get('environment')}"


def _site_problems(service: Service, paths: tuple[list[Path], Path]) -> Iterator[str]:
    written, data = paths
    if "ports" in service:
        yield f"publishes ports {service['ports']}"
    if len(service["networks"]) != 1:
        yield f"is in networks {service['networks']}"
    yield from _path_problems(service, written)
    if not _mounted(service, PurePosixPath(data), read_only=True):
        yield f"its data {data} are not mounted read-only"


def _path_problems(service: Service, written: Sequence[Path]) -> list[str]:
    return [
        f"writes to {path}, where no volume is mounted"
        for path in written
        if not _mounted(service, PurePosixPath(path), read_only=False)
    ]


def _network_problems(file: Mapping[str, Any], sites: Sequence[str], host: str) -> list[str]:
    networks = {name: set(file["services"][name]["networks"]) for name in sites}
    server = file["services"][COORDINATOR]["networks"]
    shared = [(a, b) for a in sites for b in sites if a < b and networks[a] & networks[b]]
    unreachable = [name for name in sites if not networks[name] <= set(server)]
    unnamed = [network for network, options in server.items() if options != {"aliases": [host]}]
    undeclared = sorted(set().union(*networks.values(), server) - set(file["networks"]))
    return [
        *(f"{a} can reach {b}" for a, b in shared),
        *(f"{name} cannot reach the coordinator" for name in unreachable),
        *(f"in {network} the coordinator is not {host}" for network in unnamed),
        *(f"network {network} is not declared" for network in undeclared),
    ]


def mounts(service: Service) -> list[Mount]:
    """Return the service's mounts."""
    parts = [default(line).split(":") for line in service["volumes"]]
    return [Mount(part[0], PurePosixPath(part[1]), part[2:] == ["ro"]) for part in parts]


def default(text: str) -> str:
    """Return the text with the default of each ``${VARIABLE:-default}``."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def _mounted(service: Service, path: PurePosixPath, *, read_only: bool) -> bool:
    return any(
        mount.read_only is read_only and path.is_relative_to(mount.target) for mount in mounts(service)
    )


def _uses(service: Service, volumes: Sequence[str]) -> bool:
    return any(mount.source in volumes for mount in mounts(service))
