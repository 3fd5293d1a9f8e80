"""Check of a GPU in one call: every path gives what the CPU gives, and how fast training is beside its limits.

    make gpu
    python -m benchmarks.gpu --only speed-resnet18

Each part is a process of its own with a limit of time, so that a part that hangs or fails is reported and the others
run. Parts that compare paths run side by side, parts that measure speed one after the other. The exit status is 1 if a
path is wrong, or if a part fails or reaches its limit, which leaves it unmeasured; a slow step alone does not count.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import torch

from benchmarks.gpu.parts import PARTS, ROOT, Part
from benchmarks.gpu.report import PartReport, markdown
from benchmarks.record import Value, machine, write_record
from protoseal.commands.options import FOLDER
from protoseal.commands.terminal_output import one_line_errors

CPU_PATIENCE = 8
"""Factor of a part's limit of time on a CPU, where few cores compute everything."""
CORES = 2
"""Cores for a part that compares paths."""
SECONDS_TO_ABORT = 5
LAST_CHARACTERS = 400
"""Number of characters of a failed part's output that are shown."""
RUN = "import sys; from benchmarks.gpu.parts import main; main(*sys.argv[1:])"
"""Program of a part's process: without a main module, which worker processes of a protection would import again."""
Process = subprocess.Popen[bytes]


@click.command()
@click.option(
    "--only", multiple=True, type=click.Choice([*PARTS]), help="Part to run; may be repeated.  [default: all]"
)
@click.option(
    "--cpu", is_flag=True, help="Run everything that a CPU can, with speed measured in a small form."
)
@click.option(
    "--out",
    type=FOLDER,
    default=Path("runs/gpu"),
    show_default=True,
    help="Folder for gpu.md, gpu.json and the parts' output, gpu.log.",
)
@one_line_errors
def main(only: tuple[str, ...], cpu: bool, out: Path) -> None:
    """Check a GPU: every path beside the CPU, then the speed of training beside its limits."""
    if not (cpu or torch.cuda.is_available()):
        raise click.UsageError("torch finds no GPU here: --cpu runs what a CPU can")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the parts end with this process
    device = "cpu" if cpu else "cuda"
    facts = describe_machine(device)
    out.mkdir(parents=True, exist_ok=True)
    (out / "gpu.log").write_bytes(b"")
    reports: list[PartReport] = []
    for report in run_parts({name: PARTS[name] for name in only or PARTS}, device, out / "gpu.log"):
        click.echo(report.line)
        reports.append(report)
        record = {"schema": 1, "name": "gpu", "machine": facts, "parts": [vars(given) for given in reports]}
        write_record(out / "gpu.json", record)
        (out / "gpu.md").write_text(markdown(reports, facts), encoding="utf-8")
    click.echo(markdown(reports, facts))
    sys.exit(1 if any(report.problems for report in reports) else 0)


def describe_machine(device: str) -> dict[str, Value]:
    """Return the date, the card, its driver, and the versions of torch and its CUDA."""
    facts: dict[str, Value] = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "torch": torch.__version__}
    if device == "cuda":
        facts |= {"card": torch.cuda.get_device_name(), "driver": read_driver()}
        facts["cuda"] = torch.version.cuda
    return facts | machine()


def read_driver() -> str | None:
    """Return the version of the driver, or None without NVIDIA's tool."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603 (no user's words)
    return output.strip().partition("\n")[0] or None


def run_parts(parts: Mapping[str, Part], device: str, log: Path) -> Iterator[PartReport]:
    """Run parts, comparisons side by side and the others alone; yield each part's report as it ends."""
    beside = max(1, (os.cpu_count() or 1) // CORES)
    running: set[Process] = set()
    try:
        for alone, workers in ((False, beside), (True, 1)):
            chosen = {name: part for name, part in parts.items() if part.alone is alone}
            with ThreadPoolExecutor(workers) as pool:
                try:
                    futures = [
                        pool.submit(run_part, name, part, device=device, running=running, log=log)
                        for name, part in chosen.items()
                    ]
                    for future in as_completed(futures):
                        yield future.result()
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise
    finally:
        for process in list(running):
            kill_group(process)


def run_part(name: str, part: Part, *, device: str, running: set[Process], log: Path) -> PartReport:
    """Run a part in a process of its own, which is killed with all that it started when its time is over.

    The part's output is appended to ``log``.
    """
    limit = part.seconds * (CPU_PATIENCE if device == "cpu" else 1)
    threads = {"OMP_NUM_THREADS": str(min(CORES, os.cpu_count() or 1)), "OMP_WAIT_POLICY": "passive"}
    start = time.perf_counter()
    with TemporaryDirectory(prefix="protoseal-gpu-") as folder:
        rows, printed = Path(folder, "rows"), Path(folder, "output")
        command = [sys.executable, "-c", RUN, name, device, str(rows)]
        with printed.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 (no user's words)
                command,
                cwd=ROOT,
                env={**os.environ, **({} if part.alone else threads), "PYTHONFAULTHANDLER": "1"},
                stdout=output,
                stderr=output,
                process_group=0,
            )
        running.add(process)
        try:
            status = process.wait(limit)
            failure = f"ended with status {status}" if status else ""
        except subprocess.TimeoutExpired:
            status, failure = 0, f"stopped after {limit} s, at the place that gpu.log shows"
            process.send_signal(signal.SIGABRT)  # Python then prints where every thread is
            with suppress(subprocess.TimeoutExpired):
                process.wait(SECONDS_TO_ABORT)
        finally:
            kill_group(process)
            running.discard(process)
        text = printed.read_text(encoding="utf-8", errors="replace").strip()
        with log.open("a", encoding="utf-8") as file:
            file.write(f"# {name}\n\n{text}\n\n")
        if status:
            failure += f": {text[-LAST_CHARACTERS:]}".replace("\n", " / ")
        lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    return PartReport(name, time.perf_counter() - start, [json.loads(line) for line in lines], failure)


def kill_group(process: Process) -> None:
    """Kill a process and those that it started, and wait for the process."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    main()
