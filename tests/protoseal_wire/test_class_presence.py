"""Presence statements: what the signature covers, and which keys are taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crypto.errors import VerificationError
from crypto.keys import ChannelKey
from crypto.pairwise.attempt import MaskKeys
from crypto.pki import Credentials, Identity, Stretching, approve, create_authority, create_request
from crypto.roster import Roster, assemble_roster, sign_statement
from protoseal_wire import class_presence, codec
from protoseal_wire.class_presence import check_keys_given, sign_presence, verify_active_list, verify_presence
from protoseal_wire.codec import Limits
from protoseal_wire.messages import ActiveList, LedgerAnchor, Phase, PhaseKey, PresenceStatement
from tests.crypto.test_keys import plus_small_order

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PASSPHRASE = b"correct horse"
NAMES = ("clinic-a", "clinic-b", "clinic-c")
A, B = NAMES[:2]
KEY = PhaseKey("run-1", 3, 2, Phase.PRESENCE)
HOLDS = np.array([True, False, True])
BASE = bytes(range(32))
ANCHOR = LedgerAnchor(bytes(range(32, 64)), 7, bytes(range(64, 96)))
ORDER_ONE = (1).to_bytes(32, "little")
"""A point of low order (RFC 7748, section 6.1)."""
NOT_CANONICAL = (2**255 - 19 + 9).to_bytes(32, "little")
"""Another form of the point 9."""


def mask_keys() -> MaskKeys:
    """Generate fresh mask keys."""
    return MaskKeys(ChannelKey.generate().public_bytes, ChannelKey.generate().public_bytes)


@dataclass(frozen=True)
class Group:
    """Three sites that know each other."""

    credentials: Mapping[str, Credentials]
    roster: Roster

    def state(
        self,
        site: str = A,
        *,
        base: bytes = BASE,
        keys: MaskKeys | None = None,
        key: PhaseKey = KEY,
        roster_hash: bytes | None = None,
        anchor: LedgerAnchor | None = None,
    ) -> PresenceStatement:
        """Return an honest statement with the given changes."""
        signer, roster = self.credentials[site], roster_hash or self.roster.hash
        return sign_presence(signer, key, roster, HOLDS, base=base, keys=keys, anchor=anchor)

    def verify(self, statement: PresenceStatement, site: str = A, key: PhaseKey = KEY) -> None:
        """Verify a statement as any holder of the roster does."""
        verify_presence(self.roster.members[site], statement, key, self.roster.hash)

    def active(self, keys: Mapping[str, MaskKeys | None]) -> ActiveList:
        """Return honest statements with these keys."""
        return ActiveList(tuple(self.state(site, keys=keys[site]) for site in keys))


def credentials_of(name: str, authority: Path, directory: Path) -> Credentials:
    create_request(
        directory,
        Identity.site("clinics.example", name),
        PASSPHRASE,
        (),
        overwrite=True,
        stretching=Stretching.NONE_FOR_RANDOM_SECRET,
    )
    certificate = approve(authority, PASSPHRASE, (directory / "request.pem").read_bytes(), now=NOW)
    (directory / "certificate.pem").write_bytes(certificate)
    return Credentials.load(directory / "certificate.pem", directory / "key.pem", PASSPHRASE)


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    directory = tmp_path_factory.mktemp("presence")
    trust = create_authority(
        directory / "ca", "clinics.example", PASSPHRASE, now=NOW, stretching=Stretching.NONE_FOR_RANDOM_SECRET
    )
    credentials = {name: credentials_of(name, directory / "ca", directory / name) for name in NAMES}
    statements = [
        sign_statement(signer, KEY.run, bytes(32), ChannelKey.generate().public_bytes)
        for signer in credentials.values()
    ]
    roster = assemble_roster(statements, trust=trust, run=KEY.run, agreement_hash=bytes(32), at=NOW)
    return Group(credentials, roster)


@pytest.mark.parametrize("base", [b"", BASE], ids=["no base", "a base"])
@pytest.mark.parametrize("with_keys", [False, True], ids=["no keys", "keys"])
@pytest.mark.parametrize("anchor", [None, ANCHOR], ids=["no anchor", "an anchor"])
def test_presence_honest_round_trip_verifies(
    group: Group, base: bytes, with_keys: bool, anchor: LedgerAnchor | None
) -> None:
    statement = group.state(base=base, keys=mask_keys() if with_keys else None, anchor=anchor)
    received = codec.decode_presence(codec.encode_presence(statement), Limits(3, 2, 3))
    assert (received.base, received.keys, received.anchor) == (statement.base, statement.keys, anchor)
    group.verify(received)


def flip(value: bytes) -> bytes:
    """Return the bytes with one bit flipped."""
    return bytes([value[0] ^ 1]) + value[1:]


def with_keys(
    change: Callable[[MaskKeys], MaskKeys | None],
) -> Callable[[PresenceStatement], PresenceStatement]:
    def changed(statement: PresenceStatement) -> PresenceStatement:
        assert statement.keys is not None
        return replace(statement, keys=change(statement.keys))

    return changed


CHANGES: Mapping[str, Callable[[PresenceStatement], PresenceStatement]] = {
    "a class more": lambda s: replace(s, holds=s.holds | ~HOLDS),
    "a class less": lambda s: replace(s, holds=s.holds & ~HOLDS),
    "another base": lambda s: replace(s, base=flip(s.base)),
    "no base": lambda s: replace(s, base=b""),
    "no keys": with_keys(lambda _: None),
    "another mask key": with_keys(lambda keys: replace(keys, mask=mask_keys().mask)),
    "another share key": with_keys(lambda keys: replace(keys, share=mask_keys().share)),
    "a bit of the mask key": with_keys(lambda keys: replace(keys, mask=flip(keys.mask))),
    "a bit of the share key": with_keys(lambda keys: replace(keys, share=flip(keys.share))),
    "the keys swapped": with_keys(lambda keys: MaskKeys(keys.share, keys.mask)),
    "the base as the mask key": lambda s: replace(
        s, base=b"", keys=MaskKeys(s.base, s.keys.mask if s.keys else b"")
    ),
    "a byte from the base to the classes": lambda s: replace(
        s, holds=np.append(s.holds, s.base[0] != 0), base=s.base[1:]
    ),
    "no anchor": lambda s: replace(s, anchor=None),
    "another data set's anchor": lambda s: replace(s, anchor=replace(ANCHOR, key=flip(ANCHOR.key))),
    "an earlier entry": lambda s: replace(s, anchor=replace(ANCHOR, seq=6)),
    "another head": lambda s: replace(s, anchor=replace(ANCHOR, head=flip(ANCHOR.head))),
    "another signature": lambda s: replace(s, signature=s.signature[:-1] + flip(s.signature[-1:])),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_presence_changed_field_refused(
    group: Group, change: Callable[[PresenceStatement], PresenceStatement]
) -> None:
    statement = group.state(keys=mask_keys(), anchor=ANCHOR)
    group.verify(statement)
    with pytest.raises(VerificationError, match="presence"):
        group.verify(change(statement))


ADDITIONS: Mapping[str, Callable[[PresenceStatement], PresenceStatement]] = {
    "base": lambda s: replace(s, base=BASE),
    "keys": lambda s: replace(s, keys=mask_keys()),
    "anchor": lambda s: replace(s, anchor=ANCHOR),
    # No such keys come off the wire; the signature tells them from absent keys all the same.
    "keys of no bytes": lambda s: replace(s, keys=MaskKeys(b"", b"")),
}


@pytest.mark.parametrize("change", ADDITIONS.values(), ids=ADDITIONS)
def test_presence_field_added_after_signing_refused(
    group: Group, change: Callable[[PresenceStatement], PresenceStatement]
) -> None:
    statement = group.state(base=b"")
    group.verify(statement)
    with pytest.raises(VerificationError, match="presence"):
        group.verify(change(statement))


COVERED = {
    "base": ("base", lambda s: replace(s, base=flip(s.base))),
    "keys": ("keys", CHANGES["another mask key"]),
    "anchor": ("anchor", CHANGES["an earlier entry"]),
}


@pytest.mark.parametrize(("field", "change"), COVERED.values(), ids=COVERED)
def test_presence_unsigned_field_changed_accepted_by_double(
    group: Group,
    field: str,
    change: Callable[[PresenceStatement], PresenceStatement],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A double that signs all but one field takes that field altered."""

    fields = class_presence._fields

    def without(*of: object) -> tuple[bytes, ...]:
        names = ("site", "key", "roster_hash", "holds", "base", "keys", "anchor")
        given = {**dict(zip(names, of, strict=True)), field: b"" if field == "base" else None}
        return fields(**given)  # type: ignore[arg-type]

    monkeypatch.setattr(class_presence, "_fields", without)
    group.verify(change(group.state(keys=mask_keys(), anchor=ANCHOR)))


