"""Sample agreements beside each site alone: accuracy on several data sets, paired by seed.

    python -m benchmarks.samples --data-root DATA --out runs/samples

runs each ``deploy/samples/agreement*.toml`` as it stands, but for the data and ``protection = "plain"``, under which
every exact sample has the results of its own protection up to rounding. Exact samples are compared with ``local``: the
same model, data and schedule without a federation. Private samples are compared with ``local`` and with their exact
counterpart. One data set has two classes at four sites, whose images differ in contrast, brightness and share of the
classes as those of four scanners would.

DATA is a folder with Fashion-MNIST as torchvision reads it, cifar10_subset.npz and pacs32.npz. An interrupted benchmark
resumes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import numpy as np
from scipy import stats  # type: ignore[import-untyped]  # it ships no types

from agreement import PreprocessingSection
from agreement.toml_loading import parse_toml, validate
from protoseal.commands.terminal_output import one_line_errors
from protoseal.simulation.config import SimulationConfig
from protoseal.simulation.experiment import simulate
from secure_client.data.npz import write_npz
from secure_client.data.samples import Samples, TrainTest, join_samples
from secure_client.data.sources import join_sources, read_sources
from secure_client.errors import DataError

SAMPLES = Path(__file__).parents[1] / "deploy" / "samples"
LOCAL = "local"
REPLACED = ("federation", "run", "classes", "min_sites", "preprocessing", "protection", "averaging")
"""Settings of an agreement that the data or the simulation replace here."""
SCANNERS = ((1.0, 0, 0.5), (0.5, 100, 0.3), (0.35, 10, 0.7), (0.7, 70, 0.4))
"""Contrast, brightness, and share of the second class in the training images of each of four sites."""
PULLOVER, SHIRT = 2, 6
TRAINED, TESTED = 100, 200
SCANNED = "scanners.npz"
PFPL = "agreement.toml"
EXACT_OF = {
    "agreement-private.toml": "agreement-private.toml without [privacy]",
    "agreement-dpsgd.toml": PFPL,
}
"""Exact counterpart of each private sample: another sample, or the same without its ``[privacy]``."""
Accuracies = dict[int, float]
"""Mean accuracy over the sites, by seed."""


def images(side: int, channels: int) -> dict[str, Any]:
    """Return the preprocessing of square images."""
    return {"image_size": side, "channels": channels, "mean": [0.5] * channels, "std": [0.5] * channels}


CASES: dict[str, dict[str, Any]] = {
    "digits, five appearances": {"dataset": "digits", "split": "mixed:n=6.5,max=25", "sites": 5},
    "two classes, four scanners": {
        "dataset": f"npz:{SCANNED}",
        "split": "domains",
        "sites": 4,
        "preprocessing": images(16, 1),
    },
    "Fashion-MNIST, Dirichlet": {
        "dataset": "fashion-mnist",
        "split": "dirichlet:0.3,per=150,test=0.4",
        "sites": 5,
        "preprocessing": images(16, 1),
    },
    "CIFAR-10, alike": {
        "dataset": "npz:DATA_ROOT/cifar10_subset.npz",
        "split": "iid:per=100",
        "sites": 4,
        "tests": 25,
        "preprocessing": images(16, 3),
    },
    "PACS, a domain each": {
        "dataset": "npz:DATA_ROOT/pacs32.npz",
        "split": "domains:per=100",
        "sites": 4,
        "tests": 20,
        "preprocessing": images(16, 3),
    },
}
"""Data sets and their division, by name."""


def write_scanners(path: Path, data_root: Path) -> None:
    """Write Fashion-MNIST's pullovers and shirts as four scanners would make them, all test sets balanced."""
    agreed = PreprocessingSection(image_size=28, channels=1, mean=(0.5,), std=(0.5,))
    whole = join_sources(read_sources("fashion-mnist", data_root=data_root, agreed=agreed), agreed, None)
    if whole.test is None:
        raise DataError("fashion-mnist has no test part")
    train = scanned(whole.train, TRAINED, [share for *_, share in SCANNERS])
    test = scanned(whole.test, TESTED, [0.5] * len(SCANNERS))
    sites = tuple(f"scanner-{number + 1}" for number in range(len(SCANNERS)))
    write_npz(path, TrainTest(train, test, ("pullover", "shirt"), sites))


def scanned(images: Samples, size: int, shares: Sequence[float]) -> Samples:
    """Return ``size`` images of each scanner, ``shares`` of them of the second class."""
    pools = [iter(np.flatnonzero(images.labels == label)) for label in (PULLOVER, SHIRT)]
    parts = []
    for domain, ((contrast, brightness, _), share) in enumerate(zip(SCANNERS, shares, strict=True)):
        second = round(size * share)
        for label, count in enumerate((size - second, second)):
            chosen = images.inputs[list(islice(pools[label], count))]
            values = np.clip(chosen * contrast + brightness, 0, 255).round().astype(np.uint8)
            parts.append(Samples(values, np.full(count, label), np.full(count, domain)))
    return join_samples(parts)


