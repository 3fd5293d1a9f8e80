"""Attacks on round 0: who is on the roster, and whose key the sites encrypt under."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import crypto.sealed_group_secret
from agreement import Protection
from algorithms.pfpl import Weighting
from crypto.ckks.secret_key import CkksSecret
from crypto.keys import KEY_BYTES, ChannelKey, seal
from crypto.pki import Credentials
from crypto.roster import Statement, sign_statement
from crypto.sealed_group_secret import SealedSecret
from protoseal_wire import codec
from protoseal_wire.class_presence import verify_presence
from protoseal_wire.messages import ActiveList, GroupKeys, Phase
from secure_client.protocol.setup import ckks_key
from tests.adversary.attack import JOURNAL_LOOKUP, JOURNAL_ONCE, ORDER, SEALED_INFO, Attack
from tests.adversary.opened_masks import decrypt_upload
from tests.support.scripted_coordinator import ScriptedCoordinator

A, B, C, D = "clinic-a", "clinic-b", "clinic-c", "clinic-d"
_PRECISION = 1e-5
_SEED = b"s" * KEY_BYTES


def coordinators_own_key(play: ScriptedCoordinator) -> None:
    """The coordinator makes a group secret itself and gives it to a site as if the maker had."""
    statements = play.statements([A, B, C])
    for name in (A, B, C):
        roster_hash = play.give_roster(name, statements).roster_hash
    secret, public = CkksSecret.generate()
    context = crypto.sealed_group_secret._context(A, B, play.agreement.run, 1, roster_hash, public.hash)
    sealed = seal(
        play.statement(B).channel_key, _SEED + secret.to_bytes(), crypto.sealed_group_secret._info(context)
    )
    signature = play.cast.coordinator.sign("group-secret", *context, sealed)
    own = SealedSecret(A, B, roster_hash, public.hash, sealed, signature)
    play.ask(B, Phase.SECRET, codec.encode_sealed_secret(own), round_number=0)
    _assert_reads(play, secret, B, play.begin(A, B, C))


def other_evaluation_keys(play: ScriptedCoordinator) -> None:
    """The coordinator claims that the secret goes with evaluation keys of another hash."""
    statements = play.statements([A, B, C])
    keys = play.give_roster(A, statements).keys
    play.give_roster(B, statements)
    (sealed,) = (each for each in _made(keys).sealed if each.recipient == B)
    swapped = replace(sealed, public_hash=b"q" * 32)
    answer = play.ask(B, Phase.SECRET, codec.encode_sealed_secret(swapped), round_number=0)
    codec.decode_acknowledgement(answer, play.limits)


def swapped_channel_key(play: ScriptedCoordinator) -> None:
    """The coordinator puts another channel key into a site's statement, and opens what the maker seals to that site."""
    key = ChannelKey.generate()
    statements = play.statements([A, B, C, D])
    statements[1] = replace(statements[1], channel_key=key.public_bytes)
    _read_with_secret_sealed_to(play, B, key, statements)


def unsigned_channel_key(play: ScriptedCoordinator) -> None:
    """The coordinator signs a channel key in a site's name."""
    key = ChannelKey.generate()
    statements = play.statements([A, B, C, D])
    certificate, agreement = statements[1].certificate, play.agreement
    fields = (B.encode(), certificate, key.public_bytes, agreement.run.encode(), agreement.hash())
    signature = play.cast.coordinator.sign("channel-key", *fields)
    statements[1] = Statement(B, certificate, key.public_bytes, signature)
    _read_with_secret_sealed_to(play, B, key, statements)


def repeated_channel_key(play: ScriptedCoordinator) -> None:
    """A colluding site states another's channel key as its own: whoever has that key counts as two sites."""
    statements = play.statements([A, B, C])
    agreement, stated = play.agreement, statements[1].channel_key
    statements[2] = sign_statement(play.parties[C].credentials, agreement.run, agreement.hash(), stated)
    answer = play.give_roster(A, statements)
    (sealed,) = (each for each in _made(answer.keys).sealed if each.recipient == C)
    context = crypto.sealed_group_secret._context(
        A, C, agreement.run, 1, answer.roster_hash, sealed.public_hash
    )
    channel_key = ChannelKey.from_private_bytes(play.site(B).session._setup._private_channel_key())
    opened = channel_key.open(sealed.sealed, crypto.sealed_group_secret._info(context))
    assert ckks_key(opened).to_bytes() == _group_secret(play, A).to_bytes()


