"""A coordinator in the tests' hands, which asks real sites one step at a time and combines their answers."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from agreement import Agreement
from agreement.derived.cohorts import cohort_of
from agreement.derived.payload_shapes import limits_of, values_shape
from crypto.pki import Credentials
from crypto.protection import Payload
from crypto.roster import Statement
from protoseal_wire import codec
from protoseal_wire.messages import (
    ActiveList,
    GroupKeys,
    Phase,
    PhaseKey,
    PresenceStatement,
    Roster,
    RosterAnswer,
    RoundStart,
)
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.checkpoints.learner_factory import build_checkpointed_learner, build_learner
from secure_client.data import SiteData
from secure_client.privacy.budget import BudgetSection
from secure_client.privacy.cost import simulated_budget
from secure_client.privacy.releases import Releases, open_releases
from secure_client.protocol.journal import Journal
from secure_client.protocol.setup import Party, open_journal
from secure_client.session import Session
from secure_server.aggregator import Aggregator
from secure_server.exchanges.exchange import ExchangeParts, build_half
from secure_server.exchanges.peers import PeerHalf

Rows = NDArray[np.float64]


@dataclass
class Site:
    """A real site, as its process has it open."""

    session: Session
    learner: CheckpointedLearner
    journal: Journal


@dataclass(frozen=True)
class Asked:
    """The last request, and what the site had stored under its key before it came."""

    site: str
    key: PhaseKey
    content: bytes
    answered_before: bytes | None


@dataclass(frozen=True)
class Cast:
    """Cast of a play: the sites, the coordinator's own certificate, and a site of another CA with the same name."""

    parties: Mapping[str, Party]
    coordinator: Credentials
    stranger: Credentials
    data: Mapping[str, SiteData]