@dataclass
class Group:
    """Samples of different methods whose other settings are equal, so that one simulation runs them."""

    common: Mapping[str, Any]
    methods: dict[str, str] = field(default_factory=dict)
    """Names of samples by method."""
    sections: dict[str, Any] = field(default_factory=dict)

    def config(self, case: Mapping[str, Any], **settings: Any) -> SimulationConfig:
        """Return the simulation of these samples on the data of a case."""
        method, *compare = self.methods
        named = ", ".join(self.methods.values())
        table = {**self.common, **self.sections, **case, "method": method, "compare": compare, **settings}
        return validate(SimulationConfig, table, source=named, directory=Path())


def sample_tables(weights: tuple[float, ...], *, exact: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each sample's name and settings, exact ones first, and the variants that they are compared with."""
    paths = sorted(SAMPLES.glob("agreement*.toml"))
    tables = {path.name: {k: v for k, v in parse_toml(path).items() if k not in REPLACED} for path in paths}
    yield from ((name, table) for name, table in tables.items() if name not in EXACT_OF)
    yield LOCAL, tables[PFPL] | {"method": LOCAL}
    for weight in weights:
        yield f"{PFPL} with λ = {weight:g}", tables[PFPL] | {"pfpl": {"lambda": weight}}
    for name, noiseless in EXACT_OF.items() if not exact else ():
        yield name, tables[name]
        if noiseless not in tables:
            rest = {key: value for key, value in tables[name].items() if key != "privacy"}
            yield noiseless, rest | {"training": {**rest["training"], "frozen_extractor": True}}


def grouped(tables: Mapping[str, Mapping[str, Any]]) -> list[Group]:
    """Return the samples, in as few groups as their settings permit; only the last round is tested."""
    groups: list[Group] = []
    for name, table in tables.items():
        method = table["method"]
        common = {key: value for key, value in table.items() if key not in ("method", method)}
        common["evaluate_every"] = table["rounds"]
        for group in groups:
            if group.common == common and method not in group.methods:
                break
        else:
            groups.append(group := Group(common))
        group.methods[method] = name
        group.sections |= {key: value for key, value in table.items() if key == method}
    return groups


def accuracies(group: Group, config: SimulationConfig) -> dict[str, Accuracies]:
    """Run a group; return the accuracies of each of its samples by the method's own inference."""
    seeds = simulate(config).seeds
    return {
        name: {run.seed: float(run.metrics[method].accuracy or 0.0) for run in seeds}
        for method, name in group.methods.items()
    }


def interval(values: Accuracies, others: Accuracies) -> str:
    """Return the mean difference in points with its 95 % interval, Student's over the seeds."""
    differences = 100 * np.array([values[seed] - others[seed] for seed in values])
    error = differences.std(ddof=1) / len(differences) ** 0.5
    reach = float(stats.t.ppf(0.975, len(differences) - 1)) * error
    return f"{differences.mean():+.1f} ± {reach:.1f}"


def lines(case: str, measured: Mapping[str, Accuracies]) -> Iterator[str]:
    """Yield a line of a table for each sample: accuracy, less ``local``, and less the same without noise."""
    for name, values in measured.items():
        cells = [f"{100 * fmean(values.values()):.1f}", interval(values, measured[LOCAL])]
        cells.append(interval(values, measured[EXACT_OF[name]]) if name in EXACT_OF else "")
        yield " | ".join(("", case, f"`{name}`", *cells, "")).strip()


@click.command()
@click.option("--data-root", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True)
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(2))
@click.option("--case", "names", multiple=True, type=click.Choice([*CASES]), help="Data.  [default: all]")
@click.option("--lambda", "weights", multiple=True, type=float, help="Further λ of PFPL; may be repeated.")
@click.option("--exact", is_flag=True, help="Leave the private samples out, which take half of the time.")
@one_line_errors
def main(
    data_root: Path,
    out: Path,
    seeds: int,
    names: tuple[str, ...],
    weights: tuple[float, ...],
    exact: bool,
) -> None:
    """Print, for each case, the accuracy of each sample, less ``local``, and less the same without noise."""
    groups = grouped(dict(sample_tables(weights, exact=exact)))
    out.mkdir(parents=True, exist_ok=True)
    if not (out / SCANNED).exists():
        write_scanners(out / SCANNED, data_root)
    click.echo(
        "| data | sample | accuracy | less `local` | less the same without noise |\n|---|---|---|---|---|"
    )
    for case in names or CASES:
        measured: dict[str, Accuracies] = {}
        data = {**CASES[case], "seeds": list(range(seeds)), "data_root": str(data_root.absolute())}
        if data["dataset"] == f"npz:{SCANNED}":
            data["dataset"] = f"npz:{(out / SCANNED).absolute()}"
        for group in groups:
            folder = out / case.replace(" ", "-").replace(",", "") / next(iter(group.methods.values()))
            measured |= accuracies(group, group.config(data, out=str(folder.absolute())))
        for line in lines(case, measured):
            click.echo(line)


if __name__ == "__main__":
    main()
