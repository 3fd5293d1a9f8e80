"""Checks on what sites upload, before it is stored: an answer that fails one changes nothing.

An upload is decoded and its values are checked once, as it arrives. The computation decodes the stored bytes again,
one site's at a time, because keeping decoded uploads would take a round's memory, and does not repeat the checks: only
checked bytes are stored. Reading a ciphertext includes the check of its form, so only ciphertexts pass that twice.
"""

from __future__ import annotations

from agreement import Agreement
from crypto.keys import comparable
from crypto.roster import Member, Roster
from crypto.sealed_group_secret import verify_sealed
from protoseal_wire import codec
from protoseal_wire.class_presence import verify_presence
from protoseal_wire.codec import Limits
from protoseal_wire.messages import GroupKeys, Phase, PhaseKey, PresenceStatement, RosterAnswer
from secure_server.aggregator import Aggregator
from secure_server.errors import BadPayload
from secure_server.ledger_anchors import LedgerAnchors
from secure_server.phase_requests import PhaseRequests
from secure_server.rounds.state import State


class AnswerCheck:
    """Checker of well-formed answers to each phase."""

    def __init__(
        self,
        agreement: Agreement,
        requests: PhaseRequests,
        aggregator: Aggregator,
        anchors: LedgerAnchors,
        limits: Limits,
    ) -> None:
        self._needs_secret = agreement.needs_group_secret
        self._classes = len(agreement.classes)
        self._noise_shared = agreement.distributed_noise
        self._requests = requests
        self._aggregator = aggregator
        self._anchors = anchors
        self._limits = limits

    def check(self, state: State, roster: Roster, key: PhaseKey, site: str, content: bytes) -> None:
        """Raise :class:`BadPayload`, a codec error or a :class:`crypto.errors.CryptoError` for a malformed answer.

        The anchor of a valid presence statement is kept before the statement is stored and acknowledged.
        """
        match key.phase:
            case Phase.ROSTER:
                answer = codec.decode_roster_answer(content, self._limits)
                self._check_roster_answer(answer, roster, key, site)
            case Phase.PRESENCE:
                statement = codec.decode_presence(content, self._limits)
                self._check_presence(roster.members[site], key, roster.hash, statement)
                self._check_base(state, statement)
                self._check_keys(state, statement)
                # Last: a statement that fails another check must not move the anchor.
                self._anchors.note(statement)
            case Phase.SECRET | Phase.RESULT:
                codec.decode_acknowledgement(content, self._limits)
            case _:
                exchange = self._aggregator.exchange(key.round)
                exchange.check(self._requests.attempt(state), key.phase, site, content)

    def _check_roster_answer(self, answer: RosterAnswer, roster: Roster, key: PhaseKey, site: str) -> None:
        if answer.roster_hash != roster.hash:
            raise BadPayload(f"{site} verified another roster than the run's")
        makes_keys = self._needs_secret and site == roster.maker
        if (answer.keys is not None) != makes_keys:
            raise BadPayload(f"{site} {'must' if makes_keys else 'must not'} send group keys")
        if answer.keys is not None:
            self._check_group_keys(answer.keys, roster, key, site)

    def _check_group_keys(self, keys: GroupKeys, roster: Roster, key: PhaseKey, site: str) -> None:
        """Reject invalid group keys on upload, so that the site that made them is blamed, not the recipients."""
        if sorted(sealed.recipient for sealed in keys.sealed) != sorted(set(roster.members) - {site}):
            raise BadPayload(f"{site} must seal the group secret once to each other member")
        for sealed in keys.sealed:
            verify_sealed(sealed, roster=roster, run=key.run, attempt=key.attempt, recipient=sealed.recipient)
        # Last, since it is the costly one: the keys are loaded in a process of its own.
        public_hash = self._aggregator.check_keys(keys.evaluation_keys)
        if any(sealed.public_hash != public_hash for sealed in keys.sealed):
            raise BadPayload(
                f"{site} sealed a secret whose hash of public keys differs from that of the uploaded "
                "evaluation keys"
            )

    def _check_presence(
        self, member: Member, key: PhaseKey, roster_hash: bytes, statement: PresenceStatement
    ) -> None:
        if statement.holds.shape != (self._classes,):
            raise BadPayload(
                f"{member.name} states presence for {statement.holds.size} classes, not {self._classes}"
            )
        if self._noise_shared and not statement.holds.all():
            raise BadPayload(f"{member.name} must state all classes, because noise is shared in all of them")
        self._anchors.check(member.name, statement.anchor)
        verify_presence(member, statement, key, roster_hash)

    def _check_base(self, state: State, statement: PresenceStatement) -> None:
        """Reject members of a group that trained from different results: their masks would not cancel."""
        if statement.base != self._requests.base_hash(state, statement.site):
            raise BadPayload(f"{statement.site} trained from another result than the result of its group")

    def _check_keys(self, state: State, statement: PresenceStatement) -> None:
        masked = self._aggregator.exchange(state.round).masked
        if (statement.keys is not None) != masked:
            raise BadPayload(f"{statement.site} {'must' if masked else 'must not'} state keys for masks")
        if statement.keys is not None:
            self._check_keys_new(state, statement)

    def _check_keys_new(self, state: State, statement: PresenceStatement) -> None:
        """Reject a repeated key: the other sites would refuse a list with it, and the attempt would fail."""
        keys = statement.keys
        others = self._requests.presence_keys(state, state.answered)
        if keys is not None and not others.isdisjoint(map(comparable, (keys.mask, keys.share))):
            raise BadPayload(f"{statement.site} states a key that another site has stated")
