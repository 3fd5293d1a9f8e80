"""Loop over the sites as PFLlib has it: each client has a model of its own, and clients train one after the other.

    PYTHON -m benchmarks.contestants.plain_loop WORK WEIGHTS

PFLlib's ``serverAVG`` (github.com/TsingZ0/PFLlib, ``flcore/servers/serverbase.py``) copies the server's parameters into
every client's model, and averages the parameters that come back. Its clients load single samples.
"""

from __future__ import annotations

import copy
import sys
from pathlib import Path

from torch.utils.data import DataLoader, TensorDataset

from benchmarks.contestants.work import Work, report_round, save_weights


def main(folder: Path, weights: Path) -> None:
    """Train all rounds, and write the global network's weights."""
    work = Work.load(folder)
    server = work.network()
    server.load_state_dict(work.initial_weights())
    clients = [copy.deepcopy(server) for _ in range(work.sites)]
    for number in range(1, work.rounds + 1):
        for site, client in enumerate(clients):
            for ours, theirs in zip(client.parameters(), server.parameters(), strict=True):
                ours.data = theirs.data.clone()
            order = work.order(site, number).tolist()
            work.train(client, DataLoader(TensorDataset(*work.samples(site)), work.batch, sampler=order))
        for parameter in server.parameters():
            parameter.data.zero_()
        for client in clients:
            for ours, theirs in zip(server.parameters(), client.parameters(), strict=True):
                ours.data += theirs.data.clone() * (1 / work.sites)
        report_round(number)
    save_weights(dict(server.named_parameters()), weights)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
