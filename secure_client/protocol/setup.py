"""Secrets that all sites of a run share and the coordinator lacks: the seed of rotations and, under ``ckks``, a key.

Round 0 at a site: the roster, and the secret that the sites share.

The coordinator relays all set-up messages and can neither add nor change any: statements are signed under the
federation's CA; the group secret is sealed to each site and signed by the maker that the roster prescribes.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from agreement import Agreement, Protection
from agreement.derived.payload_shapes import limits_of
from crypto.ckks.secret_key import CkksSecret
from crypto.errors import CryptoError, MalformedError
from crypto.keys import KEY_BYTES, ChannelKey, StorageKey
from crypto.pki import Credentials, TrustAnchor
from crypto.roster import Roster, Statement, sign_statement, verify_roster
from crypto.sealed_group_secret import open_group_secret, seal_group_secret
from protoseal_wire import codec
from protoseal_wire.messages import Acknowledgement, GroupKeys, Phase, RosterAnswer
from secure_client.errors import Violation
from secure_client.protocol.journal import Journal


def make_group_secret(protection: Protection) -> tuple[bytes, bytes]:
    """Return a fresh secret and its public keys, which are empty for a protection without public keys."""
    seed = secrets.token_bytes(protection.secret_bytes)
    if not protection.ckks_key:
        return seed, b""
    key, public = CkksSecret.generate()
    return seed + key.to_bytes(), public.to_bytes()


def check_group_secret(secret: bytes, protection: Protection) -> None:
    """Raise :class:`MalformedError` for a secret that the protection cannot use."""
    if protection.ckks_key:
        ckks_key(secret)
    elif len(secret) != protection.secret_bytes:
        raise MalformedError(
            f"{protection.value}'s secret has {protection.secret_bytes} bytes, not {len(secret)}"
        )


def rotation_seed(secret: bytes) -> bytes:
    """Return the seed of all rotations."""
    return secret[:KEY_BYTES]


def ckks_key(secret: bytes) -> CkksSecret:
    """Return the secret key; raise :class:`MalformedError` if there is none."""
    return CkksSecret.from_bytes(secret[KEY_BYTES:])


_log = logging.getLogger("protoseal.site")
_CHANNEL, _SIGNING, _STATEMENT = "channel key", "signing key", "statement"
_VERIFIED_AT = "roster verified at"


@dataclass(frozen=True)
class Party:
    """A site's identity, its trust anchor, and the minima that it requires whatever the coordinator says.

    ``pins`` maps a peer's name to the SHA-256 fingerprint (hex) of its certificate. ``storage`` gives the key that
    encrypts what the site stores; it is called when a journal is opened.
    """

    credentials: Credentials
    trust: TrustAnchor
    min_sites: int
    storage: Callable[[], StorageKey] = field(repr=False)
    pins: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The site's name, from its certificate."""
        return self.credentials.identity.name


def open_journal(path: Path, agreement: Agreement, party: Party, *, durable: bool = True) -> Journal:
    """Open the site's journal for this run; its secrets are encrypted under the site's storage key."""
    return Journal(
        path,
        run=agreement.run,
        agreement_hash=agreement.hash(),
        site=party.name,
        storage=party.storage(),
        durable=durable,
    )


