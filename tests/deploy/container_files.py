"""Dockerfiles and compose files: what they say, and what is wrong with the containers that they describe."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import click
import yaml

from protoseal.commands.passphrase_input import CREDENTIAL, CREDENTIALS
from secure_client.config import SiteConfig
from secure_server.config import CoordinatorConfig
from tests.deploy.commands import parse_command
from tests.deploy.walkthrough import ROOT

BUILD_NEEDS = {"pyproject.toml", "README.md", "LICENSE"}
"""Files that pip reads besides the packages."""
_SECRETS = re.compile(r"passphrase|password|passwd|token|secret|\.pem|private", re.I)


class Instruction(NamedTuple):
    """``COPY``, say, and the rest of its logical line."""

    name: str
    text: str


def read_dockerfile(text: str) -> list[Instruction]:
    """Return the instructions, continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    pairs = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [Instruction(name.upper(), rest) for name, rest in pairs]


def image_problems(text: str, extra: str) -> list[str]:
    """Return the problems of a Dockerfile that should install the project with ``extra`` (``[site]``, or nothing)."""
    instructions = read_dockerfile(text)
    copied = context_sources(instructions)
    return [
        *_base_problems(instructions),
        *(f"copies {each}, which does not exist" for each in copied if not (ROOT / each).exists()),
        *(f"copies {each}, which .dockerignore leaves out" for each in copied if is_ignored(each)),
        *(f"does not copy {each}" for each in sorted(_needed() - set(copied))),
        *_install_problems(instructions, extra),
        *_user_problems(instructions),
        *_start_problems(instructions),
        *(f"holds a secret: {each.text}" for each in instructions if _is_secret(each)),
        *(
            f"{each.name} is not to be used"
            for each in instructions
            if each.name in ("ADD", "VOLUME", "HEALTHCHECK")
        ),
        *(["names a host"] if "://" in "".join(each.text for each in instructions) else []),
    ]


def context_sources(instructions: Sequence[Instruction]) -> list[str]:
    """Return the paths that COPY takes from the build context."""
    words = [each.text.split() for each in instructions if each.name == "COPY"]
    return [source for each in words if not each[0].startswith("--from") for source in each[:-1]]


def is_ignored(path: str, ignore: str | None = None) -> bool:
    """Return True if ``.dockerignore`` excludes the path: the last pattern that matches decides."""
    ignored = False
    for excludes, pattern in _patterns(ignore):
        if excludes != ignored and any(pattern.fullmatch(each) for each in _ancestry(path)):
            ignored = excludes
    return ignored


def build_context() -> set[str]:
    """Return every file that ``.dockerignore`` lets into a build, relative to the project's root.

    A folder that is left out is not entered, as in Docker's older builder and in Buildah; a pattern that would take
    a file out of it again does so in BuildKit alone.
    """
    waiting, found = sorted(ROOT.iterdir()), set[str]()
    while waiting:
        path = waiting.pop()
        name = path.relative_to(ROOT).as_posix()
        if not is_ignored(name):
            waiting += path.iterdir() if path.is_dir() else ()
            found |= {name} if path.is_file() else set()
    return found


def _patterns(ignore: str | None) -> list[tuple[bool, re.Pattern[str]]]:
    """Return for each line, in order, whether it excludes, and the paths that it matches."""
    text = (ROOT / ".dockerignore").read_text(encoding="utf-8") if ignore is None else ignore
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(not line.startswith("!"), _expression(line.removeprefix("!").strip("/"))) for line in lines]


def _expression(pattern: str) -> re.Pattern[str]:
    """Translate a pattern as Docker does: ``**/`` is any folders or none, ``*`` and ``?`` stay within a name."""
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern)
    return re.compile("".join(wild.get(part, re.escape(part)) for part in parts))


def _ancestry(path: str) -> list[str]:
    """Return the path and every folder above it, which a pattern matches as well."""
    parts = path.split("/")
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _needed() -> set[str]:
    """Return the source roots and packages of pyproject.toml, and what pip reads."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = {
        name.removesuffix("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]
    }
    return {name for name in packages if (ROOT / name).is_dir()} | {"proto"} | BUILD_NEEDS


def _base_problems(instructions: Sequence[Instruction]) -> list[str]:
    defaults = dict(
        each.text.split("=", 1) for each in instructions if each.name == "ARG" and "=" in each.text
    )
    images = [each.text.split()[0] for each in instructions if each.name == "FROM"]
    resolved = [re.sub(r"\$\{(\w+)\}", lambda name: defaults.get(name[1], ""), image) for image in images]
    return [
        *(
            f"base image {each!r} is not pinned"
            for each in resolved
            if not re.search(r":\d+\.\d+\.\d+-slim-\w+$", each)
        ),
        *([] if len(set(resolved)) == 1 else [f"stages of different bases: {resolved}"]),
    ]


def _install_problems(instructions: Sequence[Instruction], extra: str) -> list[str]:
    installs = [each.text for each in instructions if each.name == "RUN" and "pip install" in each.text]
    wanted = f"'.{extra}'" if extra else "."
    if len(installs) != 1 or installs[0].split()[-1] != wanted:
        return [f"does not install exactly {wanted}: {installs}"]
    return (
        ["installs with options that change where from"] if re.search(r"index|--trusted", installs[0]) else []
    )


def _user_problems(instructions: Sequence[Instruction]) -> list[str]:
    users = [each.text for each in instructions[_last_stage(instructions) :] if each.name == "USER"]
    numeric = [re.fullmatch(r"([1-9]\d*):[1-9]\d*", user) for user in users]
    return [] if users and all(numeric) else [f"may run as root: USER {users}"]


def _last_stage(instructions: Sequence[Instruction]) -> int:
    return max(index for index, each in enumerate(instructions) if each.name == "FROM")


def _start_problems(instructions: Sequence[Instruction]) -> list[str]:
    last = {each.name: each.text for each in instructions}
    entry, arguments = json.loads(last["ENTRYPOINT"]), json.loads(last["CMD"])
    try:
        parse_command(arguments)
    except click.ClickException as error:
        return [f"starts what is no command: {error.message}"]
    return [] if entry == ["protoseal"] else [f"starts {entry}"]


def _is_secret(instruction: Instruction) -> bool:
    return instruction.name in ("ENV", "ARG", "COPY", "LABEL") and bool(_SECRETS.search(instruction.text))


def dockerfile(name: str) -> str:
    """Return the text of one of the project's."""
    return (ROOT / "deploy" / "docker" / f"{name}.Dockerfile").read_text(encoding="utf-8")


def context_path(relative: str) -> Path:
    """Return the path that compose reads: paths in its file are relative to the file's folder."""
    return (ROOT / "deploy" / relative).resolve()


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
