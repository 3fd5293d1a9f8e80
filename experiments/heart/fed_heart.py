"""FLamby's Fed-Heart-Disease: four methods under three protections, beside training alone, FedAvg and pooled training.

``python experiments/heart/fed_heart.py DATA --out DIR`` reads ``processed.NAME.data`` of the four hospitals in DATA,
divides each file as FLamby does, runs ``fed-heart.toml`` under each protection, and prints tables in Markdown: accuracy
on the pooled test set, and differences paired by seed with intervals of 95 % (Student's t over the seeds). The test set
is the same for all seeds, which make initial models and orders of batches alone: an interval says nothing of other
patients.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]  # it ships no types
from sklearn.model_selection import train_test_split

from agreement import ConfigError, Method
from protoseal.commands.terminal_output import one_line_errors
from protoseal.simulation.config import SimulationConfig, load_simulation
from protoseal.simulation.experiment import EndedRun, Watcher, load_scene, simulate
from protoseal.simulation.site_pool import SiteTesting
from protoseal.simulation.tensors.federation import run_control
from secure_client.data import SiteData
from secure_client.data.preprocess import to_dataset
from secure_client.data.samples import Indices, join_samples
from secure_client.data.table import parse_table
from secure_client.data.table_scale import fit_inputs
from secure_client.errors import DataError
from secure_client.table_format import TableFormat

EXPERIMENT = Path(__file__).with_name("fed-heart.toml")
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
HEADER = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
HEALTHY, ILL = "no disease", "disease"
LABELS = {"0": HEALTHY, **dict.fromkeys("1234", ILL)}
PROTECTIONS = ("plain", "masked", "ckks")
BESIDE = (Method.FEDAVG.value, Method.SELF.value, Method.LOCAL.value)
"""Methods that run once, under plain."""
POOLED = "pooled"
ROUNDING = 1e-9
FLAMBY: dict[str, tuple[float, ...]] = {
    "FLamby: local": (0.787, 0.728, 0.748, 0.736),
    "FLamby: FedAvg": (0.776,) * 4,
    "FLamby: pooled": (0.791,) * 4,
    "FLamby: best strategy": (0.807,) * 4,
}
"""Accuracy on the pooled test set of the model of each hospital, or of all, by a logistic model with seed 42."""

Figures = dict[str, NDArray[np.float64]]
"""Accuracies on the pooled test set, (seeds, hospitals), by name."""


def flamby_split(labels: Indices) -> tuple[Indices, Indices]:
    """Return FLamby's training and test rows of a hospital, in the order of the file, for labels 0 and 1.

    The split is stratified unless a label has two rows or fewer (Switzerland: one).
    """
    counts = np.bincount(labels, minlength=2)
    strata = labels if (counts > 2).all() else None
    train, test = train_test_split(
        np.arange(len(labels)), train_size=0.66, test_size=0.34, random_state=43, stratify=strata
    )
    return np.sort(train), np.sort(test)


def write_site(source: Path, folder: Path, name: str, config: SimulationConfig) -> None:
    """Write ``NAME.csv``, ``NAME-test.csv`` and ``NAME.toml``, with the hospital's lines as they are.

    Rows with a missing value in a column that is read are left out before the split, so that the split is FLamby's.
    """
    if not source.is_file():
        raise DataError(f"{source}: the file does not exist; give the folder of processed.{name}.data")
    lines = source.read_text(encoding="utf-8").splitlines()
    # Copies differ: some have a header, with names of their own.
    rows = lines[1:] if lines[0][:1].isalpha() else lines
    folder.mkdir(parents=True, exist_ok=True)
    whole, test = folder / f"{name}.csv", folder / f"{name}-test.csv"
    if config.table is None:
        raise ConfigError(str(EXPERIMENT), ["has no [table]"])
    whole.write_text("\n".join(rows) + "\n", encoding="utf-8")
    written = TableFormat(header=HEADER, label="num", labels=LABELS)
    table = parse_table(whole, config.table, written, (HEALTHY, ILL))
    kept = np.flatnonzero(table.has_required_values)
    labels = np.array([label == ILL for label in table.labels or ()], dtype=np.int64)[kept]
    for path, chosen in zip((whole, test), flamby_split(labels), strict=True):
        path.write_text("".join(f"{rows[table.lines[at] - 1]}\n" for at in kept[chosen]), encoding="utf-8")
    names = ", ".join(f'"{column}"' for column in HEADER)
    meanings = ", ".join(f'"{value}" = "{meaning}"' for value, meaning in LABELS.items())
    (folder / f"{name}.toml").write_text(
        f'[table]\nheader = [{names}]\nlabel = "num"\nlabels = {{ {meanings} }}\ntest = "{test.name}"\n',
        encoding="utf-8",
    )


class Collector(Watcher):
    """Watcher that keeps each run's accuracies on the pooled test set, by hospital."""

    def __init__(self) -> None:
        self.accuracies: dict[str, dict[int, list[float]]] = {}

    def on_run(self, ended: EndedRun) -> None:
        """Keep the accuracies of the last round."""
        last = [ended.outcome.sites[name].rounds[-1].accuracy_global for name in HOSPITALS]
        by_seed = self.accuracies.setdefault(ended.method.value, {})
        by_seed[ended.seed] = [value for value in last if value is not None]
        click.echo(f"seed {ended.seed}, {ended.method.value}", err=True)


