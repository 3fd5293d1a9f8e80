"""BlazeFL's own federated averaging (``blazefl.contrib``), in a pool of processes.

PYTHON -m benchmarks.contestants.blazefl_pool WORK WEIGHTS WORKERS
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch.multiprocessing
from blazefl.contrib import (
    FedAvgBaseServerHandler,
    FedAvgPartitionedDataset,
    FedAvgPartitionType,
    FedAvgProcessPoolClientTrainer,
)
from blazefl.core import ModelSelector
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.contestants.work import Work, report_round, save_weights

NAME: Any = "network"
"""Name of the only network, which BlazeFL asks for."""


class _Networks(ModelSelector):  # type: ignore[misc]  # BlazeFL has no types here
    """Choice of one network."""

    def __init__(self, work: Work) -> None:
        self._work = work

    def select_model(self, model_name: str) -> nn.Module:
        del model_name
        return self._work.network()


class _Batches(FedAvgPartitionedDataset):  # type: ignore[misc]  # BlazeFL has no types here
    """Sites' batches in the round ``number``."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.number = 1

    def get_dataset(self, type_: Any, cid: int | None) -> Any:
        raise NotImplementedError("batches are asked for instead")

    def set_dataset(self, type_: Any, cid: int | None, dataset: Any) -> None:
        """Keep nothing: a site's samples are read from the file."""

    def get_dataloader(
        self, type_: Any, cid: int | None, batch_size: int | None, generator: Any = None
    ) -> Any:
        del batch_size, generator  # both are the work's
        if type_ is not FedAvgPartitionType.TRAIN or cid is None:
            raise NotImplementedError("nothing is evaluated")
        batches: Any = self._work.batches(cid, self.number)
        return DataLoader(batches, batch_size=None)


def main(folder: Path, weights: Path, workers: int) -> None:
    """Train all rounds, and write the global network's weights."""
    work = Work.load(folder)
    networks, batches = _Networks(work), _Batches(work)
    server = FedAvgBaseServerHandler(
        networks, NAME, batches, work.rounds, work.sites, 1.0, "cpu", work.batch, 0
    )
    server.model.load_state_dict(work.initial_weights())
    # Each round starts its processes anew. A fork has torch already, and with the import below the compiler as
    # well, which optimisers import at their first step: both together take seconds.
    importlib.import_module("torch._dynamo")
    torch.multiprocessing.set_start_method("fork")
    states = Path(tempfile.mkdtemp(dir=weights.parent))
    trainer = FedAvgProcessPoolClientTrainer(
        networks, NAME, states, batches, "cpu", work.sites, 1, work.batch, work.lr, 0, workers
    )
    while not server.is_stopped():
        batches.number = server.round + 1
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for package in trainer.uplink_package():
            server.load(package)
        report_round(batches.number)
    save_weights(dict(server.model.named_parameters()), weights)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
