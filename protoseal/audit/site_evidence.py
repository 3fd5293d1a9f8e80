"""Evidence that sites kept of a run, read for its audit: from a simulation's folder, or at a site from its state.

The evidence holds exact sums and is secret: an audit runs where the data are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from agreement import CONTROLS, Agreement
from agreement.storage.run_files import FileError
from agreement.toml_loading import SITES_FORM, validate
from privacy.ledger.budget_account import Account, read_account
from protoseal.audit.exact_sums import (
    Claim,
    ExactSums,
    Float,
    Records,
    embed,
    exact_sums,
    load_model,
)
from protoseal.reports.result_files import site_folder
from protoseal.simulation.config import SPLITTING, SimulationConfig
from protoseal.simulation.experiment import load_scene
from protoseal.simulation.local_federation import LocalFederation
from protoseal.simulation.run_folder import CLAIM, COMPARED, RUNS, SavedRun, read_claim
from secure_client.app import load_data, open_learner
from secure_client.config import SiteConfig
from secure_client.data import SiteData
from secure_client.models.prototype_model import PrototypeModel
from secure_client.output.site_files import read_prototypes
from secure_client.privacy.kept_releases import FOLDER, Drawn, Sent, read_kept
from secure_client.privacy.releases import with_owners
from secure_client.training.averaged_parameters import AveragedPart
from secure_client.training.step_records import TrainingRecord, read_step_records

LEDGER = "ledger.jsonl"


@dataclass(frozen=True)
class SiteEvidence:
    """Evidence that one site kept of a run, with its records: secret, and for an audit at the site.

    ``records`` computes the site's records under a kept model. ``account`` is the ledger, None if it could not be read.
    ``trainings`` are the records of the steps of DP-SGD. ``saved_noise`` is the noise (M, d) in the prototypes that a
    site without kept releases saved at the end, as far as they show it. Where features are frozen, ``initial`` is the
    state of the initial model, and ``averaged_start`` its part that a method averages: no record may shape either.
    ``replaced_tensors`` names the tensors that a result replaces when a round starts.
    """

    agreement: Agreement
    draws: Sequence[Drawn] = field(repr=False)
    answers: Sequence[Sent] = field(repr=False)
    records: Callable[[Mapping[str, Tensor]], Records] = field(repr=False)
    account: Account | None = field(repr=False)
    trainings: Sequence[TrainingRecord] = field(repr=False, default=())
    saved_noise: Float | None = field(repr=False, default=None)
    averaged_start: Float | None = field(repr=False, default=None)
    initial: Mapping[str, Tensor] | None = field(repr=False, default=None)
    replaced_tensors: frozenset[str] = frozenset()

    @property
    def claim(self) -> Claim:
        """Return the agreement's claim."""
        return Claim.of(self.agreement)

    @cached_property
    def exact(self) -> list[ExactSums]:
        """Return the exact sums behind each draw."""
        classes = len(self.agreement.classes)
        return [exact_sums(self.records(draw.model), self.claim, classes, draw.cells) for draw in self.draws]

    @cached_property
    def noise(self) -> list[Float]:
        """Return the noise of each draw in units of the claimed deviation, (M, d + 1): sums, then the count."""
        weight, deviation = self.claim.weight, self.claim.deviation
        return [
            np.column_stack([draw.sums - exact.sums, weight * (draw.counts - exact.counts)]) / deviation
            for draw, exact in zip(self.draws, self.exact, strict=True)
        ]


