"""A site holds its ledger to what the coordinator has kept, and its peers' to what it has seen itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agreement import Agreement
from agreement.storage.anchor_record import AnchorRecord, anchor_key
from crypto.keys import StorageKey
from privacy.errors import RolledBackError
from privacy.ledger.budget_account import read_account
from protoseal_wire.messages import ActiveList, LedgerAnchor, Phase, PhaseKey, PresenceStatement
from secure_client.errors import Violation
from secure_client.privacy.budget import BudgetSection
from secure_client.privacy.ledger_anchors import OwnAnchor, PeerAnchors, check_recorded
from secure_client.privacy.releases import ExactReleases
from secure_client.protocol.journal import Journal
from tests.support.anchors import anchor, with_noise
from tests.support.ledgers import DATASET, LIMIT, open_ledger, spending
from tests.support.small import FEDERATION, RUN, small_agreement

A, B, C = "clinic-a", "clinic-b", "clinic-c"
KEY = anchor_key(FEDERATION, A, DATASET)


def own(path: Path) -> OwnAnchor:
    return OwnAnchor(with_noise(), A, open_ledger(path), Nothing(), None)


class Nothing(Journal):
    """A journal of a run that begins."""

    def __init__(self) -> None: ...

    def get(self, name: str) -> None: ...


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ledger = open_ledger(tmp_path / "heart.ledger")
    for number in (1, 2, 3):
        ledger.spend(spending(number))
    return tmp_path / "heart.ledger"


def last(path: Path) -> LedgerAnchor:
    seq, head = open_ledger(path).anchor
    return LedgerAnchor(KEY, seq, bytes.fromhex(head))


def test_show_is_the_ledgers_last_entry(path: Path) -> None:
    assert own(path).now == last(path)
    assert OwnAnchor(small_agreement(), A, None, Nothing(), None).now is None


def test_check_reported_earlier_entry_is_accepted(path: Path) -> None:
    kept = last(path)
    own(path).check_reported(None)
    own(path).check_reported(kept)
    open_ledger(path).spend(spending(4))
    own(path).check_reported(kept)


@pytest.mark.parametrize("lines", [0, 2])
@pytest.mark.parametrize("more", [0, 1, 5])
def test_check_reported_older_copy_is_refused_however_far_it_continued(
    path: Path, lines: int, more: int
) -> None:
    kept = last(path)
    older = path.read_bytes().splitlines(keepends=True)[:lines]
    path.write_bytes(b"".join(older))
    for number in range(more):
        open_ledger(path).spend(spending(number, "run-2"))
    before = path.read_bytes()
    with pytest.raises(RolledBackError, match="entry 3"):
        own(path).check_reported(kept)
    if before:
        assert path.read_bytes() == before


def test_check_reported_another_ledger_is_a_violation(path: Path) -> None:
    with pytest.raises(Violation):
        own(path).check_reported(LedgerAnchor(bytes(32), 0, bytes(32)))
    with pytest.raises(Violation):
        OwnAnchor(small_agreement(), A, None, Nothing(), None).check_reported(last(path))


TORN: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "shorter": lambda path: path.write_bytes(path.read_bytes()[: path.read_bytes()[:-1].rindex(b"\n") + 1]),
    "empty": lambda path: path.write_bytes(b""),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("harm", TORN)
@pytest.mark.parametrize("exact", [True, False])
def test_check_recorded_lost_entry_is_refused_before_another_ledger_begins(
    tmp_path: Path, record: AnchorRecord, harm: str, exact: bool
) -> None:
    """The record beside the ledger shows the loss in another run, the journal in the same one, also without noise."""
    path, budget = tmp_path / "heart.ledger", budget_of(tmp_path / "heart.ledger")
    agreed = small_agreement() if exact else with_noise()
    with journal_of(tmp_path, agreed) as journal:
        check_recorded(budget)
        if exact:
            releases = ExactReleases(agreed, budget)
            releases.declare()
            OwnAnchor(agreed, A, releases.ledger, journal, record).show(1)
        else:
            open_ledger(path).spend(spending(1))
            OwnAnchor(agreed, A, open_ledger(path), journal, record).show(1)
        check_recorded(budget)
        TORN[harm](path)
        left = path.read_bytes() if path.exists() else None
        with pytest.raises(RolledBackError, match="entry 1 "):
            check_recorded(budget)
        assert (path.read_bytes() if path.exists() else None) == left
        with pytest.raises(RolledBackError):
            OwnAnchor(agreed, A, open_ledger(path), journal, record)


def test_check_recorded_torn_line_is_no_loss(
    path: Path, record: AnchorRecord, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tear the line as a later cut would; no anchor has the line."""
    with journal_of(tmp_path, with_noise()) as journal:
        OwnAnchor(with_noise(), A, open_ledger(path), journal, record).show(1)
        open_ledger(path).spend(spending(4))
        path.write_bytes(path.read_bytes()[:-9])
        check_recorded(budget_of(path))
        OwnAnchor(with_noise(), A, open_ledger(path), journal, record).check_reported(last(path))
        with caplog.at_level(logging.WARNING):
            open_ledger(path).spend(spending(4))
    assert "a crash while writing" in caplog.text
    assert [each.spending.release.round for each in read_account(path).entries] == [1, 2, 3, 4]