def member_of_another_ca(play: ScriptedCoordinator) -> None:
    """A site that only another CA knows is put on the roster, with a channel key of the coordinator's."""
    _add_member(play, play.cast.stranger)


def coordinator_as_member(play: ScriptedCoordinator) -> None:
    """The coordinator's own certificate, good under this CA, stands on the roster as a site's."""
    _add_member(play, play.cast.coordinator)


def _add_member(play: ScriptedCoordinator, credentials: Credentials) -> None:
    key, agreement = ChannelKey.generate(), play.agreement
    own = sign_statement(credentials, agreement.run, agreement.hash(), key.public_bytes)
    _read_with_secret_sealed_to(play, own.site, key, [*play.statements([A, B, C, D]), own])


def _read_with_secret_sealed_to(
    play: ScriptedCoordinator, name: str, key: ChannelKey, statements: list[Statement]
) -> None:
    """Set up A, C and D with a roster on which ``name`` has the coordinator's key, and read what A sends."""
    answer = play.give_roster(A, statements)
    (sealed,) = (each for each in _made(answer.keys).sealed if each.recipient == name)
    context = crypto.sealed_group_secret._context(
        A, name, play.agreement.run, 1, answer.roster_hash, sealed.public_hash
    )
    secret = ckks_key(key.open(sealed.sealed, crypto.sealed_group_secret._info(context)))
    for peer in (C, D):
        play.give_roster(peer, statements)
    _assert_reads(play, secret, A, play.begin(A, C, D))


def _assert_reads(
    play: ScriptedCoordinator, secret: CkksSecret, victim: str, active: ActiveList, *, attempt: int = 1
) -> None:
    """The gain: with a key of its own, the coordinator decrypts the site's prototypes."""
    read = decrypt_upload(play, secret, play.values(victim, active, attempt=attempt), active)
    held = play.rows(victim)[:2]
    assert np.linalg.norm(held, axis=1).min() > 0.1
    np.testing.assert_allclose(read[:2], held, atol=_PRECISION)


def _made(keys: GroupKeys | None) -> GroupKeys:
    assert keys is not None, "the maker made no keys"
    return keys


def repeated_member(play: ScriptedCoordinator) -> None:
    """One site counts as two, by statements from before and after it lost its state."""
    old = play.statement(B)
    play.lose_state(B)
    assert play.statement(B) != old
    play.give_roster(A, [play.statement(A), old, play.statement(B)])
    assert play.presence(A).site == A  # it takes part with one peer, though it insists on two


def too_small_roster(play: ScriptedCoordinator) -> None:
    """The coordinator sends a roster of two sites, where three are agreed."""
    play.give_roster(A, play.statements([A, B]))
    assert play.presence(A).site == A


def dropped_site(play: ScriptedCoordinator) -> None:
    """A site is given a roster that it is not on."""
    play.give_roster(A, play.statements([B, C, D]))
    assert play.presence(A).site == A  # it says what it holds, for a run that it is not part of


def two_rosters(play: ScriptedCoordinator) -> None:
    """The coordinator asks for ROSTER twice in one attempt."""
    first = play.give_roster(A, play.statements([A, B, C, D])).roster_hash
    second = play.give_roster(A, play.statements([A, B, C])).roster_hash
    assert first != second  # two words for one phase


def two_rosters_over_a_restart(play: ScriptedCoordinator) -> None:
    """The coordinator asks for ROSTER twice in one attempt; the site's process restarts in between."""
    first = play.give_roster(A, play.statements([A, B, C, D])).roster_hash
    play.restart(A)
    assert play.give_roster(A, play.statements([A, B, C])).roster_hash != first


def roster_after_rounds_began(play: ScriptedCoordinator) -> None:
    """The coordinator sends a smaller roster after a round: the site continues among fewer peers."""
    play.set_up(A, B, C, D)
    play.play_round(A, B, C, D)
    smaller = play.give_roster(A, play.statements([A, B, C]), attempt=2).roster_hash
    statement = play.presence(A, round_number=2)
    member = play.site(A).session._setup.roster().members[A]
    assert play.last is not None
    verify_presence(member, statement, play.last.key, smaller)


