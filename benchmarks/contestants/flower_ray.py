"""Flower's simulation on Ray: ``FedAvg``, a ``ClientApp`` for each site, one core for each client.

PYTHON -m benchmarks.contestants.flower_ray WORK WEIGHTS
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.contestants.work import Work, report_round, save_weights


def client_app(work: Work) -> ClientApp:
    """Return the app of a site: it trains the model of the message for one round."""
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]  # flwr has no types here
    def train(message: Message, context: Context) -> Message:
        network = work.network()
        network.load_state_dict(message.content["arrays"].to_torch_state_dict())
        site, number = (
            int(context.node_config["partition-id"]),
            int(message.content["config"]["server-round"]),
        )
        work.train(network, work.batches(site, number))
        metrics = MetricRecord({"num-examples": len(work.order(site, number))})
        return Message(
            RecordDict({"arrays": ArrayRecord(network.state_dict()), "metrics": metrics}), reply_to=message
        )

    return app


class _Reported(FedAvg):  # type: ignore[misc]  # flwr has no types here
    """Federated averaging that reports each round."""

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> Any:
        averaged = super().aggregate_train(server_round, replies)
        report_round(server_round)
        return averaged


def server_app(work: Work, weights: Path) -> ServerApp:
    """Return the app of the server: it averages all sites' models in each round, and writes the last average."""
    app = ServerApp()

    @app.main()  # type: ignore[untyped-decorator]  # flwr has no types here
    def run(grid: Grid, _context: Context) -> None:
        strategy = _Reported(
            fraction_evaluate=0.0, min_train_nodes=work.sites, min_available_nodes=work.sites
        )
        result = strategy.start(grid, ArrayRecord(work.initial_weights()), num_rounds=work.rounds)
        save_weights(result.arrays.to_torch_state_dict(), weights)

    return app


def main(folder: Path, weights: Path) -> None:
    """Run the simulation."""
    work = Work.load(folder)
    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": os.cpu_count()},
    }
    run_simulation(server_app(work, weights), client_app(work), work.sites, backend_config=resources)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
