"""Promises that hold in every order of faults, each stated once, and watched from outside: on the wire and on disks."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np

from agreement import Protection
from agreement.derived.cohorts import has_common_group, steps_of
from agreement.derived.payload_shapes import limits_of, result_shape, values_shape
from agreement.registry.round_plan import MASKED_SUM
from crypto.pairwise.attempt import Binding
from crypto.pairwise.shares import ShareKind
from crypto.protection import Words
from privacy.errors import LedgerError
from privacy.ledger.budget_account import Account, read_account
from privacy.ledger.hash_chain import Anchor
from privacy.ledger.lines import ReleaseName
from protoseal_wire import codec
from protoseal_wire.codec import CodecError
from protoseal_wire.messages import LedgerAnchor, Phase, PhaseKey
from secure_client.privacy.cost import PROTOTYPES, TRAINING
from secure_server.rounds.state import State
from secure_server.store import Store
from tests.states.faults import COORDINATOR
from tests.states.federations import Cast
from tests.states.site_rules import Shadow


class Promise(StrEnum):
    """Promise that holds for every fault, in every order."""

    ONE_ANSWER = "a site answers one phase of one attempt once"
    ONE_VECTOR = "one vector leaves under each mask"
    ONE_SUM = (
        "one sum opens in a round: all who release shares do so for one attempt and one set of survivors"
    )
    RIGHT_SUM = "a masked sum that opens is that of what its survivors put in, to the last bit"
    ONE_KIND = "of no site are shares of both kinds released in an attempt"
    ENOUGH = "no sum of fewer than min_holders sites, or holders of a class, opens"
    PAID_FIRST = "noise is drawn, and what has it leaves, once it is paid for"
    PAID_ONCE = "nothing is paid for twice, but what a process did not live to send"
    SAME_RESULT = (
        "all who get a round's result get the same, and who stated presence for the last one ends with it"
    )
    KEPT = "what was acknowledged is there after a restart, at a site and at the coordinator"
    NOTICED = "a ledger that lacks an entry which its site has shown is not used"
    CURRENT = "nothing of an earlier attempt is taken"
    NO_REFUSAL = "no honest party is refused, and none refuses, while all are honest"
    RULES = (
        "sites of one masked sum answer and refuse as the rules say that the exhaustive exploration goes by"
    )
    ENDS = "a run with enough healthy sites ends with a result, or says why not"


ALWAYS = (
    *(Promise.ONE_VECTOR, Promise.ONE_SUM, Promise.ONE_KIND, Promise.ENOUGH),
    *(Promise.PAID_FIRST, Promise.NOTICED),
)
"""Promised too when a party's state was put back by one write, or a ledger lost its last line."""


@dataclass(frozen=True)
class Violation:
    """A promise that was broken, and how."""

    promise: Promise
    text: str


