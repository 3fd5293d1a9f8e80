"""Attacks of the coordinator, new runs for it to attack, and doubles of the code under test that lack a check."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

import pytest

from agreement import Agreement, Protection
from algorithms.pfpl import Weighting
from protoseal_wire.messages import Phase
from secure_client.errors import Violation
from tests.support import weakened_builds
from tests.support.scripted_clusters import ScriptedClusters
from tests.support.scripted_coordinator import Asked, Cast, ScriptedCoordinator
from tests.support.scripted_sums import ScriptedSums
from tests.support.small import small_agreement

ORDER = "secure_client.protocol.phase_order.PhaseOrder."
ATTEMPT_OPEN = (
    ORDER + "_check_step: begun is None or (begun.round, begun.attempt) != (key.round, key.attempt)"
)
PARTICIPANTS = "secure_client.protocol.participants.Participants."
JOURNAL_LOOKUP, JOURNAL_ONCE = (
    "secure_client.protocol.journal.Journal.answer",
    "secure_client.protocol.journal._RECORD_ONCE",
)
PRESENCE_FIELDS = "protoseal_wire.class_presence._fields"
HELD_BY = "crypto.protection.Cohort.held_by"
SEALED_INFO = "crypto.sealed_group_secret._info"

THRESHOLD, BINDING_FIELDS = (
    "crypto.pairwise.attempt.threshold",
    "crypto.pairwise.attempt.Binding.fields",
)
KINDS = "crypto.pairwise.shares.release: [seed if owner in staying else key]"
QUORUM = "crypto.pairwise.attempt._check_set: len(names) < least"
SIGNATURES_ENOUGH = (
    "crypto.pairwise.member_signatures.verify_signed_survivors: len(signatures) < binding.threshold"
)
BROADCAST = "secure_client.exchanges.cluster_directions.hash_broadcast"
GROUPS_UNCHANGED = "secure_client.exchanges.groups.RoundStartCheck._check_unchanged"

_DOUBLES: dict[str, Any] = {
    JOURNAL_LOOKUP: lambda _journal, _key, _request: None,
    JOURNAL_ONCE: "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)",
    PRESENCE_FIELDS: lambda site, _key, _roster_hash, holds, *_: (site.encode(), holds.tobytes()),
    HELD_BY: lambda cohort, site: cohort.holds[cohort.sites.index(site) if site in cohort.sites else 0],
    SEALED_INFO: lambda _context: b"nothing is bound",
    KINDS: "[seed, key]",
    THRESHOLD: lambda members: members // 2,
    BINDING_FIELDS: lambda binding: (binding.run.encode(), bytes([binding.round, binding.attempt])),
    BROADCAST: lambda base, _assignment: base,
    GROUPS_UNCHANGED: lambda starts, _seen, now: starts._journal.put("groups", 1, now),
}

_CHECKED_IN = {
    PRESENCE_FIELDS: "protoseal_wire.class_presence.verify_presence",
    KINDS: "crypto.shamir.combine",
    THRESHOLD: QUORUM,
    BINDING_FIELDS: "crypto.pairwise.shares.verify_share",
    BROADCAST: "crypto.pairwise.shares.verify_share",
    "crypto.pairwise.shares.SystemRandom": "crypto.shamir.combine",
    "crypto.pairwise.masks.self_key": "tests.adversary.pairwise_attacks.gained",
    "crypto.pairwise.masks.have_mask": "tests.adversary.pairwise_attacks.gained",
    "crypto.pairwise.shares.split": "tests.adversary.pairwise_attacks.gained",
    "tests.crypto.masked_group.fresh_secrets": "tests.adversary.pairwise_attacks.gained",
}
"""Functions that refuse, or find nothing gained, where a layer is no check but something that a check reads."""


class Plays:
    """Sites of new runs, for a hostile coordinator to ask. ``data_of`` gives a site the data of another."""

    def __init__(self, stack: ExitStack, folder: Path, cast: Cast) -> None:
        self._stack, self._folder, self._cast = stack, folder, cast

    def peers(
        self, protection: Protection = Protection.PLAIN, weighting: Weighting = Weighting.UNIFORM
    ) -> ScriptedCoordinator:
        """Open a run of PFPL."""
        agreement = small_agreement(protection, weighting)
        return self._stack.enter_context(ScriptedCoordinator(self._folder, agreement, self._cast))

    def sums(self, agreement: Agreement, data_of: Mapping[str, str] | None = None) -> ScriptedSums:
        """Open a run of a method that sums in groups or over all sites."""
        return self._stack.enter_context(ScriptedSums(self._folder, agreement, self._with_data(data_of)))

    def clusters(self, agreement: Agreement, data_of: Mapping[str, str] | None = None) -> ScriptedClusters:
        """Open a run of FedPLCC."""
        return self._stack.enter_context(ScriptedClusters(self._folder, agreement, self._with_data(data_of)))

    def _with_data(self, data_of: Mapping[str, str] | None) -> Cast:
        data = dict(self._cast.data)
        return replace(self._cast, data=data | {name: data[of] for name, of in (data_of or {}).items()})


Play = TypeVar("Play", bound=ScriptedCoordinator)


@dataclass(frozen=True)
class AnyAttack(ABC, Generic[Play]):
    """``play`` asks ``victim`` for ``phase`` at its decisive step, and asserts at its end what was gained.

    ``layers`` are the places, one line each, any of which holds the attack off by itself.
    """

    layers: tuple[str, ...]
    victim: str
    phase: Phase
    play: Callable[[Play], None]

    @abstractmethod
    def open(self, plays: Plays) -> Play:
        """Open the run that is attacked."""


@dataclass(frozen=True)
class Attack(AnyAttack[ScriptedCoordinator]):
    """Attack on a run of PFPL."""

    protection: Protection = Protection.PLAIN
    weighting: Weighting = Weighting.UNIFORM

    def open(self, plays: Plays) -> ScriptedCoordinator:
        """See :class:`AnyAttack`."""
        return plays.peers(self.protection, self.weighting)


def by_layer(attacks: Mapping[str, AnyAttack[Any]]) -> list[tuple[str, str]]:
    """Return each attack with each of its layers, where it has several: names of both."""
    several = {name: attack.layers for name, attack in attacks.items() if len(attack.layers) > 1}
    return [(name, layer) for name, layers in several.items() for layer in layers]


def weaken(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take one layer away, or put the double above in its place. Only a test can."""
    weakened_builds.weaken(layer, monkeypatch, _DOUBLES)


