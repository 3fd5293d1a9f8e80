"""Demo: sets up and runs a whole federation on this machine, as separate processes with real certificates.

The CA, the coordinator and every site get a folder of their own under ``OUT``, as if on separate machines; each site
process reads only its own data. The demo owns all parties, so it may read every site's log and show the coordinator's
recording.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from agreement import (
    CONTROLS,
    Agreement,
    Method,
    PfplSection,
    PreprocessingSection,
    Protection,
    TrainingSection,
)
from agreement.errors import UserError
from agreement.storage.atomic_files import FileError
from algorithms.pfpl import Weighting
from crypto.pki import Identity, Stretching, approve, create_authority, create_request
from protoseal.evaluation.coordinator_view.recording import describe
from protoseal.reports.result_files import RunResult, write_result
from protoseal.reports.run_results import run_result
from protoseal.simulation.local_controls import run_control
from protoseal.splits import SiteArrays, mixed
from secure_client.data import SiteData
from secure_client.data.arrays import TrainTest
from secure_client.data.digits import CLASSES, digits_in_five_appearances
from secure_client.data.npz import write_npz
from secure_client.output.site_files import read_prototypes
from secure_client.output.site_log import SiteLog, read_site_log
from secure_server.app import ADDRESS, ROUNDS_LOG, read_rounds
from secure_server.config import load_coordinator
from secure_server.storage.store import Store

FEDERATION, DATASET = "demo", "digits in five appearances"
_MARK = ".protoseal-demo"
_START_SECONDS, _RUN_SECONDS = 120.0, 900.0


@dataclass(frozen=True)
class Progress:
    """Progress of the demo: the current step, and each site's log so far."""

    step: str
    sites: Mapping[str, SiteLog]


def demo_agreement(*, seed: int, rounds: int, protection: Protection = Protection.CKKS) -> Agreement:
    """Return an agreement on PFPL with `complement`, α 0.3, λ 10 and two epochs; settings chosen on seeds 100-109."""
    return Agreement(
        federation=FEDERATION,
        run="demo",
        method=Method.PFPL,
        protection=protection,
        rounds=rounds,
        classes=CLASSES,
        dim=64,
        min_holders=3,
        min_sites=3,
        preprocessing=PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.5,)),
        pfpl=PfplSection.model_validate({"weighting": Weighting.COMPLEMENT, "alpha": 0.3, "lambda": 10.0}),
        training=TrainingSection(model="small-cnn", init_seed=seed, lr=0.01, batch_size=8, local_epochs=2),
    )


def demo_sites(seed: int) -> tuple[SiteArrays, ...]:
    """Return five sites with six or seven classes each and at most 25 training samples a class."""
    return mixed(digits_in_five_appearances(seed), sites=5, n=6.5, max_per_class=25, seed=seed)


