"""The coordinator's store: one transaction, one content for each key, one run for each file."""

from __future__ import annotations

import hashlib
import sqlite3
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from protoseal_wire.messages import Phase, PhaseKey
from secure_server import store as store_module
from secure_server.errors import Conflict, StoreInUse, WrongPhase, WrongStore
from secure_server.rounds import machine
from secure_server.rounds.state import RoundStage, State
from secure_server.store import Received, ResultReference, Store
from tests.secure_server.rounds.round_player import RULES, SITES, START, Player, in_round

AGREEMENT = b"a" * 32
PRESENCE = PhaseKey("r1", 1, 1, Phase.PRESENCE)
BEGUN = machine.start(RULES, START)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coordinator" / "state.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    with Store.open(path, "r1", AGREEMENT) as opened:
        yield opened


def computed() -> Player:
    """Return a run in which the first round's results have just been computed."""
    player = in_round()
    player.compute()
    return player


class TestSaving:
    def test_open_new_store_is_empty(self, store: Store) -> None:
        assert store.load() is None
        assert store.statements() == {}
        assert store.upload(PRESENCE, "ada") is None
        assert store.upload_hash(PRESENCE, "ada") is None
        assert store.result(PRESENCE, "ada") is None
        assert list(store.received()) == []

    def test_open_again_returns_saved_state(self, path: Path) -> None:
        state = computed().state
        with Store.open(path, "r1", AGREEMENT) as store:
            store.save(BEGUN, statement=("ada", b"signed"))
            store.save(
                state, upload=(PRESENCE, "ada", b"here"), results={"ada": b"for ada", "bea": b"for bea"}
            )
        with Store.open(path, "r1", AGREEMENT) as store:
            assert store.load() == state
            assert store.statements() == {"ada": b"signed"}
            assert store.upload(PRESENCE, "ada") == b"here"
            assert store.upload_hash(PRESENCE, "ada") == hashlib.sha256(b"here").digest()
            assert store.result(state.result_key, "bea") == b"for bea"

    def test_save_content_by_key_and_site(self, store: Store) -> None:
        keys = [
            PRESENCE,
            PhaseKey("r1", 2, 1, Phase.PRESENCE),
            PhaseKey("r1", 1, 2, Phase.PRESENCE),
            PhaseKey("r1", 1, 1, Phase.VALUES),
        ]
        contents = {(key, site): f"{key} {site}".encode() for key in keys for site in SITES}
        for (key, site), content in contents.items():
            store.save(BEGUN, upload=(key, site, content))
        assert {place: store.upload(*place) for place in contents} == contents

    def test_save_syncs_to_the_disk(self, store: Store) -> None:
        """2 is FULL: the log is synced at each commit, so that a commit survives a loss of power."""
        assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)

    def test_save_empty_content_is_stored(self, store: Store) -> None:
        store.save(BEGUN, upload=(PRESENCE, "ada", b""))
        assert store.upload(PRESENCE, "ada") == b""
        with pytest.raises(Conflict):
            store.save(BEGUN, upload=(PRESENCE, "ada", b"x"))


