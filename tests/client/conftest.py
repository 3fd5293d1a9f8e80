"""Real sites of one federation, for a session's tests to ask; the jobs that do not train together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from protoseal.config import Agreement
from protoseal.federation import make_parties
from secure_client import together
from secure_client.training import Job, Losses, run
from tests.adversary.hostile import Cast
from tests.adversary.masked_play import MaskedPlay
from tests.support.grouped import EVERYONE
from tests.support.small import small_agreement, small_data

OpenSites = Callable[[Agreement], MaskedPlay]


@pytest.fixture(scope="session")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """One federation for all runs: certificates are slow to make."""
    agreement = small_agreement()
    parties, _ = make_parties(tmp_path_factory.mktemp("federation"), agreement, EVERYONE)
    nobody = parties[0].credentials  # no test here plays the coordinator's certificate or a stranger's
    return Cast({party.name: party for party in parties}, nobody, nobody, small_data(agreement))


@pytest.fixture
def open_sites(tmp_path: Path, cast: Cast) -> Iterator[OpenSites]:
    """Sites of a new run under an agreement."""
    with ExitStack() as stack:
        yield lambda agreement: stack.enter_context(MaskedPlay(tmp_path, agreement, cast))


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The jobs that are run one by one from now on."""
    seen: list[Job] = []

    def noted(job: Job) -> Losses:
        seen.append(job)
        return run(job)

    monkeypatch.setattr(together, "run", noted)
    return seen
