"""Suites of attacks by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from protoseal.attacks.cases import Case
from protoseal.attacks.dependent_messages import DependentMessages
from protoseal.attacks.echoing_site import EchoingSite
from protoseal.attacks.key_recovery import KeyRecovery
from protoseal.attacks.label_inference import ClassFrequencies, Domains, Presence
from protoseal.attacks.model_membership import ModelMembership
from protoseal.attacks.noise_audit import NoiseAudit
from protoseal.attacks.poisoning import poisoning_cases
from protoseal.attacks.protected_values import Comparison, KnownRows, Values
from protoseal.attacks.prototype_inversion import PrototypeInversion
from protoseal.attacks.prototype_membership import PrototypeMembership
from protoseal.attacks.update_inversion import StandStill, UpdateInversion

SAMPLES_BEHIND = (1, 2, 5, 20, 100)
"""Training samples behind a prototype that is inverted."""
MEMBERS = (1, 2, 5, 20, None)
"""Training samples behind a prototype whose members are inferred; None for as many as the configuration gives."""


SUITES: dict[str, Callable[[], Sequence[Case]]] = {
    "inversion": lambda: [
        PrototypeInversion(samples, decoder=decoder)
        for decoder in (False, True)
        for samples in SAMPLES_BEHIND
    ],
    "membership": lambda: [*map(PrototypeMembership, MEMBERS)],
    "models": lambda: [*map(UpdateInversion, (1, 4, None)), StandStill(), ModelMembership()],
    "labels": lambda: [Presence(), ClassFrequencies(), Domains()],
    "protection": lambda: [
        Values(),
        Comparison(),
        KnownRows(),
        KeyRecovery(),
        DependentMessages(),
        EchoingSite(),
    ],
    "audit": lambda: [NoiseAudit()],
    "poisoning": poisoning_cases,
}
"""Makers of each suite's cases."""
QUICK, ALL = "quick", "all"


def list_suites() -> tuple[str, ...]:
    """Return the names that :func:`make_cases` takes."""
    return (QUICK, ALL, *SUITES)


def make_cases(name: str) -> dict[str, Sequence[Case]]:
    """Return the cases of a suite, of all suites, or short attacks of four kinds (``quick``), by suite."""
    if name == QUICK:
        return {
            "inversion": [PrototypeInversion(1, decoder=True)],
            "membership": [PrototypeMembership(1), PrototypeMembership()],
            "protection": [Values()],
            "audit": [NoiseAudit()],
        }
    return {suite: make() for suite, make in SUITES.items() if name in (ALL, suite)}
