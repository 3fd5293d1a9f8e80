"""Who may take part: the statements of the sites, verified when they join and when joining closes."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from agreement import Agreement
from crypto.errors import CryptoError
from crypto.pki import TrustAnchor
from crypto.roster import Member, Roster, Statement, assemble_roster, verify_statement
from protoseal_wire import codec
from protoseal_wire.codec import Limits
from secure_server.errors import BadPayload, WrongIdentity
from secure_server.rounds.state import State
from secure_server.storage.store import Store

_LONGEST_FORESIGHT = 3600.0
"""Seconds. A certificate that is good for an hour will do, however long the set-up may take."""


class Members:
    """Verifies what sites stated. ``setup_seconds`` is how long the set-up may take once joining has closed."""

    def __init__(
        self, agreement: Agreement, trust: TrustAnchor, store: Store, limits: Limits, setup_seconds: float
    ) -> None:
        self._run, self._agreement_hash, self._trust = agreement.run, agreement.hash(), trust
        self._store, self._limits = store, limits
        self._foresight = timedelta(seconds=min(setup_seconds, _LONGEST_FORESIGHT))
        self._roster: Roster | None = None

    def check_joining(self, site: str, statement: Statement, state: State) -> Member:
        """Return the member that ``site`` would be.

        :class:`WrongIdentity` for another site's statement. :class:`BadPayload` unless it verifies: while the site
        is no member now and when the set-up will be over, after that at the time when the roster was made. So a
        site whose certificate was renewed in the middle of a run comes back with the statement that it joined with.
        """
        _check_own(site, statement)
        if state.begun or site in state.members:
            return self._verified(statement, self._store.last_join())
        now = datetime.now(UTC)
        self._verified(statement, now)
        return self._verified(statement, now + self._foresight)

    def lapsed(self, joined: Iterable[str]) -> frozenset[str]:
        """Those whose statement will no longer verify when the set-up is over, if joining closes now."""
        ending, lapsed = datetime.now(UTC) + self._foresight, set()
        statements = self._store.statements()
        for site in joined:
            try:
                self._verified(codec.decode_statement(statements[site], self._limits), ending)
            except BadPayload:
                lapsed.add(site)
        return frozenset(lapsed)

    def roster(self, state: State) -> Roster:
        """The members of the run with their keys, as every site verifies them.

        As of joining, when all of them were good: a certificate that ends during the run is refused at its owner's
        next call, not here.
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

    def _verified(self, statement: Statement, at: datetime) -> Member:
        try:
            return verify_statement(self._trust, statement, self._run, self._agreement_hash, at)
        except CryptoError as error:
            raise BadPayload(f"{statement.site}'s statement does not verify: {error}") from error


def _check_own(site: str, statement: Statement) -> None:
    if statement.site != site:
        raise WrongIdentity(f"{site} presents a statement of {statement.site}")
