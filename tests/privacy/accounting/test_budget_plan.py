"""Queries that a budget is planned for."""

from __future__ import annotations

import pytest

from privacy.accounting.budget_plan import Query
from privacy.units import Unit

CLASSES = 10


@pytest.mark.parametrize(("unit", "most"), [(Unit.RECORD, 1), (Unit.SUBJECT, CLASSES), (Unit.SITE, CLASSES)])
def test_query_refuses_a_unit_of_no_class_or_of_more_than_it_can_have(unit: Unit, most: int) -> None:
    """A record has one class, so no record's counts may be divided among several."""
    assert Query(1.0, 1.0, 4, CLASSES, unit, most).classes_of_one == most
    for wrong in (0, most + 1):
        with pytest.raises(ValueError, match="classes_of_one"):
            Query(1.0, 1.0, 4, CLASSES, unit, wrong)
