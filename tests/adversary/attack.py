"""Attacks of the coordinator, and doubles of the code under test that lack a check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from agreement import Protection
from algorithms.pfpl import Weighting
from protoseal_wire.messages import Phase
from secure_client.errors import Violation
from tests.support import weakened_builds
from tests.support.scripted_coordinator import Asked, ScriptedCoordinator

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
COHORT_INDEX = "crypto.protection.Cohort.index"
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
    COHORT_INDEX: lambda cohort, site: cohort.sites.index(site) if site in cohort.sites else 0,
    SEALED_INFO: lambda _context: b"nothing is bound",
    KINDS: "[seed, key]",
    THRESHOLD: lambda members: members // 2,
    BINDING_FIELDS: lambda binding: (binding.run.encode(), bytes([binding.round, binding.attempt])),
    BROADCAST: lambda base, _assignment: base,
    GROUPS_UNCHANGED: lambda starts, _seen, now: starts._journal.put("groups", 1, now),
}


Play = TypeVar("Play", bound=ScriptedCoordinator)


@dataclass(frozen=True)
class AnyAttack(Generic[Play]):
    """``play`` asks ``victim`` for ``phase`` at its decisive step, and asserts at its end what was gained.

    ``layers`` are the places, one line each, any of which holds the attack off by itself. ``refusal`` is what the
    code as it is says.
    """

    layers: tuple[str, ...]
    victim: str
    phase: Phase
    refusal: str
    play: Callable[[Play], None]


@dataclass(frozen=True)
class Attack(AnyAttack[ScriptedCoordinator]):
    """Attack on a run of PFPL."""

    protection: Protection = Protection.PLAIN
    weighting: Weighting = Weighting.UNIFORM


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
    """Check that the attack is refused at its decisive step, for good, and for its reason."""
    with pytest.raises(Violation, match=attack.refusal):
        attack.play(play)
    last = assert_nothing_answered(play)
    assert (last.site, last.key.phase) == (attack.victim, attack.phase)
    assert_refused_again(play, last, attack.refusal)


def assert_nothing_answered(play: ScriptedCoordinator) -> Asked:
    """Assert that the last request, which was refused, left no answer behind at its site."""
    last = play.last
    assert last is not None
    assert play.site(last.site).journal.stored_answer(last.key) == last.answered_before
    return last


def assert_refused_again(play: ScriptedCoordinator, last: Asked, refusal: str) -> None:
    """Neither asking once more nor a restart changes the site's mind."""
    for _ in range(2):
        with pytest.raises(Violation, match=refusal):
            play.site(last.site).session.answer(last.key, last.content)
        play.restart(last.site)
