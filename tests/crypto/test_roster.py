"""The roster: each attack of a coordinator succeeds where its one check is missing, and only there."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from crypto.errors import CryptoError, MalformedError, VerificationError
from crypto.keys import ChannelKey
from crypto.pki import Credentials, Identity, TrustAnchor
from crypto.roster import (
    Roster,
    Statement,
    assemble_roster,
    sign_statement,
    verify_roster,
    verify_statement,
)
from tests.crypto.test_keys import plus_small_order
from tests.support.weakened_builds import weaken

if TYPE_CHECKING:
    from tests.crypto.conftest import Federation

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RUN, AGREEMENT = "run-1", b"a" * 32
NAMES = ("clinic-a", "clinic-b", "clinic-c")
VECTOR: dict[str, Any] = json.loads((Path(__file__).parents[1] / "vectors" / "roster.json").read_text())


def state(credentials: Credentials, public: bytes | None = None, run: str = RUN) -> Statement:
    """Return a site's honest statement, of a fresh channel key unless one is given."""
    return sign_statement(credentials, run, AGREEMENT, public or ChannelKey.generate().public_bytes)


@dataclass
class Scene:
    """Federation in which clinic-a verifies a roster, and the keys with which the coordinator attacks."""

    own: Federation
    stranger: Federation
    parties: dict[str, Credentials]
    statements: list[Statement]

    def verify(
        self, statements: Sequence[Statement], *, minimum: int = 3, pins: dict[str, str] | None = None
    ) -> Roster:
        """Verify the statements as clinic-a does."""
        return verify_roster(
            statements,
            trust=self.own.trust,
            run=RUN,
            agreement_hash=AGREEMENT,
            own=self.statements[0],
            minimum=minimum,
            pins=pins or {},
            at=NOW,
        )

    def with_second(self, **changes: Any) -> list[Statement]:
        """Return the statements with clinic-b's changed."""
        return [self.statements[0], replace(self.statements[1], **changes), self.statements[2]]


@pytest.fixture(scope="module")
def scene(federation: Federation, stranger: Federation) -> Scene:
    parties = {name: federation.site(name) for name in NAMES}
    return Scene(federation, stranger, parties, [state(party) for party in parties.values()])


def test_verify_roster_honest_same_at_all_sites(scene: Scene) -> None:
    roster = scene.verify(scene.statements)
    assert list(roster.members) == list(NAMES)
    assert roster.maker == "clinic-a"
    assert [member.channel_key for member in roster.members.values()] == [
        statement.channel_key for statement in scene.statements
    ]
    assert [member.fingerprint for member in roster.members.values()] == [
        party.fingerprint for party in scene.parties.values()
    ]
    assert scene.verify(scene.statements[::-1]) == roster
    again = [
        scene.statements[0],
        state(scene.parties["clinic-b"], scene.statements[1].channel_key),
        scene.statements[2],
    ]
    assert again[1].signature != scene.statements[1].signature
    assert scene.verify(again).hash == roster.hash


def test_roster_hash_depends_on_every_statement(scene: Scene) -> None:
    rosters = [
        scene.verify(scene.statements),
        scene.verify(scene.statements[:2], minimum=2),
        scene.verify([*scene.statements[:2], state(scene.parties["clinic-c"])]),
        scene.verify(
            [*scene.statements[:2], state(scene.own.site("clinic-c"), scene.statements[2].channel_key)]
        ),
    ]
    assert len({roster.hash for roster in rosters}) == len(rosters)


def test_assemble_roster_equals_sites_roster(scene: Scene) -> None:
    trust = scene.own.trust
    roster = assemble_roster(scene.statements, trust=trust, run=RUN, agreement_hash=AGREEMENT, at=NOW)
    assert roster == scene.verify(scene.statements)
    for attack in (_swapped_key, _name_twice, _key_twice):
        with pytest.raises(VerificationError):
            assemble_roster(attack(scene), trust=trust, run=RUN, agreement_hash=AGREEMENT, at=NOW)


