"""Membership of a run: the sites' statements, and the reply to a site that asks before it joins.

Statements are verified when a site joins and again when joining closes. A site that is not on the coordinator's list
learns the run's name and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from agreement import Agreement
from agreement.schema.differences import fields_of
from crypto.errors import CryptoError
from crypto.pki import TrustAnchor
from crypto.roster import Member, Roster, Statement, assemble_roster, verify_statement
from protoseal_wire import codec
from protoseal_wire.codec import Limits
from protoseal_wire.messages import PROTOCOL_VERSION, CheckReply, Listing, RunStage
from secure_server.errors import BadPayload, WrongIdentity
from secure_server.rounds.rules import Rules
from secure_server.rounds.state import RoundStage, State
from secure_server.rounds.task_assignment import may_join
from secure_server.store import Store

_LONGEST_FORESIGHT = 3600.0
"""Upper bound, in seconds, of the time that a certificate has to outlast: an hour suffices for any set-up."""


class MembershipChecks:
    """Verifier of the sites' statements. ``setup_seconds`` is the longest set-up after joining has closed."""

    def __init__(
        self, agreement: Agreement, trust: TrustAnchor, store: Store, limits: Limits, setup_seconds: float
    ) -> None:
        self._run = agreement.run
        self._agreement_hash = agreement.hash()
        self._trust = trust
        self._store = store
        self._limits = limits
        self._foresight = timedelta(seconds=min(setup_seconds, _LONGEST_FORESIGHT))
        self._roster: Roster | None = None

    def check_joining(self, site: str, statement: Statement, state: State) -> Member:
        """Return the member that ``site`` would be.

        Raises :class:`WrongIdentity` for another site's statement, and :class:`BadPayload` unless the statement
        verifies: for a site that is no member, now and when the set-up will be over; for a member, at the time when
        the roster was made. A site whose certificate was renewed during a run can therefore return with the statement
        that it joined with.
        """
        check_own_statement(site, statement)
        if state.setup_complete or site in state.members:
            return self._verify(statement, self._store.last_join())
        now = datetime.now(UTC)
        # Every site verifies the roster later than this: a certificate that ends before would make all refuse it.
        self._verify(statement, now)
        return self._verify(statement, now + self._foresight)

    def find_lapsed(self, joined: Iterable[str]) -> frozenset[str]:
        """Return the sites whose statements will no longer verify at the end of the set-up, if joining closes now."""
        ending, lapsed = datetime.now(UTC) + self._foresight, set()
        statements = self._store.statements()
        for site in joined:
            try:
                self._verify(codec.decode_statement(statements[site], self._limits), ending)
            except BadPayload:
                lapsed.add(site)
        return frozenset(lapsed)

    def roster(self, state: State) -> Roster:
        """Return the members of the run with their keys, as every site verifies them.

        Statements are verified as of joining. A certificate that ends during the run is refused at its owner's next
        call, not here.
        """
        if self._roster is None or tuple(self._roster.members) != state.members:
            statements = self._store.statements()
            self._roster = assemble_roster(
                [codec.decode_statement(statements[name], self._limits) for name in state.members],
                trust=self._trust,
                run=self._run,
                agreement_hash=self._agreement_hash,
                at=self._store.last_join(),
            )
        return self._roster

    def _verify(self, statement: Statement, at: datetime) -> Member:
        try:
            return verify_statement(self._trust, statement, self._run, self._agreement_hash, at)
        except CryptoError as error:
            raise BadPayload(f"{statement.site}'s statement does not verify: {error}") from error


def check_own_statement(site: str, statement: Statement) -> None:
    """Raise :class:`WrongIdentity` for another site's statement: the caller would join under that site's name."""
    if statement.site != site:
        raise WrongIdentity(f"{site} sent a statement of {statement.site}: a site must send its own")


_STAGES_ON_THE_WIRE = {
    RoundStage.JOINING: RunStage.JOINING,
    RoundStage.FINISHED: RunStage.FINISHED,
    RoundStage.STOPPED: RunStage.STOPPED,
}


def check_reply(agreement: Agreement, rules: Rules, state: State, site: str) -> CheckReply:
    """Return the reply to ``site``, whose certificate the coordinator has verified."""
    if site not in rules.roster:
        return CheckReply(PROTOCOL_VERSION, agreement.run, None)
    listing = Listing(
        agreement_hash=agreement.hash(),
        fields=fields_of(agreement),
        stage=_STAGES_ON_THE_WIRE.get(state.stage, RunStage.UNDER_WAY),
        round=state.round,
        may_join=may_join(rules, state, site),
    )
    return CheckReply(PROTOCOL_VERSION, agreement.run, listing)
