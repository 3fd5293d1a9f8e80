"""Audit of a run as it happened: what sites kept of it, against sums computed again from their records.

:func:`audit_run` takes what each site kept (:mod:`protoseal.audit.site_evidence`) and gives one verdict. The checks of
releases, of answers and the ledger, and of training are in modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from privacy.accounting.events import DpSgd
from protoseal.audit.release_checks import (
    SHARED,
    TESTS,
    check_counts,
    check_dependence,
    check_deviation,
    check_noise,
    check_repeats,
    check_shape,
)
from protoseal.audit.run_checks import (
    ALL_SITES,
    ESSENTIAL,
    NO_LEDGER,
    Check,
    RunAudit,
    leave_open,
    refute,
    uphold,
)
from protoseal.audit.sent_checks import check_paid, check_sent
from protoseal.audit.site_evidence import SiteEvidence
from protoseal.audit.training_checks import ESSENTIAL as ESSENTIAL_OF_TRAINING
from protoseal.audit.training_checks import PAID as TRAINING_PAID
from protoseal.audit.training_checks import (
    STATISTICAL,
    TrainingClaim,
    check_shared,
    check_succession,
    check_training,
)
from secure_client.models.prototype_model import hash_weights
from secure_client.privacy.cost import training_event
from secure_client.privacy.releases import WEIGHTS

CENTRES = "cells around centres of a site's own"
"""Weakness of a site that divides its classes by other centres than the previous round's result."""
MODELS = "features that records have shaped"
"""Weakness of a release from a trained model, where features are agreed to be frozen."""


def audit_run(run: str, sites: Mapping[str, SiteEvidence], level: float) -> RunAudit:
    """Check what the sites kept of a run. ``level`` bounds the probability that a true run is refuted."""
    private = any(_agreed_training(evidence) is not None for evidence in sites.values())
    # Bonferroni: every statistical test of every site, and of all sites together, gets an equal part of the level.
    test_level = level / ((TESTS + STATISTICAL * private) * (len(sites) + 1))
    checks: dict[str, Sequence[Check]] = {
        site: [
            *check_noise(evidence, test_level),
            *check_sent(evidence),
            *check_paid(evidence),
            *_check_models(evidence),
            *_check_ledger_model(evidence),
            *_check_training(evidence, test_level),
            *_name_uncovered(evidence),
        ]
        for site, evidence in sites.items()
    }
    if len(sites) > 1:
        checks[ALL_SITES] = list(_check_together(list(sites.values()), test_level))
    return RunAudit(run, checks, ESSENTIAL | ESSENTIAL_OF_TRAINING if private else ESSENTIAL)


def _agreed_training(evidence: SiteEvidence) -> DpSgd | None:
    agreed = evidence.agreement.privacy
    return None if agreed is None else training_event(evidence.agreement, agreed)


def _check_training(evidence: SiteEvidence, level: float) -> Iterator[Check]:
    """Check the steps of DP-SGD, if the agreement has any, against the agreement and the ledger."""
    agreed, agreement = _agreed_training(evidence), evidence.agreement
    if agreed is None:
        return
    if evidence.account is None:
        yield leave_open(TRAINING_PAID, NO_LEDGER)
        return
    paid: dict[int, list[DpSgd]] = {}
    initial: object = None
    for entry in evidence.account.entries:
        spending = entry.spending
        if (spending.release.run, spending.agreement_hash) != (agreement.run, agreement.hash()):
            continue
        initial = spending.facts.get(WEIGHTS)
        if isinstance(spending.event, DpSgd):
            paid.setdefault(spending.release.round, []).append(spending.event)
    yield from check_training(evidence.trainings, TrainingClaim(agreed, paid), level)
    if evidence.trainings and len(evidence.trainings) == sum(map(len, paid.values())):
        named = {f"{draw.release}, entry {draw.anchor.seq}": draw.model for draw in evidence.draws}
        yield check_succession(evidence.trainings, named, initial, evidence.replaced_tensors)


def _check_together(sites: Sequence[SiteEvidence], level: float) -> Iterator[Check]:
    noise = [evidence.noise for evidence in sites]
    if any(noise):
        every_draw = [draw for site_noise in noise for draw in site_noise]
        yield check_deviation(every_draw, level)
        yield check_counts(every_draw, level)
        yield check_shape(every_draw, level)
        yield check_dependence(every_draw, level)
    yield check_repeats(SHARED, noise, level)
    if any(evidence.trainings for evidence in sites):
        yield check_shared([evidence.trainings for evidence in sites], level)
    centres: dict[int, set[bytes]] = {}
    for evidence in sites:
        for draw in evidence.draws:
            if draw.cells is not None:
                content = np.ascontiguousarray(draw.cells.centres).tobytes()
                centres.setdefault(draw.release.round, set()).add(content)
    if centres:
        differing = [number for number, contents in sorted(centres.items()) if len(contents) > 1]
        if differing:
            yield refute(CENTRES, f"sites used different centres in round {differing[0]}")
        else:
            yield uphold(CENTRES, "all sites used the same centres")


def _check_models(evidence: SiteEvidence) -> Iterator[Check]:
    """Check that releases of frozen features are of the initial model, which no record has shaped."""
    initial = evidence.initial
    if initial is None or not evidence.draws:
        return
    for draw in evidence.draws:
        # Bit for bit: any difference would be information about records that no entry pays for.
        same_names = draw.model.keys() == initial.keys()
        if not same_names or any(not torch.equal(value, initial[name]) for name, value in draw.model.items()):
            yield refute(MODELS, f"the {draw.release} is of another model's features")
            return
    yield uphold(MODELS, "every release is of the initial model's features")


def _check_ledger_model(evidence: SiteEvidence) -> Iterator[Check]:
    """Check that releases of frozen features were paid for as those of the initial model."""
    if evidence.initial is None or evidence.account is None:
        return
    initial, run = evidence.initial, evidence.agreement.run
    # A site with a personal model begins with two copies.
    twice = {f"{part}.{name}": initial[name] for part in ("averaged", "personal") for name in initial}
    paid = [entry.spending.facts for entry in evidence.account.entries if entry.spending.release.run == run]
    if any(facts.get(WEIGHTS) not in {hash_weights(initial), hash_weights(twice), None} for facts in paid):
        yield refute(MODELS, "the ledger has an entry for another initial model")


def _name_uncovered(evidence: SiteEvidence) -> Iterator[Check]:
    yield leave_open("noise from a known seed", "it looks like drawn noise unless it comes twice")
    yield leave_open(
        "a draw chosen among several, or made before its payment", "the record has draws that were used"
    )
    agreement = evidence.agreement
    if agreement.method.is_grouped and agreement.protection.ckks_key:
        yield leave_open("a group's means", "those that its leader decrypts and sends are not kept")
    if agreement.clusters:
        yield leave_open(CENTRES, "the result that the centres come from was not kept by the site")
    if agreement.method.averages and evidence.averaged_start is None:
        yield leave_open("models in the sums", "a model's numbers are not computed again")
    if agreement.plan.masked or agreement.protection.ckks_key:
        yield leave_open("masks and ciphertexts", "the values that they were made from were compared")