class Setup:
    """A site's half of the set-up, stored in the journal across restarts.

    A run identifies its sites by the certificates with which they joined. A site therefore signs with that
    certificate's key until the run is over, also after renewing its certificate: the journal stores the key, encrypted.
    """

    def __init__(
        self, agreement: Agreement, party: Party, journal: Journal, now: Callable[[], datetime]
    ) -> None:
        self._agreement = agreement
        self._journal = journal
        self._now = now
        self._limits = limits_of(agreement)
        self._roster: Roster | None = None
        statement = journal.secret(_STATEMENT)
        self.statement = (
            self._make_statement(party)
            if statement is None
            else codec.decode_statement(statement, self._limits)
        )
        # The credentials with which this site joined: its certificate may have been renewed since. finish() erases
        # them.
        signing = journal.secret(_SIGNING)
        self.party = (
            party
            if signing is None
            else replace(party, credentials=Credentials.from_stored(self.statement.certificate, signing))
        )

    def _make_statement(self, party: Party) -> Statement:
        channel, run, agreement_hash = ChannelKey.generate(), self._agreement.run, self._agreement.hash()
        statement = sign_statement(party.credentials, run, agreement_hash, channel.public_bytes)
        with self._journal.transaction():
            self._journal.put_secret(_CHANNEL, channel.private_bytes())
            self._journal.put_secret(_SIGNING, party.credentials.private_bytes())
            self._journal.put_secret(_STATEMENT, codec.encode_statement(statement))
        return statement

    def check_not_over(self) -> None:
        """Raise :class:`Violation` if :meth:`finish` has erased the keys of the run."""
        self._private_channel_key()

    def _private_channel_key(self) -> bytes:
        stored = self._journal.secret(_CHANNEL)
        if stored is None:
            raise Violation("the coordinator sent a request after it ended the run")
        return stored

    def finish(self) -> None:
        """Erase every secret of the run, which is over: this site answers no further request.

        The public statement stays: a restarted site joins with it and learns that the run is over.
        """
        self._journal.forget_secrets(but=_STATEMENT)

    def answer_roster(self, attempt: int, request: bytes) -> bytes:
        """Verify the roster; the prescribed maker also makes the group's keys.

        The secret and the messages of the set-up attempt before are erased, since no later phase can use them.
        """
        now = self._now()
        self._roster = self._verify_roster(request, now)
        earlier = self._journal.latest(Phase.ROSTER)
        if earlier is not None:
            self._journal.forget_secret(_group_name(earlier.attempt))
            self._journal.forget_set_up(attempt)
        for name in sorted(set(self.party.pins) - set(self._roster.members)):
            _log.warning("pins names %s, but the roster has no such site", name)
        self._journal.put(_VERIFIED_AT, 0, now.isoformat().encode())
        # The first name on the roster makes the keys, so that the coordinator cannot choose a maker that it controls.
        makes_keys = self._agreement.needs_group_secret and self._roster.maker == self.party.name
        keys = self._make_group_keys(self._roster, attempt) if makes_keys else None
        return codec.encode_roster_answer(RosterAnswer(self._roster.hash, keys))

    def answer_secret(self, attempt: int, request: bytes) -> bytes:
        """Open the group secret that was sealed to this site in this attempt of the set-up."""
        sealed = codec.decode_sealed_secret(request, self._limits)
        try:
            secret, _ = open_group_secret(
                sealed,
                roster=self.roster(),
                run=self._agreement.run,
                attempt=attempt,
                recipient=self.party.name,
                channel_key=ChannelKey.from_private_bytes(self._private_channel_key()),
            )
            check_group_secret(secret, self._agreement.protection)
        except CryptoError as error:
            raise Violation(f"the group secret that the coordinator delivered is refused: {error}") from error
        self._journal.put_secret(_group_name(attempt), secret)
        return codec.encode_acknowledgement(Acknowledgement())

    def roster(self) -> Roster:
        """Roster that this site verified last; raises :class:`Violation` if the coordinator skipped that step.

        A certificate that expires during the run does not end the run: the time of verification counts.
        """
        if self._roster is None:
            key, stamp = self._journal.latest(Phase.ROSTER), self._journal.get(_VERIFIED_AT)
            request = self._journal.request(key) if key else None
            if request is None or stamp is None:
                raise Violation("the coordinator sent a later phase before the roster")
            self._roster = self._verify_roster(request, datetime.fromisoformat(stamp[1].decode()))
        return self._roster

    def rotation_seed(self) -> bytes:
        """Return the sites' seed of rotations; raises :class:`Violation` if the coordinator skipped that step."""
        return rotation_seed(self._group_secret())

    def ckks_key(self) -> CkksSecret:
        """Return the sites' shared key; raises :class:`Violation` if the coordinator skipped that step."""
        return ckks_key(self._group_secret())

    def group_secret(self) -> bytes:
        """Return the whole secret, empty if the protection has none; raise :class:`Violation` without that step."""
        return self._group_secret() if self._agreement.needs_group_secret else b""

    def _group_secret(self) -> bytes:
        self.roster()
        begun = self._journal.latest(Phase.ROSTER)
        secret = None if begun is None else self._journal.secret(_group_name(begun.attempt))
        if secret is None:
            raise Violation("the coordinator began a round before it delivered the group secret")
        return secret

    def _verify_roster(self, request: bytes, at: datetime) -> Roster:
        statements = codec.decode_roster(request, self._limits).statements
        try:
            return verify_roster(
                statements,
                trust=self.party.trust,
                run=self._agreement.run,
                agreement_hash=self._agreement.hash(),
                own=self.statement,
                minimum=max(self._agreement.min_sites, self.party.min_sites),
                pins=self.party.pins,
                at=at,
            )
        except CryptoError as error:
            raise Violation(f"the roster that the coordinator sent is refused: {error}") from error

    def _make_group_keys(self, roster: Roster, attempt: int) -> GroupKeys:
        secret, public = make_group_secret(self._agreement.protection)
        # Each sealed secret names the public keys, under the maker's signature: the coordinator refuses keys of another
        # secret, under which no site could read a sum.
        public_hash = hashlib.sha256(public).digest()
        self._journal.put_secret(_group_name(attempt), secret)
        sealed = tuple(
            seal_group_secret(
                self.party.credentials,
                roster,
                self._agreement.run,
                attempt,
                recipient=name,
                secret=secret,
                public_hash=public_hash,
            )
            for name in roster.members
            if name != self.party.name
        )
        return GroupKeys(public, sealed)


def _group_name(attempt: int) -> str:
    """Return the name of the group secret of one attempt of the set-up: it serves that attempt's roster alone."""
    return f"group secret of set-up attempt {attempt}"
