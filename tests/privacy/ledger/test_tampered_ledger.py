"""Lines that were changed, removed, moved or repeated, an unfinished end, and an older copy put back."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from privacy.errors import LedgerError, RolledBackError
from privacy.ledger.budget_account import read_account
from privacy.ledger.hash_chain import Anchor, ChainError, make_line, read_chain
from tests.support.ledgers import LIMIT, canonical, has_paid_for, open_ledger, spending

Lines = list[bytes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ledger = open_ledger(tmp_path / "heart.ledger")
    for number in range(1, 5):
        ledger.spend(spending(number))
    return tmp_path / "heart.ledger"


def changed(line: bytes, name: str, value: object, *, rehashed: bool = False) -> bytes:
    entry = json.loads(line)
    entry[name] = value
    if rehashed:
        after = Anchor(entry.pop("seq") - 1, entry.pop("prev"))
        return make_line(after, {key: each for key, each in entry.items() if key not in {"hash", "salt"}})[
            :-1
        ]
    return canonical(entry)


def after(line: bytes, other: bytes) -> bytes:
    """Return the content of another line, as the one that follows ``line``."""
    entry, content = json.loads(line), json.loads(other)
    chaining = {"seq", "prev", "salt", "hash"}
    kept = {name: value for name, value in content.items() if name not in chaining}
    return make_line(Anchor(entry["seq"], entry["hash"]), kept)[:-1]


def salted(line: bytes, salt: str) -> bytes:
    """Return the line with another salt, and a hash that fits."""
    entry = json.loads(line) | {"salt": salt}
    del entry["hash"]
    entry["hash"] = hashlib.sha256(canonical(entry)).hexdigest()
    return canonical(entry)


def replaced(lines: Lines, index: int, *others: bytes) -> Lines:
    return [*lines[:index], *others, *lines[index + 1 :]]


TAMPERINGS: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "changed": (lambda old: replaced(old, 2, changed(old[2], "round", 1)), "line 3 .*changed"),
    "cheaper": (
        lambda old: replaced(old, 2, old[2].replace(b'"noise_multiplier":6.2', b'"noise_multiplier":62')),
        "line 3 .*changed",
    ),
    "changed with its hash": (
        lambda old: replaced(old, 2, changed(old[2], "round", 1, rehashed=True)),
        "line 4 .*replaced",
    ),
    "no JSON": (lambda old: replaced(old, 2, old[2][:-1]), "line 3 .*JSON"),
    "last line no JSON": (lambda old: replaced(old, 4, old[4][:-1]), "line 5 .*JSON"),
    "zeros": (lambda old: replaced(old, 4, bytes(50) + old[4][50:]), "line 5 .*JSON"),
    "not canonical": (lambda old: replaced(old, 2, old[2] + b" "), "line 3 .*not a line of a ledger"),
    "key twice": (
        lambda old: replaced(old, 2, b'{"round":9,' + old[2][1:]),
        "line 3 .*not a line of a ledger",
    ),
    "a list": (lambda old: replaced(old, 2, b"[]"), "line 3 .*not a line of a ledger"),
    "deep": (lambda old: replaced(old, 2, b"[" * 100_000), "line 3 .*JSON"),
    "empty line": (lambda old: replaced(old, 2, b"", old[2]), "line 3 .*JSON"),
    "removed": (lambda old: replaced(old, 2), "line 3 .*removed"),
    "first removed": (lambda old: old[1:], "line 1 .*removed"),
    "moved": (lambda old: [*old[:2], old[3], old[2], old[4]], "line 3 .*moved"),
    "repeated": (lambda old: [*old[:3], *old[2:]], "line 4 .*repeated"),
    "last repeated": (lambda old: [*old, old[4]], "line 6 .*repeated"),
    "other kind": (
        lambda old: [*old[:4], changed(old[4], "kind", "refund", rehashed=True)],
        "line 5 .*kind 'refund'",
    ),
    "other mechanism": (
        lambda old: [*old[:4], changed(old[4], "event", {"mechanism": "none"}, rehashed=True)],
        "line 5 .*event",
    ),
    "second budget": (lambda old: [*old[:4], after(old[3], old[0])], "first line"),
    "salt that is none": (lambda old: [*old[:4], salted(old[4], "pepper")], "line 5 .* salt"),
    "other format": (lambda old: [changed(old[0], "format", 2, rehashed=True)], "line 1 .*version"),
    "other neighbours": (
        lambda old: [changed(old[0], "neighbours", "replace one", rehashed=True)],
        "line 1 .*version",
    ),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_read_account_tampered_line_is_refused(path: Path, name: str) -> None:
    ledger, (tamper, message) = open_ledger(path), TAMPERINGS[name]
    tampered = b"".join(line + b"\n" for line in tamper(path.read_bytes().splitlines()))
    assert tampered != path.read_bytes()
    path.write_bytes(tampered)
    for attempt in (
        lambda: open_ledger(path),
        lambda: read_account(path),
        lambda: ledger.spend(spending(9)),
    ):
        with pytest.raises(LedgerError, match=message):
            attempt()
    assert path.read_bytes() == tampered


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip syncs, since the test writes hundreds of files that need not outlast a power cut."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.usefixtures("quick")
def test_unfinished_line_stays_until_the_next_and_a_whole_one_is_kept(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut at every byte of the last line. Without its newline alone, it may have been an editor: it stays spent.

    Until the next line is written, an anchor tells a crash, which leaves none, from a cut.
    """
    whole, anchor = path.read_bytes(), open_ledger(path).anchor
    start = whole.rindex(b"\n", 0, -1) + 1
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        caplog.clear()
        left, kept = end - start, end == len(whole) - 1
        assert read_account(path).unfinished == (0 if kept else left)
        assert path.read_bytes() == whole[:end]  # by reading alone nothing is changed
        ledger = open_ledger(path)
        assert path.read_bytes() == (whole if kept else whole[:end])
        assert len(ledger.history) == 3 + kept
        assert kept or not has_paid_for(ledger, spending(4).release)
        if not kept:
            with pytest.raises(
                RolledBackError, match=f"entry 4 .* {left} bytes" if left else "entry 3.*entry 4"
            ):
                ledger.check_anchor(anchor)
        assert not caplog.messages
        with caplog.at_level(logging.WARNING):
            ledger.spend(spending(5))
        assert path.read_bytes().startswith(whole if kept else whole[:start])
        assert len(read_account(path).entries) == 4 + kept
        assert ["a crash while writing" in text for text in caplog.messages] == [True] * bool(
            left and not kept
        )


