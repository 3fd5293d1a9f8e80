"""Jobs that do not train together, noted."""

from __future__ import annotations

import pytest

from protoseal.simulation.batched import training
from secure_client.training.job import Job, Losses
from secure_client.training.loop import run_job


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Record the jobs that are run one by one from now on."""
    seen: list[Job] = []

    def noted(job: Job) -> Losses:
        seen.append(job)
        return run_job(job)

    monkeypatch.setattr(training, "run_job", noted)
    return seen
