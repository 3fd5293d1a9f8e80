"""Real sites of one federation, for a session's tests to ask; the jobs that do not train together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agreement import Agreement
from protoseal.simulation.local_federation import make_parties
from tests.support.grouped import EVERYONE
from tests.support.scripted_coordinator import Cast
from tests.support.scripted_sums import ScriptedSums
from tests.support.small import small_agreement, small_data

OpenSites = Callable[[Agreement], ScriptedSums]


@pytest.fixture(scope="session")
def cast(tmp_path_factory: pytest.TempPathFactory) -> Cast:
    """Make one federation for all runs, since certificates are slow to make."""
    agreement = small_agreement()
    parties, _ = make_parties(tmp_path_factory.mktemp("federation"), agreement, EVERYONE)
    nobody = parties[0].credentials  # no test here plays the coordinator's certificate or a stranger's
    return Cast({party.name: party for party in parties}, nobody, nobody, small_data(agreement))


@pytest.fixture
def open_sites(tmp_path: Path, cast: Cast) -> Iterator[OpenSites]:
    """Open sites of a new run under an agreement."""
    with ExitStack() as stack:
        yield lambda agreement: stack.enter_context(ScriptedSums(tmp_path, agreement, cast))
