"""Cost of a secret rotation to a site, and that the rotation costs the coordinator nothing.

python -m benchmarks.rotation --json rotation.json
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from algorithms.pfpl import Weighting, peer_weights
from benchmarks.record import Case, Value, compare, draw_growth, json_option, machine, record_cases, show
from crypto import rotation
from crypto.keys import KEY_BYTES
from crypto.plain import GramServer, PlainServer, PlainSite
from crypto.protection import Cohort, Payload, Rows, SiteHalf
from crypto.rotation import RotationSite, class_key, rotate
from protoseal.commands.options import COUNT, FILE, example, parse_counts
from protoseal.commands.terminal_output import one_line_errors

TAU = 1e-9
SAME = 1e-12
"""Largest rounding difference of the two protections' answers, for rows of length 1."""
COLUMNS = {
    **{name: name for name in ("case", "classes", "dim", "seconds", "baseline")},
    "baseline_seconds": "baseline's",
    "ratio": "ratio",
}


@dataclass(frozen=True)
class RotationBenchmark:
    """Plan of a measurement: ``classes`` rows of ``dim`` values each of ``sites`` sites; growth over ``dim``."""

    sites: int = 20
    classes: int = 10
    dim: int = 512
    repeats: int = 5
    growth: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)

    @property
    def facts(self) -> dict[str, Value]:
        """Return the sizes as fields of a case."""
        return {"sites": self.sites, "classes": self.classes, "dim": self.dim}


class Ways:
    """Rows under ``plain`` and under ``rotation``, with the payloads of all sites and the answers to them."""

    def __init__(self, plan: RotationBenchmark) -> None:
        names = tuple(f"site-{number:03d}" for number in range(plan.sites))
        holds = np.ones((plan.sites, plan.classes), dtype=np.bool_)
        self.cohort = Cohort(names, holds, plan.dim)
        self.rows = dict(zip(names, _directions(plan), strict=True))
        self.seed, self.context = secrets.token_bytes(KEY_BYTES), b"bench"
        self.plain, self.rotated = PlainSite(), RotationSite(self.seed, self.context)

    @property
    def first(self) -> str:
        """A site."""
        return self.cohort.sites[0]

    def protect(self, half: SiteHalf) -> Payload:
        """Return the payload of one site."""
        return half.protect(self.rows[self.first], self.first, self.cohort)

    def payloads(self, half: SiteHalf) -> dict[str, Payload]:
        """Return the payloads of all sites."""
        return {site: half.protect(rows, site, self.cohort) for site, rows in self.rows.items()}

    def unprotect(self, half: SiteHalf, answer: Payload) -> Rows:
        """Return the rows that one site reads from its answer."""
        return half.unprotect(answer, self.rows[self.first], self.first, self.cohort)


def measure(plan: RotationBenchmark) -> Iterator[Case]:
    """Yield each case when it is measured; ``baseline_seconds`` are of ``plain`` unless a case names another one."""
    ways = Ways(plan)
    yield _protect("protect", plan, ways)
    yield from _combined(plan, ways)
    yield _drawing(plan, ways)
    yield _qr(plan, ways)
    yield from _large(plan)
    for dim in plan.growth:
        grown = replace(plan, dim=dim, sites=1)
        yield _protect("growth", grown, Ways(grown))


def _protect(name: str, plan: RotationBenchmark, ways: Ways) -> Case:
    ours, baseline = (partial(ways.protect, half) for half in (ways.rotated, ways.plain))
    return compare({"case": name, **plan.facts, "baseline": "plain"}, ours, baseline, plan.repeats)


def _combined(plan: RotationBenchmark, ways: Ways) -> Iterator[Case]:
    """Measure the coordinator's Gram matrices, weights and combinations, and a site's reading of its answer."""
    of_rotated, of_plain = (
        partial(PlainServer(_weights, half.scheme).combine, ways.payloads(half), ways.cohort)
        for half in (ways.rotated, ways.plain)
    )
    ours = partial(ways.unprotect, ways.rotated, of_rotated()[ways.first])
    baseline = partial(ways.unprotect, ways.plain, of_plain()[ways.first])
    if np.abs(ours() - baseline()).max() > SAME:
        raise RuntimeError("the combinations of rotated rows, rotated back, differ from those of plain rows")
    what: dict[str, Value] = {**plan.facts, "baseline": "plain"}
    yield compare({"case": "unprotect", **what}, ours, baseline, plan.repeats)
    yield compare({"case": "combine", **what}, of_rotated, of_plain, plan.repeats)


