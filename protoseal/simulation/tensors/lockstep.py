"""Runs of one method in lockstep: the sites of all runs, such as those of several seeds, train in one program.

A run stops in each round where its sites are to train, and resumes when they have trained. Small networks leave a GPU
idle, which then trains more sites in nearly the same time. On a CPU a program has as many sites as its cache holds, so
that nothing is gained. Each run has the results that it has alone, up to the order of sums in floating point.

Limit: the data and the models of all runs are in memory at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from protoseal.simulation.batched.training import Batching, KeptPrograms
from protoseal.simulation.site_pool import SiteTraining, Trainee, train_jobs, train_sites
from secure_client.error_containment import run_or_fallback
from secure_client.training.job import Losses


@dataclass
class RoundTraining:
    """Training of one round of a run. Who trains the ``sites`` sets the results before the run resumes.

    ``losses`` are of each site's last job, None where its training failed. ``seconds`` are the sites' share of the
    duration.
    """

    number: int
    sites: Sequence[Trainee]
    losses: Sequence[Losses | None] = ()
    seconds: float = 0.0


def run_in_lockstep(runs: Sequence[Iterator[RoundTraining]], training: SiteTraining) -> None:
    """Run all rounds of each run, one round of each at a time, whatever its number.

    Where training all sites together fails, each run trains alone, so that a diverging site affects no other run.
    """
    programs = KeptPrograms()
    while turn := [begun for begun in (next(run, None) for run in runs) if begun is not None]:
        start = time.perf_counter()
        losses = _train(turn, training, programs)
        seconds = (time.perf_counter() - start) / sum(len(begun.sites) for begun in turn)
        for begun, last in zip(turn, losses, strict=True):
            begun.losses, begun.seconds = last, seconds * len(begun.sites)


def _train(
    turn: Sequence[RoundTraining], training: SiteTraining, programs: KeptPrograms
) -> Sequence[Sequence[Losses | None]]:
    def together() -> Sequence[Sequence[Losses | None]]:
        jobs = [site.jobs(begun.number) for begun in turn for site in begun.sites]
        losses = iter(train_jobs(jobs, training, programs))
        return [list(islice(losses, len(begun.sites))) for begun in turn]

    def alone() -> Sequence[Sequence[Losses | None]]:
        return [train_sites(begun.sites, begun.number, training, programs) for begun in turn]

    def undone_and_alone() -> Sequence[Sequence[Losses | None]]:
        for site in (site for begun in turn for site in begun.sites):
            site.undo()
        return alone()

    if len(turn) == 1 or training.batching is Batching.NEVER:
        return alone()
    what = f"training of {len(turn)} runs as one program"
    return run_or_fallback(together, undone_and_alone, what, "each run trains alone")