BINDINGS: Mapping[str, dict[str, Any]] = {
    "run": {"key": replace(KEY, run="run-2")},
    "round": {"key": replace(KEY, round=4)},
    "attempt": {"key": replace(KEY, attempt=3)},
    "roster": {"roster_hash": bytes(32)},
}


@pytest.mark.parametrize("binding", BINDINGS.values(), ids=BINDINGS)
def test_presence_of_other_attempt_or_roster_refused(group: Group, binding: dict[str, Any]) -> None:
    with pytest.raises(VerificationError, match="presence"):
        group.verify(group.state(keys=mask_keys(), **binding))


def test_presence_of_other_site_refused(group: Group) -> None:
    with pytest.raises(VerificationError, match=A):
        group.verify(group.state(B, keys=mask_keys()))
    with pytest.raises(VerificationError, match="presence"):
        group.verify(replace(group.state(B, keys=mask_keys()), site=A))


UNUSABLE: Mapping[str, tuple[Callable[[MaskKeys], MaskKeys], str]] = {
    "a mask key of low order": (lambda keys: replace(keys, mask=ORDER_ONE), "low order"),
    "a share key of low order": (lambda keys: replace(keys, share=ORDER_ONE), "low order"),
    "a mask key of zeros": (lambda keys: replace(keys, mask=bytes(32)), "low order"),
    "a mask key in another form": (lambda keys: replace(keys, mask=NOT_CANONICAL), "canonical"),
    "a share key in another form": (lambda keys: replace(keys, share=NOT_CANONICAL), "canonical"),
    "a share key that is short": (lambda keys: replace(keys, share=keys.share[:31]), "32 bytes"),
    "one key for both": (lambda keys: replace(keys, share=keys.mask), "one key"),
    "one key for both, plus a point of order two": (
        lambda keys: replace(keys, share=plus_small_order(keys.mask)[0]),
        "one key",
    ),
}