def _drawing(plan: RotationBenchmark, ways: Ways) -> Case:
    """Measure the part of protecting that draws the D²/2 normal values of each class; the rest is reflecting."""
    keys = [class_key(ways.seed, ways.context, k) for k in range(plan.classes)]

    def draw() -> None:
        for key in keys:
            for size in range(1, plan.dim + 1):
                rotation._normals(key, plan.dim, size)

    what: dict[str, Value] = {"case": "drawing", **plan.facts, "baseline": "protect"}
    return compare(what, draw, partial(ways.protect, ways.rotated), plan.repeats)


def _qr(plan: RotationBenchmark, ways: Ways) -> Case:
    """Measure rotating one class's row, against first forming Q by a QR decomposition of numpy's normal values."""
    row = ways.rows[ways.first][:1]
    key = class_key(ways.seed, ways.context, 0)
    what: dict[str, Value] = {"case": "one class", **plan.facts, "baseline": "QR of a Gaussian matrix"}
    return compare(what, partial(rotate, key, row), partial(_rotated_by_qr, row), plan.repeats)


def _rotated_by_qr(row: Rows) -> Rows:
    drawn = np.random.default_rng().standard_normal((row.shape[1], row.shape[1]))
    q, r = np.linalg.qr(drawn)
    return np.asarray(row @ (q * np.sign(np.diag(r))).T)


def _large(plan: RotationBenchmark) -> Iterator[Case]:
    """Measure FedPC's clustering: all of a site's prototypes as one row under one rotation, once in a run."""
    whole = replace(plan, classes=1, dim=plan.classes * plan.dim)
    few, cohort = Ways(replace(whole, sites=2)), Ways(whole).cohort
    yield _protect("whole row", replace(whole, repeats=1), few)
    ours, baseline = (
        partial(GramServer(half.scheme).gram, _repeated(few.payloads(half), cohort), cohort)
        for half in (few.rotated, few.plain)
    )
    yield compare({"case": "gram", **whole.facts, "baseline": "plain"}, ours, baseline, plan.repeats)


def _repeated(payloads: dict[str, Payload], cohort: Cohort) -> dict[str, Payload]:
    """Return the rows of two sites repeated for all sites, because rotating a long row takes seconds."""
    few = list(payloads.values())
    return {site: few[i % len(few)] for i, site in enumerate(cohort.sites)}


def _directions(plan: RotationBenchmark) -> NDArray[np.float64]:
    rows = np.random.default_rng(0).standard_normal((plan.sites, plan.classes, plan.dim))
    return np.asarray(0.5 * rows / np.linalg.norm(rows, axis=2, keepdims=True))


def _weights(gram: NDArray[np.float64], holds: NDArray[np.bool_]) -> NDArray[np.float64]:
    return peer_weights(gram, holds, Weighting.DISTANCE, tau=TAU)


@click.command(
    epilog=example('python -m benchmarks.rotation --sites 5 --dim 64 --growth "" --json rotation.json')
)
@json_option
@click.option(
    "--sites", type=COUNT, default=20, show_default=True, help="Number of sites that send prototypes."
)
@click.option(
    "--classes", type=COUNT, default=10, show_default=True, help="Number of classes, one prototype each."
)
@click.option("--dim", type=COUNT, default=512, show_default=True, help="Dimension of a prototype.")
@click.option(
    "--repeats",
    type=COUNT,
    default=5,
    show_default=True,
    help="Number of times that each comparison is measured; the median counts.",
)
@click.option(
    "--growth",
    callback=parse_counts,
    default="64,128,256,512,1024,2048",
    show_default=True,
    help="Dimensions of prototypes for the growth curve, with commas between; '' measures none.",
)
@click.option("--plot", type=FILE, help="File for the growth with dimensions, as SVG.")
@one_line_errors
def main(path: Path | None, plot: Path | None, **settings: object) -> None:
    """Measure rotated prototypes: seconds of a site and of the coordinator, beside those of plain prototypes."""
    plan = RotationBenchmark(**settings)  # type: ignore[arg-type]  # click has checked them
    cases = record_cases("rotation", measure(plan), path, machine())
    show(cases, COLUMNS)
    if plot is not None:
        axes = ("dimension of a prototype", "seconds of a site's protect")
        draw_growth(plot, cases, "dim", {"seconds": "rotation", "baseline_seconds": "plain"}, axes)


if __name__ == "__main__":
    main()
