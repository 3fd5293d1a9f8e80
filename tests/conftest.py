"""Threads, seeds and times: what a test may not depend on."""

import os
import sys
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# The models are tiny, and waiting for other threads is what would take the time. Read when numpy and torch are first
# imported; whoever sets another number has every test run with so many, but for processes that tests start, and the
# simulations that these are compared with.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def fsync(fd: object) -> None:
    """Wait for no disk: no test cuts this machine's power, and tests of a power cut have a double of their own."""


os.fsync = fsync

LONGEST = (
    "tests/e2e/test_arrival_times.py",
    "tests/states/test_walk.py",
    "tests/protoseal/simulation/test_ray_runs.py",
    "tests/protoseal/audit/test_weakenings.py",
    "tests/e2e/test_killed_in_each_phase.py",
    "tests/e2e/test_restarts.py",
    "tests/deploy/test_walkthrough.py",
    "tests/test_tutorials.py",
    "tests/protoseal/commands/test_attack.py",
    "tests/e2e/test_demo.py",
    "tests/states/test_phases.py",
    "tests/conformance/test_drop_outs.py",
    "tests/protoseal/audit/test_run_audit.py",
    "tests/protoseal/audit/test_canary_audit.py",
    "tests/protoseal/simulation/test_simulation_resumed.py",
    "tests/docs/test_fed_heart.py",
    "tests/e2e/test_method_runs.py",
    "tests/privacy/ledger/test_durability.py",
    "tests/adversary/test_session_transcript.py",
    "tests/conformance/test_lost_data.py",
    "tests/conformance/test_sum_conformance.py",
    "tests/secure_server/rounds/test_simulated_runs.py",
    "tests/e2e/test_main_run.py",
    "tests/e2e/test_restored_ledger.py",
    "tests/protoseal/commands/test_outputs_and_exit_codes.py",
)
"""Files that run longest, which go first: a process that began one of them last would work on while the others idle."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the longest files first, and skip what needs a GPU where there is none."""
    if missing := [name for name in LONGEST if not (config.rootpath / name).exists()]:
        raise pytest.UsageError(f"tests/conftest.py names files that are not there: {missing}")
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
    if on_a_gpu := [item for item in items if item.get_closest_marker("gpu")]:
        import torch  # noqa: PLC0415 (a second, which tests without torch need not spend)

        for item in on_a_gpu if not torch.cuda.is_available() else ():
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


# By itself an example may take 200 ms, and drawing them a second: times vary with the machine's load.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("untimed"), derandomize=True)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def torch_seed(request: pytest.FixtureRequest) -> None:
    """Have torch draw the same numbers in a test whichever tests ran before it in this process."""
    if (torch := sys.modules.get("torch")) is not None:
        seed = zlib.crc32(request.node.nodeid.encode())
        torch.default_generator.manual_seed(seed)
        if torch.accelerator.is_available():  # without a GPU it formats the stack of every call
            torch.manual_seed(seed)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Have torch use one thread, as processes that tests start do, so that both come to the same bits."""
    import torch  # noqa: PLC0415 (most tests of the coordinator run without it)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name methods and protections by their names, which tests are seeded by."""
    from agreement import Method, Protection  # noqa: PLC0415 (numpy is not to be imported before the number of threads is set)

    return val.name if isinstance(val, Method | Protection) else None
