"""``protoseal simulate`` of the tree in the working directory, or of another one.

    PYTHON -m benchmarks.contestants.simulation WORK WEIGHTS TREE [SETTING=VALUE …]

Beside the end of each round it reports the seconds that ``run_together`` took in it, which is the training.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contestants.work import report_round, save_weights


class Stopwatch:
    """Clock around a function; ``seconds`` are since :meth:`restart`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.seconds = 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the function."""
        start = time.perf_counter()
        try:
            return self._function(*arguments, **options)
        finally:
            self.seconds += time.perf_counter() - start

    def restart(self) -> float:
        """Return the seconds so far, and begin at zero again."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def main(folder: Path, weights: Path, tree: Path, *settings: str) -> None:
    """Run the simulation in ``folder/simulation.toml``, and write the global model's weights."""
    # Benchmarks are this tree's, and the product is the other's, which is imported only now.
    sys.path[:0] = [str(tree), str(tree / "proto")]
    training: Any = importlib.import_module("protoseal.simulation.batched.training")
    training.run_together = watch = Stopwatch(training.run_together)
    config = importlib.import_module("protoseal.simulation.config")
    experiment = importlib.import_module("protoseal.simulation.experiment")
    tensors = importlib.import_module("safetensors.numpy")

    class Watcher(experiment.Watcher):  # type: ignore[misc,name-defined]  # a tree's own class
        def on_completed(self, completed: Any) -> None:
            report_round(completed.round, train=watch.restart())

    out = weights.with_suffix("")
    loaded = config.load_simulation(folder / "simulation.toml", {"out": str(out)}, settings)
    experiment.simulate(loaded, Watcher())
    model = next((out / "sites").glob("*/model.safetensors"))
    save_weights(tensors.load_file(model), weights)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