@pytest.mark.parametrize(("change", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_presence_signed_unusable_keys_refused(
    group: Group, change: Callable[[MaskKeys], MaskKeys], message: str
) -> None:
    statement = group.state(keys=change(mask_keys()))
    with pytest.raises(VerificationError, match=message):
        group.verify(statement)


@pytest.mark.parametrize(("change", "message"), UNUSABLE.values(), ids=UNUSABLE)
def test_presence_unusable_keys_accepted_by_double_without_key_check(
    group: Group, change: Callable[[MaskKeys], MaskKeys], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_presence, "check_channel_public", lambda _: None)
    monkeypatch.setattr(class_presence, "check_distinct", lambda *_: None)
    group.verify(group.state(keys=change(mask_keys())))


def test_active_list_distinct_keys_accepted(group: Group) -> None:
    active = group.active({name: mask_keys() for name in NAMES})
    verify_active_list(active, group.roster, KEY)
    check_keys_given(active)


def test_active_list_without_masks_needs_no_keys(group: Group) -> None:
    verify_active_list(group.active(dict.fromkeys(NAMES)), group.roster, KEY)


@pytest.mark.parametrize("without", NAMES)
def test_active_list_with_masks_names_site_without_keys(group: Group, without: str) -> None:
    active = group.active({name: None if name == without else mask_keys() for name in NAMES})
    verify_active_list(active, group.roster, KEY)
    with pytest.raises(VerificationError, match=without):
        check_keys_given(active)


TWICE: Mapping[str, Callable[[MaskKeys], MaskKeys]] = {
    "both keys": lambda keys: keys,
    "both keys swapped": lambda keys: MaskKeys(keys.share, keys.mask),
    "the mask key": lambda keys: replace(mask_keys(), mask=keys.mask),
    "the share key": lambda keys: replace(mask_keys(), share=keys.share),
    "one's mask key as another's share key": lambda keys: replace(mask_keys(), share=keys.mask),
}


@pytest.mark.parametrize("copy", TWICE.values(), ids=TWICE)
def test_active_list_key_of_two_members_refused(group: Group, copy: Callable[[MaskKeys], MaskKeys]) -> None:
    first = mask_keys()
    active = group.active({A: first, B: copy(first), "clinic-c": mask_keys()})
    for statement in active.statements:
        group.verify(statement, statement.site)
    with pytest.raises(VerificationError, match="key"):
        verify_active_list(active, group.roster, KEY)


def test_active_list_unusable_key_refused(group: Group) -> None:
    bad = replace(mask_keys(), mask=ORDER_ONE)
    with pytest.raises(VerificationError, match=r"order"):
        verify_active_list(group.active({A: mask_keys(), B: bad}), group.roster, KEY)


def test_active_list_repeated_site_or_stranger_refused(group: Group) -> None:
    active = group.active({name: mask_keys() for name in NAMES})
    with pytest.raises(VerificationError, match="twice"):
        verify_active_list(ActiveList(active.statements * 2), group.roster, KEY)
    stranger = replace(active.statements[0], site="clinic-x")
    with pytest.raises(VerificationError, match="clinic-x"):
        verify_active_list(ActiveList((*active.statements[1:], stranger)), group.roster, KEY)
