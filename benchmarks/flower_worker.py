"""Flower's SecAgg+ in one process, for :mod:`benchmarks.secagg` to compare with: run by a Python that has flwr.

    PYTHON flower_worker.py '{"sites": 50, "values": 51200, "shares": 50, "threshold": 34, "dropped": 15}'

Nothing of the protocol is written here. ``SecAggPlusWorkflow``'s four stages and ``secaggplus_mod`` talk to each other
through :class:`_Grid`, which takes the network's place and counts the bytes of each message's content. Written to
standard output as lines of JSON: first a line on the exchange, then for each line of standard input, which names a
task, the seconds that it took by the wall clock and of all cores. Tasks: ``shares`` and ``values`` of one site, and
``unmask``, the whole unmask stage of the server. Imports nothing of protoseal, which that Python need not have.

Drop-outs share their keys and send no values. They stand evenly spread among the neighbours, so that with few shares
too each site keeps neighbours enough.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.serde import recorddict_to_proto
from flwr.compat.common import recorddict_compat as compat
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import SecAggPlusWorkflow, WorkflowState
from flwr.supercore.task_identity import TaskIdentity

MAX_WEIGHT = 1000.0
"""Flower's own default, here the weight of every site as well."""


class _Site:
    """One client: its context, which the mod keeps its state in, and a model that it has already trained."""

    def __init__(self, node: int, values: int) -> None:
        self.context = Context(run_id=0, node_id=node, node_config={}, state=RecordDict(), run_config={})
        vector = np.random.default_rng(node).uniform(-1.0, 1.0, values)
        self._fit = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), int(MAX_WEIGHT), {})

    def answer(self, message: Any) -> Any:
        return secaggplus_mod(message, self.context, self._train)

    def _train(self, message: Any, _context: Any) -> Any:
        return Message(compat.fitres_to_recorddict(self._fit, keep_input=True), reply_to=message)


class _Grid:
    """The network: every site answers, but for those that have dropped out when values are due."""

    def __init__(self, sites: dict[int, _Site], dropped: Iterable[int] = ()) -> None:
        self._sites, self.dropped, self._watched = sites, set(dropped), next(iter(sites))
        self.sent, self.received = dict[str, int](), dict[str, int]()
        self.kept = dict[str, tuple[Any, Any]]()
        """Message to the watched site and the site's context before it, by stage."""
        self.answers: list[Any] = []
        """Answers to the last stage's messages."""

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        del timeout
        self.answers = [answer for message in messages for answer in self._answered(message)]
        return self.answers

    def watch(self, node: int) -> None:
        self._watched = node

    def _answered(self, message: Any) -> list[Any]:
        node, configs = message.metadata.dst_node_id, message.content.config_records[RECORD_KEY_CONFIGS]
        stage, size = str(configs[Key.STAGE]), _bytes(message)
        late = stage in (Stage.COLLECT_MASKED_VECTORS, Stage.UNMASK)
        if late and node in self.dropped:
            return []
        if node == self._watched:
            self.kept[stage] = copy.deepcopy((message, self._sites[node].context))
        answer = self._sites[node].answer(copy.deepcopy(message))  # the mod takes out of it what it has read
        if node == self._watched:
            self.received[stage], self.sent[stage] = size, _bytes(answer)
        return [answer]


class _Replay:
    """A network that gives answers which are there already."""

    def __init__(self, answers: list[Any]) -> None:
        self._answers = answers

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        del messages, timeout
        return self._answers


