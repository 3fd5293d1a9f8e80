"""Registrations of third parties that cannot be used: loading the configuration refuses them by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agreement import (
    Agreement,
    ConfigError,
    Family,
    Method,
    ModelPart,
    Protection,
    Traits,
    load_agreement,
    method_named,
)
from protoseal.simulation.config import load_simulation
from secure_server.config import load_coordinator
from tests.support.extensions import METHODS, PROTECTIONS, as_installed, install, installed, rotated
from tests.support.small import small_agreement

GOOD = """
from agreement import Method, Family, Traits

method = Method(name="{name}", traits=Traits(Family.SUMS, prototypes=True), objective=lambda settings: None)
"""
PROTECTION = """
from crypto.protection import PayloadShape
from agreement import Protection, SumHalves

form = PayloadShape(words=((64, 1),))
halves = SumHalves(site=None, server=None, form=lambda settings, facts: form)
method = Protection(name="{name}", secret_bytes=0, sums=halves)
"""
AGREEMENT = """
federation = "clinics.example"
run = "run-1"
rounds = 1
classes = ["0", "1", "2"]
dim = 8
"""
OF_PARTY = """
ca = "ca.pem"
certificate = "certificate.pem"
key = "key.pem"
state_dir = "state"
listen = "127.0.0.1:8443"
sites = ["a", "b", "c"]
"""


def agreement_with(folder: Path, **settings: Any) -> Agreement:
    """Read from a file. The method is pfpl and the protection plain unless given."""
    chosen = {"method": "pfpl", "protection": "plain", **settings}
    tables = {name: value for name, value in chosen.items() if isinstance(value, dict)}
    lines = [f"{name} = {value!r}" for name, value in chosen.items() if name not in tables]
    for name, table in tables.items():
        for key, inner in table.items():
            if isinstance(inner, dict):
                lines += [f"[{name}.{key}]", *(f"{each} = {value!r}" for each, value in inner.items())]
            else:
                lines += [f"[{name}]", f"{key} = {inner!r}"]
    model = '[training]\nmodel = "tests.support.tiny_models:build_tanh"\n'
    path = folder / "agreement.toml"
    path.write_text(AGREEMENT + "\n".join(lines) + "\n" + model, encoding="utf-8")
    return load_agreement(path)


def problem(folder: Path, **settings: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        agreement_with(folder, **settings)
    return str(refused.value)


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Path]:
    """Return a folder for distributions beside the document's."""
    folder = tmp_path / "others"
    folder.mkdir()
    with installed(folder):
        yield folder


# Names


def test_an_unknown_name_is_refused_with_the_nearest_known_one(example: Path, tmp_path: Path) -> None:
    assert "method: unknown method 'cosine-prot'; did you mean 'cosine-proto'?" in problem(
        tmp_path, method="cosine-prot"
    )
    assert "protection: unknown protection 'pad'; did you mean 'pads'?" in problem(tmp_path, protection="pad")
    with pytest.raises(ConfigError, match="cosine-prot"):
        method_named("cosine-prot")


def test_a_method_that_is_not_installed_is_unknown(tmp_path: Path) -> None:
    assert "unknown method 'cosine-proto'" in problem(tmp_path, method="cosine-proto")
    assert "the name of a method must be text, not 5" in problem(tmp_path, method=5)


@pytest.mark.parametrize(("group", "name"), [(METHODS, "fedavg"), (PROTECTIONS, "masked")])
def test_a_name_that_is_built_in_cannot_be_registered(
    group: str, name: str, others: Path, tmp_path: Path
) -> None:
    install(others, {group: {name: "evil:method"}}, name="evil", version="6.6")
    field = "method" if group == METHODS else "protection"
    said = problem(tmp_path, **{field: "another"})
    assert (
        f"evil 6.6, entry point {name} = 'evil:method' of {group} registers the built-in name {name!r}"
        in said
    )
    # Nor is it ever taken for the built-in one, which is not looked up.
    assert agreement_with(tmp_path, protection="masked").protection.value == "masked"