def test_check_reported_cut_line_is_told_from_a_crash(
    path: Path,
) -> None:
    kept = last(path)
    path.write_bytes(path.read_bytes()[:-9])
    before = path.read_bytes()
    with pytest.raises(RolledBackError, match="entry 3 "):
        own(path).check_reported(kept)
    assert path.read_bytes() == before


def test_check_recorded_ledger_lost_continues_without_guarantee(
    path: Path, record: AnchorRecord, tmp_path: Path
) -> None:
    with journal_of(tmp_path, with_noise()) as journal:
        OwnAnchor(with_noise(), A, open_ledger(path), journal, record).show(1)
    path.unlink()
    check_recorded(budget_of(path, ledger_lost=True))
    account = read_account(path)
    assert ([each.seq for each in account.losses], account.guaranteed) == ([3], False)
    check_recorded(budget_of(path))  # what is there now is what is held to from here on
    check_recorded(budget_of(path, ledger_lost=True))
    assert len(read_account(path).lines) == 1


def budget_of(path: Path, *, ledger_lost: bool = False) -> BudgetSection:
    return BudgetSection(
        dataset=DATASET,
        ledger=path,
        epsilon=LIMIT.epsilon,
        delta=LIMIT.delta,
        allow_no_guarantee=True,
        ledger_lost=ledger_lost,
    )


def journal_of(folder: Path, agreed: Agreement) -> Journal:
    return Journal(
        folder / "journal.sqlite",
        run=RUN,
        agreement_hash=agreed.hash(),
        site=A,
        storage=StorageKey(bytes(32)),
    )


class Peer:
    """Memory of clinic-a in one run, which can be restarted."""

    def __init__(self, folder: Path, run: str, record: AnchorRecord | None) -> None:
        self._folder = folder
        self._run = run
        self._record = record
        self.open()

    def open(self) -> None:
        agreed = with_noise().model_copy(update={"run": self._run})
        self.journal = Journal(
            self._folder / f"{self._run}.sqlite",
            run=self._run,
            agreement_hash=agreed.hash(),
            site=A,
            storage=StorageKey(bytes(32)),
        )
        self._anchors = PeerAnchors(agreed, A, self.journal, self._record)

    def restart(self) -> None:
        self.journal.close()
        self.open()

    def sees(self, round_number: int, attempt: int = 1, **stated: LedgerAnchor | None) -> None:
        """Show the peer a list of that attempt; clinic-c never changes."""
        named = {B: stated.get("b", anchor(1)), C: anchor(1), A: stated.get("a", anchor(1))}
        holds = np.zeros(3, dtype=np.bool_)
        active = ActiveList(
            tuple(PresenceStatement(site, holds, b"", anchor=at) for site, at in named.items())
        )
        self._anchors.check(PhaseKey(self._run, round_number, attempt, Phase.PRESENCE), active)


@pytest.fixture
def record(tmp_path: Path) -> Iterator[AnchorRecord]:
    with AnchorRecord.open(tmp_path / "heart.ledger.peers") as opened:
        yield opened


@pytest.fixture
def peer(tmp_path: Path, record: AnchorRecord) -> Iterator[Peer]:
    made = Peer(tmp_path, RUN, record)
    yield made
    made.journal.close()


BEHIND = [anchor(4), anchor(5, "another"), anchor(0, "begun anew")]


def test_peers_that_grow_or_stay_are_accepted(peer: Peer, record: AnchorRecord) -> None:
    for number, seq in enumerate((3, 3, 4, 9), 1):
        peer.sees(number, b=anchor(seq))
        peer.restart()
    assert record.newest(B, anchor(0).key) == anchor(9)


