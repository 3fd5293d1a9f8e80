"""Images and compose file, parsed: no container engine is needed, and none of this shows that an image builds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from secure_client.config import load_site
from secure_server.config import load_coordinator
from tests.deploy.container_files import (
    compose_problems,
    context_sources,
    dockerfile,
    image_problems,
    is_ignored,
    read_compose,
    read_dockerfile,
)
from tests.deploy.test_samples import SAMPLES

EXTRAS = {"coordinator": "", "site": "[site]"}


def problems_of(file: dict[str, Any]) -> list[str]:
    coordinator = load_coordinator(SAMPLES / "service-coordinator.toml")
    return compose_problems(file, coordinator, load_site(SAMPLES / "service-site.toml"))


# Images


@pytest.mark.parametrize("image", EXTRAS)
def test_dockerfile_image_is_in_order(image: str) -> None:
    assert image_problems(dockerfile(image), EXTRAS[image]) == []


@pytest.mark.parametrize("image", EXTRAS)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("USER 10001:10001\n", ""), "may run as root"),
        (("USER 10001:10001", "USER 10001:10001\nUSER root"), "may run as root"),
        (("3.12.12-slim-bookworm", "latest"), "is not pinned"),
        (("3.12.12-slim-bookworm", "3-slim"), "is not pinned"),
        (("COPY crypto crypto\n", ""), "does not copy crypto"),
        (("COPY crypto crypto\n", "COPY . .\n"), "does not copy crypto"),
        (("COPY crypto crypto\n", "COPY crypt crypto\n"), "copies crypt, which does not exist"),
        (
            ("COPY crypto crypto\n", "COPY crypto crypto\nCOPY docs docs\n"),
            "copies docs, which .dockerignore leaves out",
        ),
        (("ARG PIP_INDEX_URL", "ARG PIP_INDEX_URL=https://mirror.example.org"), "names a host"),
        (("WORKDIR /etc/protoseal", "ENV PROTOSEAL_KEY_PASSPHRASE=open"), "holds a secret"),
        (("WORKDIR /etc/protoseal", "COPY key.pem /etc/protoseal/key.pem"), "holds a secret"),
        (('"run"', '"rum"'), "No such command 'rum'"),
        (("--config", "--konfig"), "No such option"),
        (("--no-cache-dir", "--extra-index-url mirror"), "options that change where from"),
    ],
)
def test_dockerfile_checks_report_a_bad_image(image: str, change: tuple[str, str], said: str) -> None:
    weak = dockerfile(image).replace(*change)
    assert weak != dockerfile(image)
    assert any(said in problem for problem in image_problems(weak, EXTRAS[image]))


def test_the_coordinators_image_has_no_torch() -> None:
    with_torch = dockerfile("coordinator").replace("-check .", "-check '.[site]'")
    assert any("does not install exactly ." in problem for problem in image_problems(with_torch, ""))
    assert any(
        "does not install exactly '.[site]'" in each
        for each in image_problems(dockerfile("coordinator"), "[site]")
    )


@pytest.mark.parametrize(
    "path",
    [
        *(
            "key.pem",
            "passphrase",
            "ca/ca.key.pem",
            ".git/config",
            ".env",
            "runs/demo/ca",
            "tests/conftest.py",
            ".venv/x",
        ),
        *(
            "protoseal/key.pem",
            "crypto/passphrase",
            "secure_client/data/patients.csv",
            "protoseal/site/model.safetensors",
            "secure_client/__pycache__/app.pyc",
            "deploy/compose.yaml",
        ),
    ],
)
def test_build_context_excludes_secret_and_needless_files(path: str) -> None:
    assert is_ignored(path)
    assert not is_ignored(path, ignore="")


def test_build_context_includes_every_copied_file() -> None:
    for source in context_sources(read_dockerfile(dockerfile("site"))):
        assert not is_ignored(source)
    assert not is_ignored("protoseal/commands/passphrase_input.py")
    assert not is_ignored("proto/protoseal_wire/codec/__init__.py")


# Compose


def test_compose_file_is_in_order() -> None:
    assert problems_of(read_compose()) == []


def _publish(services: Any) -> None:
    services["south"]["ports"] = ["9000:9000"]


def _share_a_network(services: Any) -> None:
    services["south"]["networks"] = ["north-net"]


def _join_a_second_network(services: Any) -> None:
    services["south"]["networks"] = ["south-net", "north-net"]


def _lose_the_name(services: Any) -> None:
    services["coordinator"]["networks"]["west-net"] = {}


def _leave_a_network(services: Any) -> None:
    del services["coordinator"]["networks"]["west-net"]


def _run_as_root(services: Any) -> None:
    services["north"]["user"] = "0:0"


def _share_a_volume(services: Any) -> None:
    services["north"]["volumes"][-1] = "south-state:/var/lib/protoseal"


def _write_elsewhere(services: Any) -> None:
    services["coordinator"]["volumes"][-1] = "coordinator-state:/var/lib/other"


def _mount_writable(services: Any) -> None:
    services["north"]["volumes"][0] = services["north"]["volumes"][0].removesuffix(":ro")


def _mount_data_writable(services: Any) -> None:
    services["north"]["volumes"][1] = services["north"]["volumes"][1].removesuffix(":ro")


def _take_anothers_secret(services: Any) -> None:
    services["north"]["secrets"] = services["south"]["secrets"]


def _put_the_passphrase_into_the_environment(services: Any) -> None:
    services["north"]["environment"] = {"PROTOSEAL_KEY_PASSPHRASE": "open"}


def _be_another_site(services: Any) -> None:
    services["north"]["command"] = services["south"]["command"]


def _mistype(services: Any) -> None:
    services["north"]["command"] = ["client", "rum"]


def _put_torch_at_the_coordinator(services: Any) -> None:
    services["coordinator"]["build"] = services["north"]["build"]


def _never_restart(services: Any) -> None:
    services["north"]["restart"] = "no"


def _restart_for_ever(services: Any) -> None:
    services["coordinator"]["restart"] = "always"


def _be_privileged(services: Any) -> None:
    services["north"]["privileged"] = True


def _keep_capabilities(services: Any) -> None:
    services["north"]["cap_drop"] = []


def _leave_a_core(services: Any) -> None:
    services["north"]["ulimits"] = {}


def _forget_a_site(services: Any) -> None:
    del services["west"]


def _publish_another_port(services: Any) -> None:
    services["coordinator"]["ports"] = ["443:443"]


def _leave_few_files(services: Any) -> None:
    services["coordinator"]["ulimits"]["nofile"]["hard"] = 1024


@pytest.mark.parametrize(
    ("weaken", "said"),
    [
        (_publish, "south: publishes ports"),
        (_share_a_network, "north can reach south"),
        (_join_a_second_network, "north can reach south"),
        (_lose_the_name, "in west-net the coordinator is not fl.example.org"),
        (_leave_a_network, "west cannot reach the coordinator"),
        (_run_as_root, "north: may run as root"),
        (_share_a_volume, "north: its volumes ['south-state'] are shared with ['south']"),
        (_write_elsewhere, "coordinator: writes to /var/lib/protoseal/coordinator/state"),
        (_mount_writable, "north: its configuration"),
        (_mount_data_writable, "north: its data"),
        (_take_anothers_secret, "north: its secrets"),
        (_put_the_passphrase_into_the_environment, "north: its environment"),
        (_be_another_site, "north: its configuration /etc/protoseal/south/site.toml"),
        (_mistype, "No such command 'rum'"),
        (_put_torch_at_the_coordinator, "coordinator: is built from"),
        (_never_restart, "north: is not started again"),
        (_restart_for_ever, "coordinator: is not started again"),
        (_be_privileged, "north: has privileged"),
        (_keep_capabilities, "north: keeps privileges"),
        (_leave_a_core, "north: may leave a core"),
        (_forget_a_site, "are not the coordinator and"),
        (_publish_another_port, "coordinator: publishes ['443:443']"),
        (_leave_few_files, "coordinator: has few files"),
    ],
)
def test_compose_checks_report_a_bad_file(weaken: Callable[[Any], None], said: str) -> None:
    file = read_compose()
    weaken(file["services"])
    assert any(said in problem for problem in problems_of(file)), problems_of(file)