def run_demo(
    out: Path,
    *,
    seed: int = 0,
    rounds: int = 5,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> RunResult:
    """Run the demo, writing ``result.json`` and each party's folder to ``out``; raise ``UserError``."""
    _clear(out)
    agreement, sites = demo_agreement(seed=seed, rounds=rounds), demo_sites(seed)
    on_progress(Progress("making certificates and writing configurations", {}))
    _prepare(out, agreement, sites)
    _run_processes(out, [site.name for site in sites], on_progress)
    on_progress(
        Progress("training the controls: local and self", _logs_of(out, [site.name for site in sites]))
    )
    result = _collect(out, agreement, sites, seed)
    write_result(out, result)
    return result


# Set-up of the federation


def _clear(out: Path) -> None:
    if out.exists() and any(out.iterdir()):
        if not (out / _MARK).exists():
            raise UserError(f"{out} is not empty and was not written by a demo; give --out another folder")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()


def _prepare(out: Path, agreement: Agreement, sites: Sequence[SiteArrays]) -> None:
    (out / "agreement.toml").write_text(_agreement_toml(agreement), encoding="utf-8")
    ca = out / "ca"
    ca_passphrase = secrets.token_hex(16).encode()
    create_authority(ca, FEDERATION, ca_passphrase, stretching=Stretching.NONE_FOR_RANDOM_SECRET)
    coordinator = out / "coordinator"
    _enrol(ca, ca_passphrase, coordinator, Identity.coordinator(FEDERATION), ["127.0.0.1", "localhost"])
    _write_toml(
        coordinator / "coordinator.toml",
        agreement="../agreement.toml",
        **_identity_files(),
        state_dir="state",
        listen="127.0.0.1:0",
        sites=[site.name for site in sites],
        record_view=True,
    )
    for site in sites:
        folder = out / "sites" / site.name
        _enrol(ca, ca_passphrase, folder, Identity.site(FEDERATION, site.name), [])
        write_npz(folder / "data.npz", TrainTest(site.train, site.test, CLASSES, site.domains))


def _enrol(ca: Path, ca_passphrase: bytes, folder: Path, identity: Identity, hosts: Sequence[str]) -> None:
    """Create a certificate, as `pki request` at the party and `pki approve` at the CA do."""
    folder.mkdir(parents=True)
    passphrase = secrets.token_hex(16).encode()
    create_request(folder, identity, passphrase, hosts, stretching=Stretching.NONE_FOR_RANDOM_SECRET)
    (folder / "certificate.pem").write_bytes(
        approve(ca, ca_passphrase, (folder / "request.pem").read_bytes())
    )
    shutil.copy(ca / "ca.pem", folder / "ca.pem")
    with os.fdopen(os.open(folder / "passphrase", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(passphrase)


def _identity_files() -> dict[str, str]:
    return {
        "ca": "ca.pem",
        "certificate": "certificate.pem",
        "key": "key.pem",
        "passphrase_file": "passphrase",
    }


def _write_site_file(out: Path, site: str, address: str) -> None:
    _write_toml(
        out / "sites" / site / "site.toml",
        agreement="../../agreement.toml",
        **_identity_files(),
        state_dir="state",
        name=site,
        coordinator=address,
        data="npz:data.npz",
        out=".",
        retry_seconds=60.0,
    )


def _write_toml(path: Path, **values: object) -> None:
    # JSON's strings, numbers, booleans and arrays are valid TOML.
    path.write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()), encoding="utf-8"
    )


def _agreement_toml(agreement: Agreement) -> str:
    content = agreement.model_dump(mode="json", by_alias=True, exclude_none=True)  # TOML has no null
    lines = [f"{key} = {json.dumps(value)}" for key, value in content.items() if not isinstance(value, dict)]
    for key, table in content.items():
        if isinstance(table, dict) and table:
            lines += [f"\n[{key}]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


# Processes of the run


def _run_processes(out: Path, sites: Sequence[str], on_progress: Callable[[Progress], None]) -> None:
    with ExitStack() as stack:
        coordinator = _start(stack, out / "coordinator", "server", "coordinator.toml")
        address = _wait_for_address(out / "coordinator" / "state" / ADDRESS, coordinator)
        processes = {"coordinator": coordinator}
        for site in sites:
            _write_site_file(out, site, address)
            processes[site] = _start(stack, out / "sites" / site, "client", "site.toml")
        _watch(out, processes, sites, on_progress)


@dataclass(frozen=True)
class _Process:
    running: subprocess.Popen[bytes]
    log: Path

    def failure(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"exit code {self.running.returncode}: {lines[-1] if lines else 'no output'} (see {self.log})"


def _start(stack: ExitStack, folder: Path, side: str, config: str) -> _Process:
    log = folder / "log.txt"
    file = stack.enter_context(log.open("wb"))
    # Each process uses one thread, since several processes share the machine's cores.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
        [sys.executable, "-m", "protoseal", side, "run", "--config", config],
        cwd=folder,
        stdout=file,
        stderr=file,
        env=environment,
    )
    stack.callback(_end, running)
    return _Process(running, log)


def _end(running: subprocess.Popen[bytes]) -> None:
    if running.poll() is None:
        running.terminate()
        try:
            running.wait(timeout=10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _wait_for_address(path: Path, coordinator: _Process) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if path.exists() and (address := path.read_text(encoding="utf-8").strip()):
            return address
        if coordinator.running.poll() is not None:
            break
        time.sleep(0.1)
    raise UserError(f"the coordinator did not start: {coordinator.failure()}")


def _watch(
    out: Path,
    processes: Mapping[str, _Process],
    sites: Sequence[str],
    on_progress: Callable[[Progress], None],
) -> None:
    deadline = time.monotonic() + _RUN_SECONDS
    while time.monotonic() < deadline:
        states = {name: process.running.poll() for name, process in processes.items()}
        failed = [name for name, code in states.items() if code not in (None, 0)]
        if failed:
            raise UserError(f"{failed[0]} failed: {processes[failed[0]].failure()}")
        on_progress(Progress("training, encrypting, combining", _logs_of(out, sites)))
        if all(code == 0 for code in states.values()):
            return
        time.sleep(0.3)
    raise UserError(
        f"the run did not end within {_RUN_SECONDS:.0f} seconds; see the log.txt of each party in {out}"
    )


# Results of the run


def _logs_of(out: Path, sites: Sequence[str]) -> dict[str, SiteLog]:
    logs = {}
    for site in sites:
        try:
            logs[site] = read_site_log(out / "sites" / site)
        except FileError:  # not written yet
            continue
    return logs


def _collect(out: Path, agreement: Agreement, sites: Sequence[SiteArrays], seed: int) -> RunResult:
    data: dict[str, SiteData] = {site.name: site.to_data(agreement.preprocessing) for site in sites}
    controls = {
        each.value: run_control(agreement, each, data).site_rounds for each in sorted(CONTROLS, key=str)
    }
    config = load_coordinator(out / "coordinator" / "coordinator.toml")
    with Store.open(
        config.state_dir / "coordinator.sqlite", agreement.run, agreement.hash(), record=True
    ) as store:
        received = list(store.received())
    prototypes = {name: read_prototypes(out / "sites" / name) for name in data}
    return run_result(
        agreement,
        _logs_of(out, list(data)),
        read_rounds(config.state_dir / ROUNDS_LOG),
        controls,
        dataset=DATASET,
        seed=seed,
        view=describe(received, agreement, prototypes),
    )