def load_evidence(
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
    draws, answers = read_kept(releases)
    # The unit of the agreement decides whose records are bounded together: none, a subject's, or the site's.
    owners = with_owners(data, agreement).subjects
    cache: dict[bytes, Records] = {}

    def records(state: Mapping[str, Tensor]) -> Records:
        # A frozen extractor has the same features in every release.
        key = b"".join(name.encode() + value.numpy().tobytes() for name, value in sorted(state.items()))
        if key not in cache:
            loaded = load_model(model().cpu(), state)
            cache[key] = Records(*embed(loaded, data.train, agreement.dim), owners)
        return cache[key]

    try:
        trainings = read_step_records(releases)
    except ValueError as error:
        raise FileError(f"{error}; move it away") from error
    draws_of_run = [draw for draw in draws if draw.release.run == agreement.run]
    averaged = AveragedPart(model(), agreement.method.traits.averaged) if agreement.method.averages else None
    frozen = agreement.extractor_is_frozen
    return SiteEvidence(
        agreement,
        draws_of_run,
        answers,
        records,
        account=read_account(ledger) if ledger.exists() else None,
        trainings=trainings,
        saved_noise=_noise_of_saved_prototypes(agreement, records(model().state_dict()), out)
        if out is not None and not draws_of_run
        else None,
        averaged_start=averaged.vector() if frozen and averaged is not None else None,
        initial=model().cpu().state_dict() if frozen else None,
        replaced_tensors=frozenset[str]() if averaged is None else averaged.names,
    )


def _noise_of_saved_prototypes(agreement: Agreement, records: Records, out: Path) -> Float | None:
    """Return the noise (M, d) in saved prototypes, in units of the claimed deviation; None if they do not show it.

    They are sums divided by counts that were rounded afterwards, which adds little to the noise. Prototypes that were
    cut at 0, shortened to the norm bound, or averaged over releases show nothing.
    """
    if not agreement.has_fixed_query or agreement.releases != 1 or agreement.method.is_grouped:
        return None
    saved, claim = read_prototypes(out), Claim.of(agreement)
    # What the site saved, times its count, less the exact sum: the noise of the sum, and of the count's rounding.
    exact = exact_sums(records, claim, len(agreement.classes), None)
    lengths = np.linalg.norm(saved.local, axis=1)
    shown = (saved.counts > 0) & (lengths < agreement.norm_bound * (1 - 1e-9))
    noise = (saved.local * saved.counts[:, None] - exact.sums)[shown] / claim.deviation
    return noise if len(noise) else None


def load_site_evidence(config: SiteConfig) -> SiteEvidence:
    """Return what a site kept in its ``state_dir``; raise as :func:`load_evidence`, or a ``SiteError`` for its data."""
    if config.privacy is None or config.agreement.privacy is None:
        raise FileError(
            "no release is noisy, since the site's file or the agreement has no [privacy]: nothing to audit"
        )
    data = load_data(config)
    learner = open_learner(config.model_copy(update={"device": "cpu"}), data)
    return load_evidence(
        config.agreement,
        learner.embedding_model,
        data,
        config.state_dir / FOLDER,
        config.privacy.ledger,
        config.out,
    )


def collect_evidence(federation: LocalFederation, data: Mapping[str, SiteData]) -> dict[str, SiteEvidence]:
    """Return what the sites of a federation in this process have kept so far."""
    return {
        site.name: load_evidence(
            federation.agreement,
            site.learner.embedding_model,
            data[site.name],
            site.learner.releases.kept.folder,
            site.learner.releases.ledger.path,
        )
        for site in federation.sites
        if site.learner.releases is not None and site.learner.releases.kept is not None
    }


def load_simulation_evidence(
    folder: Path, data_root: Path | None
) -> Iterator[tuple[str, dict[str, SiteEvidence]]]:
    """Yield each noisy run of a simulation's folder with the evidence of its sites, from data that are read again.

    Raises :class:`FileError` for a folder without such a run or with other data, and as :func:`load_evidence` does.
    """
    config = _read_configuration(folder, data_root)
    seed_folders = sorted(path for path in folder.glob("seed-*") if path.is_dir())
    for seed_folder in seed_folders or [folder]:
        seed = int(seed_folder.name.removeprefix("seed-")) if seed_folders else config.seeds[0]
        runs = [SavedRun.read(path) for path in sorted((seed_folder / RUNS).glob("*.json"))]
        noisy = [run for run in runs if run.method not in CONTROLS and run.agreement.privacy is not None]
        if not noisy:
            continue
        scene = load_scene(config, seed)
        for run in noisy:
            if run.data_sha256 != scene.divided.sha256:
                raise FileError(
                    f"{seed_folder} has a run on other data than the present data: restore the earlier data"
                )
            agreement = run.agreement
            out = seed_folder if run.method is config.method else seed_folder / COMPARED / run.method.value
            training = replace(scene.training, device="cpu")
            yield (
                agreement.run,
                {
                    name: load_evidence(
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


def _read_configuration(folder: Path, data_root: Path | None) -> SimulationConfig:
    claim: dict[str, Any] = read_claim(folder)
    # The claim has every setting, and data in a file for each site are given without those that divide data.
    divided = not claim["config"]["dataset"].startswith(SITES_FORM)
    given = {name: value for name, value in claim["config"].items() if divided or name not in SPLITTING}
    table = given | {"out": str(folder.absolute()), "seeds": [claim["seed"] or 0]}
    if data_root is not None:
        table["data_root"] = str(data_root.absolute())
    return validate(SimulationConfig, table, source=str(folder / CLAIM), directory=folder)
