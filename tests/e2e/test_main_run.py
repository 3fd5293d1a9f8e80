"""The main job under ckks: strangers at the door, a coordinator that is killed, and the right result all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest

from agreement import Agreement, Protection
from algorithms.pfpl import peer_weights, personalise
from crypto.ckks.parameters import peer_error
from crypto.plain import PlainServer, PlainSite
from crypto.protection import Cohort
from protoseal.reports.result_files import site_folder, write_result
from protoseal.reports.run_results import run_result
from secure_client.errors import Unreachable
from secure_client.output.site_files import SitePrototypes, read_prototypes
from secure_client.output.site_log import read_site_log
from secure_client.transport import GrpcTransport
from secure_server.app import ROUNDS_LOG, read_rounds
from tests.e2e.federations import check_predictions, protoseal, simulated, small_agreement, small_sites
from tests.e2e.intruders import INTRUDERS
from tests.secure_server.service.harness import FakeHandler, join_request, serving
from tests.support.processes import Federation, Running, wait_until

SITES = small_sites(4)
ROUNDS = 2


@dataclass(frozen=True)
class MainRun:
    """A run that is over."""

    federation: Federation
    exit_codes: list[int]
    refused: dict[str, grpc.Call]
    logged: dict[str, str]
    orphans: list[Path]
    site_logs: dict[str, str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MainRun]:
    """Stopped in round 2, where the intruders try their luck and the coordinator is killed; then it goes on."""
    agreement = small_agreement(rounds=ROUNDS, protection=Protection.CKKS)
    with Federation(tmp_path_factory.mktemp("main") / "run", agreement, SITES, by_command=True) as federation:
        federation.hold("site-1", 2)
        coordinator, sites = federation.start_coordinator(), federation.start_sites()
        federation.wait_for_held("site-1")
        refused, logged = {}, {}
        for name, (intrude, _, reason) in INTRUDERS.items():
            before = len(coordinator.log())
            refused[name] = intrude(federation, tmp_path_factory.mktemp("intruder"))
            logged[name] = _log_since(coordinator, before, reason)
        workers = coordinator.workers()
        coordinator.kill()
        coordinator = federation.start_coordinator()
        federation.release("site-1")
        codes = [each.exit_code() for each in (*sites.values(), coordinator)]
        site_logs = {name: each.log() for name, each in sites.items()}
        yield MainRun(federation, codes, refused, logged, workers, site_logs)


def _log_since(running: Running, start: int, awaited: str) -> str:
    """Return the log since ``start`` once ``awaited`` is in it, or the whole rest if ``awaited`` never comes."""
    with suppress(AssertionError):
        wait_until(lambda: awaited in running.log()[start:], awaited)
    return running.log()[start:]


def test_main_run_all_parties_exit_zero(run: MainRun) -> None:
    assert run.exit_codes == [0] * (len(SITES) + 1)
    for site in SITES:
        log = read_site_log(run.federation.folder(site.name))
        assert [(each.round, each.attempt, each.sites) for each in log.rounds] == [(1, 1, 4), (2, 1, 4)]
        assert log.bytes_up > 100_000  # ciphertexts


def test_site_log_warns_of_accuracy_no_better_than_chance(run: MainRun) -> None:
    for name, text in run.site_logs.items():
        rounds = read_site_log(run.federation.folder(name)).rounds
        assert all(None not in (each.loss, each.loss_classification, each.loss_constant) for each in rounds)
        assert [each.shortened for each in rounds] == [0.0, 0.0]
        assert f"{name}: pfpl: accuracy is no better than" in text


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_intruders_are_refused_and_logged(run: MainRun, intruder: str) -> None:
    _, code, reason = INTRUDERS[intruder]
    assert run.refused[intruder].code() is code
    assert reason in run.logged[intruder]


def test_coordinator_killed_leaves_no_worker(run: MainRun) -> None:
    assert run.orphans
    wait_until(
        lambda: not any(each.exists() for each in run.orphans), "end of the killed coordinator's workers"
    )


def test_site_refuses_a_coordinator_with_a_site_certificate(run: MainRun) -> None:
    federation, handler = run.federation, FakeHandler()
    poser = federation.credentials("site-2")
    with serving(handler, poser, federation.trust) as port:
        transport = GrpcTransport(
            f"127.0.0.1:{port}",
            federation.credentials("site-1"),
            federation.trust,
            federation.agreement.run,
            retry_seconds=1.0,
        )
        with transport, pytest.raises(Unreachable, match=f"127.0.0.1:{port} .*CN=site-2"):
            transport.join(join_request("site-1"))
    assert handler.calls == []


def test_coordinator_with_a_site_certificate_does_not_start(run: MainRun) -> None:
    folder = run.federation.folder("site-2")  # its files have the names that the coordinator's have
    text = (run.federation.root / "coordinator" / "coordinator.toml").read_text(encoding="utf-8")
    (folder / "coordinator.toml").write_text(
        text.replace("../agreement", "../../agreement"), encoding="utf-8"
    )
    server = Running(folder, "server", "run", "--config", "coordinator.toml")
    assert server.exit_code() != 0
    assert str(folder / "certificate.pem") in server.log().strip().splitlines()[-1]


def test_ckks_prototypes_equal_exact_ones_within_the_bound(run: MainRun) -> None:
    saved = {site.name: run.federation.prototypes(site.name) for site in SITES}
    exact, bound = exact_and_bound(saved, run.federation.agreement)
    compared = 0
    for name, prototypes in saved.items():
        has = prototypes.has_personal
        assert (np.abs(prototypes.personal - exact[name])[has] <= bound[name][has, None]).all()
        compared += int(has.sum())
    assert compared >= 12


def exact_and_bound(
    saved: dict[str, SitePrototypes], agreement: Agreement
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return for each site the targets (K, d) that `plain` gives for the saved prototypes, and ckks's bound (K,)."""
    presence = np.stack([each.counts > 0 for each in saved.values()])
    holds = presence & (presence.sum(axis=0) >= agreement.min_holders)
    cohort = Cohort(tuple(saved), holds, agreement.dim)
    rows = {name: each.local / agreement.norm_bound for name, each in saved.items()}
    server = PlainServer(
        lambda gram, held: peer_weights(
            gram, held, agreement.pfpl.weighting, tau=agreement.agreement_threshold
        )
    )
    site = PlainSite()
    answers = server.combine({name: site.protect(own, name, cohort) for name, own in rows.items()}, cohort)
    alpha, exact, bound = agreement.pfpl.alpha, {}, {}
    for position, (name, own) in enumerate(rows.items()):
        peers = site.unprotect(answers[name], own, name, cohort)
        exact[name] = personalise(own, peers, alpha) * agreement.norm_bound
        total = sum(
            ((own - other) ** 2).sum(axis=1) * holds[there] for there, other in enumerate(rows.values())
        )
        error = peer_error(np.where(holds[position], total, 1.0), cohort.counts, len(saved))
        bound[name] = (1 - alpha) * agreement.norm_bound * error
    return exact, bound


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory, run: MainRun) -> Path:
    """The folder of the same agreement's run in one process."""
    out = tmp_path_factory.mktemp("simulation")
    simulated(run.federation.agreement, SITES, out)
    return out