class TestOneContentForEachKey:
    def test_save_same_content_again_is_idempotent(self, store: Store) -> None:
        state = computed().state
        for _ in range(2):
            store.save(state, upload=(PRESENCE, "ada", b"x"), statement=("ada", b"y"), results={"ada": b"z"})
        assert store.upload(PRESENCE, "ada") == b"x"
        assert len(list(store.received())) == 2

    def test_save_other_upload_is_refused_and_changes_nothing(self, store: Store) -> None:
        store.save(BEGUN, upload=(PRESENCE, "ada", b"x"))
        with pytest.raises(Conflict, match=r"ada.* PRESENCE"):
            store.save(computed().state, upload=(PRESENCE, "ada", b"X"), statement=("bea", b"new"))
        assert store.load() == BEGUN
        assert store.upload(PRESENCE, "ada") == b"x"
        assert store.statements() == {}

    def test_save_other_statement_is_refused_and_changes_nothing(self, store: Store) -> None:
        store.save(BEGUN, statement=("ada", b"x"))
        with pytest.raises(Conflict, match=r"ada.* r1"):
            store.save(computed().state, upload=(PRESENCE, "bea", b"new"), statement=("ada", b"X"))
        assert store.load() == BEGUN
        assert store.statements() == {"ada": b"x"}
        assert store.upload(PRESENCE, "bea") is None

    def test_save_other_result_is_refused(self, store: Store) -> None:
        state = computed().state
        store.save(state, results={"ada": b"x"})
        with pytest.raises(Conflict, match="ada"):
            store.save(state, results={"ada": b"X"})
        assert store.result(state.result_key, "ada") == b"x"

    def test_save_other_upload_without_the_check_passes(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.save(BEGUN, upload=(PRESENCE, "ada", b"x"))
        monkeypatch.setattr(store_module, "check_same", lambda *_: None)
        store.save(BEGUN, upload=(PRESENCE, "ada", b"X"))
        assert store.upload(PRESENCE, "ada") == b"x"

    def test_save_key_of_another_run_is_refused(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        other = PhaseKey("r2", 1, 1, Phase.PRESENCE)
        store.save(BEGUN, upload=(PRESENCE, "ada", b"x"))
        for call in (store.upload, store.upload_hash, store.result):
            with pytest.raises(WrongPhase, match="r2"):
                call(other, "ada")
        with pytest.raises(WrongPhase, match="r2"):
            store.save(BEGUN, upload=(other, "bea", b"x"))
        monkeypatch.setattr(store_module, "check_run", lambda *_: None)
        assert store.upload(other, "ada") == b"x", "one run's answer for another's, without the check"


class TestPruning:
    def fill(self, store: Store) -> State:
        player = computed()
        store.save(
            player.state, upload=(player.state.roster_key, "ada", b"keys"), statement=("ada", b"signed")
        )
        store.save(
            player.state,
            upload=(player.state.key(Phase.VALUES), "ada", b"values"),
            results={"ada": b"answer"},
        )
        store.save(player.state, upload=(PhaseKey("r1", 2, 1, Phase.VALUES), "ada", b"newer"))
        return player.state

    def test_prune_drops_old_rounds_but_not_the_set_up(self, store: Store) -> None:
        state = self.fill(store)
        store.prune(1)
        assert store.upload(state.key(Phase.VALUES), "ada") == b"values"
        store.prune(2)
        assert store.upload(state.key(Phase.VALUES), "ada") is None
        assert store.upload(state.roster_key, "ada") == b"keys"
        assert store.upload(PhaseKey("r1", 2, 1, Phase.VALUES), "ada") == b"newer"
        assert store.statements() == {"ada": b"signed"}
        assert {received.content for received in store.received()} == {b"signed", b"keys", b"newer"}

    def test_prune_drops_clustering_but_not_set_up_of_round_0(self, store: Store) -> None:
        clustering = PhaseKey("r1", 0, 1, Phase.VALUES)
        store.save(BEGUN, upload=(PhaseKey("r1", 0, 1, Phase.SECRET), "ada", b"set up"))
        store.save(BEGUN, upload=(clustering, "ada", b"prototypes"))
        store.prune(1)
        assert store.upload(clustering, "ada") is None
        assert store.upload(PhaseKey("r1", 0, 1, Phase.SECRET), "ada") == b"set up"

    def test_prune_keeps_hashes_so_replays_are_refused(self, store: Store) -> None:
        state = self.fill(store)
        store.prune(2)
        assert store.upload_hash(state.key(Phase.VALUES), "ada") == hashlib.sha256(b"values").digest()
        store.save(state, upload=(state.key(Phase.VALUES), "ada", b"values"))
        assert store.upload(state.key(Phase.VALUES), "ada") is None
        with pytest.raises(Conflict):
            store.save(state, upload=(state.key(Phase.VALUES), "ada", b"other"))

    def test_prune_recording_store_keeps_uploads(self, path: Path) -> None:
        times = iter(range(100, 200))
        with Store.open(path, "r1", AGREEMENT, record=True, clock=lambda: next(times)) as store:
            state = self.fill(store)
            store.prune(3)
            # The upload and the statement of one save carry two readings of the clock, the upload's first.
            assert list(store.received()) == [
                Received("ada", state.roster_key, b"keys", 100),
                Received("ada", None, b"signed", 101),
                Received("ada", state.key(Phase.VALUES), b"values", 102),
                Received("ada", PhaseKey("r1", 2, 1, Phase.VALUES), b"newer", 103),
            ]


class TestResults:
    """A site's latest result stays until it has a newer one: it may have missed it."""

    def give(self, store: Store, number: int, results: dict[str, bytes], attempt: int = 1) -> PhaseKey:
        state = State("r1", RoundStage.RESULT, 0.0, round=number, attempt=attempt)
        store.save(state, results=results)
        return state.result_key

    def contents(self, store: Store) -> int:
        return int(store._db.execute("SELECT count(*) FROM contents").fetchone()[0])

    def test_results_same_content_is_stored_once(self, store: Store) -> None:
        key = self.give(store, 1, dict.fromkeys(SITES, b"of the group"))
        assert self.contents(store) == 1
        assert [store.result(key, site) for site in SITES] == [b"of the group"] * 4

    def test_prune_result_goes_once_site_has_a_newer_one(self, store: Store) -> None:
        first = self.give(store, 1, {"ada": b"one", "bea": b"one", "cid": b"two"})
        store.prune(2)
        second = self.give(store, 2, {"ada": b"three", "cid": b"four"})
        store.prune(3)
        assert [store.result(first, site) for site in SITES] == [None, b"one", None, None]
        assert [store.result(second, site) for site in SITES] == [b"three", None, b"four", None]
        assert self.contents(store) == 3
        self.give(store, 3, {"bea": b"five"})
        store.prune(4)
        assert store.result(first, "bea") is None
        assert self.contents(store) == 3

    def test_prune_result_stays_during_its_round(self, store: Store) -> None:
        self.give(store, 1, {"ada": b"one"})
        key = self.give(store, 2, {"ada": b"two"})
        store.prune(2)
        assert store.result(key, "ada") == b"two"
        assert self.contents(store) == 1

    def test_latest_result_is_newest_of_any_member(self, store: Store) -> None:
        assert store.latest_result(SITES, 3) is None
        first = self.give(store, 1, {"ada": b"one", "bea": b"one"})
        second = self.give(store, 2, {"ada": b"two"}, attempt=3)
        assert store.latest_result(("ada", "bea"), 2) == ResultReference(
            first, hashlib.sha256(b"one").digest()
        )
        latest = store.latest_result(("ada", "bea"), 3)
        assert latest == ResultReference(second, hashlib.sha256(b"two").digest())
        assert store.content(latest.sha256) == b"two"
        assert store.latest_result(("bea",), 3) == ResultReference(first, hashlib.sha256(b"one").digest())
        assert store.latest_result(("cid",), 3) is None
        assert store.latest_result((), 3) is None
        assert store.content(b"0" * 32) is None

    def test_prune_sum_stays_until_a_newer_sum(self, store: Store) -> None:
        state = State("r1", RoundStage.RESULT, 0.0, round=1, attempt=1)
        store.save(state, results={"ada": b"one", "bea": b"one"}, sums=dict.fromkeys(("ada", "bea"), b"sum"))
        for number in (2, 3):
            self.give(store, number, {"ada": b"two", "bea": b"two"})
            store.prune(number + 1)
        assert store.latest_sum(("bea",), 1) is None
        assert store.latest_sum(("bea", "cid"), 4) == b"sum"
        assert store.latest_sum(("cid",), 4) is None
        latest = store.latest_result(SITES, 4)
        assert latest is not None
        assert latest.key.round == 3
        store.save(replace(state, round=4), results={"ada": b"four"}, sums={"ada": b"newer"})
        store.prune(5)
        assert store.latest_sum(("ada", "bea"), 5) == b"newer"


class TestOpening:
    def test_open_files_are_for_the_owner_only(self, store: Store, path: Path) -> None:
        store.save(BEGUN)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
        names = ("state.sqlite", "state.sqlite-wal", "state.sqlite-shm", "state.sqlite.lock")
        assert modes == dict.fromkeys(names, 0o600)

    @pytest.mark.parametrize(("run", "agreement"), [("r2", AGREEMENT), ("r1", b"b" * 32)])
    def test_open_file_of_another_run_is_refused(
        self, store: Store, path: Path, run: str, agreement: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.save(BEGUN, statement=("ann", b"joined"))
        store.close()
        with pytest.raises(WrongStore, match=r"another run"):
            Store.open(path, run, agreement)
        monkeypatch.setattr(store_module, "check_identity", lambda *_: None)
        Store.open(path, run, agreement).close()

    def test_open_corrected_agreement_before_any_join_starts_over(self, store: Store, path: Path) -> None:
        store.save(BEGUN)
        store.close()
        corrected = Store.open(path, "r1", b"b" * 32)
        assert corrected.load() is None
        corrected.close()

    def test_open_other_schema_version_is_refused(self, store: Store, path: Path) -> None:
        store._db.execute("UPDATE identity SET schema = 1")
        store.close()
        with pytest.raises(WrongStore, match=r"version"):
            Store.open(path, "r1", AGREEMENT)

    def test_open_other_file_is_refused_and_kept(self, path: Path) -> None:
        path.parent.mkdir(0o700)
        path.write_bytes(b"notes" * 1000)
        with pytest.raises(WrongStore, match=r"store"):
            Store.open(path, "r1", AGREEMENT)
        assert path.read_bytes() == b"notes" * 1000

    def test_open_other_database_is_refused(self, path: Path) -> None:
        path.parent.mkdir(0o700)
        database = sqlite3.connect(path)
        database.execute("CREATE TABLE notes (text TEXT)")
        database.close()
        with pytest.raises(WrongStore, match=r"store"):
            Store.open(path, "r1", AGREEMENT)

    def test_load_damaged_state_is_refused(self, store: Store) -> None:
        store.save(BEGUN)
        store._db.execute("UPDATE state SET json = replace(json, 'joining', 'pausing')")
        with pytest.raises(WrongStore, match=r"read"):
            store.load()

    def test_open_store_in_use_is_refused(self, store: Store, path: Path) -> None:
        with pytest.raises(StoreInUse, match=r"in use"):
            Store.open(path, "r1", AGREEMENT)
        store.close()
        Store.open(path, "r1", AGREEMENT).close()

    def test_open_refused_file_is_unlocked(self, store: Store, path: Path) -> None:
        store.save(BEGUN, statement=("ann", b"joined"))
        store.close()
        with pytest.raises(WrongStore):
            Store.open(path, "r2", AGREEMENT)
        Store.open(path, "r1", AGREEMENT).close()


class TestReader:
    """A second connection, for another thread."""

    def test_reader_sees_saved_answers(self, store: Store) -> None:
        with store.reader() as reader:
            store.save(BEGUN, upload=(PRESENCE, "ada", b"here"))
            assert reader.answer(PRESENCE, "ada") == b"here"

    def test_reader_works_in_another_thread(self, store: Store) -> None:
        store.save(BEGUN, upload=(PRESENCE, "ada", b"here"))

        def read() -> bytes:
            with store.reader() as reader:
                return reader.answer(PRESENCE, "ada")

        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(read).result() == b"here"

    def test_reader_missing_answer_raises(self, store: Store) -> None:
        store.save(BEGUN, upload=(PRESENCE, "ada", b"here"))
        store.prune(before_round=2)
        with store.reader() as reader:
            for site in ("ada", "bea"):
                with pytest.raises(RuntimeError, match=rf"{site} .*PRESENCE"):
                    reader.answer(PRESENCE, site)

    def test_reader_cannot_write(self, store: Store) -> None:
        with store.reader() as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader._db.execute("DELETE FROM uploads")

    def test_reader_does_not_block_the_store(self, store: Store) -> None:
        store.save(BEGUN, upload=(PRESENCE, "ada", b"here"))
        with store.reader() as reader:
            reader.answer(PRESENCE, "ada")
            store.prune(before_round=2)
            assert store.upload(PRESENCE, "ada") is None

    def test_reader_opens_file_with_special_characters(self, tmp_path: Path) -> None:
        with Store.open(tmp_path / "a ?#%20.sqlite", "r1", AGREEMENT) as store, store.reader() as reader:
            store.save(BEGUN, upload=(PRESENCE, "ada", b"here"))
            assert reader.answer(PRESENCE, "ada") == b"here"