def test_two_that_register_a_name_are_both_told(others: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        install(others, {METHODS: {"mine": f"{name}:method"}}, name=name)
        (others / f"{name}.py").write_text(GOOD.format(name="mine"), encoding="utf-8")
    said = problem(tmp_path, method="mine")
    assert "first 1.0, entry point mine = 'first:method'" in said
    assert "second 1.0, entry point mine = 'second:method'" in said


def test_a_method_and_a_protection_do_not_have_one_name(others: Path, tmp_path: Path) -> None:
    """A method and a protection of one name would share a table of settings, and one version would not be agreed."""
    for group, name in ((METHODS, "first"), (PROTECTIONS, "second")):
        install(others, {group: {"mine": f"{name}:method"}}, name=name)
    (others / "first.py").write_text(GOOD.format(name="mine"), encoding="utf-8")
    (others / "second.py").write_text(PROTECTION.format(name="mine"), encoding="utf-8")
    said = problem(tmp_path, method="mine", protection="mine")
    assert "a method and a protection are both called 'mine'" in said
    assert agreement_with(tmp_path, method="mine").distributions == {"mine": "first 1.0"}


def test_an_extension_alone_under_its_name_is_accepted(others: Path, tmp_path: Path) -> None:
    install(others, {METHODS: {"mine": "first:method"}}, name="first")
    (others / "first.py").write_text(GOOD.format(name="mine"), encoding="utf-8")
    assert agreement_with(tmp_path, method="mine").distributions == {"mine": "first 1.0"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "cannot be loaded (ModuleNotFoundError"),
        ("raise RuntimeError('no licence')", "cannot be loaded (RuntimeError: no licence)"),
        ("method", "cannot be loaded (NameError"),
        ("another = 5", "cannot be loaded (AttributeError"),
        ("method = 5", "must be a Method, not <class 'int'>"),
        ("from tests.support.extensions import rotated as method", "must be a Method"),
        (GOOD.format(name="theirs"), "loads an object named 'theirs'"),
        (GOOD.format(name="pfpl"), "loads an object named 'pfpl'"),
        (GOOD.format(name="Mine"), "cannot be loaded (ValueError: name 'Mine' must be"),
        (GOOD.format(name="mine").replace("SUMS", "GROUPS"), "its steps are FedPC's"),
        (GOOD.format(name="mine").replace("objective=", "recipe="), "states no objective"),
    ],
)
def test_an_entry_point_that_leads_nowhere_is_told_with_its_distribution(
    source: str | None, said: str, others: Path, tmp_path: Path
) -> None:
    install(others, {METHODS: {"mine": "broken:method"}}, name="broken-methods", version="0.3")
    if source is not None:
        (others / "broken.py").write_text(source, encoding="utf-8")
    message = problem(tmp_path, method="mine")
    assert message.startswith(str(tmp_path))
    assert "method: broken-methods 0.3, entry point mine = 'broken:method' of protoseal.methods" in message
    assert said in message


def test_an_object_that_no_entry_point_leads_to_cannot_be_agreed_on(example: Path) -> None:
    agreement, traits = dict(small_agreement()), Traits(Family.SUMS, prototypes=True)

    def made(name: str) -> Method:
        return Method(name=name, traits=traits, objective=lambda settings: NotImplemented)

    with pytest.raises(ValueError, match="unheard-of"):
        Agreement.model_validate({**agreement, "method": made("unheard-of")})
    with pytest.raises(ValueError, match="registered"):
        Agreement.model_validate({**agreement, "method": made("cosine-proto")})
    own = method_named("cosine-proto")
    assert Agreement.model_validate({**agreement, "method": own}).method is own


# Needs and offers


