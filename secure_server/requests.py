"""What each site is asked in each phase, as bytes: a pure function of what the store holds."""

from __future__ import annotations

from protoseal_wire import codec
from protoseal_wire.codec import Limits
from protoseal_wire.messages import ActiveList, GroupKeys, Phase, PhaseKey, Roster, RoundStart
from secure_server.errors import WrongPhase
from secure_server.rounds import State
from secure_server.store import Store


class Requests:
    """Builds requests from stored statements, uploads and results."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits
        self._group_keys: tuple[PhaseKey, GroupKeys] | None = None

    def content(self, state: State, key: PhaseKey, site: str) -> bytes:
        """The request of ``key`` for ``site``. :class:`WrongPhase` when there is none."""
        match key.phase:
            case Phase.ROSTER:
                return codec.encode_roster(self.roster(state))
            case Phase.SECRET:
                return self._sealed_secret(state, site)
            case Phase.PRESENCE:
                return codec.encode_round_start(RoundStart())
            case Phase.VALUES:
                return codec.encode_active_list(self.active_list(state))
            case Phase.RESULT:
                return self._result(key, site)

    def roster(self, state: State) -> Roster:
        """The statements of the run's members."""
        statements = self._store.statements()
        return Roster(tuple(codec.decode_statement(statements[name], self._limits) for name in state.members))

    def group_keys(self, state: State) -> GroupKeys | None:
        """What the maker of the group's keys uploaded, or None as long as it has not."""
        key = state.roster_key
        if self._group_keys is None or self._group_keys[0] != key:
            # Megabytes, and asked for at every call of every site in the set-up: decoded once.
            content = self._store.upload(key, state.maker)
            keys = None if content is None else codec.decode_roster_answer(content, self._limits).keys
            self._group_keys = None if keys is None else (key, keys)
        return None if self._group_keys is None else self._group_keys[1]

    def active_list(self, state: State) -> ActiveList:
        """The participants' presence statements for the current attempt."""
        key = state.presence_key
        contents = [self._store.upload(key, site) for site in state.participants]
        return ActiveList(
            tuple(codec.decode_presence(content, self._limits) for content in contents if content is not None)
        )

    def _sealed_secret(self, state: State, site: str) -> bytes:
        keys = self.group_keys(state)
        for sealed in keys.sealed if keys else ():
            if sealed.recipient == site:
                return codec.encode_sealed_secret(sealed)
        raise WrongPhase(f"there is no sealed secret for {site}")

    def _result(self, key: PhaseKey, site: str) -> bytes:
        content = self._store.result(key, site)
        if content is None:
            raise WrongPhase(f"there is no result for {site} in round {key.round}")
        return content
