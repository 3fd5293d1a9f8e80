"""Dependence of a run's messages on one record: their number, order, size, and content in the clear.

Two runs that differ in one record of each site are compared message by message.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from agreement.derived.payload_shapes import limits_of
from crypto.plain import SCHEME as PLAIN
from protoseal.attacks.cases import Case, Measurement, measure_share
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import RecordedRun, record_run
from protoseal.simulation.experiment import load_scene
from protoseal_wire import codec
from protoseal_wire.messages import Phase, PhaseKey
from secure_client.data.npz import write_npz
from secure_client.data.samples import TrainTest
from secure_server.store import Received

SIZES_VARY = 8
"""Bytes by which signatures, and all that has some, vary in size at random."""
CIPHERTEXTS_VARY = 1000
"""Part of a message's size by which compressed ciphertexts vary at random: one thousandth."""

Message = tuple[str, int, object]
"""Phase of a message, its size in bytes, and its content as far as that is in the clear."""


class DependentMessages(Case):
    """Case of messages that depend on a record: in their number, order, size, or content in the clear."""

    attack = "messages that depend on a record"
    metric = "share of a site's rounds in which a message changes with one record"
    chance, margin = 0.0, 0.5
    question = (
        "Does one record show in whether, when, how long or what a site sends, besides the protected values?"
    )
    ability = "see one record in the number, order, size or unprotected parts of a site's messages"
    not_covered = (
        "Timing; differences of a few bytes, by which signatures and ciphertexts vary anyway; values in a protected"
        " form, such as lengths under a rotation; other records than the one that was changed."
    )
    adversaries = (Adversary.COORDINATOR,)

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:  # noqa: ARG002 (the interface's)
        """Repeat the run with one record of each site changed, and compare each site's messages of each round."""
        if run.epsilon is not None and run.agreement.protection.name == "plain":
            return []  # values in the clear differ by their noise alone
        other = record_neighbour(run)
        rounds = range(1, run.agreement.rounds + 1)
        cells = [(site, number) for site in run.sites for number in rounds]
        differs = np.array(
            [_differ(*(_list_messages(recorded, *cell) for recorded in (run, other))) for cell in cells]
        )
        reading = "the messages of all rounds of two runs that differ in one record"
        return [measure_share(differs, reading)]


def record_neighbour(run: RecordedRun) -> RecordedRun:
    """Record the run again with one training record of each site changed: its inputs become the largest value."""
    divided = load_scene(run.config, run.seed).divided
    with tempfile.TemporaryDirectory(prefix="protoseal-neighbour-") as folder:
        for site in divided.sites:
            inputs = np.array(site.train.inputs)
            inputs[0] = inputs.max()
            train = replace(site.train, inputs=inputs)
            data = TrainTest(train, site.test, divided.classes, site.domains)
            write_npz(Path(folder) / f"{site.name}.npz", data)
        update = {
            "dataset": f"sites:{folder}",
            "preprocessing": None if run.config.table else divided.preprocessing,
            "classes": divided.classes,
        }
        return record_run(run.config.model_copy(update=update), run.seed)


def _list_messages(run: RecordedRun, site: str, number: int) -> list[Message]:
    """Return a site's messages of one round, in order."""
    return [
        (
            received.key.phase.name,
            len(received.content),
            _read_clear_content(run, received.key, received.content),
        )
        for received in run.received
        if received.site == site and received.key is not None and received.key.round == number
    ]


def _read_clear_content(run: RecordedRun, key: PhaseKey, content: bytes) -> object:
    """Return what a message says in the clear; a noisy run's stated classes and results differ by their noise."""
    if key.phase is Phase.PRESENCE:
        stated = codec.decode_presence(content, limits_of(run.agreement))
        holds = stated.holds.tobytes() if run.epsilon is None else b""
        return holds, len(stated.base), stated.keys is None, stated.anchor is None
    if key.phase is Phase.VALUES:
        received = Received("", key, content, 0.0)
        payload = run.read(received)
        return tuple(array.tobytes() for array in payload.arrays) if payload.scheme == PLAIN else None
    return content if key.phase is Phase.RESULT else None


def _differ(one: Sequence[Message], two: Sequence[Message]) -> bool:
    """Return whether two lists of messages differ by more than signatures and ciphertexts vary in size."""
    if [(phase, content) for phase, _, content in one] != [(phase, content) for phase, _, content in two]:
        return True
    # Signatures and compressed ciphertexts vary in size at random, also between two runs on equal data.
    sizes = ((a, b) for (_, a, _), (_, b, _) in zip(one, two, strict=True))
    return any(abs(a - b) > max(SIZES_VARY, a // CIPHERTEXTS_VARY) for a, b in sizes)
