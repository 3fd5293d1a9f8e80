"""Checks on what sites upload, before it is stored: an answer that fails one changes nothing."""

from __future__ import annotations

from crypto.roster import Member, Roster
from crypto.sealed import verify_sealed
from protoseal.config import Agreement, Protection
from protoseal_wire import codec
from protoseal_wire.codec import Limits
from protoseal_wire.messages import GroupKeys, Phase, PhaseKey, RosterAnswer
from protoseal_wire.presence import verify_presence
from secure_server.aggregate import Aggregator
from secure_server.errors import BadPayload
from secure_server.requests import Requests
from secure_server.rounds import State


class AnswerCheck:
    """Knows what a well-formed answer to each phase looks like."""

    def __init__(
        self, agreement: Agreement, requests: Requests, aggregator: Aggregator, limits: Limits
    ) -> None:
        self._needs_secret = agreement.protection is Protection.CKKS
        self._classes = len(agreement.classes)
        self._requests = requests
        self._aggregator = aggregator
        self._limits = limits

    def check(self, state: State, roster: Roster, key: PhaseKey, site: str, content: bytes) -> None:
        """Raise :class:`BadPayload`, a codec error or a :class:`crypto.errors.CryptoError`."""
        match key.phase:
            case Phase.ROSTER:
                answer = codec.decode_roster_answer(content, self._limits)
                self._check_roster_answer(answer, roster, key.run, site)
            case Phase.PRESENCE:
                self._check_presence(roster.members[site], key, roster.hash, content)
            case Phase.VALUES:
                payload = codec.decode_payload(content, self._limits)
                self._aggregator.validate(payload, site, self._requests.active_list(state))
            case Phase.SECRET | Phase.RESULT:
                codec.decode_acknowledgement(content, self._limits)

    def _check_roster_answer(self, answer: RosterAnswer, roster: Roster, run: str, site: str) -> None:
        if answer.roster_hash != roster.hash:
            raise BadPayload(f"{site} verified another roster")
        makes_keys = self._needs_secret and site == roster.maker
        if (answer.keys is not None) != makes_keys:
            raise BadPayload(f"{site} {'must' if makes_keys else 'must not'} send group keys")
        if answer.keys is not None:
            self._check_group_keys(answer.keys, roster, run, site)

    def _check_group_keys(self, keys: GroupKeys, roster: Roster, run: str, site: str) -> None:
        """What is wrong here is found here, where the maker answers for it, and not by the sites it is sent to."""
        if sorted(sealed.recipient for sealed in keys.sealed) != sorted(set(roster.members) - {site}):
            raise BadPayload(f"{site} must seal the group secret to each other member, once")
        for sealed in keys.sealed:
            verify_sealed(sealed, roster=roster, run=run, recipient=sealed.recipient)
        public_hash = self._aggregator.check_keys(keys.evaluation_keys)
        if any(sealed.public_hash != public_hash for sealed in keys.sealed):
            raise BadPayload(f"{site} sealed a secret that goes with other evaluation keys")

    def _check_presence(self, member: Member, key: PhaseKey, roster_hash: bytes, content: bytes) -> None:
        statement = codec.decode_presence(content, self._limits)
        if statement.holds.shape != (self._classes,):
            raise BadPayload(
                f"{member.name} states presence for {statement.holds.size} classes, not {self._classes}"
            )
        verify_presence(member, statement, key, roster_hash)
