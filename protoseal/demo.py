"""Demo: sets up and runs a whole federation on this machine, as separate processes with real certificates.

The CA, the coordinator and every site get a folder of their own under ``OUT``, as if on separate machines; each site
process reads only its own data. The demo owns all parties, so it may read every site's log and show the coordinator's
recording.

Three closing sentences say who gained, what left each site, and what the coordinator saw. They are computed from the
sites' accuracies and the coordinator's recording, so they are also true of a run in which nobody gained or a prototype
shows. Limit: a search of bytes finds no values that could be computed from them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from agreement import (
    CONTROLS,
    Agreement,
    AveragingSection,
    Method,
    Optimiser,
    PreprocessingSection,
    Protection,
    TimingSection,
    TrainingSection,
    method_named,
)
from agreement.errors import UserError
from agreement.storage.run_files import FileError
from protoseal.audit.coordinator_view import PRESENCE, SEARCHED, UploadedNumbers, count_numbers, describe_view
from protoseal.demo_folders import FEDERATION, SITES, clear, prepare, site_folder, write_site_file
from protoseal.reports.result_files import RunResult, SiteFigures, write_result
from protoseal.reports.run_results import run_result
from protoseal.reports.tables import percent
from protoseal.simulation.tensors.federation import run_control
from protoseal.splits import SiteArrays, shots
from secure_client.data.npz import write_npz
from secure_client.data.published import DIGIT_NAMES, make_digit_domains
from secure_client.data.samples import TrainTest
from secure_client.diagnosis.diagnoses import diagnose
from secure_client.output.site_files import read_prototypes
from secure_client.output.site_log import SiteLog, SiteRound, read_site_log
from secure_server.app import ADDRESS, ROUNDS_LOG, read_rounds
from secure_server.config import load_coordinator
from secure_server.store import Store

DATASET = "digits in five appearances"
ROUNDS = 8
_START_SECONDS = 120.0
_RUN_SECONDS = 900.0


@dataclass(frozen=True)
class Progress:
    """Progress of the demo: the current step, and each site's log so far."""

    step: str
    sites: Mapping[str, SiteLog]


def demo_agreement(*, seed: int, rounds: int = ROUNDS, protection: Protection = Protection.CKKS) -> Agreement:
    """Return the agreement of ``experiments/digits.toml``: FedPC by its defaults, the rest chosen on seeds 100-109.

    The demo owns all sites and has nothing to hide from itself, so answers leave at once.
    """
    return Agreement(
        federation=FEDERATION,
        run="demo",
        method=Method.FEDPC,
        protection=protection,
        rounds=rounds,
        classes=DIGIT_NAMES,
        dim=64,
        norm_bound=100.0,
        min_holders=3,
        min_sites=3,
        preprocessing=PreprocessingSection(image_size=8, channels=1, mean=(0.5,), std=(0.5,)),
        averaging=AveragingSection(parameters=35_264),
        training=TrainingSection(
            model="small-cnn",
            init_seed=seed,
            optimiser=Optimiser.ADAM,
            lr=0.004,
            batch_size=8,
            local_epochs=5,
        ),
        timing=TimingSection(answers_show_duration=True),
    )


def demo_sites(seed: int) -> tuple[SiteArrays, ...]:
    """Return five sites with seven classes each and eight training samples of each class, in all appearances."""
    return shots(make_digit_domains(seed), sites=len(SITES), n=7, k=8, seed=seed)


@dataclass(frozen=True)
class Demo:
    """Result of a demo, and three sentences on it: who gained, what left each site, what the coordinator saw."""

    result: RunResult
    sentences: tuple[str, ...]


