"""Files and values that a site keeps of a run, by name; and a double that trains by the seed alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import safetensors.numpy
import torch

from secure_client.checkpoints import checkpointed_learner
from secure_client.checkpoints.checkpointed_learner import CheckpointedLearner
from secure_client.privacy.noisy_prototypes import _HEAD
from secure_client.training.job import Job, Losses, trained_parameters

Traces = dict[str, bytes]


def kept_by(learner: CheckpointedLearner, *documents: str) -> Traces:
    """Return these documents of the journal, as far as it has them, and the contents of the file of prototypes.

    But for the ledger's head, in which there is the time of day.
    """
    found = Traces()
    for document in documents:
        stored = learner._checkpoints.journal.get(document)
        arrays = {} if stored is None else safetensors.numpy.load(stored[1])
        found |= {f"{document}: {name}": each.tobytes() for name, each in arrays.items() if name != _HEAD}
    own = learner.predictor.prototypes()
    return found | {f"file: {name}": each.tobytes() for name, each in vars(own).items() if each is not None}


@contextmanager
def moved_by_the_seed() -> Iterator[None]:
    """Have training read no record inside the block."""

    def run(job: Job) -> Losses:
        moves = torch.Generator().manual_seed(job.seed)
        with torch.no_grad():
            for each in trained_parameters(job.model, job.trains).values():
                each.add_(torch.randn(each.shape, generator=moves), alpha=0.05)
        return Losses(1.0, 1.0, 0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpointed_learner, "run_job", run)
        yield
