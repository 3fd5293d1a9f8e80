"""Tutorial docs/tutorials/first-federation.md, typed as it stands, with real processes and certificates."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from secure_client.config import load_site
from secure_client.output.site_files import read_prototypes
from secure_client.output.site_log import read_site_log
from secure_server.app import ROUNDS_LOG, read_rounds
from tests.deploy.test_samples import SAMPLES
from tests.deploy.walkthrough import EACH_SITE, ROOT, SERVICES, SITES, WALKTHROUGH, Block, Shell, read_blocks
from tests.support.marks import full_but
from tests.support.processes import free_port

BLOCKS = read_blocks(WALKTHROUGH.read_text(encoding="utf-8"))
UNTRIED = read_blocks(SERVICES.read_text(encoding="utf-8"))
"""Commands for an administrator of a machine: parsed, not run."""
AGREEMENTS = ["agreement.toml", "agreement-fedpc.toml"]
"""The agreement that the walk-through recommends first, and the one whose rounds have the most steps."""

pytestmark = pytest.mark.timeout(900)  # a first test of each agreement waits for all the steps


@dataclass(frozen=True)
class Walked:
    """The parties' folders after the last step, and what each block printed, by step, party and site."""

    folder: Path
    printed: list[tuple[Block, str, str]]

    def of(self, command: str, site: str = "") -> list[str]:
        """Return the output of the blocks with this command, for that site only where the block says ``each site``."""
        return [text for block, name, text in self.printed if command in block.commands and name == site]


@pytest.fixture(scope="module", params=full_but(AGREEMENTS))
def walked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walked]:
    folder = tmp_path_factory.mktemp("walkthrough")
    variables = {
        "SOURCE": str(ROOT),
        "FED": str(folder / "federation"),
        "HOST": "127.0.0.1",
        "PORT": str(free_port()),
        "AGREEMENT": request.param,
    }
    with Shell(folder, variables) as shell:
        printed = [typed for block in BLOCKS if block.is_run for typed in _typed(shell, block)]
        yield Walked(folder / "federation", printed)


def _typed(shell: Shell, block: Block) -> list[tuple[Block, str, str]]:
    """Type a block, one of each site for all sites at once; return it with the site and what it printed."""
    if block.who != EACH_SITE:
        return [(block, "", shell.type(f"NAME=\n{block.commands}"))]
    if block.stays:
        return [(block, name, shell.type(f"NAME={name}\n{block.commands}")) for name in SITES]
    return [(block, name, text) for name, text in shell.type_for_each(SITES, block.commands).items()]


def test_walkthrough_run_is_complete_at_every_party(walked: Walked) -> None:
    agreed = load_site(walked.folder / "north" / "site.toml").agreement
    rounds = read_rounds(walked.folder / "coordinator" / "state" / ROUNDS_LOG)
    assert [each.round for each in rounds] == list(range(1, agreed.rounds + 1))
    assert all(each.sites == SITES for each in rounds)
    assert "The run is complete" in (walked.folder / "coordinator" / "log.txt").read_text(encoding="utf-8")
    for site in SITES:
        assert "The run is complete" in (walked.folder / site / "log.txt").read_text(encoding="utf-8")
        assert len(read_site_log(walked.folder / site / "out").rounds) == agreed.rounds


def test_prototypes_fit_the_bounds_of_the_sample(walked: Walked) -> None:
    for site in SITES:
        log = (walked.folder / site / "log.txt").read_text(encoding="utf-8")
        assert "longer than norm_bound" not in log
        assert "negative components" not in log


def test_a_sites_results_are_the_files_that_are_named(walked: Walked) -> None:
    (sentence,) = re.findall(r"`out/` stays at the site:(.*?)\.\n", WALKTHROUGH.read_text("utf-8"), re.S)
    for site in SITES:
        assert {path.name for path in (walked.folder / site / "out").iterdir()} == set(
            re.findall(r"`([\w.-]+)`", sentence)
        )


def test_sites_learned_from_their_peers(walked: Walked) -> None:
    for site in SITES:
        log, prototypes = (
            read_site_log(walked.folder / site / "out"),
            read_prototypes(walked.folder / site / "out"),
        )
        assert prototypes.has_personal.any()
        accuracy = log.rounds[-1].accuracy_classifier
        assert accuracy is not None
        assert accuracy > 0.6  # of ten digits, so 0.1 is chance


def test_run_resumes_after_north_and_the_coordinator_were_stopped(walked: Walked) -> None:
    log = (walked.folder / "coordinator" / "log.txt").read_text(encoding="utf-8")
    assert "resuming at" in log
    north = (walked.folder / "north" / "log.txt").read_text(encoding="utf-8")
    assert north.count("joined as north") >= 2