@pytest.mark.parametrize("later", BEHIND)
@pytest.mark.parametrize("restarted", [False, True])
def test_peer_behind_its_earlier_statement_is_refused(
    peer: Peer, record: AnchorRecord, later: LedgerAnchor, restarted: bool
) -> None:
    peer.sees(1, b=anchor(5))
    if restarted:
        peer.restart()
    for _ in range(2):
        with pytest.raises(Violation, match=r"clinic-b.* entry 5 "):
            peer.sees(2, b=later)
    assert record.newest(B, anchor(0).key) == anchor(5)


@pytest.mark.parametrize("later", BEHIND)
def test_peer_behind_another_run_is_refused(
    tmp_path: Path, record: AnchorRecord, later: LedgerAnchor
) -> None:
    earlier = Peer(tmp_path, "earlier", record)
    earlier.sees(1, b=anchor(5))
    earlier.journal.close()
    peer = Peer(tmp_path, RUN, record)
    with pytest.raises(Violation, match=r"clinic-b.* entry 5 "):
        peer.sees(1, b=later)
    peer.journal.close()


@pytest.mark.parametrize("later", BEHIND)
def test_peer_behind_another_run_without_a_record_is_accepted(tmp_path: Path, later: LedgerAnchor) -> None:
    """The power of the last."""
    earlier, peer = Peer(tmp_path, "earlier", None), Peer(tmp_path, RUN, None)
    earlier.sees(1, b=anchor(5))
    peer.sees(1, b=later)
    for each in (earlier, peer):
        each.journal.close()


def test_two_runs_over_one_ledger_are_accepted_in_any_order(tmp_path: Path, record: AnchorRecord) -> None:
    """A statement of the one may come after a later one of the other, and is no older copy."""
    runs = [Peer(tmp_path, run, record) for run in ("run-x", "run-y")]
    runs[1].sees(1, b=anchor(6))
    runs[0].sees(1, b=anchor(5))
    runs[0].restart()
    runs[0].sees(2, b=anchor(7))
    runs[1].sees(2, b=anchor(6))
    assert record.newest(B, anchor(0).key) == anchor(7)
    for each in runs:
        each.journal.close()


def test_two_hashes_of_one_entry_are_refused_in_any_run(tmp_path: Path, record: AnchorRecord) -> None:
    runs = [Peer(tmp_path, run, record) for run in ("run-x", "run-y")]
    runs[1].sees(1, b=anchor(6))
    with pytest.raises(Violation, match="entry 6"):
        runs[0].sees(1, b=anchor(6, "another"))
    for each in runs:
        each.journal.close()


def test_earlier_list_read_again_is_accepted(peer: Peer) -> None:
    """The rules of masks read earlier attempts of a round in the same way."""
    peer.sees(1, 1, b=anchor(3))
    peer.sees(1, 2, b=anchor(4))
    peer.sees(1, 1, b=anchor(3))
    peer.restart()
    peer.sees(1, 1, b=anchor(3))
    with pytest.raises(Violation, match="entry 3"):
        peer.sees(1, 3, b=anchor(3))


def test_another_data_set_is_another_ledger(peer: Peer) -> None:
    """Peers believe a site about its own data set."""
    peer.sees(1, b=anchor(5))
    peer.sees(2, b=anchor(0, key="other scans"))
    with pytest.raises(Violation, match="entry 5"):
        peer.sees(3, b=anchor(4))


def test_own_anchor_is_not_compared_with_lists(peer: Peer) -> None:
    peer.sees(1, a=anchor(5))
    peer.sees(2, a=anchor(4))


def test_peer_without_an_anchor_is_refused_under_noise(peer: Peer) -> None:
    with pytest.raises(Violation, match="clinic-b"):
        peer.sees(1, b=None)


def test_peer_without_an_anchor_is_accepted_without_noise(tmp_path: Path, record: AnchorRecord) -> None:
    agreed, holds = small_agreement(), np.zeros(3, dtype=np.bool_)
    with journal_of(tmp_path, agreed) as journal:
        anchors = PeerAnchors(agreed, A, journal, record)
        for attempt, stated in enumerate((None, anchor(4), None, anchor(4)), 1):
            statement = PresenceStatement(B, holds, b"", anchor=stated)
            anchors.check(PhaseKey(RUN, 1, attempt, Phase.PRESENCE), ActiveList((statement,)))
        behind = ActiveList((PresenceStatement(B, holds, b"", anchor=anchor(3)),))
        with pytest.raises(Violation, match=r"clinic-b.* entry 3"):
            anchors.check(PhaseKey(RUN, 1, 9, Phase.PRESENCE), behind)
    assert record.newest(B, anchor(4).key) == anchor(4)
