"""Group secrets: what the coordinator, or a member with it, can try on the way from the maker to a site."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

import crypto.sealed_group_secret
from crypto.errors import CryptoError, DecryptionError, VerificationError
from crypto.keys import ChannelKey, seal
from crypto.pki import Credentials
from crypto.roster import Roster, Statement, sign_statement, verify_roster
from crypto.sealed_group_secret import SealedSecret, open_group_secret, seal_group_secret
from tests.support.weakened_builds import weaken

if TYPE_CHECKING:
    from tests.crypto.conftest import Federation

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
RUN, AGREEMENT = "run-1", b"a" * 32
ATTEMPT = 2
SECRET, PUBLIC_HASH, OTHER_HASH = b"the group's secret", b"p" * 32, b"q" * 32
NAMES = ("clinic-a", "clinic-b", "clinic-c")

SIGNATURE = "crypto.sealed_group_secret.verify"
MAKER = "crypto.sealed_group_secret._check_maker"
RECIPIENT = "crypto.sealed_group_secret.verify_sealed: sealed.recipient != recipient"
ROSTER = "crypto.sealed_group_secret.verify_sealed: sealed.roster_hash != roster.hash"
INFO = "crypto.sealed_group_secret._info"
KEY = "the recipient's key"
"""A layer that no test can take away: without the key, a ciphertext does not open."""


@dataclass
class Scene:
    """clinic-a makes the secret; the coordinator attacks what clinic-b receives."""

    parties: dict[str, Credentials]
    keys: dict[str, ChannelKey]
    statements: list[Statement]
    federation: Federation

    def roster(self, *names: str) -> Roster:
        """Return the roster of these members, all of them by default."""
        statements = [statement for statement in self.statements if statement.site in (names or NAMES)]
        return verify_roster(
            statements,
            trust=self.federation.trust,
            run=RUN,
            agreement_hash=AGREEMENT,
            own=statements[0],
            minimum=2,
            pins={},
            at=NOW,
        )

    def honest(
        self,
        recipient: str = "clinic-b",
        run: str = RUN,
        roster: Roster | None = None,
        attempt: int = ATTEMPT,
    ) -> SealedSecret:
        """Seal the group secret as clinic-a does."""
        return seal_group_secret(
            self.parties["clinic-a"],
            roster or self.roster(),
            run,
            attempt,
            recipient=recipient,
            secret=SECRET,
            public_hash=PUBLIC_HASH,
        )

    def open(self, sealed: SealedSecret) -> tuple[bytes, bytes]:
        """Open the group secret as clinic-b does."""
        return open_group_secret(
            sealed,
            roster=self.roster(),
            run=RUN,
            attempt=ATTEMPT,
            recipient="clinic-b",
            channel_key=self.keys["clinic-b"],
        )


@pytest.fixture(scope="module")
def scene(federation: Federation) -> Scene:
    parties = {name: federation.site(name) for name in NAMES}
    keys = {name: ChannelKey.generate() for name in NAMES}
    statements = [sign_statement(parties[name], RUN, AGREEMENT, keys[name].public_bytes) for name in NAMES]
    return Scene(parties, keys, statements, federation)


def test_seal_secret_opens_at_each_member(scene: Scene) -> None:
    for name in ("clinic-b", "clinic-c"):
        opened = open_group_secret(
            scene.honest(name),
            roster=scene.roster(),
            run=RUN,
            attempt=ATTEMPT,
            recipient=name,
            channel_key=scene.keys[name],
        )
        assert opened == (SECRET, PUBLIC_HASH)
    assert SECRET not in scene.honest().sealed
    assert "sealed=" not in repr(scene.honest())


def test_seal_by_others_or_to_others_refused(scene: Scene) -> None:
    with pytest.raises(VerificationError, match="clinic-a"):
        seal_group_secret(
            scene.parties["clinic-b"],
            scene.roster(),
            RUN,
            ATTEMPT,
            recipient="clinic-c",
            secret=SECRET,
            public_hash=b"",
        )
    with pytest.raises(VerificationError, match="clinic-z"):
        scene.honest("clinic-z")


def _sealed_by(
    scene: Scene, signer: Credentials | None, maker: str = "clinic-a", public_hash: bytes = OTHER_HASH
) -> SealedSecret:
    """Return a secret of an attacker's own, well-formed in every respect but the signer."""
    roster = scene.roster()
    attempt = ATTEMPT.to_bytes(8, "big")
    context = (maker.encode(), b"clinic-b", RUN.encode(), attempt, roster.hash, public_hash)
    sealed = seal(
        scene.keys["clinic-b"].public_bytes, b"attacker's", crypto.sealed_group_secret._info(context)
    )
    signature = signer.sign("group-secret", *context, sealed) if signer else b""
    return SealedSecret(maker, "clinic-b", roster.hash, public_hash, sealed, signature)


