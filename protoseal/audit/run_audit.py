"""Audit of a run as it happened: what sites kept of it, against sums computed again from their records.

:func:`audit_run` takes what each site kept (:mod:`secure_client.privacy.kept_releases`) and gives one verdict. A folder
of a simulation has the evidence of all its sites, a site's ``state_dir`` that of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agreement import CONTROLS, Agreement
from agreement.storage.run_files import FileError
from agreement.toml_loading import SITES_FORM, validate
from privacy.accounting.events import DpSgd
from privacy.ledger.budget_account import read_account
from protoseal.audit.exact_sums import Claim, Float, Records, embed, exact_sums, load_model
from protoseal.audit.release_checks import (
    SHARED,
    TESTS,
    SiteEvidence,
    check_noise,
    counts_check,
    dependence_check,
    deviation_check,
    repeats_check,
    shape_check,
)
from protoseal.audit.run_checks import (
    ALL_SITES,
    ESSENTIAL,
    NO_LEDGER,
    Check,
    RunAudit,
    found,
    not_covered,
    stands,
)
from protoseal.audit.sent_checks import check_paid, check_sent
from protoseal.audit.training_checks import ESSENTIAL as OF_TRAINING
from protoseal.audit.training_checks import PAID as OF_LEDGER
from protoseal.audit.training_checks import (
    STATISTICAL,
    TrainingClaim,
    check_shared,
    check_succession,
    check_training,
)
from protoseal.reports.result_files import site_folder
from protoseal.simulation.config import SPLITTING, SimulationConfig
from protoseal.simulation.experiment import scene_of
from protoseal.simulation.local_federation import LocalFederation
from protoseal.simulation.run_folder import CLAIM, COMPARED, RUNS, read_claim
from protoseal.simulation.saved_run import SavedRun
from secure_client.app import load_data, open_learner
from secure_client.config import SiteConfig
from secure_client.data import SiteData
from secure_client.models.prototype_model import PrototypeModel, hash_weights
from secure_client.output.site_files import read_prototypes
from secure_client.privacy.cost import training_event
from secure_client.privacy.kept_releases import FOLDER, read_kept
from secure_client.privacy.releases import WEIGHTS, with_owners
from secure_client.training.averaged_parameters import AveragedPart
from secure_client.training.step_records import read_step_records

LEDGER = "ledger.jsonl"
CENTRES = "cells around centres of a site's own"
"""Weakness of a site that divides its classes by other centres than the previous round's result."""
MODELS = "features that records have shaped"
"""Weakness of a release from a trained model, where features are agreed to be frozen."""


def audit_run(run: str, sites: Mapping[str, SiteEvidence], level: float) -> RunAudit:
    """Check what the sites kept of a run. ``level`` bounds the probability that a true run is refuted."""
    private = any(_training_of(evidence) is not None for evidence in sites.values())
    each = level / ((TESTS + STATISTICAL * private) * (len(sites) + 1))
    checks: dict[str, Sequence[Check]] = {
        site: [
            *check_noise(evidence, each),
            *check_sent(evidence),
            *check_paid(evidence),
            *_check_models(evidence),
            *_check_ledger_model(evidence),
            *_check_training(evidence, each),
            *_beyond(evidence),
        ]
        for site, evidence in sites.items()
    }
    if len(sites) > 1:
        checks[ALL_SITES] = list(_check_together(list(sites.values()), each))
    return RunAudit(run, checks, ESSENTIAL | OF_TRAINING if private else ESSENTIAL)


def _training_of(evidence: SiteEvidence) -> DpSgd | None:
    agreed = evidence.agreement.privacy
    return None if agreed is None else training_event(evidence.agreement, agreed)


def _check_training(evidence: SiteEvidence, level: float) -> Iterator[Check]:
    """Check the steps of DP-SGD, if the agreement has any, against the agreement and the ledger."""
    agreed, agreement = _training_of(evidence), evidence.agreement
    if agreed is None:
        return
    if evidence.account is None:
        yield not_covered(OF_LEDGER, NO_LEDGER)
        return
    paid: dict[int, list[DpSgd]] = {}
    initial: object = None
    for entry in evidence.account.entries:
        spending = entry.spending
        mine = (spending.release.run, spending.agreement_hash) == (agreement.run, agreement.hash())
        if mine:
            initial = spending.facts.get(WEIGHTS)
        if mine and isinstance(spending.event, DpSgd):
            paid.setdefault(spending.release.round, []).append(spending.event)
    yield from check_training(evidence.trained, TrainingClaim(agreed, paid), level)
    if evidence.trained and len(evidence.trained) == sum(map(len, paid.values())):
        named = {f"{draw.release}, entry {draw.anchor.seq}": draw.model for draw in evidence.drawn}
        yield check_succession(evidence.trained, named, initial, evidence.replaced)