def test_run_equals_the_simulation_of_the_same_agreement(run: MainRun, simulation: Path) -> None:
    for site in SITES:
        saved = run.federation.prototypes(site.name)
        wanted = read_prototypes(site_folder(simulation, site.name))
        assert (saved.has_personal == wanted.has_personal).all()
        # Fresh noise in each round, and a round of training on targets that differ by it.
        np.testing.assert_allclose(saved.local, wanted.local, atol=1e-4)
        np.testing.assert_allclose(saved.personal, wanted.personal, atol=1e-4)


def test_deployed_sites_predict_what_simulated_sites_do(run: MainRun, simulation: Path) -> None:
    check_predictions(run.federation, SITES[1], site_folder(simulation, SITES[1].name))


def test_report_reads_the_runs_folder(run: MainRun) -> None:
    root, agreement = run.federation.root, run.federation.agreement
    logs = {site.name: read_site_log(run.federation.folder(site.name)) for site in SITES}
    rounds = read_rounds(root / "coordinator" / "state" / ROUNDS_LOG)
    write_result(root, run_result(agreement, logs, rounds, {}, dataset="digits", seed=5))
    page = Path(protoseal(root, "report", ".").strip())
    assert "site-4" in (root / page).read_text(encoding="utf-8")


def test_site_finished_run_again_needs_no_coordinator(run: MainRun) -> None:
    folder = run.federation.folder("site-1")
    assert "The run is complete" in protoseal(folder, "client", "run", "--config", "site.toml")
