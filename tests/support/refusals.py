"""Check of refusals by what they name, not by their sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from secure_client.errors import DataError


@contextmanager
def refuses(*named: object, error: type[Exception] = DataError) -> Iterator[None]:
    """Check that the block raises ``error`` in one line, which has each of ``named``: a file, a field, a number."""
    with pytest.raises(error) as refused:
        yield
    told = str(refused.value)
    assert "\n" not in told
    for name in named:
        assert str(name) in told
