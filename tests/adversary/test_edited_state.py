"""A site's state folder that somebody else edits: its journal by hand, its links and its permissions."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from crypto.errors import CryptoError, DecryptionError
from crypto.keys import StorageKey
from protoseal_files import durable_files
from protoseal_wire import codec
from protoseal_wire.messages import ActiveList, Phase, Roster, SurvivorSet
from secure_client.errors import FilesOfOtherRun, Violation
from secure_client.protocol.journal import Journal
from secure_server.store import Store
from tests.support.grouped import EVERYONE, grouped_agreement
from tests.support.scripted_coordinator import Cast
from tests.support.scripted_sums import ScriptedSums, SumAttempt

A, B, C, D = EVERYONE
Edit = Callable[[sqlite3.Connection, ScriptedSums, SumAttempt], None]


@pytest.fixture
def play(tmp_path: Path, cast: Cast) -> Iterator[ScriptedSums]:
    with ScriptedSums(tmp_path, grouped_agreement(), cast) as opened:
        opened.set_up(*EVERYONE)
        yield opened


def edit_journal(play: ScriptedSums, begun: SumAttempt, edit: Edit) -> None:
    """Edit the journal of ``A`` while its process is not running."""
    play.restart(A)
    with closing(sqlite3.connect(play.state(A) / "journal.sqlite")) as database, database:
        edit(database, play, begun)


def swap_secrets(database: sqlite3.Connection, _: ScriptedSums, __: SumAttempt) -> None:
    rows = database.execute("SELECT name, sealed FROM secrets WHERE name != 'statement'").fetchall()
    for (name, _sealed), (_name, other) in zip(rows, rows[1:] + rows[:1], strict=True):
        database.execute("UPDATE secrets SET sealed=? WHERE name=?", (other, name))


def damage_secrets(database: sqlite3.Connection, _: ScriptedSums, __: SumAttempt) -> None:
    for name, sealed in database.execute("SELECT name, sealed FROM secrets").fetchall():
        damaged = bytes(sealed[:-1]) + bytes([sealed[-1] ^ 1])
        database.execute("UPDATE secrets SET sealed=? WHERE name=?", (damaged, name))


def request_of(database: sqlite3.Connection, phase: Phase) -> bytes:
    (request,) = database.execute("SELECT request FROM answers WHERE phase=?", (int(phase),)).fetchone()
    return bytes(request)


def replace_request(database: sqlite3.Connection, phase: Phase, content: bytes) -> None:
    changed = database.execute("UPDATE answers SET request=? WHERE phase=?", (content, int(phase)))
    assert changed.rowcount == 1


def list_fewer(database: sqlite3.Connection, _: ScriptedSums, begun: SumAttempt) -> None:
    fewer = ActiveList(begun.active.statements[:3])
    replace_request(database, Phase.SHARES, codec.encode_active_list(fewer))


def drop_from_roster(database: sqlite3.Connection, play: ScriptedSums, _: SumAttempt) -> None:
    roster = codec.decode_roster(request_of(database, Phase.ROSTER), play.limits)
    replace_request(database, Phase.ROSTER, codec.encode_roster(Roster(roster.statements[:3])))


def rename_in_the_list(database: sqlite3.Connection, _: ScriptedSums, __: SumAttempt) -> None:
    request = request_of(database, Phase.SHARES)
    replace_request(database, Phase.SHARES, request.replace(b"clinic-d", b"clinic-e"))


EDITS: Mapping[str, tuple[Edit, type[Exception]]] = {
    "secrets under each other's names": (swap_secrets, DecryptionError),
    "secrets of other bytes": (damage_secrets, DecryptionError),
    "a list of fewer sites": (list_fewer, Violation),
    "a roster of fewer sites": (drop_from_roster, Violation),
    "a statement in another name": (rename_in_the_list, Violation),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_site_sends_no_values_after_an_edit_of_secrets_or_signed_lists(
    play: ScriptedSums, name: str
) -> None:
    edit, expected = EDITS[name]
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    edit_journal(play, begun, edit)
    with pytest.raises(expected):
        begun.mask(A)


def test_a_site_releases_no_shares_after_an_edit_of_the_survivors_that_it_signed(play: ScriptedSums) -> None:
    """The others signed for all four, so that the edited set has too few signatures."""
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    signatures = begun.sign(EVERYONE, *EVERYONE)
    fewer = codec.encode_survivor_set(SurvivorSet((A, B, C)))
    edit_journal(play, begun, lambda database, *_: replace_request(database, Phase.SURVIVORS, fewer))
    with pytest.raises((Violation, CryptoError)):
        begun.release((A, B, C), signatures, A)


def test_a_journal_that_was_given_to_another_run_is_refused(play: ScriptedSums) -> None:
    begun = play.attempt(*EVERYONE)
    edit_journal(play, begun, lambda database, *_: database.execute("UPDATE identity SET run='run-2'"))
    with pytest.raises(FilesOfOtherRun):
        play.site(A)


@pytest.mark.parametrize("bound", [True, False])
def test_secrets_of_another_run_open_only_where_they_are_not_bound_to_their_run(
    play: ScriptedSums, tmp_path: Path, cast: Cast, monkeypatch: pytest.MonkeyPatch, bound: bool
) -> None:
    """The storage key is the same in both runs. Without the binding, the site joins with another run's statement."""
    if not bound:
        monkeypatch.setattr(Journal, "_place", lambda _, name: name.encode())
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    with ScriptedSums(earlier, play.agreement, cast) as before:
        statement = before.statement(A)
    with ScriptedSums(later, grouped_agreement(run="run-2"), cast) as after:
        after.site(A)
        after.restart(A)
        with closing(sqlite3.connect(after.state(A) / "journal.sqlite")) as database:
            database.execute("ATTACH ? AS earlier", (str(earlier / A / "journal.sqlite"),))
            with database:
                database.execute("INSERT OR REPLACE INTO main.secrets SELECT * FROM earlier.secrets")
        if bound:
            with pytest.raises(DecryptionError):
                after.site(A)
        else:
            assert after.statement(A) == statement