def run_demo(
    out: Path,
    *,
    seed: int = 0,
    rounds: int = ROUNDS,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Demo:
    """Run the demo, writing ``result.json`` and each party's folder to ``out``; raise ``UserError``."""
    clear(out)  # the state of an earlier demo would be taken for a run to resume
    agreement = demo_agreement(seed=seed, rounds=rounds)
    on_progress(Progress("making certificates, data and configurations", {}))
    prepare(out, agreement)
    with _sigterm_interrupts(), ExitStack() as stack:
        parties = _Parties(out, stack, on_progress)
        parties.start_coordinator()
        sites = demo_sites(seed)
        for site in sites:
            write_npz(
                site_folder(out, site.name) / "data.npz",
                TrainTest(site.train, site.test, DIGIT_NAMES, site.domains),
            )
        parties.start_sites()
        controls = _run_controls(agreement, sites, parties)
        parties.wait()
    on_progress(Progress("searching the coordinator's recording", _read_logs(out)))
    demo = _collect_results(out, agreement, controls, seed)
    write_result(out, demo.result)
    return demo


# Processes of the run


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt the demo as Ctrl-C does, so that it ends its parties; only the main thread has signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        # A handler that was not installed from Python is None, and cannot be put back.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)


class _Parties:
    """The coordinator's and the sites' processes, which end with ``stack``."""

    def __init__(self, out: Path, stack: ExitStack, on_progress: Callable[[Progress], None]) -> None:
        self._out = out
        self._stack = stack
        self._on_progress = on_progress
        self._processes: dict[str, _Process] = {}
        self._deadline = time.monotonic() + _RUN_SECONDS

    def start_coordinator(self) -> None:
        folder = self._out / "coordinator"
        self._processes["coordinator"] = _start(self._stack, folder, "server", "coordinator.toml")

    def start_sites(self) -> None:
        """Start the sites once the coordinator serves; raise ``UserError`` if it does not."""
        address = _wait_for_address(
            self._out / "coordinator" / "state" / ADDRESS, self._processes["coordinator"]
        )
        for site in SITES:
            write_site_file(self._out, site, address)
            self._processes[site] = _start(self._stack, site_folder(self._out, site), "client", "site.toml")

    def wait(self) -> None:
        """Wait until all have ended well; raise as :meth:`check`."""
        while not all(code == 0 for code in self._exit_codes().values()):
            self.check()
            time.sleep(0.2)
        self.check()  # the last round's progress

    def check(self) -> None:
        """Show progress; raise ``UserError`` if a party failed, or after the deadline."""
        failed = [name for name, code in self._exit_codes().items() if code not in (None, 0)]
        if failed:
            raise UserError(f"{failed[0]} failed: {self._processes[failed[0]].failure()}")
        self._on_progress(Progress("training, encrypting, combining", _read_logs(self._out)))
        if time.monotonic() > self._deadline:
            raise UserError(
                f"the run did not end within {_RUN_SECONDS:.0f} seconds; see the log.txt of each party in {self._out}"
            )

    def _exit_codes(self) -> dict[str, int | None]:
        return {name: process.running.poll() for name, process in self._processes.items()}


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
    stack.callback(_terminate, running)
    return _Process(running, log)


def _terminate(running: subprocess.Popen[bytes]) -> None:
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
        # The system chose the port; an empty file is one that is being written.
        if path.exists() and (address := path.read_text(encoding="utf-8").strip()):
            return address
        if coordinator.running.poll() is not None:
            break
        time.sleep(0.1)
    raise UserError(f"the coordinator did not start: {coordinator.failure()}")


def _run_controls(
    agreement: Agreement, sites: Sequence[SiteArrays], parties: _Parties
) -> dict[str, Mapping[str, Sequence[SiteRound]]]:
    """Train the controls while the parties run, and look at the parties after each round."""
    data = {site.name: site.to_data(agreement.preprocessing) for site in sites}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the parties' processes need the cores too
    try:
        return {
            control.value: run_control(
                agreement, control, data, on_completed=lambda run, number: parties.check()
            ).site_rounds
            for control in sorted(CONTROLS, key=str)
        }
    finally:
        torch.set_num_threads(threads)


# Results of the run


def _read_logs(out: Path) -> dict[str, SiteLog]:
    logs = {}
    for site in SITES:
        try:
            logs[site] = read_site_log(site_folder(out, site))
        except FileError:  # not written yet
            continue
    return logs


def _collect_results(
    out: Path, agreement: Agreement, controls: Mapping[str, Mapping[str, Sequence[SiteRound]]], seed: int
) -> Demo:
    config = load_coordinator(out / "coordinator" / "coordinator.toml")
    with Store.open(
        config.state_dir / "coordinator.sqlite", agreement.run, agreement.hash(), record=True
    ) as store:
        received = list(store.received())
    prototypes = {name: read_prototypes(site_folder(out, name)) for name in SITES}
    logs = _read_logs(out)
    runs = {agreement.method.value: {name: log.rounds for name, log in logs.items()}, **controls}
    result = run_result(
        agreement,
        logs,
        read_rounds(config.state_dir / ROUNDS_LOG),
        controls,
        dataset=DATASET,
        seed=seed,
        view=describe_view(received, agreement, prototypes),
        diagnoses=tuple(
            diagnosis
            for name, rounds in runs.items()
            for diagnosis in diagnose(agreement, method_named(name), rounds.values())
        ),
    )
    return Demo(result, closing_sentences(result, count_numbers(received, agreement)))


# Closing sentences

_CONTROLS = {
    Method.LOCAL.value: "when each trains alone (local)",
    Method.SELF.value: "when each is pulled towards its own prototypes alone (self)",
}


def closing_sentences(result: RunResult, uploads: UploadedNumbers) -> tuple[str, str, str]:
    """Return the sentences on a run with both controls; ``uploads`` is the content of its coordinator's recording."""
    return _describe_gain(result), _describe_sent(result.sites, uploads), _describe_seen(result, uploads)


def _describe_gain(result: RunResult) -> str:
    if result.mean_accuracy is None:
        raise ValueError("the run has no accuracy: it was not tested")
    accuracy = result.mean_accuracy
    controls = {name: result.compared[name] for name in _CONTROLS}
    ahead = sum(
        site.accuracy is not None and site.accuracy > max(site.compared[name] for name in _CONTROLS)
        for site in result.sites
    )
    gained = (
        "The sites gained on average"
        if accuracy > max(controls.values())
        else "The sites did not gain on average"
    )
    means = ", and ".join(f"{percent(mean)} % {_CONTROLS[name]}" for name, mean in controls.items())
    return (
        f"{gained}, and {ahead} of {len(result.sites)} did better than under both controls: in the federation a site "
        f"classifies {percent(accuracy)} % of its test images correctly on average, against {means}."
    )


def _describe_sent(sites: Sequence[SiteFigures], uploads: UploadedNumbers) -> str:
    sizes = sorted(site.bytes_up / 1e6 for site in sites)
    of_models = "of prototypes and of models' feature extractors"
    sent = [
        *([f"{uploads.ciphertexts:,} ciphertexts {of_models}"] if uploads.ciphertexts else []),
        *([f"{uploads.masked:,} masked numbers {of_models}"] if uploads.masked else []),
        *(["rotated prototypes of the untrained model"] if uploads.rotated else []),
        f"{uploads.plain:,} numbers {of_models} in clear"
        if uploads.plain
        else "no prototype or model in clear",
    ]
    return (
        f"Each site sent {sizes[0]:.1f} to {sizes[-1]:.1f} MB, and all sites in all rounds sent {_join_words(sent)}; "
        "images are part of no message."
    )


def _join_words(parts: Sequence[str]) -> str:
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _describe_seen(result: RunResult, uploads: UploadedNumbers) -> str:
    saw = [
        "who took part and when",
        *(["which classes each site has"] if _has_seen(result, PRESENCE) else []),
        *(["how alike the sites' prototypes of the untrained model are"] if uploads.rotated else []),
    ]
    verdict = "FOUND prototypes" if _has_seen(result, SEARCHED) else "found no prototype"
    return (
        f"The coordinator saw {_join_words(saw)}; a search of the last rounds' uploads, as it recorded them, {verdict}"
        " of a site."
    )


def _has_seen(result: RunResult, what: str) -> bool:
    """Return the verdict of the recording's line; raise ``ValueError`` without such a line."""
    (line,) = (line for line in result.coordinator_view if line.what == what)
    return line.seen