class Monitor:
    """Watches one run. Rounds are told apart by number and attempts by number within the round."""

    def __init__(self, cast: Cast) -> None:
        self._cast, self._agreement = cast, cast.agreement
        self._limits = limits_of(cast.agreement)
        self.violations: list[Violation] = []
        self.older: set[str] = set()
        self._left: dict[tuple[str, PhaseKey], set[bytes]] = defaultdict(set)
        self._vectors: dict[tuple[str, PhaseKey], set[bytes]] = defaultdict(set)
        self._put_in: dict[tuple[int, int, str], Words] = {}
        self._requests: dict[tuple[str, PhaseKey], bytes] = {}
        self._kinds: dict[tuple[int, int, str], set[ShareKind]] = defaultdict(set)
        self._opened: dict[int, set[tuple[int, tuple[str, ...]]]] = defaultdict(set)
        self._results: dict[tuple[int, tuple[str, ...]], set[bytes]] = defaultdict(set)
        self._held: dict[str, tuple[int, bytes]] = {}
        self._groups: tuple[tuple[str, ...], ...] = ()
        self._unspent: Counter[tuple[str, str]] = Counter()
        self._anchors: list[tuple[str, Anchor]] = []
        self._stated: dict[str, LedgerAnchor] = {}
        self._shown: dict[str, LedgerAnchor] = {}
        self._acknowledged: set[tuple[str, PhaseKey]] = set()
        graph = self._agreement.masking.graph(len(cast.sites), len(cast.sites))
        one_sum = (
            has_common_group(self._agreement)
            and steps_of(self._agreement, 1) == MASKED_SUM
            and not graph.sparse
        )
        self._shadows = {site: Shadow(self._agreement, site) for site in cast.sites if one_sum}

    def broken(self, promise: Promise, text: str) -> None:
        """Note it, unless it is not promised after an older state was put back."""
        if not self.older or promise in ALWAYS:
            self.violations.append(Violation(promise, text))

    @property
    def results(self) -> frozenset[tuple[int, int]]:
        """Round and attempt of each result that a site was given; none of round 0, which has groups for its result."""
        keys = (key for _, key in self._requests)
        return frozenset((key.round, key.attempt) for key in keys if key.phase is Phase.RESULT and key.round)

    # At a site

    def asked(self, site: str, key: PhaseKey, request: bytes) -> None:
        """A site has its request."""
        self._requests[site, key] = request
        if key.phase is Phase.PRESENCE:
            start = codec.decode_round_start(request, self._limits, result_shape(self._agreement))
            self._groups = start.groups or self._groups
        if key.phase is Phase.RESULT and self._is_common:
            results = self._results[key.round, self._group_of(site)]
            results.add(hashlib.sha256(request).digest())
            if len(results) > 1:
                self.broken(Promise.SAME_RESULT, f"round {key.round} has two results")

    def leaves(self, site: str, key: PhaseKey, content: bytes, ledger: Path, deaths: int) -> None:
        """An answer leaves a site, whose ``ledger`` may not be there and whose process died so often before."""
        answers = self._left[site, key]
        answers.add(content)
        if len(answers) > 1:
            self.broken(Promise.ONE_ANSWER, f"{site} answers {_name(key)} in two ways")
        if key.phase is Phase.VALUES and Phase.UNMASK in steps_of(self._agreement, key.round):
            self._check_one_vector(site, key, content)
        if site in self._shadows and self._shadows[site].refuses(key, self._requests[site, key]):
            self.broken(Promise.RULES, f"{site} answers {_name(key)}, and the rules forbid it")
        if key.phase is Phase.UNMASK:
            self._released(site, key, content)
        if key.phase is Phase.PRESENCE and self._cast.has_ledgers:
            self._check_noticed(site, key, content)
            self._check_paid(site, key, read_account(ledger), deaths)

    def _check_one_vector(self, site: str, key: PhaseKey, content: bytes) -> None:
        vectors = self._vectors[site, key]
        vectors.add(self._masked(key, content))
        if len(vectors) > 1:
            self.broken(Promise.ONE_VECTOR, f"{site} sends two vectors under its masks: {_name(key)}")

    def _masked(self, key: PhaseKey, content: bytes) -> bytes:
        """Return the masked vector itself; in a sparse graph a signature comes with it, which is another each time."""
        form = values_shape(self._agreement, key.round)
        try:
            return codec.encode_payload(codec.decode_masked_values(content, self._limits, form).payload)
        except CodecError:  # the graph is complete, and the vector comes alone
            return content

    def masked(self, binding: Binding, site: str, words: Words) -> None:
        """A site puts its vector under masks."""
        self._put_in[binding.round, binding.attempt, site] = words

    def unmasked(self, binding: Binding, survivors: Collection[str], total: Words) -> None:
        """The coordinator has opened a sum."""
        put_in = [self._put_in[binding.round, binding.attempt, site] for site in survivors]
        if not np.array_equal(sum(put_in[1:], start=put_in[0]), total):
            place = f"round {binding.round}, attempt {binding.attempt}"
            self.broken(Promise.RIGHT_SUM, f"{place}: another sum than that of {sorted(survivors)}")

    def _released(self, site: str, key: PhaseKey, content: bytes) -> None:
        survivors = codec.decode_signed_survivors(self._requests[site, key], self._limits).sites
        for share in codec.decode_released_shares(content, self._limits).shares:
            kinds = self._kinds[key.round, key.attempt, share.owner]
            kinds.add(share.kind)
            due = ShareKind.SEED if share.owner in survivors else ShareKind.KEY
            if kinds != {due}:
                self.broken(
                    Promise.ONE_KIND, f"{site} gives a share of {share.owner} that is not due: {_name(key)}"
                )
        opened = self._opened[key.round]
        opened.add((key.attempt, survivors))
        if any(
            set(survivors) & set(other) and (number, other) != (key.attempt, survivors)
            for number, other in opened
        ):
            self.broken(Promise.ONE_SUM, f"round {key.round} has two sums: {sorted(opened)}")
        self._check_enough(site, key, survivors)

    def _check_enough(self, site: str, key: PhaseKey, survivors: Collection[str]) -> None:
        least = self._agreement.min_holders
        if len(survivors) < least:
            self.broken(Promise.ENOUGH, f"{_name(key)} opens a sum of {sorted(survivors)}")
        first = self._requests.get((site, PhaseKey(key.run, key.round, key.attempt, Phase.SHARES)))
        if first is None or not self._agreement.layout.classes:
            return
        group = self._group_of(site)
        stated = codec.decode_active_list(first, self._limits).statements
        listed = [each for each in stated if not group or each.site in group]
        holds = np.array([each.holds for each in listed])
        left = np.array([each.holds for each in listed if each.site in survivors])
        short = (holds.sum(axis=0) >= least) & (left.sum(axis=0) < least)
        if short.any():
            self.broken(Promise.ENOUGH, f"{_name(key)} opens a class of too few holders: {sorted(survivors)}")

    def refused(self, site: str, key: PhaseKey) -> None:
        """A site has refused a request."""
        if site in self._shadows and not self._shadows[site].refuses(key, self._requests[site, key]):
            self.broken(Promise.RULES, f"{site} refuses {_name(key)}, and the rules allow it")

    def left(self, site: str, *, disk_failed: bool) -> None:
        """A site has left by an error of its own. What it erased of the attempt is known unless its disk failed."""
        if disk_failed:
            self._shadows.pop(site, None)
        elif site in self._shadows:
            self._shadows[site].journal = self._shadows[site].journal.left()

    def acknowledged(self, site: str, key: PhaseKey, base: bytes) -> None:
        """A site knows that its answer was taken, and trains from ``base`` now."""
        self._acknowledged.add((site, key))
        if key.phase is Phase.PRESENCE and self._cast.has_ledgers:
            self._shown[site] = self._stated[site]
        if key.phase is Phase.RESULT:
            self._held[site] = key.round, base

    def restarted(self, site: str, result: int, base: bytes) -> None:
        """A site's process has read its disk."""
        number, before = self._held.get(site, (0, b""))
        if result < number or (result == number and number and base != before):
            self.broken(Promise.KEPT, f"{site} had the result of round {number}, and has another now")

    # Payments

    def paid(self, site: str, what: str, anchor: Anchor) -> None:
        """A payment is durable."""
        self._unspent[site, what] += 1
        self._anchors.append((site, anchor))

    def drawn(self, site: str, what: str) -> None:
        """Noise is drawn, for one release or one training."""
        if self._unspent[site, what] < 1:
            self.broken(Promise.PAID_FIRST, f"{site} draws noise for {what} that nothing was paid for")
        self._unspent[site, what] -= 1

    def died(self, site: str) -> None:
        """A payment that nothing was drawn for yet is lost."""
        self._unspent = Counter({key: left for key, left in self._unspent.items() if key[0] != site})

    def check_ledger(self, site: str, ledger: Path) -> None:
        """Check that a ledger has every payment that was acknowledged to its site."""
        paid = [anchor for owner, anchor in self._anchors if owner == site]
        try:
            for anchor in paid:
                read_account(ledger).check_anchor(anchor)
        except LedgerError as error:
            self.broken(Promise.KEPT, f"{site}'s ledger is not what was acknowledged: {error}")

    def _check_noticed(self, site: str, key: PhaseKey, content: bytes) -> None:
        """A site states no ledger that lacks what others know of it."""
        anchor, before = codec.decode_presence(content, self._limits).anchor, self._shown.get(site)
        if anchor is None:
            self.broken(Promise.NOTICED, f"{site} states no entry of its ledger: {_name(key)}")
            return
        self._stated[site] = anchor
        if before is not None and anchor.is_behind(before) and COORDINATOR not in self.older:
            self.broken(
                Promise.NOTICED, f"{site} states entry {anchor.seq} of a ledger that lacks entry {before.seq}"
            )

    def _check_paid(self, site: str, key: PhaseKey, account: Account, deaths: int) -> None:
        """Check that each release that serves the round is paid for, and not more than once, except after deaths."""
        if self._agreement.privacy is None:
            told = sum(each.run == key.run for each in account.exposures)
            if told != 1:
                broken = Promise.PAID_ONCE if told else Promise.PAID_FIRST
                self.broken(broken, f"{site}'s ledger says {told} times that exact values leave")
            return
        attempts = {other.attempt for name, other in self._left if name == site and _same_round(other, key)}
        for what, due in self._payments(key.round, len(attempts)).items():
            release = self._served_by(ReleaseName(key.run, key.round, what))
            found = sum(self._served_by(each.spending.release) == release for each in account.entries)
            if found < due:
                self.broken(
                    Promise.PAID_FIRST, f"{site} sends {_name(key)}: {found} of {due} are paid for ({what})"
                )
            if found > max(due, len(attempts)) + deaths:
                self.broken(
                    Promise.PAID_ONCE, f"{site}: {found} payments for {due} of round {key.round} ({what})"
                )

    def _served_by(self, release: ReleaseName) -> ReleaseName:
        """Return the release under the first round of its period; a site that missed the clustering pays in round 1."""
        if release.what != PROTOTYPES:
            return release
        return replace(release, round=self._agreement.release_round(release.round))

    def _payments(self, round_number: int, attempts: int) -> Mapping[str, int]:
        """Return the number of payments due, by purpose, in a round whose presence was stated in so many attempts."""
        privacy, shared = self._agreement.privacy, self._agreement.distributed_noise
        releases = 0 if shared and not round_number else attempts if shared else 1
        if not self._agreement.sends_rows(round_number):
            releases = 0  # the site paid in the round that sends them, or missed that round
        trains = privacy is not None and privacy.dp_sgd is not None
        return {PROTOTYPES: releases, TRAINING: int(trains and round_number > 0)}

    # At the coordinator

    def taken(self, site: str, key: PhaseKey, before: State) -> None:
        """The coordinator took an answer that it did not have, in the state ``before``."""
        setting_up = key.phase in (Phase.ROSTER, Phase.SECRET)
        now = (0, before.setup_attempt) if setting_up else (before.round, before.attempt)
        if (key.round, key.attempt) != now:
            self.broken(Promise.CURRENT, f"{_name(key)} of {site} is taken in round, attempt {now}")

    def restored(self, store: Store) -> None:
        """The coordinator's process has read its disk."""
        for site, key in self._acknowledged:
            if store.upload_hash(key, site) is None:
                self.broken(Promise.KEPT, f"the coordinator has lost {_name(key)} of {site}")

    # At the end

    def finished(self, state: State, ended: dict[str, tuple[int, bytes]]) -> None:
        """The run has finished. ``ended``: the last result and the base of each site that ended so."""
        due = (
            set(state.participants) - set(state.excluded_from_result)
            if state.last_result == state.round
            else set()
        )
        for site in due & ended.keys():
            if (result := ended[site][0]) < state.last_result:
                self.broken(Promise.SAME_RESULT, f"{site} ends with the result of round {result}")
        last = {site: base for site, (result, base) in ended.items() if result == state.last_result}
        bases = {(self._group_of(site), base) for site, base in last.items()}
        if self._is_common and len(bases) > len({group for group, _ in bases}):
            self.broken(Promise.SAME_RESULT, "sites of a group end with two bases")

    def _group_of(self, site: str) -> tuple[str, ...]:
        """Return the group that a site is in; empty where all are in one."""
        return next((group for group in self._groups if site in group), ())

    @property
    def _is_common(self) -> bool:
        """True if every site is given the same bytes."""
        agreement = self._agreement
        return agreement.sums and agreement.protection is not Protection.CKKS


def _same_round(one: PhaseKey, other: PhaseKey) -> bool:
    return one.phase is other.phase and one.round == other.round


def _name(key: PhaseKey) -> str:
    return f"{key.phase.name} of round {key.round}, attempt {key.attempt}"