@pytest.mark.parametrize(
    ("method", "protection", "said"),
    [
        ("cosine-peers", "ckks", "method cosine-peers needs 'gram', but protection 'ckks' offers"),
        ("cosine-peers", "pads", "method cosine-peers needs 'gram', but protection 'pads' offers 'sum'"),
        ("pfpl", "pads", "needs 'distance weights' or 'gram', but protection 'pads' offers 'sum'"),
        ("fedpc", "pads", "method fedpc needs 'clustering' and 'cosine weights' and 'sum'"),
        ("fedplcc", "pads", "method fedplcc needs 'clustering' and 'sum', but protection 'pads'"),
        ("fedpc", "rotated", "method fedpc needs 'clustering' and 'cosine weights' and 'sum'"),
        (
            "cosine-proto",
            "rotated",
            "method cosine-proto needs 'sum', but protection 'rotated' offers 'gram'",
        ),
    ],
)
def test_a_mismatch_is_refused_by_both_names(
    method: str, protection: str, said: str, example: Path, others: Path, tmp_path: Path
) -> None:
    install(others, {PROTECTIONS: {"rotated": "tests.support.extensions:rotated"}}, name="rotated")
    averaging = {"averaging": {"parameters": 1}}
    assert said in problem(tmp_path, method=method, protection=protection, **averaging)
    with pytest.raises(ConfigError, match=repr(protection)):
        load_simulation(None, {"method": method, "protection": protection})
    with pytest.raises(ConfigError, match=repr(protection)):
        load_simulation(None, {"protection": protection, "method": "local", "compare": [method]})


