"""Work that every contestant does: federated averaging of one network on given images in a given order.

A folder holds the work, so that a process with any Python that has torch can do it. Nothing of protoseal is imported.
:func:`report_round` tells the driver, which has the clock, that a round is over.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Work:
    """Federated averaging among ``sites`` sites, of SGD at rate ``lr`` in batches of ``batch``, one epoch a round.

    ``folder`` has ``network.py``, ``initial.pt`` with its weights, and the arrays ``inputs`` (sites, samples, channels,
    side, side), ``labels`` (sites, samples) and ``orders`` (rounds, sites, samples), which index a site's samples.
    """

    folder: Path
    sites: int
    batch: int
    rounds: int
    lr: float

    @classmethod
    def load(cls, folder: Path) -> Work:
        """Read the work that :meth:`save` wrote."""
        return cls(folder, **json.loads((folder / "work.json").read_text(encoding="utf-8")))

    def save(self) -> None:
        """Write the settings; the folder has the other files already."""
        settings = {name: value for name, value in asdict(self).items() if name != "folder"}
        (self.folder / "work.json").write_text(json.dumps(settings), encoding="utf-8")

    def network(self) -> nn.Module:
        """Return this process's network: a second call returns the same, with the weights that it has by then."""
        return _build_network(self.folder / "network.py")

    def initial_weights(self) -> dict[str, Tensor]:
        """Return the weights that training begins with, by name."""
        weights: dict[str, Tensor] = torch.load(self.folder / "initial.pt", weights_only=True)
        return weights

    def array(self, name: str) -> Any:
        """Return ``inputs``, ``labels`` or ``orders``, mapped from the file at the first call."""
        return _map_array(self.folder / f"{name}.npy")

    def samples(self, site: int) -> tuple[Tensor, Tensor]:
        """Return a site's inputs, float32 (samples, channels, side, side), and int64 labels (samples,)."""
        return torch.from_numpy(self.array("inputs")[site]), torch.from_numpy(self.array("labels")[site])

    def order(self, site: int, round_number: int) -> Tensor:
        """Return the order of a site's samples in a round, counted from 1: indices, int64 (samples,)."""
        return torch.from_numpy(self.array("orders")[round_number - 1, site])

    def batches(self, site: int, round_number: int) -> list[tuple[Tensor, Tensor]]:
        """Return inputs and labels of a site's batches in a round."""
        order = self.order(site, round_number)
        inputs, labels = (torch.split(values[order], self.batch) for values in self.samples(site))
        return list(zip(inputs, labels, strict=True))

    def train(self, network: nn.Module, batches: Iterable[Sequence[Tensor]]) -> None:
        """Train a site's network for one round, in place, as PFLlib's ``clientAVG`` does."""
        optimiser = torch.optim.SGD(network.parameters(), lr=self.lr)
        network.train()
        for inputs, labels in batches:
            loss = functional.cross_entropy(network(inputs), labels)
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()


@cache
def _map_array(path: Path) -> Any:
    return np.load(path, mmap_mode="c")  # torch warns of arrays that cannot be written


@cache
def _build_network(path: Path) -> nn.Module:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    network: nn.Module = module.Network()
    return network


def report_round(number: int, **figures: float) -> None:
    """Tell the driver that a round is over, with further figures of the round."""
    sys.stdout.write(json.dumps({"round": number, **figures}) + "\n")
    sys.stdout.flush()


def save_weights(weights: Mapping[str, Tensor | np.ndarray[Any, Any]], path: Path) -> None:
    """Write the global network's weights by name, for the driver to compare."""
    arrays: dict[str, Any] = {
        name: np.asarray(value.detach() if isinstance(value, Tensor) else value)
        for name, value in weights.items()
    }
    np.savez(path, **arrays)