class Exchange:
    """One SecAgg+ round up to the unmask stage, which then runs as often as it is wanted."""

    def __init__(self, sites: int, values: int, shares: int, threshold: int, dropped: int) -> None:
        nodes = random.Random(0).sample(range(1, 2**63), sites)  # noqa: S311 (as ids, not as secrets)
        self._sites = {node: _Site(node, values) for node in nodes}
        self.grid = _Grid(self._sites)
        # All shares are asked for as a proportion: as a number it refuses a threshold that is as high.
        self.workflow = SecAggPlusWorkflow(
            1.0 if shares >= sites else shares, threshold, max_weight=MAX_WEIGHT
        )
        self._context, self._state = _server_context(nodes), WorkflowState()
        self._stage(self.workflow.setup_stage)
        ring = self._around(nodes)
        self.grid.dropped = {ring[place * sites // dropped] for place in range(dropped)}
        self.grid.watch(next(node for node in ring if node not in self.grid.dropped))
        self._stage(self.workflow.share_keys_stage)
        self._stage(self.workflow.collect_masked_vectors_stage)
        self._before = copy.deepcopy(self._state)
        self._unmask(self._state, self.grid)
        self._replay = _Replay(self.grid.answers)

    @property
    def shares(self) -> int:
        """Number of shares."""
        return int(self._before.num_shares)

    def task(self, name: str) -> Callable[[], object]:
        """Return the task that a line of input names, ready to be run once."""
        if name == "unmask":
            state = copy.deepcopy(self._before)
            return lambda: self._unmask(state, self._replay)
        stage = {"shares": Stage.SHARE_KEYS, "values": Stage.COLLECT_MASKED_VECTORS}[name]
        message, context = copy.deepcopy(self.grid.kept[stage])
        site = copy.copy(self._sites[message.metadata.dst_node_id])
        site.context = context
        return lambda: site.answer(message)

    def _unmask(self, state: Any, grid: Any) -> None:
        if not self.workflow.unmask_stage(grid, self._context, state):
            raise RuntimeError("flwr's unmask stage gave up")

    def _stage(self, stage: Callable[..., bool]) -> None:
        if not stage(self.grid, self._context, self._state):
            raise RuntimeError("a stage of flwr's gave up: too few neighbours for the threshold")

    def _around(self, nodes: list[int]) -> list[int]:
        """Nodes in the order of the ring that the workflow drew neighbours from; as they are if all are neighbours."""
        neighbours = self._state.nid_to_neighbours
        if any(len(each) >= len(nodes) for each in neighbours.values()):
            return nodes
        ring, near = [nodes[0]], _ring_neighbours(neighbours, nodes[0])
        while len(ring) < len(nodes):
            after = next(node for node in near if node not in ring[-2:] and node not in ring[:1])
            ring.append(after)
            near = _ring_neighbours(neighbours, after)
        return ring


def _ring_neighbours(neighbours: dict[int, set[int]], node: int) -> list[int]:
    """Return the two nodes that share most neighbours with a node."""
    others = [other for other in neighbours[node] if other != node]
    return sorted(others, key=lambda other: -len(neighbours[node] & neighbours[other]))[:2]


def _server_context(nodes: list[int]) -> Any:
    """Return the parts of Flower's context and strategy that the workflow asks for: every node, no training."""
    state = RecordDict()
    state.config_records["config"] = ConfigRecord({"current_round": 1})
    empty = Parameters([], "numpy.ndarray")
    state.array_records["parameters"] = compat.parameters_to_arrayrecord(empty, keep_input=True)
    chosen = [(SimpleNamespace(node_id=node), FitIns(empty, {})) for node in nodes]
    strategy = SimpleNamespace(
        configure_fit=lambda *_: chosen,
        aggregate_fit=lambda _round, _results, _failures: (None, {}),
    )
    return SimpleNamespace(
        state=state,
        strategy=strategy,
        client_manager=SimpleNamespace(num_available=lambda: len(nodes)),
        history=None,
    )


def _bytes(message: Any) -> int:
    """Return the bytes of the configs; the rest belongs to the strategy."""
    record = RecordDict({RECORD_KEY_CONFIGS: message.content.config_records[RECORD_KEY_CONFIGS]})
    return int(recorddict_to_proto(record).ByteSize())


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(settings: dict[str, int]) -> None:
    """Run the exchange, then a task for each line of input."""
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    exchange = Exchange(**settings)
    grid = exchange.grid
    _say({"flwr": version("flwr"), "shares": exchange.shares, "sent": grid.sent, "received": grid.received})
    for line in sys.stdin:
        task = exchange.task(line.strip())
        wall, cpu = time.perf_counter(), time.process_time()
        task()
        _say({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
