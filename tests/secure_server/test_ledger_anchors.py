"""Anchors of privacy ledgers that the coordinator keeps over all runs, and tells a site that joins."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from agreement.storage.anchor_record import AnchorRecord, AnchorRecordError
from protoseal_wire.messages import LedgerAnchor, PresenceStatement
from secure_server.errors import BadPayload
from secure_server.ledger_anchors import LedgerAnchors
from tests.support.anchors import anchor, with_noise
from tests.support.small import small_agreement

A, B = "clinic-a", "clinic-b"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "anchors.sqlite"


def test_record_keeps_the_highest_of_each_site_and_data_set(path: Path) -> None:
    with AnchorRecord.open(path) as record:
        for seq in (3, 5, 4, 5):
            assert record.note({A: anchor(seq), B: anchor(seq + 1)}) == {}
        record.note({A: anchor(1, key="other scans")})
    with AnchorRecord.open(path) as record:
        assert record.newest(A, anchor(0).key) == anchor(5)
        assert record.newest(B, anchor(0).key) == anchor(6)
        assert record.newest(A, anchor(0, key="other scans").key) == anchor(1, key="other scans")
        assert record.newest(B, anchor(0, key="other scans").key) is None
        assert len(record.all()) == 3


def test_note_second_hash_of_an_entry_is_reported(path: Path) -> None:
    with AnchorRecord.open(path) as record:
        record.note({A: anchor(5), B: anchor(5)})
        assert record.note({A: anchor(5, "another"), B: anchor(5)}) == {A: anchor(5)}
        assert record.newest(A, anchor(0).key) == anchor(5)


def test_record_is_shared_by_several_processes(path: Path) -> None:
    with AnchorRecord.open(path) as one, AnchorRecord.open(path) as other:
        one.note({A: anchor(2)})
        other.note({A: anchor(1), B: anchor(7)})
        assert one.all() == other.all() == {(A, anchor(2).key): anchor(2), (B, anchor(7).key): anchor(7)}


def test_record_keeps_the_largest_number(path: Path) -> None:
    with AnchorRecord.open(path) as record:
        record.note({A: anchor(2**63 - 1)})
        assert record.newest(A, anchor(0).key) == anchor(2**63 - 1)


def test_record_is_for_its_owner_and_durable(path: Path) -> None:
    with AnchorRecord.open(path) as record:
        assert path.stat().st_mode & 0o777 == 0o600
        assert record._db.execute("PRAGMA synchronous").fetchone() == (3,)  # EXTRA


def test_open_other_file_is_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(AnchorRecordError, match="none/anchors"):
        AnchorRecord.open(tmp_path / "none" / "anchors.sqlite")
    path.write_bytes(b"something else" * 100)
    with pytest.raises(AnchorRecordError):
        AnchorRecord.open(path)
    path.unlink()
    later = sqlite3.connect(path)
    later.execute("PRAGMA user_version=2")
    later.close()
    with pytest.raises(AnchorRecordError, match="2"):
        AnchorRecord.open(path)


def stated(site: str, given: LedgerAnchor | None) -> PresenceStatement:
    return PresenceStatement(site, np.zeros(3, dtype=np.bool_), b"", anchor=given)


def test_report_to_joining_is_what_the_site_signed(path: Path) -> None:
    with AnchorRecord.open(path) as record:
        anchors = LedgerAnchors(with_noise(), record)
        assert anchors.report_to_joining(A, anchor(3)) is None
        anchors.note(stated(A, anchor(4)))
        assert anchors.report_to_joining(A, anchor(4)) == anchor(4)
        assert anchors.report_to_joining(B, anchor(4)) is None
    with AnchorRecord.open(path) as record:
        assert LedgerAnchors(with_noise(), record).report_to_joining(A, anchor(9)) == anchor(4)


@pytest.mark.parametrize("joining", [anchor(3), anchor(4, "older copy, went on"), anchor(6, "longer by now")])
def test_report_to_joining_does_not_store_the_request(path: Path, joining: LedgerAnchor) -> None:
    """Otherwise the site would be refused once and accepted the next time."""
    with AnchorRecord.open(path) as record:
        anchors = LedgerAnchors(with_noise(), record)
        anchors.note(stated(A, anchor(4)))
        assert [anchors.report_to_joining(A, joining) for _ in range(2)] == [anchor(4)] * 2


def test_report_to_joining_behind_is_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with AnchorRecord.open(path) as record:
        anchors = LedgerAnchors(with_noise(), record)
        anchors.note(stated(A, anchor(4)))
        anchors.report_to_joining(A, anchor(5))
        assert caplog.messages == []
        with caplog.at_level(logging.WARNING):
            anchors.report_to_joining(A, anchor(3))
            anchors.report_to_joining(A, anchor(4, "another"))
    assert [message.partition(" (")[0] for message in caplog.messages] == [
        f"{A}: the privacy ledger ends with entry 3",
        f"{A}: the privacy ledger ends with entry 4",
    ]


def test_check_anchor_is_required_under_noise() -> None:
    """The coordinator checks the anchor even without a record, as in a simulation."""
    noisy, exact = LedgerAnchors(with_noise(), None), LedgerAnchors(small_agreement(), None)
    assert noisy.report_to_joining(A, anchor(3)) is None
    assert exact.report_to_joining(A, None) is None
    with pytest.raises(BadPayload, match="clinic-a"):
        noisy.report_to_joining(A, None)
    assert exact.report_to_joining(A, anchor(3)) is None


BEHIND = [anchor(3), anchor(4, "another")]


@pytest.mark.parametrize("behind", BEHIND)
def test_note_behind_the_run_is_refused(behind: LedgerAnchor) -> None:
    """Peers would leave the run at such a statement, so that one site could end it."""
    anchors = LedgerAnchors(small_agreement(), None)
    anchors.note(stated(A, anchor(4)))
    for _ in range(2):
        with pytest.raises(BadPayload, match=A):
            anchors.note(stated(A, behind))
    for site, same_or_other in (
        (A, anchor(4)),
        (A, anchor(0, key="other scans")),
        (B, anchor(3)),
        (A, anchor(5)),
    ):
        anchors.note(stated(site, same_or_other))


@pytest.mark.parametrize("behind", BEHIND)
def test_note_behind_an_earlier_run_is_refused(path: Path, behind: LedgerAnchor) -> None:
    with AnchorRecord.open(path) as record:
        LedgerAnchors(with_noise(), record).note(stated(A, anchor(4)))
    with AnchorRecord.open(path) as record, pytest.raises(BadPayload, match=A):
        LedgerAnchors(with_noise(), record).note(stated(A, behind))


def test_note_behind_a_concurrent_run_is_accepted(path: Path) -> None:
    with AnchorRecord.open(path) as record, AnchorRecord.open(path) as of_other_run:
        anchors = LedgerAnchors(with_noise(), record)
        LedgerAnchors(with_noise(), of_other_run).note(stated(A, anchor(6)))
        anchors.note(stated(A, anchor(5)))
        with pytest.raises(BadPayload, match=A):
            anchors.note(stated(A, anchor(6, "another")))
        assert record.newest(A, anchor(0).key) == anchor(6)