def secret_after_rounds_began(play: ScriptedCoordinator) -> None:
    """The coordinator sends another group secret during the run: the same prototypes leave under two keys."""
    play.set_up(A, B, C)
    first = _group_secret(play, B)
    active = play.begin(A, B, C)
    _assert_reads(play, first, B, active)
    play.set_up(A, B, C, attempt=2)
    again = play.begin(A, B, C, attempt=2)
    _assert_reads(play, _group_secret(play, B), B, again, attempt=2)
    assert _group_secret(play, B).to_bytes() != first.to_bytes()


def earlier_secret(play: ScriptedCoordinator) -> None:
    """The coordinator sends the secret of an earlier set-up in a later one of the same roster."""
    statements = play.statements([A, B, C])
    first = _made(play.give_roster(A, statements).keys)
    for name in (A, B, C):
        play.give_roster(name, statements, attempt=2)
    play.give_secret(B, first, attempt=2)
    made = _group_secret(play, A).to_bytes()
    assert _group_secret(play, B).to_bytes() != made  # the group is split


def _group_secret(play: ScriptedCoordinator, name: str) -> CkksSecret:
    return play.site(name).session._setup.ckks_key()


_CKKS = (Protection.CKKS, Weighting.COMPLEMENT)
_ORDER, _BEGUN = (
    ORDER + "_check_set_up: key.attempt <= begun if key.phase is Phase.ROSTER else key.attempt != begun",
    ORDER + "_check_set_up: self._journal.latest(Phase.PRESENCE) is not None",
)

_IDENTIFY = "crypto.pki.trust.TrustAnchor.identify: "
_USAGE = "list(extension(loaded, x509.ExtendedKeyUsage)) != [EXTENDED_USAGE[role]]"
_NAMES = "len({statement.site for statement in statements}) != len(statements)"

SET_UP_ATTACKS: dict[str, Attack] = {
    "seals its own key to a site": Attack(
        ("crypto.sealed_group_secret.verify",), B, Phase.SECRET, coordinators_own_key, *_CKKS
    ),
    "swaps the hash of the evaluation keys": Attack(
        ("crypto.sealed_group_secret.verify", SEALED_INFO), B, Phase.SECRET, other_evaluation_keys, *_CKKS
    ),
    "swaps a channel key": Attack(("crypto.roster.verify",), A, Phase.ROSTER, swapped_channel_key, *_CKKS),
    "puts a key on the roster that its site did not sign": Attack(
        ("crypto.roster.verify",), A, Phase.ROSTER, unsigned_channel_key, *_CKKS
    ),
    "repeats a channel key": Attack(
        ("crypto.roster.check_distinct",), A, Phase.ROSTER, repeated_channel_key, *_CKKS
    ),
    "adds a member of another CA": Attack(
        ("crypto.pki.trust._check_issuer",), A, Phase.ROSTER, member_of_another_ca, *_CKKS
    ),
    "adds itself as a member": Attack(
        (_IDENTIFY + _USAGE, _IDENTIFY + "identity.role is not role"),
        A,
        Phase.ROSTER,
        coordinator_as_member,
        *_CKKS,
    ),
    "repeats a member": Attack(
        ("crypto.roster.assemble_roster: " + _NAMES,), A, Phase.ROSTER, repeated_member
    ),
    "sends too small a roster": Attack(
        ("crypto.roster.verify_roster: len(statements) < minimum",), A, Phase.ROSTER, too_small_roster
    ),
    "drops the site from its roster": Attack(
        ("crypto.roster.verify_roster: own not in statements",), A, Phase.ROSTER, dropped_site
    ),
    "asks for two rosters": Attack((JOURNAL_LOOKUP, JOURNAL_ONCE, _ORDER), A, Phase.ROSTER, two_rosters),
    "asks for two rosters over a restart": Attack(
        (JOURNAL_LOOKUP, JOURNAL_ONCE, _ORDER), A, Phase.ROSTER, two_rosters_over_a_restart
    ),
    "sends a new roster after rounds began": Attack((_BEGUN,), A, Phase.ROSTER, roster_after_rounds_began),
    "sends a new secret after rounds began": Attack(
        (_BEGUN,), A, Phase.ROSTER, secret_after_rounds_began, *_CKKS
    ),
    "goes back to an earlier secret": Attack(
        ("crypto.sealed_group_secret.verify", SEALED_INFO), B, Phase.SECRET, earlier_secret, *_CKKS
    ),
}
"""Attacks by what the coordinator does."""