def run_protection(config: SimulationConfig) -> Figures:
    """Return the figures of each method under one protection."""
    collector = Collector()
    simulate(config, collector)
    return {
        name: np.array([each[seed] for seed in config.seeds]) for name, each in collector.accuracies.items()
    }


def train_pooled(config: SimulationConfig, seed: int) -> float:
    """Return the accuracy of one model that trains on all hospitals' rows, scaled together."""
    scene = load_scene(config, seed)
    train = join_samples([site.train for site in scene.divided.sites])
    data = to_dataset(train, fit_inputs(config.inputs, train.inputs, where=POOLED), where=POOLED)
    outcome = run_control(
        scene.agreement(Method.LOCAL),
        Method.LOCAL,
        {POOLED: SiteData(data, scene.overall)},
        testing=SiteTesting(scene.overall, config.evaluate_every),
    )
    return outcome.sites[POOLED].rounds[-1].accuracy or 0.0


def interval(values: NDArray[np.float64]) -> float:
    """Return half of the 95 % interval of the mean of ``values``, one for each seed."""
    if len(values) < 2 or not np.ptp(values):
        return 0.0
    return float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5)


def row(name: str, values: NDArray[np.float64], *, signed: bool = False) -> str:
    """Return a line of a table: the mean over seeds at each hospital, and over all, in per cent with intervals."""
    cells = []
    for column in (*values.T, values.mean(axis=1)):
        mean, half = float(column.mean()), interval(column)
        below = signed and mean < -half - ROUNDING
        sign = "+" if signed else ""
        cells.append(f"{100 * mean:{sign}.1f} ± {100 * half:.1f}" + (" **below**" if below else ""))
    return f"| {name} | {' | '.join(cells)} |"


def tables(figures: Mapping[str, NDArray[np.float64]]) -> Iterator[str]:
    """Yield the lines of three tables for ``figures``, arrays (seeds, hospitals) by "METHOD, PROTECTION" or control."""
    head = [f"| | {' | '.join(HOSPITALS)} | mean |", f"|{'---|' * (len(HOSPITALS) + 2)}"]
    federated = [name for name in figures if ", " in name]
    yield from ("accuracy on the pooled test set, %", "", *head)
    for name, published in FLAMBY.items():
        cells = [f"{100 * value:.1f}" for value in (*published, float(np.mean(published)))]
        yield f"| {name} | {' | '.join(cells)} |"
    yield from (row(name, values) for name, values in figures.items())
    yield from ("", "less `local`, points", "", *head)
    beside = [name for name in figures if name not in (Method.LOCAL.value, POOLED)]
    yield from (row(name, figures[name] - figures[Method.LOCAL.value], signed=True) for name in beside)
    yield from ("", "less the same method under `plain`, points", "", *head)
    for name in federated:
        plain = f"{name.partition(', ')[0]}, {PROTECTIONS[0]}"
        if name != plain:
            yield row(name, figures[name] - figures[plain], signed=True)


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path("runs/fed-heart"))
@click.option(
    "--seeds", type=click.IntRange(1), default=5, show_default=True, help="Number of seeds, from 0."
)
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Any setting of the file."
)
@one_line_errors
def main(data: Path, out: Path, seeds: int, settings: tuple[str, ...]) -> None:
    """Run Fed-Heart-Disease on the four files in DATA and print its tables."""
    flags: dict[str, object] = {"dataset": f"sites:{out / 'sites'}", "seeds": tuple(range(seeds))}
    plain = load_simulation(EXPERIMENT, {**flags, "out": out / "plain"}, settings)
    for name in HOSPITALS:
        write_site(data / f"processed.{name}.data", out / "sites", name, plain)
    figures = {POOLED: np.array([[train_pooled(plain, seed)] * len(HOSPITALS) for seed in plain.seeds])}
    federated = [method.value for method in plain.methods if method.value not in BESIDE]
    for protection in PROTECTIONS:
        flags |= {"protection": protection, "out": out / protection}
        flags["compare"] = [*federated[1:], *(BESIDE if protection == "plain" else ())]
        for name, values in run_protection(load_simulation(EXPERIMENT, flags, settings)).items():
            figures[name if name in BESIDE else f"{name}, {protection}"] = values
    (out / "accuracies.json").write_text(
        json.dumps(
            {"hospitals": HOSPITALS, "seeds": plain.seeds, **{k: v.tolist() for k, v in figures.items()}}
        ),
        encoding="utf-8",
    )
    click.echo("\n".join(tables(figures)))


if __name__ == "__main__":
    main()
