"""FedPC's groups are searched for in another process, where there is one, and are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agreement import Protection
from crypto.protection import Pool
from secure_server.aggregator import Aggregator
from secure_server.process_pool import Workers
from secure_server.rounds.state import RoundStage
from tests.secure_server.conftest import Identities
from tests.secure_server.exchanges.fedpc_play import Play, playing
from tests.secure_server.scripted_sites import FAR, NEAR, fedpc_agreement
from tests.support.inline_pool import InlinePool


def clustered(play: Play, executor: Pool) -> Any:
    """Return the groups that a coordinator with this executor finds."""
    play.coordinator._aggregator = Aggregator(play.agreement, play.keys, executor)
    play.join()
    play.go_to(RoundStage.PRESENCE, 1)
    return play.state.groups


def test_nothing_but_the_search_goes_to_the_executor(identities: Identities, tmp_path: Path) -> None:
    executor = InlinePool(1)
    with playing(fedpc_agreement(Protection.MASKED), *identities, tmp_path) as play:
        assert clustered(play, executor) == (NEAR, FAR)
        play.coordinator._requests._aggregator = play.coordinator._aggregator
        play.go_to(RoundStage.FINISHED)
    assert executor.names == ["cluster"]


def test_a_worker_process_finds_them(identities: Identities, tmp_path: Path) -> None:
    with Workers(1) as workers, playing(fedpc_agreement(Protection.PLAIN), *identities, tmp_path) as play:
        assert clustered(play, workers) == (NEAR, FAR)
