"""Checkpoints of the tensor engine: the state of all sites after a round, in one durable file.

A checkpoint is a safetensors file with a JSON text; nothing is pickled. The next one is written once thirty times the
duration of the last have passed, and ten seconds at least, so that checkpoints cost some 3 % of a long run. Each of
several runs in lockstep writes its own.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from algorithms.prototypes import Clusters, Guide, Targets
from protoseal.simulation.run_log import RunLog
from protoseal.simulation.tensors.exchanges import Exchange, SumExchange
from protoseal.simulation.tensors.sites import Received, SiteState, TensorSite
from protoseal_files import durable_files

_log = logging.getLogger(__name__)
FILE, _TEXT = "checkpoint.safetensors", "json"
_LEAST_SECONDS, _TIMES = 10.0, 30
"""Fewest seconds between two checkpoints, and as a multiple of the time that the last one took."""


class Checkpoints:
    """Checkpoints of one run in a folder."""

    def __init__(
        self, folder: Path, sites: Sequence[TensorSite], exchange: Exchange | None, log: RunLog
    ) -> None:
        self._path = folder / FILE
        self._sites = sites
        self._exchange = exchange
        self._log = log
        self._origin = {"device": sites[0].learner.device.type, "torch": str(torch.__version__)}
        self._saved_at = time.monotonic()
        self._wait = _LEAST_SECONDS

    @property
    def is_due(self) -> bool:
        """True if the next round should be followed by a checkpoint."""
        return time.monotonic() - self._saved_at >= self._wait

    def save(self, round_number: int) -> None:
        """Write the state after a round."""
        start = time.monotonic()
        writer = _Writer()
        text = {
            "schema": 1,
            "origin": self._origin,
            "round": round_number,
            "sites": [writer.put_site(site.state()) for site in self._sites],
            "best": [writer.put_site(site.best) for site in self._sites if site.best is not None],
            "exchange": None if self._exchange is None else writer.put_exchange(self._exchange),
        }
        content = safetensors.torch.save(writer.tensors, {_TEXT: json.dumps(text)})
        # The log first: a checkpoint must not be newer than the rounds that are logged.
        self._log.sync()
        durable_files.write(self._path, content)
        self._saved_at = time.monotonic()
        self._wait = max(_LEAST_SECONDS, _TIMES * (self._saved_at - start))

    def restore(self) -> int:
        """Restore the last checkpoint, and return its round; 0 if there is none.

        Log a warning if it is of another kind of device or another torch, which round differently.
        """
        if not self._path.exists():
            return 0
        with safetensors.safe_open(self._path, "pt") as file:
            text = json.loads(file.metadata()[_TEXT])
            if (origin := text.get("origin")) != self._origin:
                _log.warning("%s is of %s, and the run resumes on %s", self._path, origin, self._origin)
            reader = _Reader({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (no mapping)
        for site, stored in zip(self._sites, text["sites"], strict=True):
            site.restore(reader.site(stored))
        for site, stored in zip(self._sites, text["best"], strict=bool(text["best"])):
            site.best = reader.site(stored)
        if self._exchange is not None:
            reader.restore_exchange(self._exchange, text["exchange"])
        return int(text["round"])


class _Writer:
    """Tensors of a checkpoint by number; those that several sites share are stored once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._numbers: dict[int, str] = {}
        self._shared: list[object] = []  # kept, so that no other object gets the same id

    def put_site(self, state: SiteState) -> dict[str, Any]:
        return {
            "round": state.round,
            "models": [self._put(numbers) for numbers in state.models],
            "rows": self._put_array(state.rows),
            "guide": self._put_guide(state.received.guide),
            "averaged": self._put_array(state.received.averaged),
            "optimisers": [
                {
                    name: {key: self._put(value) for key, value in values.items()}
                    for name, values in job_state.items()
                }
                for job_state in state.optimisers
            ],
        }

    def put_exchange(self, exchange: Exchange) -> dict[str, Any]:
        stored: dict[str, Any] = {"groups": exchange.groups}
        if isinstance(exchange, SumExchange):
            stored["rows"] = [
                [group, self._put_array(rows), self._put_array(holders)]
                for group, (rows, holders) in exchange.last_rows.items()
            ]
        return stored

    def _put_guide(self, guide: Guide | None) -> list[Any] | None:
        if guide is None:
            return None
        tensors = vars(guide).values()
        return [type(guide).__name__, *map(self._put, tensors)]

    def _put_array(self, array: np.ndarray[Any, Any] | None) -> str | None:
        return None if array is None else self._put(array)

    def _put(self, value: Tensor | np.ndarray[Any, Any]) -> str:
        if id(value) not in self._numbers:
            name = self._numbers[id(value)] = str(len(self.tensors))
            self._shared.append(value)
            tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            self.tensors[name] = tensor.detach().cpu().contiguous()
        return self._numbers[id(value)]


class _Reader:
    """Reader of what :class:`_Writer` wrote; what sites shared they share again."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors
        self._arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._guides: dict[tuple[str, ...], Guide] = {}

    def site(self, stored: dict[str, Any]) -> SiteState:
        rows, averaged, guide = stored["rows"], stored["averaged"], stored["guide"]
        return SiteState(
            stored["round"],
            [self._tensors[name] for name in stored["models"]],
            None if rows is None else self._arrays[rows],
            Received(
                None if guide is None else self._guide(tuple(guide)),
                None if averaged is None else self._arrays[averaged],
            ),
            [
                {
                    name: {key: self._tensors[value] for key, value in values.items()}
                    for name, values in job_state.items()
                }
                for job_state in stored["optimisers"]
            ],
        )

    def restore_exchange(self, exchange: Exchange, stored: dict[str, Any]) -> None:
        exchange.groups = tuple(tuple(group) for group in stored["groups"])
        if isinstance(exchange, SumExchange):
            exchange.last_rows = {
                tuple(group): (self._arrays[rows], self._arrays[holders])
                for group, rows, holders in stored["rows"]
            }

    def _guide(self, stored: tuple[str, ...]) -> Guide:
        if stored not in self._guides:
            kind, *names = stored
            tensors = [self._tensors[name] for name in names]
            self._guides[stored] = Targets(*tensors) if kind == "Targets" else Clusters(*tensors)
        return self._guides[stored]
