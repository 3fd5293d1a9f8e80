"""A configuration that ``ckks`` cannot serve precisely enough is refused when it is loaded."""

import pytest
from pydantic import ValidationError

from agreement import Protection
from protoseal.simulation.config import SimulationConfig


def config(sites: int, threshold: float = 1e-4, protection: Protection = Protection.CKKS) -> SimulationConfig:
    return SimulationConfig(
        dataset="digits", sites=sites, agreement_threshold=threshold, protection=protection
    )


def test_a_threshold_below_what_so_many_sites_can_tell_is_refused() -> None:
    config(200)
    config(20, 1e-5)
    with pytest.raises(ValidationError, match=r"set agreement_threshold to 2\.391e-05 or more"):
        config(200, 1e-5)
    config(200, 1e-5, Protection.PLAIN)


def test_more_sites_than_the_modulus_has_room_for_are_refused() -> None:
    with pytest.raises(ValidationError, match="serves 2 to 256 sites, not 257"):
        config(257)
    config(257, protection=Protection.MASKED)