@pytest.mark.usefixtures("quick")
def test_first_line_cut_off_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "heart.ledger"
    first = (open_ledger(path), path.read_bytes())[1]
    for end in range(len(first)):
        path.write_bytes(first[:end])
        assert open_ledger(path).history == ()
        begun = read_account(path)  # with another salt, but where no more than the newline was cut off
        assert (begun.lines, begun.budget.limit, len(path.read_bytes())) == ((), LIMIT, len(first))
        assert (path.read_bytes() == first) == (end == len(first) - 1)


def test_check_anchor_older_copy_is_refused(path: Path) -> None:
    older = path.read_bytes()
    ledger = open_ledger(path)
    at_that_time = ledger.anchor
    kept = ledger.spend(spending(5))
    path.write_bytes(older)
    with pytest.raises(RolledBackError, match="entry 5"):
        ledger.spend(spending(6))  # the process that saw the newer one
    restarted = open_ledger(path)
    restarted.check_anchor(at_that_time)
    with pytest.raises(RolledBackError, match="entry 5"):
        restarted.check_anchor(kept)
    restarted.spend(spending(7))
    with pytest.raises(RolledBackError, match="entry 5"):
        restarted.check_anchor(kept)
    with pytest.raises(RolledBackError, match="entry 5"):
        ledger.spend(spending(8))


@pytest.mark.parametrize("begun_anew", [False, True])
def test_spend_vanished_ledger_is_not_made_again(path: Path, begun_anew: bool) -> None:
    ledger = open_ledger(path)
    path.unlink()
    if begun_anew:
        open_ledger(path)
    with pytest.raises(LedgerError):
        ledger.spend(spending(9))
    assert path.exists() == begun_anew
    path.write_bytes(b"")
    with pytest.raises(RolledBackError):
        ledger.spend(spending(9))


def test_check_anchor_earlier_entries_hold(path: Path) -> None:
    ledger = open_ledger(path)
    anchors = [ledger.anchor, *(ledger.spend(spending(number)) for number in range(5, 8))]
    assert [each.seq for each in anchors] == [4, 5, 6, 7]
    for each in anchors:
        open_ledger(path).check_anchor(each)
        with pytest.raises(RolledBackError):
            ledger.check_anchor(Anchor(each.seq, "0" * 64))
    with pytest.raises(RolledBackError):
        ledger.check_anchor(Anchor(-1, ledger.anchor.head))


def test_make_line_is_canonical_and_chained() -> None:
    first = make_line(Anchor(-1, "0" * 64), {"b": 1, "a": "ü"})
    chain = read_chain(first)
    assert first.startswith(b'{"a":"\\u00fc","b":1,"hash":"')
    assert read_chain(first + make_line(chain.anchor, {"c": 0.1})).contents[1] == {"c": 0.1}
    with pytest.raises(ValueError, match="seq"):
        make_line(chain.anchor, {"seq": 1})
    with pytest.raises(ChainError):
        read_chain(make_line(Anchor(-1, "1" * 64), {}))


def test_limit_in_the_first_line_cannot_be_changed(path: Path) -> None:
    generous = path.read_bytes().replace(f'"epsilon":{LIMIT.epsilon}'.encode(), b'"epsilon":30.0', 1)
    path.write_bytes(generous)
    with pytest.raises(LedgerError, match="line 1"):
        open_ledger(path)
