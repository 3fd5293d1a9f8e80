"""Echoing site of PFPL: one malicious site sends back what it received, and solves the answers for its peers.

A site's combination of its peers depends on its own prototype, through the weights. A site that sends another row in
each round has d equations for each of them, which determine the prototypes of h peers that stand still from h rounds
on. The last result is such a row, and it is near the peers, where weights depend on a row most.

Rows that do not change are asked for once (:meth:`agreement.Agreement.sends_rows`), so that a malicious site has one
answer for them. Rows of features that train move between the rounds, and equations over several rounds have no true
solution. Under noise ε bounds what all answers show of one record.

Limit: nothing is solved for weights ``uniform`` and in sums. There a site's own row changes its own term alone, so that
an echo shows the sum of the others as an honest row does; under FedPC the groups' means at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import numpy as np

from agreement import Agreement, Family
from algorithms.gram_matrix import gram
from algorithms.pfpl import Weighting, peer_weights
from protoseal.attacks.cases import Case, Measurement, measure_over_clusters
from protoseal.attacks.poisoning import MaliciousLearner, Poison, PoisonedFederation, choose_malicious
from protoseal.attacks.protected_values import exact_share
from protoseal.attacks.readings import Adversary
from protoseal.attacks.recorded_run import RecordedRun, Rows
from protoseal.attacks.solved_combinations import MOST_OTHERS, select_plausible, solve_combinations
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import load_scene
from protoseal.simulation.local_federation import LocalFederation
from secure_server.process_pool import Workers

MOST_CLASSES = 8
"""Most classes whose answers are solved."""


@dataclass(frozen=True)
class Answers:
    """Rows that one site sent for a class and the combinations that it received, (r, d), by rounds, and the truth.

    ``peers`` (h, d) are the other holders' rows of the last round.
    """

    sent: Rows = field(repr=False)
    combined: Rows = field(repr=False)
    peers: Rows = field(repr=False)


class EchoingSite(Case):
    """Case of an echoing site; the undefended peers stand still and answer in every round."""

    attack = "a site that sends back what it received"
    metric = "share of the numbers of peers' prototypes other than zero that are read exactly"
    chance, margin = 0.0, 0.5
    question = "Can one malicious site read its peers' prototypes by sending back what it received instead of its own?"
    ability = "read peers' prototypes by sending back what it received, if it is malicious"
    reads_values = True
    not_covered = (
        "Other rows than those received; several malicious sites; classes of more than four sites; prototypes that are"
        " read approximately; sums, in which a site's own row changes its own term alone."
    )
    adversaries = (Adversary.PEER,)

    def measure(self, run: RecordedRun, adversary: Adversary) -> Sequence[Measurement]:  # noqa: ARG002 (the interface's)
        """Run the federation with the first site malicious; nothing for other methods, or without suitable classes."""
        if not _depends_on_row(run.agreement):
            return ()
        answers = list(islice(_run_echo(run.config, run.seed), MOST_CLASSES))
        return [_measure_answers(run.agreement, answers, "the results of all rounds")] if answers else ()

    def reference(self, run: RecordedRun) -> Measurement | None:
        """Return the same attack on peers that stand still and answer in every round."""
        if not _depends_on_row(run.agreement):
            return None
        answers = list(islice(_simulate_standing_peers(run), MOST_CLASSES))
        words = "the results of all rounds, of peers that stand still"
        return _measure_answers(run.agreement, answers, words) if answers else None


def _depends_on_row(agreement: Agreement) -> bool:
    peers = agreement.method.traits.family is Family.PEERS and agreement.method.weights is None
    return peers and agreement.pfpl.weighting is not Weighting.UNIFORM and agreement.own_share < 1.0


def _measure_answers(agreement: Agreement, answers: Sequence[Answers], reading: str) -> Measurement:
    """Return the share of numbers read exactly, with classes as the independent parts, and the mean relative error."""
    scores, errors = [], []
    for answer in answers:
        count = len(answer.peers)
        # One answer more than peers is enough, and peers move least between the last ones.
        last = slice(-count - 1, None)
        own, combined = answer.sent[last], answer.combined[last]
        solved = select_plausible(
            agreement, own, solve_combinations(agreement, own, combined, count, one_site=True)
        )
        rows = np.concatenate(solved) if solved else combined[-1:]
        share = exact_share(rows, answer.peers, agreement.norm_bound)
        if share is not None:
            scores.append(np.array([share]))
            distances = np.linalg.norm(rows[:, None] - answer.peers, axis=2).min(axis=0)
            errors.append(distances / np.linalg.norm(answer.peers, axis=1).clip(1e-12))
    details = {
        "mean relative error of a prototype": float(np.concatenate(errors).mean()),
        "answers for a class": float(np.mean([len(answer.sent) for answer in answers])),
    }
    return measure_over_clusters(scores, reading, details)


def _run_echo(config: SimulationConfig, seed: int) -> Iterator[Answers]:
    """Run a federation whose first site echoes, and yield what it sent and received of each suitable class."""
    scene = load_scene(config, seed)
    agreement, (name, *_) = scene.agreement(config.method), choose_malicious(list(scene.data))
    results: dict[int, Any] = {}
    rows: Mapping[str, tuple[Rows, Any]] = {}

    def keep(federation: LocalFederation, number: int) -> None:
        nonlocal rows
        if agreement.sends_rows(number):
            learners = {site.name: site.learner for site in federation.sites}
            results[number] = learners.pop(name).predictor.prototypes()
            rows = {site: learner.values.latest() for site, learner in learners.items()}

    pool: Any = Workers(config.workers or 1) if config.protection.ckks_key else nullcontext()
    poisons = {name: Poison(echoes=True)}
    with (
        pool as executor,
        PoisonedFederation(scene, agreement, scene.data, poisons, executor, keep) as federation,
    ):
        federation.run()
        site = next(site for site in federation.sites if site.name == name)
        sent = cast("MaliciousLearner", site.learner).sent
    share = agreement.own_share
    for number in range(len(agreement.classes)):
        rounds = [number for number in sorted(results) if results[number].has_personal[number]]
        peers = np.array([class_rows[number] for class_rows, held in rows.values() if held[number]])
        if rounds and 2 <= len(peers) <= MOST_OTHERS:
            own = np.array([sent[round_number][number] for round_number in rounds])
            targets = np.array([results[round_number].personal[number] for round_number in rounds])
            yield Answers(own, (targets - share * own) / (1.0 - share), peers)


def _simulate_standing_peers(run: RecordedRun) -> Iterator[Answers]:
    """Yield what the first site of a run would send and receive if its peers stood still and answered in every round.

    The rounds are those of the run, and as many at least as the equations need.
    """
    name, *_ = choose_malicious(list(run.sites))
    rounds = range(max(run.agreement.rounds, MOST_OTHERS + 1))
    for number in np.intersect1d(run.sites[name].labels, np.arange(len(run.agreement.classes))):
        held = {site: truth.rows[truth.labels == number] for site, truth in run.sites.items()}
        own, peers = held.pop(name)[0], np.concatenate(list(held.values()))
        if not 2 <= len(peers) <= MOST_OTHERS:
            continue
        sent, combined = [own], [_compute_answer(run.agreement, own, peers)]
        for _ in rounds[1:]:
            share = run.agreement.own_share
            sent.append(share * sent[-1] + (1.0 - share) * combined[-1])
            combined.append(_compute_answer(run.agreement, sent[-1], peers))
        yield Answers(np.array(sent), np.array(combined), peers)


def _compute_answer(agreement: Agreement, own: Rows, peers: Rows) -> Rows:
    """Return the combination (d,) of the peers' rows for a site's own, rounded as a site keeps it."""
    rows = np.concatenate([own[None], peers]) / agreement.norm_bound
    holds = np.ones((len(rows), 1), dtype=np.bool_)
    weights = peer_weights(
        gram(rows[:, None]), holds, agreement.pfpl.weighting, tau=agreement.agreement_threshold
    )
    combined = weights[0, 0] @ rows * agreement.norm_bound
    return np.asarray(combined.astype(np.float32).astype(np.float64))
