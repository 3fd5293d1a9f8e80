"""Requests of each phase for each site, as bytes: a pure function of the store's content."""

from __future__ import annotations

from collections.abc import Sequence

from agreement import Agreement
from agreement.derived.payload_shapes import limits_of, result_shape
from crypto.keys import comparable
from protoseal_wire import codec
from protoseal_wire.messages import (
    ActiveList,
    GroupKeys,
    Phase,
    PhaseKey,
    PresenceStatement,
    Roster,
    RoundStart,
)
from secure_server.aggregator import Aggregator
from secure_server.errors import WrongPhase
from secure_server.exchanges.exchange import Attempt, AttemptCache
from secure_server.membership import MembershipChecks
from secure_server.rounds.state import State
from secure_server.store import ResultReference, Store


class PhaseRequests:
    """Builder of requests from stored statements, uploads and results."""

    def __init__(
        self, agreement: Agreement, store: Store, members: MembershipChecks, aggregator: Aggregator
    ) -> None:
        self._agreement = agreement
        self._store = store
        self._members = members
        self._aggregator = aggregator
        self._limits = limits_of(agreement)
        self._group_keys: tuple[PhaseKey, GroupKeys] | None = None
        self._roster = AttemptCache[bytes]()
        self._statements = AttemptCache[dict[str, PresenceStatement]]()

    def content(self, state: State, key: PhaseKey, site: str) -> bytes:
        """Return the request of ``key`` for ``site``; raise :class:`WrongPhase` if there is none."""
        match key.phase:
            case Phase.ROSTER:
                return self._encoded_roster(state)
            case Phase.SECRET:
                return self._sealed_secret(state, site)
            case Phase.PRESENCE:
                return codec.encode_round_start(self.round_start(state, site))
            case Phase.RESULT:
                return self._result(key, site)
            case _:
                exchange = self._aggregator.exchange(key.round)
                return exchange.request(self.attempt(state), key.phase, site)

    # Set-up

    def roster(self, state: State) -> Roster:
        """Return the statements of the run's members."""
        statements = self._store.statements()
        return Roster(tuple(codec.decode_statement(statements[name], self._limits) for name in state.members))

    def _encoded_roster(self, state: State) -> bytes:
        """Return the roster's encoding, which is the same for every member and made once."""
        return self._roster.of((state.members,), lambda: codec.encode_roster(self.roster(state)))

    def group_keys(self, state: State) -> GroupKeys | None:
        """Return the upload of the maker of the group's keys, or None before the upload arrives."""
        key = state.roster_key
        if self._group_keys is None or self._group_keys[0] != key:
            # Decoded once: the content has megabytes, and every call of the set-up needs it.
            content = self._store.upload(key, state.maker)
            keys = None if content is None else codec.decode_roster_answer(content, self._limits).keys
            self._group_keys = None if keys is None else (key, keys)
        return None if self._group_keys is None else self._group_keys[1]

    def _sealed_secret(self, state: State, site: str) -> bytes:
        keys = self.group_keys(state)
        for sealed in keys.sealed if keys else ():
            if sealed.recipient == site:
                return codec.encode_sealed_secret(sealed)
        raise WrongPhase(f"no secret was sealed for {site}")

    # Rounds

    def round_start(self, state: State, site: str) -> RoundStart:
        """Return the groups and the base of the site's group; the base's content only for a site that lacks it.

        A result is acknowledged in its own round or not at all, so the content is the same in every later attempt.
        """
        base = self._base(state, site)
        if base is None:
            return RoundStart(state.groups)
        # A site that has acknowledged the base has it; sent again, the base would cost the download of a model.
        content = None
        if self._store.upload_hash(base.key, site) is None:
            content = self._store.content(base.sha256)
        catch_up = None
        if content is not None:
            catch_up = codec.decode_payload(content, self._limits, result_shape(self._agreement))
        return RoundStart(state.groups, base.sha256, catch_up)

    def base_hash(self, state: State, site: str) -> bytes:
        """Return the SHA-256 of the base from which the site's group trains; empty before the first result."""
        base = self._base(state, site)
        return b"" if base is None else base.sha256

    def _base(self, state: State, site: str) -> ResultReference | None:
        """Return the last result that the site's group was given; None before the first, and without groups."""
        return self._store.latest_result(_group_of(state, site), state.round)

    def last_sum(self, state: State, site: str) -> bytes | None:
        """Return the last sum of rows that the site's group had before the present round; None before the first."""
        return self._store.latest_sum(_group_of(state, site), state.round)

    def attempt(self, state: State) -> Attempt:
        """Return the current attempt, from PLANNING or its first step on."""
        participants = frozenset(state.participants)
        there = (tuple(site for site in group if site in participants) for group in state.groups)
        return Attempt(
            key=state.presence_key,
            roster=self._members.roster(state),
            active=self._active_list(state, state.participants),
            groups=tuple(sorted(group for group in there if group)),
            survivors={step.phase: step.sites for step in state.survivors},
            answer=lambda phase, site: self._answer(state.key(phase), site),
            last_sum=lambda group: self.last_sum(state, group[0]),
        )

    def presence_keys(self, state: State, sites: frozenset[str]) -> set[bytes]:
        """Return the mask keys that these sites have stated in the current attempt, in comparable form."""
        active = self._active_list(state, sorted(sites))
        stated = [statement.keys for statement in active.statements if statement.keys is not None]
        return {comparable(key) for keys in stated for key in (keys.mask, keys.share)}

    def _active_list(self, state: State, sites: Sequence[str]) -> ActiveList:
        key = state.presence_key
        # Decoded once: statements do not change, and each request and answer of the attempt needs all of them.
        stated = self._statements.of((key,), dict)
        for site in sites:
            if site not in stated:
                stated[site] = codec.decode_presence(self._answer(key, site), self._limits)
        return ActiveList(tuple(stated[site] for site in sites))

    def _answer(self, key: PhaseKey, site: str) -> bytes:
        content = self._store.upload(key, site)
        if content is None:
            raise RuntimeError(f"the store lost {site}'s answer to {key.phase.name} of round {key.round}")
        return content

    def _result(self, key: PhaseKey, site: str) -> bytes:
        content = self._store.result(key, site)
        if content is None:
            raise WrongPhase(f"round {key.round} has no result for {site}")
        return content


def _group_of(state: State, site: str) -> tuple[str, ...]:
    """Return all members of the site's group, present or not; () without groups."""
    return next((group for group in state.groups if site in group), ())
