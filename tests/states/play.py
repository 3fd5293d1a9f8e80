"""Plans, played: the worlds of a federation side by side, with everything replaced that a run may not depend on.

Training is replaced by a step that never comes out twice the same, so that what is trained or drawn again shows.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import crypto.pairwise.masks as site_masks
import secure_client.checkpoints.checkpointed_learner
import secure_server.exchanges.secure_aggregation as server_masks
from crypto.pairwise.attempt import AttemptSecrets, Binding
from crypto.protection import Words
from privacy.ledger.hash_chain import Anchor
from privacy.ledger.ledger import Ledger
from privacy.ledger.lines import Spending
from privacy.mechanisms.prototype_query import PrototypeQuery
from secure_client import client_loop
from secure_client.privacy.cost import PROTOTYPES, TRAINING
from secure_client.training.job import Job, Losses
from tests.states.disks import Extent, watched
from tests.states.ending import Ending, together
from tests.states.faults import FaultPlan
from tests.states.federations import Cast
from tests.states.interleaving import pause, stepwise
from tests.states.world import World


class Worlds:
    """Runs that are played at once, a turn of each by turns. Whatever happens belongs to the one whose turn it is."""

    def __init__(self, worlds: Sequence[World]) -> None:
        self._worlds, self.current = worlds, worlds[0]

    def run(self) -> Ending:
        """Play all runs to their ends."""
        states: set[int] = set()
        playing = {world: world.turns() for world in self._worlds}
        try:
            while playing:
                for world in tuple(playing):
                    self.current = world
                    if next(playing[world], self) is self:
                        del playing[world]
                states.add(hash(tuple(world.fingerprint for world in self._worlds)))
            endings = [world.ending() for world in self._worlds]
            for world in self._worlds:
                world.check_ledgers()  # once nobody writes to them
            return together(endings, states)
        finally:
            for world in self._worlds:
                world.kill()

    # The disks, as :class:`tests.states.disks.Watcher` says

    def writing(self, path: Path) -> None:
        self.current.writes.writing(path)

    def tears(self, path: Path) -> bool:
        return self.current.writes.tears(path)

    def torn(self, path: Path, before: Extent) -> None:
        self.current.writes.torn(path, before)

    def written(self, path: Path) -> None:
        self.current.writes.written(path)


def play(casts: Sequence[Cast], plan: FaultPlan) -> Ending:
    """Run a plan in a folder of its own, in memory where the machine has such folders."""
    memory = Path("/dev/shm")  # noqa: S108 (a folder made by tempfile, readable by its owner alone)
    root = Path(tempfile.mkdtemp(prefix="protoseal-states-", dir=memory if memory.is_dir() else None))
    try:
        return play_in(root, casts, plan, root / "ledgers" if len(casts) > 1 else None)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def play_in(root: Path, casts: Sequence[Cast], plan: FaultPlan, ledgers: Path | None) -> Ending:
    """Run a plan below ``root``. Several ``casts`` are runs of the same sites at once.

    ``ledgers`` is the folder of the sites' ledgers, which then outlast the runs.
    """
    worlds = Worlds(
        [
            World(cast, plan.of_run(number), root / f"run-{number}", ledgers)
            for number, cast in enumerate(casts, 1)
        ]
    )
    with watched(worlds), _instrumented(worlds), ExitStack() as concurrent:
        if len(casts) > 1:
            concurrent.enter_context(stepwise(pause))
        return worlds.run()


@contextmanager
def _instrumented(worlds: Worlds) -> Iterator[None]:
    spend, draw = Ledger.spend, PrototypeQuery.draw
    mask, unmask = vars(site_masks)["mask"], vars(server_masks)["unmask"]

    def masked(words: Words, secrets: AttemptSecrets, binding: Binding, site: str, *others: Any) -> Words:
        worlds.current.scene.monitor.masked(binding, site, words)
        sealed: Words = mask(words, secrets, binding, site, *others)
        return sealed

    def unmasked(
        sent: Any, released: Any, binding: Binding, sharers: Any, survivors: Sequence[str], *others: Any
    ) -> Words:
        total: Words = unmask(sent, released, binding, sharers, survivors, *others)
        worlds.current.scene.monitor.unmasked(binding, survivors, total)
        return total

    def spent(self: Ledger, spending: Spending) -> Anchor:
        anchor = spend(self, spending)
        worlds.current.paid(spending.release.what, anchor)
        return anchor

    def drawn(self: PrototypeQuery, classes: int, dim: int) -> Any:
        worlds.current.drawn(PROTOTYPES)
        return draw(self, classes, dim)

    def trained(job: Job) -> Losses:
        if job.dp_sgd is not None:
            worlds.current.drawn(TRAINING)
        with torch.no_grad():
            for parameter in job.model.parameters():
                step = 0.01 * worlds.current.numbers.standard_normal(tuple(parameter.shape))
                parameter.add_(torch.from_numpy(step).to(parameter.dtype))
        return Losses(0.0, 0.0, 0.0)

    with ExitStack() as patches:
        patches.enter_context(patch.object(Ledger, "spend", spent))
        patches.enter_context(patch.object(PrototypeQuery, "draw", drawn))
        patches.enter_context(patch.object(site_masks, "mask", masked))
        patches.enter_context(patch.object(server_masks, "unmask", unmasked))
        patches.enter_context(
            patch.object(secure_client.checkpoints.checkpointed_learner, "run_job", trained)
        )
        patches.enter_context(patch.object(client_loop, "_SHORTEST_TURN_SECONDS", 0.0))
        logging.disable(logging.CRITICAL)
        patches.callback(logging.disable, logging.NOTSET)
        yield