def test_bounds_that_leave_too_few_bits_are_refused_when_they_are_read(example: Path, tmp_path: Path) -> None:
    agreed = {"method": "cosine-proto", "protection": "pads", "norm_bound": 1e15}
    assert "sums do not fit protection 'pads': sums of 256 values up to 1e+15" in problem(tmp_path, **agreed)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Traits(Family.CLUSTERS, prototypes=True), "its steps are FedPLCC's"),
        (lambda: Traits(Family.ALONE), "a site that trains alone"),
        (lambda: Traits(Family.PEERS), "exchanges prototypes, and nothing else"),
        (
            lambda: Traits(Family.PEERS, ModelPart.MODEL, prototypes=True),
            "exchanges prototypes, and nothing else",
        ),
        (lambda: Traits(Family.SUMS), "exchanges prototypes, a part of models, or both"),
    ],
)
def test_a_method_that_no_machinery_runs_cannot_be_made(made: Callable[[], Traits], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Method(name="mine", traits=made(), objective=lambda settings: NotImplemented)


def test_an_extension_with_invalid_fields_is_refused() -> None:
    with pytest.raises(ValueError, match="weights"):
        Method(
            name="mine",
            traits=Traits(Family.SUMS, prototypes=True),
            objective=lambda settings: NotImplemented,
            weights=lambda settings: NotImplemented,
        )
    with pytest.raises(ValueError, match="private"):
        Method(
            name="mine",
            traits=Traits(Family.SUMS, prototypes=True),
            objective=lambda settings: NotImplemented,
            private=True,
        )
    with pytest.raises(ValueError, match="sums"):
        Protection(name="mine", secret_bytes=0)
    with pytest.raises(ValueError, match="self-pfpl"):
        Protection(name="self-pfpl", secret_bytes=0)


def test_protection_that_names_classes_of_the_parties_is_refused(others: Path, tmp_path: Path) -> None:
    """Halves that are functions run inside the parties' own halves, which check what goes in and out."""
    text = (
        "from agreement import Protection\n\n"
        'borrowed = Protection(name="borrowed", secret_bytes=0, sums=Protection.PLAIN.sums)\n'
    )
    (others / "borrowed.py").write_text(text, encoding="utf-8")
    install(others, {PROTECTIONS: {"borrowed": "borrowed:borrowed"}}, name="borrowed")
    assert "plan of rounds" in problem(tmp_path, method="fedproto", protection="borrowed")


def test_a_protection_states_how_long_its_secret_is_and_no_short_one() -> None:
    with pytest.raises(TypeError, match="secret_bytes"):
        Protection(name="mine", peers=rotated.peers)  # type: ignore[call-arg]
    for number in (-1, 1, 15):
        with pytest.raises(ValueError, match="secret_bytes"):
            Protection(name="mine", peers=rotated.peers, secret_bytes=number)


# Settings and distributions


def test_settings_are_their_owners_and_a_part_of_the_hash(example: Path, tmp_path: Path) -> None:
    usual = agreement_with(tmp_path, method="cosine-proto")
    given = {"cosine-proto": {"weight": 1.0}}
    assert agreement_with(tmp_path, method="cosine-proto", extension=given).hash() == usual.hash()
    other = agreement_with(tmp_path, method="cosine-proto", extension={"cosine-proto": {"weight": 2.0}})
    assert other.hash() != usual.hash()
    assert Agreement.from_json(other.to_json(), source="text") == other
    assert Agreement.from_json(other.to_json(), source="text").hash() == other.hash()


@pytest.mark.parametrize(
    ("extension", "said"),
    [
        (
            {"cosine-proto": {"wieght": 2.0}},
            "extension.cosine-proto: wieght: unknown key; did you mean 'weight'",
        ),
        ({"cosine-proto": {"weight": -1.0}}, "extension.cosine-proto: weight: "),
        ({"cosine-peers": {"weight": 1.0}}, "extension: no third-party method or protection 'cosine-peers'"),
        ({"cosine-proto": 5}, "extension: the settings of 'cosine-proto' must be a table"),
    ],
)
def test_settings_that_their_owner_does_not_know_are_refused(
    extension: dict[str, Any], said: str, example: Path, tmp_path: Path
) -> None:
    assert said in problem(tmp_path, method="cosine-proto", extension=extension)


def test_another_version_than_was_agreed_on_is_refused(example: Path, tmp_path: Path) -> None:
    agreed = agreement_with(tmp_path, method="cosine-proto")
    named = {"cosine-proto": "protoseal-example 1.0"}
    assert agreement_with(tmp_path, method="cosine-proto", distributions=named).hash() == agreed.hash()
    text = agreed.to_json().replace("protoseal-example 1.0", "protoseal-example 1.1")
    with pytest.raises(ConfigError, match="cosine-proto"):
        Agreement.from_json(text, source="text")
    assert "no third-party method or protection 'pads'" in problem(
        tmp_path, method="cosine-proto", distributions={"pads": "protoseal-example 1.0"}
    )


def test_parties_with_two_versions_do_not_agree(example: Path, others: Path, tmp_path: Path) -> None:
    hashes = set()
    for version in ("1.0", "1.1"):
        folder = others / version
        install(folder, {METHODS: {"mine": "versioned:method"}}, name="versioned", version=version)
        (folder / "versioned.py").write_text(GOOD.format(name="mine"), encoding="utf-8")
        with installed(folder):
            hashes.add(agreement_with(tmp_path, method="mine").hash())
    assert len(hashes) == 2


# Deployment


def test_only_what_its_maker_declares_deployable_runs_between_institutions(
    example: Path, tmp_path: Path
) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_text('agreement = "agreement.toml"\n' + OF_PARTY, encoding="utf-8")
    agreement_with(tmp_path, method="cosine-proto", protection="pads")
    loaded = load_coordinator(path)
    assert loaded.agreement.needs_group_secret
    agreement_with(tmp_path, method="cosine-peers")
    with pytest.raises(
        ConfigError, match=r"'cosine-peers' of protoseal-example 1\.0 runs in `protoseal simulate`"
    ):
        load_coordinator(path)


def test_the_coordinator_loads_an_added_method_without_torch(example_folder: Path) -> None:
    code = (
        "import sys, secure_server.app; from agreement import method_named; method_named('cosine-peers');"
        " print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=as_installed(example_folder),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"