def test_verify_roster_matching_pins_accepted(scene: Scene) -> None:
    pins = {name: party.fingerprint for name, party in scene.parties.items()} | {"clinic-z": "0" * 64}
    assert scene.verify(scene.statements, pins=pins).hash == scene.verify(scene.statements).hash


def _swapped_key(scene: Scene) -> list[Statement]:
    return scene.with_second(channel_key=ChannelKey.generate().public_bytes)


def _replayed(scene: Scene) -> list[Statement]:
    return [scene.statements[0], state(scene.parties["clinic-b"], run="run-0"), scene.statements[2]]


def _unsigned(scene: Scene) -> list[Statement]:
    return scene.with_second(signature=b"")


def _own_dropped(scene: Scene) -> list[Statement]:
    return [*scene.statements[1:], state(scene.own.site("clinic-d"))]


def _own_replaced(scene: Scene) -> list[Statement]:
    """Return an older statement of the site's own, whose key an attacker may have by now."""
    return [state(scene.parties["clinic-a"]), *scene.statements[1:]]


def _too_few(scene: Scene) -> list[Statement]:
    return scene.statements[:2]


def _name_twice(scene: Scene) -> list[Statement]:
    return [*scene.statements[:2], state(scene.parties["clinic-b"])]


def _key_twice(scene: Scene) -> list[Statement]:
    """Return two sites, one of them the coordinator's accomplice, with one key."""
    return [*scene.statements[:2], state(scene.parties["clinic-c"], scene.statements[1].channel_key)]


def _low_order(scene: Scene) -> list[Statement]:
    return [*scene.statements[:2], state(scene.parties["clinic-c"], bytes(32))]


def _key_twin(scene: Scene) -> list[Statement]:
    """Another's key plus the point of order two: whoever has the one has the other."""
    twin = plus_small_order(scene.statements[1].channel_key)[0]
    return [*scene.statements[:2], state(scene.parties["clinic-c"], twin)]


def _other_form(scene: Scene) -> list[Statement]:
    """Return a key in another form. A repeated one would meet the check of repeated keys as well."""
    key = ChannelKey.generate().public_bytes
    return [*scene.statements[:2], state(scene.parties["clinic-c"], key[:-1] + bytes([key[-1] | 0x80]))]


def _other_name(scene: Scene) -> list[Statement]:
    """clinic-c's certificate, with a statement in the name of clinic-d."""
    party, key = scene.parties["clinic-c"], ChannelKey.generate().public_bytes
    signature = party.sign("channel-key", b"clinic-d", party.certificate_der, key, RUN.encode(), AGREEMENT)
    return [*scene.statements[:2], Statement("clinic-d", party.certificate_der, key, signature)]


def _coordinator(scene: Scene) -> list[Statement]:
    return [*scene.statements[:2], state(scene.own.coordinator())]


def _stranger(scene: Scene) -> list[Statement]:
    return [*scene.statements[:2], state(scene.stranger.site("clinic-c"))]


def _second_certificate(scene: Scene) -> list[Statement]:
    """Replace the third statement by one under a dishonest CA's certificate for another site's name."""
    return [*scene.statements[:2], state(scene.own.odd_credentials("clinic-c"))]


_ROSTER = "crypto.roster.verify_roster: "
_NAMES = "len({statement.site for statement in statements}) != len(statements)"
_PINNED = "pins.get(member.name, member.fingerprint) != member.fingerprint"
_KEY = "crypto.keys.check_channel_public: "
_CANONICAL = "len(public) != KEY_BYTES or int.from_bytes(public, 'little') >= _FIELD_PRIME"
IDENTIFY = "crypto.pki.trust.TrustAnchor.identify"