class ScriptedCoordinator:
    """Holds a run's sites and asks them. Sites are opened when first asked."""

    def __init__(self, directory: Path, agreement: Agreement, cast: Cast) -> None:
        self.agreement, self.cast = agreement, cast
        self.parties = dict(cast.parties)
        self.limits = limits_of(agreement)
        self.last: Asked | None = None
        self._directory = directory
        self._sites: dict[str, Site] = {}
        self._keys_path = directory / "evaluation-keys.bin"
        self._aggregator = Aggregator(agreement, self._keys_path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        for site in self._sites.values():
            site.journal.close()

    # Sites

    def site(self, name: str) -> Site:
        """Return the site's open process."""
        if name not in self._sites:
            party = self.parties[name]
            path = self._directory / name / "journal.sqlite"
            journal = open_journal(path, self.agreement, party, durable=False)  # no test here cuts the power
            model = self.agreement.training.model
            bare = build_learner(self.agreement, name, self.cast.data[name], model=model, device="cpu")
            learner = build_checkpointed_learner(self.agreement, bare, journal, self.releases(name))
            self._sites[name] = Site(Session(self.agreement, party, learner, journal), learner, journal)
        return self._sites[name]

    def releases(self, name: str) -> Releases | None:
        """Open the site's releases, on a ledger that ends with no process; None without noise."""
        if self.agreement.privacy is None:
            return None
        return open_releases(self.agreement, self.budget(name))

    def budget(self, name: str) -> BudgetSection:
        """Return the budget of the site's own file."""
        folder = self._directory / "ledgers" / name
        folder.mkdir(parents=True, exist_ok=True)
        return simulated_budget(self.agreement, name, folder)

    def restart(self, name: str) -> None:
        """End the site's process; the next request meets a new one on the same journal."""
        self._sites.pop(name).journal.close()

    def lose_state(self, name: str) -> None:
        """End the site's process and empty its state directory."""
        self.restart(name)
        shutil.rmtree(self.state(name))

    def state(self, name: str) -> Path:
        """Return the site's state directory, where its journal is."""
        return self._directory / name

    def insist(self, name: str, min_sites: int) -> None:
        """Make the site's own file ask for more sites than the agreement."""
        self.parties[name] = replace(self.parties[name], min_sites=min_sites)

    def rows(self, name: str, round_number: int = 1) -> Rows:
        """Return the site's secret: its prototypes of a round in units of the norm bound, (K, d)."""
        return np.asarray(self.site(name).learner.train_round(round_number)[0] / self.agreement.norm_bound)

    def peers_received(self, name: str, round_number: int = 1) -> Rows:
        """Return the combination of peers that a site takes out of its result: C̄ = α·C + (1 − α)·peers."""
        stored = self.site(name).journal.get("targets")
        targets = safetensors.numpy.load(stored[1])["rows"] if stored else np.zeros((0, 0))
        alpha = self.agreement.pfpl.alpha
        return np.asarray(
            (targets / self.agreement.norm_bound - alpha * self.rows(name, round_number)) / (1.0 - alpha)
        )

    def evaluation_keys(self) -> bytes:
        """Return the group's public keys, as their maker sent them."""
        return (self._directory / "evaluation-keys.bin").read_bytes()

    # Requests

    def ask(
        self,
        name: str,
        phase: Phase,
        content: bytes,
        *,
        round_number: int = 1,
        attempt: int = 1,
        run: str | None = None,
    ) -> bytes:
        """Ask one site and return its answer, or let its refusal through."""
        site = self.site(name)
        key = PhaseKey(run or self.agreement.run, round_number, attempt, phase)
        self.last = Asked(name, key, content, site.journal.stored_answer(key))
        return site.session.answer(key, content)

    def statement(self, name: str) -> Statement:
        """Return the statement with which the site joined."""
        return self.site(name).session.join_request().statement

    def statements(self, names: Iterable[str]) -> list[Statement]:
        """Return the statements with which some sites joined."""
        return [self.statement(name) for name in names]

    def give_roster(self, name: str, statements: Iterable[Statement], *, attempt: int = 1) -> RosterAnswer:
        """ROSTER with these statements."""
        content = codec.encode_roster(Roster(tuple(statements)))
        answer = self.ask(name, Phase.ROSTER, content, round_number=0, attempt=attempt)
        return codec.decode_roster_answer(answer, self.limits)

    def set_up(self, *names: str, attempt: int = 1) -> GroupKeys | None:
        """Play an honest ROSTER for these sites, and SECRET where there is one, and return the maker's keys."""
        statements = self.statements(names)
        answers = [self.give_roster(name, statements, attempt=attempt) for name in names]
        keys = answers[0].keys
        if keys is not None:
            if keys.evaluation_keys:
                self._aggregator.write_group_keys(keys.evaluation_keys)
            for name in names[1:]:
                self.give_secret(name, keys, attempt=attempt)
        return keys

    def give_secret(self, name: str, keys: GroupKeys, *, attempt: int = 1) -> bytes:
        """SECRET with what the maker sealed to this site."""
        (sealed,) = (each for each in keys.sealed if each.recipient == name)
        content = codec.encode_sealed_secret(sealed)
        return self.ask(name, Phase.SECRET, content, round_number=0, attempt=attempt)

    def presence(
        self, name: str, *, round_number: int = 1, attempt: int = 1, start: RoundStart | None = None
    ) -> PresenceStatement:
        """PRESENCE."""
        content = codec.encode_round_start(start or RoundStart())
        answer = self.ask(name, Phase.PRESENCE, content, round_number=round_number, attempt=attempt)
        return codec.decode_presence(answer, self.limits)

    def begin(self, *names: str, round_number: int = 1, attempt: int = 1) -> ActiveList:
        """PRESENCE of these sites."""
        return ActiveList(
            tuple(self.presence(name, round_number=round_number, attempt=attempt) for name in names)
        )

    def values(self, name: str, active: ActiveList, *, round_number: int = 1, attempt: int = 1) -> Payload:
        """VALUES of one site."""
        content = codec.encode_active_list(active)
        answer = self.ask(name, Phase.VALUES, content, round_number=round_number, attempt=attempt)
        return self.payload(answer, round_number)

    def payload(self, answer: bytes, round_number: int) -> Payload:
        """Return an answer to VALUES."""
        return codec.decode_payload(answer, self.limits, values_shape(self.agreement, round_number))

    def all_values(
        self, active: ActiveList, *, round_number: int = 1, attempt: int = 1
    ) -> dict[str, Payload]:
        """VALUES of every site on the list."""
        names = [statement.site for statement in active.statements]
        return {name: self.values(name, active, round_number=round_number, attempt=attempt) for name in names}

    def combine(self, payloads: Mapping[str, Payload], active: ActiveList) -> dict[str, Payload]:
        """Combine the uploads as the honest coordinator does."""
        half = build_half(ExchangeParts(self.agreement, self.limits, self._keys_path))
        assert isinstance(half, PeerHalf)
        return half.server.combine(payloads, cohort_of(active, self.agreement))

    def give_result(self, name: str, payload: Payload, *, round_number: int = 1, attempt: int = 1) -> bytes:
        """RESULT for one site."""
        content = codec.encode_payload(payload)
        return self.ask(name, Phase.RESULT, content, round_number=round_number, attempt=attempt)

    def play_round(self, *names: str, round_number: int = 1, attempt: int = 1) -> None:
        """Play an honest attempt from PRESENCE to RESULT."""
        active = self.begin(*names, round_number=round_number, attempt=attempt)
        payloads = self.all_values(active, round_number=round_number, attempt=attempt)
        for name, payload in self.combine(payloads, active).items():
            self.give_result(name, payload, round_number=round_number, attempt=attempt)
