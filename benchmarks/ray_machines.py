"""Cluster of Ray whose machines are processes of this machine, and of which one can be lost.

``python -m benchmarks.ray_machines COUNT CPUS GPUS`` prints the cluster's address, kills the last machine's processes
when it reads a line, and ends the cluster at the end of its input. All of Ray listens on the loopback address.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module

END_SECONDS = 60.0
"""Longest time in which the cluster's process ends."""


@dataclass(frozen=True)
class Machines:
    """Address of a cluster, the environment of programs that join it, and a call that kills its last machine."""

    address: str
    environment: Mapping[str, str]
    lose_one: Callable[[], None]


@contextmanager
def start_machines(count: int, *, cpus: int, gpus: int = 0, **variables: str) -> Iterator[Machines]:
    """Start machines that declare so many CPUs and GPUs each, and end them with the context.

    ``variables`` are added to the environment of the machines. Raises ``RuntimeError`` if the cluster does not start.
    """
    environment = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listens on the loopback address
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_health_check_period_ms": "1000",  # a lost machine is noticed after three seconds
        "RAY_health_check_failure_threshold": "3",
        **variables,
    }
    words = [sys.executable, "-m", "benchmarks.ray_machines", str(count), str(cpus), str(gpus)]
    pipe = subprocess.PIPE
    with subprocess.Popen(  # noqa: S603 (our own interpreter and module)
        words, stdin=pipe, stdout=pipe, env=environment, text=True
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the cluster's process has no pipes")
        commands, answers = process.stdin, process.stdout

        def read() -> str:
            if not (line := answers.readline()):
                raise RuntimeError("the cluster's process ended: its messages are above")
            return line.strip()

        def lose_one() -> None:
            commands.write("lose one\n")
            commands.flush()
            read()

        try:
            yield Machines(read(), environment, lose_one)
        finally:
            commands.close()
            process.wait(END_SECONDS)


def main() -> None:
    """Run the cluster; see the module."""
    count, cpus, gpus = map(int, sys.argv[1:])
    cluster_class = import_module("ray.cluster_utils").Cluster
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        cluster = cluster_class()
        try:
            machines = [cluster.add_node(num_cpus=cpus, num_gpus=gpus, temp_dir=folder) for _ in range(count)]
            sys.stdout.write(f"{cluster.address}\n")
            sys.stdout.flush()
            for _ in sys.stdin:
                cluster.remove_node(machines.pop(), allow_graceful=False)
                sys.stdout.write("lost\n")
                sys.stdout.flush()
        finally:
            cluster.shutdown()


if __name__ == "__main__":
    main()