def test_all_parties_print_the_same_hash_of_the_agreement(walked: Walked) -> None:
    (server,) = walked.of("server check")
    printed = {site: walked.of("client check", site) for site in SITES}
    hashes = {re.findall(r"hash ([0-9a-f]{64})$", text, re.M)[0] for (text,) in printed.values()}
    assert hashes == set(re.findall(r"^agreement +([0-9a-f]{64})$", server, re.M))
    assert len(hashes) == 1


def test_every_site_pins_its_peers(walked: Walked) -> None:
    for site in SITES:
        file = tomllib.loads((walked.folder / site / "site.toml").read_text(encoding="utf-8"))
        assert set(file["pins"]) == set(SITES) - {site}


def test_no_party_holds_what_is_anothers(walked: Walked) -> None:
    """Private keys and passphrases differ, and a site's folder is the only one with its data and results."""
    secrets = [path for name in ("passphrase", "key.pem", "ca.key.pem") for path in walked.folder.rglob(name)]
    assert len({path.read_bytes() for path in secrets}) == len(secrets) == 10
    assert not [path for path in secrets if path.stat().st_mode & 0o077]
    assert {path.parent.name for path in walked.folder.rglob("data.npz")} == set(SITES)
    assert len(list(walked.folder.rglob("ca.key.pem"))) == 1
    assert not (walked.folder / "coordinator" / "ca.key.pem").exists()


def test_predictions_are_of_the_agreed_classes(walked: Walked) -> None:
    classes = load_site(walked.folder / "north" / "site.toml").agreement.classes
    for site in SITES:
        result = json.loads((walked.folder / site / "predictions.json").read_text(encoding="utf-8"))
        assert {each["class"] for each in result["predictions"]} <= set(classes)
        assert result["accuracy"] > 0.6


# The document and its reading


def test_every_step_is_typed_but_the_services(walked: Walked) -> None:
    typed = {block.step.partition(".")[0] for block, *_ in walked.printed}
    assert typed == {str(step) for step in range(10)}
    assert all(block.is_run for block in BLOCKS)
    assert not any(block.is_run for block in UNTRIED)


def test_files_of_the_project_that_it_names_are_there() -> None:
    commands = "".join(block.commands for block in [*BLOCKS, *UNTRIED])
    named = {path for path in re.findall(r"\$SOURCE/([\w./@-]+)", commands) if path != "deploy/samples/"}
    assert len(named) >= 6
    assert not [path for path in named if not (ROOT / path).exists()]
    text = WALKTHROUGH.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert links
    assert not [link for link in links if not (WALKTHROUGH.parent / link).exists()]
    choice = (ROOT / "docs/how-to/choose-an-agreement.md").read_text(encoding="utf-8")
    samples = {each.name for each in SAMPLES.glob("agreement*")}
    assert set(re.findall(r"`(agreement[\w-]*\.toml)`", choice)) == samples


def test_blocks_that_are_not_typed_are_at_least_shell() -> None:
    assert UNTRIED
    for block in UNTRIED:
        subprocess.run(["bash", "-n"], input=block.commands, text=True, check=True)


@pytest.mark.parametrize("block", ["```\nls\n```\n", "```sh\nls\n```\n", "```sh\n# somebody\nls\n```\n"])
def test_block_without_a_typist_is_an_error(block: str) -> None:
    with pytest.raises(ValueError, match="types"):
        read_blocks(f"## 1. Step\n\n{block}")


@pytest.mark.parametrize("failing", ["false", "protoseal pki show none.pem", "cat none | sort"])
def test_shell_failing_command_is_noticed(tmp_path: Path, failing: str) -> None:
    with Shell(tmp_path, {}) as shell:
        assert shell.type("echo typed").strip() == "typed"
        with pytest.raises(AssertionError, match="failed:"):
            shell.type(f"{failing}\necho 'and on'")


@pytest.mark.parametrize("who", SITES)
def test_shell_command_failing_at_one_site_is_noticed(tmp_path: Path, who: str) -> None:
    with Shell(tmp_path, {}) as shell:
        assert shell.type_for_each(SITES, 'echo "typed at $NAME"') == {
            name: f"typed at {name}\n" for name in SITES
        }
        with pytest.raises(AssertionError, match="failed:"):
            shell.type_for_each(SITES, f"test $NAME != {who}\necho 'and on'")


def test_walkthrough_wrong_fingerprint_is_refused(walked: Walked) -> None:
    (approve,) = [
        block for block in BLOCKS if "pki approve" in block.commands and "for NAME" in block.commands
    ]
    lie = approve.commands.replace('"$(read_out "$NAME/request.pem")"', f"{'0' * 64} --overwrite")
    assert lie != approve.commands
    with (
        Shell(walked.folder, {"FED": str(walked.folder)}) as shell,
        pytest.raises(AssertionError, match="--fingerprint"),
    ):
        shell.type(lie)
