"""Subjects of a site's data by the agreed unit of privacy (record, subject or site), and the number of units for δ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agreement import Agreement
from privacy.accounting.events import Unit
from secure_client.data import SiteData
from secure_client.errors import DataError


def with_owners(data: SiteData, agreement: Agreement) -> SiteData:
    """Return the data with the agreement's privacy units as ``subjects``; None where each record is a unit.

    A site is one unit. Raises :class:`DataError` if subjects are agreed on but unknown.
    """
    match Unit.RECORD if agreement.privacy is None else agreement.privacy.unit:
        case Unit.RECORD:
            return replace(data, subjects=None)
        case Unit.SITE:
            return replace(data, subjects=np.zeros(data.train_samples, np.int64))
        case Unit.SUBJECT:
            _check_subjects(data)
            return data


def units_at(data: SiteData, agreement: Agreement) -> int:
    """Return the number of units for which δ is to hold: this site's records or subjects, or the run's sites."""
    if agreement.privacy is not None and agreement.privacy.unit is Unit.SITE:
        return agreement.max_sites
    owners = with_owners(data, agreement).subjects
    return data.train_samples if owners is None else len(np.unique(owners))


def _check_subjects(data: SiteData) -> None:
    if data.subjects is None:
        raise DataError(
            "the agreement protects subjects, but the training samples have none: add an array subjects to the "
            "npz, a subjects.csv to the folder, or an attribute subjects to your own data set; in a "
            "simulation, add subject=8 to --split"
        )
    if data.subjects.shape != (data.train_samples,):
        raise DataError(f"{len(data.subjects)} subjects are given for {data.train_samples} training samples")