ATTACKS: dict[str, tuple[str, Callable[[Scene], list[Statement]]]] = {
    "swapped key": ("crypto.roster.verify", _swapped_key),
    "statement of another run": ("crypto.roster.verify", _replayed),
    "no signature": ("crypto.roster.verify", _unsigned),
    "own statement dropped": (_ROSTER + "own not in statements", _own_dropped),
    "own statement replaced": (_ROSTER + "own not in statements", _own_replaced),
    "too few": (_ROSTER + "len(statements) < minimum", _too_few),
    "a name twice": ("crypto.roster.assemble_roster: " + _NAMES, _name_twice),
    "a key twice": ("crypto.roster.check_distinct", _key_twice),
    "a key twice, plus a point of order two": ("crypto.roster.check_distinct", _key_twin),
    "key of low order": (_KEY + "int.from_bytes(public, 'little') in _LOW_ORDER", _low_order),
    "key in another form": (_KEY + _CANONICAL, _other_form),
    "another site's name": (
        "crypto.roster.verify_statement: statement.site != identity.name",
        _other_name,
    ),
    "the coordinator as a site": (IDENTIFY, _coordinator),
    "another CA": ("crypto.pki.trust._check_issuer", _stranger),
    "a second certificate": (_ROSTER + _PINNED, _second_certificate),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_verify_roster_attack_refused_by_its_layer_alone(
    name: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, attack = ATTACKS[name]
    statements = attack(scene)
    pins = {"clinic-c": scene.parties["clinic-c"].fingerprint} if "pins" in layer else {}
    with pytest.raises(VerificationError):
        scene.verify(statements, pins=pins)
    names = {statement.certificate: statement.site for statement in statements}
    doubles = {IDENTIFY: lambda _self, certificate, *_rest: _claimed(names[certificate])}
    weaken(layer, monkeypatch, doubles)
    assert len(scene.verify(statements, pins=pins).members) >= 2


def _claimed(name: str) -> Any:
    return Identity.site("clinics.example", name)


def test_verify_statement_other_run_or_agreement_refused(scene: Scene) -> None:
    statement, trust = scene.statements[0], scene.own.trust
    assert verify_statement(trust, statement, RUN, AGREEMENT, NOW).name == "clinic-a"
    for run, agreement in (("run-2", AGREEMENT), (RUN, b"b" * 32), ("run-", b"1" + AGREEMENT)):
        with pytest.raises(VerificationError, match=r"signature"):
            verify_statement(trust, statement, run, agreement, NOW)
    with pytest.raises(VerificationError, match=r"valid until"):
        verify_statement(trust, statement, RUN, AGREEMENT, NOW + timedelta(days=400))
    with pytest.raises(MalformedError):
        verify_statement(trust, replace(statement, certificate=b"none"), RUN, AGREEMENT, NOW)


def test_roster_members_read_only(scene: Scene) -> None:
    roster = scene.verify(scene.statements)
    with pytest.raises(TypeError):
        roster.members["clinic-d"] = roster.members["clinic-a"]  # type: ignore[index]  # what must not work


# Frozen


def _statements(case: list[dict[str, str]]) -> list[Statement]:
    return [
        Statement(
            item["site"],
            b64decode(item["certificate"]),
            bytes.fromhex(item["channel_key"]),
            bytes.fromhex(item["signature"]),
        )
        for item in case
    ]


def _verify_vector(case: dict[str, Any]) -> Roster:
    statements = _statements(case["statements"])
    return verify_roster(
        statements,
        trust=TrustAnchor(VECTOR["ca"].encode()),
        run=case["run"],
        agreement_hash=bytes.fromhex(case["agreement_hash"]),
        own=statements[0],
        minimum=2,
        pins={},
        at=datetime.fromisoformat(case["at"]),
    )


def test_roster_hash_equals_vectors() -> None:
    assert _verify_vector(VECTOR["roster"]).hash.hex() == VECTOR["roster"]["hash"]


@pytest.mark.parametrize("case", VECTOR["bad_rosters"], ids=lambda case: case["name"])
def test_verify_roster_bad_vectors_refused(case: dict[str, Any]) -> None:
    with pytest.raises(CryptoError, match=case["failure"]):
        _verify_vector(VECTOR["roster"] | case["changes"])