Attack = Callable[[Scene], SealedSecret]
ATTACKS: dict[str, tuple[set[str], Attack]] = {
    "the coordinator's own, signed with its certificate": (
        {SIGNATURE},
        lambda scene: _sealed_by(scene, scene.federation.coordinator()),
    ),
    "the coordinator's own, unsigned": ({SIGNATURE}, lambda scene: _sealed_by(scene, None)),
    "another member's, in the maker's name": (
        {SIGNATURE},
        lambda scene: _sealed_by(scene, scene.parties["clinic-c"]),
    ),
    "another member's, in its own name": (
        {SIGNATURE, INFO, MAKER},
        lambda scene: _sealed_by(scene, scene.parties["clinic-c"], maker="clinic-c"),
    ),
    "signature taken off": ({SIGNATURE}, lambda scene: replace(scene.honest(), signature=b"")),
    "signature of another recipient's": (
        {SIGNATURE},
        lambda scene: replace(scene.honest(), signature=scene.honest("clinic-c").signature),
    ),
    "public hash swapped": (
        {SIGNATURE, INFO},
        lambda scene: replace(scene.honest(), public_hash=OTHER_HASH),
    ),
    "of the attempt before": ({SIGNATURE, INFO}, lambda scene: scene.honest(attempt=ATTEMPT - 1)),
    "of another run": ({SIGNATURE, INFO}, lambda scene: scene.honest(run="run-0")),
    "of another roster": (
        {SIGNATURE, INFO, ROSTER},
        lambda scene: scene.honest(roster=scene.roster("clinic-a", "clinic-b")),
    ),
    "of another roster, relabelled": (
        {SIGNATURE, INFO},
        lambda scene: replace(
            scene.honest(roster=scene.roster("clinic-a", "clinic-b")), roster_hash=scene.roster().hash
        ),
    ),
    "for another recipient": ({SIGNATURE, RECIPIENT, INFO, KEY}, lambda scene: scene.honest("clinic-c")),
    "for another recipient, relabelled": (
        {SIGNATURE, INFO, KEY},
        lambda scene: replace(scene.honest("clinic-c"), recipient="clinic-b"),
    ),
}
"""Each attack, and every layer that holds it off by itself."""


def _without(layers: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for layer in layers - {KEY}:
        weaken(layer, monkeypatch, {INFO: lambda _context: b"nothing is bound"})


@pytest.mark.parametrize("name", ATTACKS)
def test_open_secret_each_layer_alone_refuses(name: str, scene: Scene) -> None:
    layers, attack = ATTACKS[name]
    for layer in layers:
        with pytest.MonkeyPatch.context() as monkeypatch:
            _without(layers - {layer}, monkeypatch)
            with pytest.raises(CryptoError):
                scene.open(attack(scene))


@pytest.mark.parametrize("name", [name for name, (layers, _) in ATTACKS.items() if KEY not in layers])
def test_open_secret_without_layers_attack_succeeds(
    name: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers, attack = ATTACKS[name]
    _without(layers, monkeypatch)
    secret, _ = scene.open(attack(scene))
    assert secret in {SECRET, b"attacker's"}


def test_open_secret_attacks_refused(scene: Scene) -> None:
    for _, attack in ATTACKS.values():
        with pytest.raises(VerificationError):
            scene.open(attack(scene))


def test_open_secret_other_channel_key_refused(scene: Scene) -> None:
    with pytest.raises(DecryptionError):
        open_group_secret(
            scene.honest(),
            roster=scene.roster(),
            run=RUN,
            attempt=ATTEMPT,
            recipient="clinic-b",
            channel_key=scene.keys["clinic-c"],
        )
