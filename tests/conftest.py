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

# By itself an example may take 200 ms, and drawing them a second: times vary with the machine's load.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("untimed"), derandomize=True)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def torch_seed(request: pytest.FixtureRequest) -> None:
    """Have torch draw the same numbers in a test whichever tests ran before it in this process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(zlib.crc32(request.node.nodeid.encode()))


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
