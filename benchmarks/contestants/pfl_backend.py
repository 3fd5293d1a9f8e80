"""Apple's pfl: ``FederatedAveraging`` on its ``SimulatedBackend``, in as many processes as torchrun starts.

PYTHON -m torch.distributed.run --standalone --nproc-per-node 2 -m benchmarks.contestants.pfl_backend WORK WEIGHTS
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.contestants.work import Work, report_round, save_weights


class _Classifier(nn.Module):
    """Network with the two functions that pfl asks for."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.train()
        return functional.cross_entropy(self.network(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict[str, Any]:
        """Return a number for the first round, which pfl always evaluates; the network is not used."""
        del inputs
        return {"samples": Weighted(0, len(labels))}


class _Rounds(TrainingProcessCallback):  # type: ignore[misc]  # pfl has no types here
    """Number of the current round, which is reported by the first process."""

    def __init__(self) -> None:
        self.number = 1

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        del aggregate_metrics, model
        if is_first():
            report_round(central_iteration + 1)
        self.number = central_iteration + 2
        return False, Metrics()


def is_first() -> bool:
    """Return True in the first of torchrun's processes."""
    return os.environ.get("RANK", "0") == "0"


def main(folder: Path, weights: Path) -> None:
    """Run the simulation."""
    work, rounds = Work.load(folder), _Rounds()

    def dataset(site: int) -> Dataset:
        order = work.order(site, rounds.number)
        return Dataset([values[order] for values in work.samples(site)], user_id=str(site))

    sites = list(range(work.sites))
    # With weights, processes take their parts of one cohort, also where they cannot have equally many sites.
    users = FederatedDataset(dataset, MinimizeReuseUserSampler(sites), dict.fromkeys(sites, 1))
    classifier = _Classifier(work.network())
    classifier.network.load_state_dict(work.initial_weights())
    model = PyTorchModel(classifier, torch.optim.SGD, torch.optim.SGD(classifier.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds + 1,
            train_cohort_size=work.sites,
            val_cohort_size=None,
        ),
        SimulatedBackend(users, users),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch),
        callbacks=[rounds],
    )
    if is_first():
        save_weights(dict(classifier.network.named_parameters()), weights)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