def test_an_answer_that_was_deleted_is_given_again_as_from_an_older_copy(play: ScriptedSums) -> None:
    """The limit: two vectors leave under the same masks of a site, with other partners."""
    begun = play.attempt(*EVERYONE)
    begun.share(*EVERYONE)
    begun.mask(*EVERYONE)
    first = begun.masked[A]
    edit_journal(
        play,
        begun,
        lambda database, *_: database.execute("DELETE FROM answers WHERE phase=?", (int(Phase.VALUES),)),
    )
    begun.mask(A, shares=tuple(each for each in begun.shares_for(A) if each.sender != D))
    assert begun.masked[A].tolist() != first.tolist()


def open_journal(folder: Path) -> None:
    storage = StorageKey(bytes(32))
    Journal(folder / "journal.sqlite", run="run", agreement_hash=bytes(32), site="a", storage=storage).close()


def open_store(folder: Path) -> None:
    Store.open(folder / "coordinator.sqlite", "run", bytes(32)).close()


def log_round(folder: Path) -> None:
    durable_files.append_line(folder / "rounds.jsonl", b"{}")


LINKED: Mapping[str, Callable[[Path], None]] = {
    "journal.sqlite": open_journal,
    "journal.sqlite-wal": open_journal,
    "journal.sqlite-shm": open_journal,
    "coordinator.sqlite": open_store,
    "coordinator.sqlite-wal": open_store,
    "coordinator.sqlite.lock": open_store,
    "rounds.jsonl": log_round,
}
"""Names of files in a state folder, and what opens them."""


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.touch(0o644)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(0o700)
    return path


@pytest.mark.parametrize("name", LINKED)
def test_a_file_that_was_replaced_by_a_link_is_refused_and_the_linked_file_is_as_before(
    folder: Path, victim: Path, name: str
) -> None:
    (folder / name).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link") as refused:
        LINKED[name](folder)
    assert refused.value.filename == str(folder / name)
    assert (victim.read_bytes(), victim.stat().st_mode & 0o777) == (b"", 0o644)


@pytest.mark.parametrize("name", ["journal.sqlite", "coordinator.sqlite", "rounds.jsonl"])
def test_without_the_check_the_linked_file_is_written(
    folder: Path, victim: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_files, "refuse_link", lambda path: None)
    monkeypatch.setattr(os, "O_NOFOLLOW", 0)
    (folder / name).symlink_to(victim)
    LINKED[name](folder)
    assert victim.read_bytes()


@pytest.mark.parametrize("opened", [open_journal, open_store])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(
    folder: Path, opened: Callable[[Path], None], mode: int
) -> None:
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="chmod go-w") as refused:
        opened(folder)
    assert refused.value.filename == str(folder)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("opened", [open_journal, open_store])
def test_the_folder_itself_may_be_a_link(
    tmp_path: Path, folder: Path, opened: Callable[[Path], None]
) -> None:
    """Its path is in the operator's own file, like that of the ledger."""
    (tmp_path / "link").symlink_to(folder)
    opened(tmp_path / "link")
    assert list(folder.iterdir())


def test_a_pipe_in_place_of_a_file_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "rounds.jsonl")
    with pytest.raises(OSError, match="regular"):
        log_round(folder)