def weaken_all_but(layer: str, attack: AnyAttack[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave one of the layers that hold an attack off."""
    for other in attack.layers:
        if other != layer:
            weaken(other, monkeypatch)


def assert_refused(attack: AnyAttack[Play], play: Play) -> None:
    """Check that the attack is refused at its decisive step, for good, and by the check that is there for it."""
    with pytest.raises(Violation) as refused:
        attack.play(play)
    assert_raised_in(refused.value, *attack.layers)
    last = assert_nothing_answered(play)
    assert (last.site, last.key.phase) == (attack.victim, attack.phase)
    assert_refused_again(play, last)


def assert_raised_in(error: BaseException, *layers: str) -> None:
    """Check that the function of one of the layers was running when the error, or what caused it, was raised."""
    running: set[str] = set()
    cause: BaseException | None = error
    while cause is not None:
        frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
        running |= {f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}" for frame in frames}
        cause = cause.__cause__ or cause.__context__
    places = [_CHECKED_IN.get(layer, layer).partition(": ")[0] for layer in layers]
    functions = [resolve_name(place) for place in places]
    # A module may name a function that another one defines.
    names = {f"{f.__module__}.{f.__qualname__}" for f in functions if hasattr(f, "__qualname__")}
    assert names & running, f"refused in another place than {names}: {error!r}"


def assert_nothing_answered(play: ScriptedCoordinator) -> Asked:
    """Assert that the last request, which was refused, left no answer behind at its site."""
    last = play.last
    assert last is not None
    assert play.site(last.site).journal.stored_answer(last.key) == last.answered_before
    return last


def assert_refused_again(play: ScriptedCoordinator, last: Asked) -> None:
    """Neither asking once more nor a restart changes the site's mind."""
    for _ in range(2):
        with pytest.raises(Violation):
            play.site(last.site).session.answer(last.key, last.content)
        play.restart(last.site)