def _check_together(sites: Sequence[SiteEvidence], level: float) -> Iterator[Check]:
    """Check what only several sites together show."""
    noise = [evidence.noise for evidence in sites]
    if any(noise):
        together = [draw for site in noise for draw in site]
        yield deviation_check(together, level)
        yield counts_check(together, level)
        yield shape_check(together, level)
        yield dependence_check(together, level)
    yield repeats_check(SHARED, noise, level)
    if any(evidence.trained for evidence in sites):
        yield check_shared([evidence.trained for evidence in sites], level)
    centres: dict[int, set[bytes]] = {}
    for evidence in sites:
        for draw in evidence.drawn:
            if draw.cells is not None:
                content = np.ascontiguousarray(draw.cells.centres).tobytes()
                centres.setdefault(draw.release.round, set()).add(content)
    if centres:
        differing = [number for number, contents in sorted(centres.items()) if len(contents) > 1]
        yield (
            found(CENTRES, f"sites used different centres in round {differing[0]}")
            if differing
            else stands(CENTRES, "all sites used the same centres")
        )


def _check_models(evidence: SiteEvidence) -> Iterator[Check]:
    """Check that releases of frozen features are of the initial model, which no record has shaped."""
    initial = evidence.initial
    if initial is None or not evidence.drawn:
        return
    for draw in evidence.drawn:
        same = draw.model.keys() == initial.keys()
        if not same or any(not torch.equal(value, initial[name]) for name, value in draw.model.items()):
            yield found(MODELS, f"the {draw.release} is of another model's features")
            return
    yield stands(MODELS, "every release is of the initial model's features")


def _check_ledger_model(evidence: SiteEvidence) -> Iterator[Check]:
    """Check that releases of frozen features were paid for as those of the initial model."""
    if evidence.initial is None or evidence.account is None:
        return
    initial, run = evidence.initial, evidence.agreement.run
    # A site with a personal model begins with two copies.
    twice = {f"{part}.{name}": initial[name] for part in ("averaged", "personal") for name in initial}
    paid = [entry.spending.facts for entry in evidence.account.entries if entry.spending.release.run == run]
    if any(facts.get(WEIGHTS) not in {hash_weights(initial), hash_weights(twice), None} for facts in paid):
        yield found(MODELS, "the ledger has an entry for another initial model")


def _beyond(evidence: SiteEvidence) -> Iterator[Check]:
    """Return what no record of a run shows."""
    yield not_covered("noise from a known seed", "it looks like drawn noise unless it comes twice")
    yield not_covered(
        "a draw chosen among several, or made before its payment", "the record has draws that were used"
    )
    agreement = evidence.agreement
    if agreement.method.is_grouped and agreement.protection.ckks_key:
        yield not_covered("a group's means", "those that its leader decrypts and sends are not kept")
    if agreement.clusters:
        yield not_covered(CENTRES, "the result that the centres come from was not kept by the site")
    if agreement.method.averages and evidence.averaged is None:
        yield not_covered("models in the sums", "a model's numbers are not computed again")
    if agreement.plan.masked or agreement.protection.ckks_key:
        yield not_covered("masks and ciphertexts", "the values that they were made from were compared")


# Evidence


def evidence_of(
    agreement: Agreement,
    model: Callable[[], PrototypeModel],
    data: SiteData,
    releases: Path,
    ledger: Path,
    out: Path | None = None,
) -> SiteEvidence:
    """Return the evidence in a folder of releases, and a ledger that may be missing. ``model`` copies a site's model.

    Without releases, the prototypes that a site saved in ``out`` show the noise of its only release, if features are
    those of the initial model.
    Raises :class:`FileError` for a damaged release, :class:`privacy.errors.LedgerError` for a damaged ledger.
    """
    drawn, sent = read_kept(releases)
    owners = with_owners(data, agreement).subjects
    seen: dict[bytes, Records] = {}

    def records(state: Mapping[str, Tensor]) -> Records:
        # A frozen extractor has the same features in every release.
        key = b"".join(name.encode() + value.numpy().tobytes() for name, value in sorted(state.items()))
        if key not in seen:
            loaded = load_model(model().cpu(), state)
            seen[key] = Records(*embed(loaded, data.train, agreement.dim), owners)
        return seen[key]

    mine = [draw for draw in drawn if draw.release.run == agreement.run]
    account = read_account(ledger) if ledger.exists() else None
    try:
        trained = read_step_records(releases)
    except ValueError as error:
        raise FileError(f"{error}; move it away") from error
    last = (
        _last_noise(agreement, records(model().state_dict()), out) if out is not None and not mine else None
    )
    averaged = initial = None
    if agreement.extractor_is_frozen:
        initial = model().cpu().state_dict()
        if agreement.method.averages:
            averaged = AveragedPart(model(), agreement.method.traits.averaged).vector()
    replaced = (
        AveragedPart(model(), agreement.method.traits.averaged).names
        if agreement.method.averages
        else frozenset[str]()
    )
    return SiteEvidence(agreement, mine, sent, records, account, trained, last, averaged, initial, replaced)


