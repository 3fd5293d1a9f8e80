"""Small runs with noise whose sites keep their releases, and the audit of them."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agreement import Agreement, Extractor, Method, PrivacySection, Protection
from privacy.accounting.events import Unit
from protoseal.audit.run_audit import audit_run
from protoseal.audit.run_checks import Outcome, RunAudit
from protoseal.audit.site_evidence import SiteEvidence, collect_evidence
from protoseal.simulation.local_federation import LocalFederation
from secure_client.data import SiteData
from tests.conformance.federations import data_for, private_agreement

LEVEL = 1e-5
"""Probability with which a true run is refuted: tests are run often."""
DIM, CLASSES, SITES, ROUNDS = 32, 4, 4, 4
PRIVACY = PrivacySection(clip=0.5, noise_multiplier=2.0, min_count=1.0, release_every=2)
"""Noise that hides six records of a class, whose features are several times as long as the clip."""


def kept_agreement(
    method: Method, protection: Protection, unit: Unit = Unit.RECORD, **privacy: Any
) -> Agreement:
    """Return the agreement of a run with noise; FedPLCC's models must train, since they are averaged."""
    extractor = Extractor.TRAINED if method is Method.FEDPLCC else Extractor.FROZEN
    agreed = PrivacySection.model_validate({**dict(PRIVACY), "unit": unit, "extractor": extractor, **privacy})
    return private_agreement(
        protection, method, classes=CLASSES, dim=DIM, rounds=ROUNDS, privacy=agreed, norm_bound=40.0
    )


def kept_data(agreement: Agreement) -> dict[str, SiteData]:
    """Return real scans of every class at every site, in subjects of three records."""
    data = data_for(agreement, np.ones((SITES, CLASSES), dtype=np.bool_))
    return {
        name: replace(
            site, subjects=np.arange(site.train_samples, dtype=np.int64) % (site.train_samples // 3)
        )
        for name, site in data.items()
    }


def kept_run(agreement: Agreement, folder: Path) -> dict[str, SiteEvidence]:
    """Run a federation, and return what its sites kept."""
    data = kept_data(agreement)
    state = Path(tempfile.mkdtemp(dir=folder))
    with LocalFederation(agreement, data, keep_releases=True, state=state) as federation:
        federation.run()
        return collect_evidence(federation, data)


def audited(agreement: Agreement, folder: Path) -> RunAudit:
    """Run a federation, and audit it."""
    return audit_run(agreement.run, kept_run(agreement, folder), LEVEL)


def weaknesses(audit: RunAudit) -> set[str]:
    """Return the names of the weaknesses that an audit found."""
    return {check.weakness for _, check in audit.of(Outcome.FOUND)}