def _last_noise(agreement: Agreement, records: Records, out: Path) -> Float | None:
    """Return the noise (M, d) in saved prototypes, in units of the claimed deviation; None if they do not show it.

    They are sums divided by counts that were rounded afterwards, which adds little to the noise. Prototypes that were
    cut at 0, shortened to the norm bound, or averaged over releases show nothing.
    """
    if not agreement.has_fixed_query or agreement.releases != 1 or agreement.method.is_grouped:
        return None
    saved, claim = read_prototypes(out), Claim.of(agreement)
    exact = exact_sums(records, claim, len(agreement.classes), None)
    lengths = np.linalg.norm(saved.local, axis=1)
    shown = (saved.counts > 0) & (lengths < agreement.norm_bound * (1 - 1e-9))
    noise = (saved.local * saved.counts[:, None] - exact.sums)[shown] / claim.deviation
    return noise if len(noise) else None


def evidence_of_site(config: SiteConfig) -> SiteEvidence:
    """Return what a site kept in its ``state_dir``; raise as :func:`evidence_of`, and a ``SiteError`` for its data."""
    if config.privacy is None or config.agreement.privacy is None:
        raise FileError(
            "no release is noisy, since the site's file or the agreement has no [privacy]: nothing to audit"
        )
    data = load_data(config)
    learner = open_learner(config.model_copy(update={"device": "cpu"}), data)
    return evidence_of(
        config.agreement,
        learner.embedding_model,
        data,
        config.state_dir / FOLDER,
        config.privacy.ledger,
        config.out,
    )


def evidence_of_federation(
    federation: LocalFederation, data: Mapping[str, SiteData]
) -> dict[str, SiteEvidence]:
    """Return what the sites of a federation in this process have kept so far."""
    return {
        site.name: evidence_of(
            federation.agreement,
            site.trainee.embedding_model,
            data[site.name],
            site.trainee.releases.kept.folder,
            site.trainee.releases.ledger.path,
        )
        for site in federation.sites
        if site.trainee.releases is not None and site.trainee.releases.kept is not None
    }


def evidence_of_simulation(
    folder: Path, data_root: Path | None
) -> Iterator[tuple[str, dict[str, SiteEvidence]]]:
    """Yield each noisy run of a simulation's folder with the evidence of its sites, from data that are read again.

    Raises :class:`FileError` for a folder without such a run or with other data, and as :func:`evidence_of` does.
    """
    config = _configuration(folder, data_root)
    several = sorted(each for each in folder.glob("seed-*") if each.is_dir())
    for of_seed in several or [folder]:
        seed = int(of_seed.name.removeprefix("seed-")) if several else config.seeds[0]
        runs = [SavedRun.of(path) for path in sorted((of_seed / RUNS).glob("*.json"))]
        noisy = [run for run in runs if run.method not in CONTROLS and run.agreement.privacy is not None]
        if not noisy:
            continue
        scene = scene_of(config, seed)
        for run in noisy:
            if run.data_sha256 != scene.divided.sha256:
                raise FileError(
                    f"{of_seed} has a run on other data than the present data: restore the earlier data"
                )
            agreement = run.agreement
            out = of_seed if run.method is config.method else of_seed / COMPARED / run.method.value
            training = replace(scene.training, device="cpu")
            yield (
                agreement.run,
                {
                    name: evidence_of(
                        agreement,
                        training.learner(agreement, name, scene.data[name], position).embedding_model,
                        scene.data[name],
                        site_folder(out, name) / FOLDER,
                        site_folder(out, name) / LEDGER,
                        site_folder(out, name),
                    )
                    for position, name in enumerate(sorted(scene.data))
                },
            )


def _configuration(folder: Path, data_root: Path | None) -> SimulationConfig:
    claim: dict[str, Any] = read_claim(folder)
    # The claim has every setting, and data in a file for each site are given without those that divide data.
    divided = not claim["config"]["dataset"].startswith(SITES_FORM)
    given = {name: value for name, value in claim["config"].items() if divided or name not in SPLITTING}
    table = given | {"out": str(folder.absolute()), "seeds": [claim["seed"] or 0]}
    if data_root is not None:
        table["data_root"] = str(data_root.absolute())
    return validate(SimulationConfig, table, source=str(folder / CLAIM), directory=folder)
