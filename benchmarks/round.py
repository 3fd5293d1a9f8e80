"""Whole rounds, training included, under each protection beside ``plain``, by turns.

python -m benchmarks.round --json round.json
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from agreement import Method, Protection, method_named
from algorithms.pfpl import Weighting
from benchmarks.record import Case, Spent, Value, json_option, machine, record_cases, show, spent_on
from crypto.protection import Pool
from protoseal.commands.options import COUNT, example
from protoseal.commands.terminal_output import one_line_errors
from protoseal.simulation.config import SimulationConfig, load_simulation
from protoseal.simulation.experiment import Scene
from protoseal.simulation.local_federation import LocalFederation
from protoseal.simulation.site_datasets import DividedData, divide
from protoseal.simulation.site_pool import SiteTesting
from protoseal_wire.messages import Phase, Task, Work
from secure_client.training.job import Losses
from secure_server.process_pool import Workers

PROTECTED = (Protection.MASKED, Protection.CKKS)
NOTHING = Spent(0.0, 0.0)
_NEVER = 10**6
"""Test interval beyond the measured rounds, so that no measured round includes a test."""
COLUMNS = {
    **{name: name for name in ("case", "method", "protection", "seconds")},
    **{f"{name}_seconds": name for name in ("train", "protect", "aggregate")},
    "beside_cpu_per_million": "a million",
    "over_plain": "over plain",
    "cpu_over_plain": "CPU",
    "same_training_over_plain": "same training",
    "apart_over_plain": "apart",
}
CAPTION = (
    "a million: seconds of a core beside training, for a site and million averaged parameters;"
    " protected over plain: of whole rounds, of their seconds of a core, of these with the same training,"
    " and with each site on a machine of its own"
)
METHODS = ("pfpl", "fedpc", "feddbp", "fedplcc")
WEIGHTINGS = ("complement", "uniform")


@dataclass(frozen=True)
class RoundBenchmark:
    """Plan of a measurement: ``repeats`` rounds under each protection, after one warm-up round.

    The images are MNIST's if ``data_root`` is given, else scikit-learn's digits, distributed so that every site holds
    every class, with ``samples`` for each site, or all samples if None. Sites train one after the other, as each would
    alone. ``workers`` processes compute on ciphertexts; with 0 this process does.
    """

    method: Method = Method.PFPL
    weighting: Weighting = Weighting.COMPLEMENT
    sites: int = 20
    dim: int = 64
    samples: int | None = None
    batch: int = 32
    epochs: int = 1
    repeats: int = 3
    model: str = "small-cnn"
    protections: tuple[Protection, ...] = PROTECTED
    data_root: Path | None = None
    workers: int = 0

    @property
    def dataset(self) -> str:
        """Name of the images' data set."""
        return "digits" if self.data_root is None else "mnist"

    def config(self, protection: Protection, out: Path) -> SimulationConfig:
        """Return the simulation of one protection's rounds; raise :class:`agreement.toml_loading.ConfigError`."""
        training = {"model": self.model, "batch_size": self.batch, "local_epochs": self.epochs}
        settings = [f"training.{name}={value}" for name, value in training.items()]
        if self.method is Method.PFPL:
            settings.append(f"pfpl.weighting={self.weighting.value}")
        flags = {
            "method": self.method.name,
            "protection": protection.name,
            "dataset": self.dataset,
            "split": "iid" if self.samples is None else f"iid:per={self.samples}",
            "sites": self.sites,
            "dim": self.dim,
            "norm_bound": 50.0,  # about twice the longest prototype, and summed in words of 32 bits
            "rounds": self.repeats + 2,  # a warm-up round, and a last round, which is tested and not measured
            "data_root": self.data_root,
            "device": "cpu",
            "batched": "never",
            "out": out,
        }
        return load_simulation(None, flags, settings)


@dataclass(frozen=True)
class RoundCosts:
    """Costs of one round: its time, the sites' training time, and one site's bytes sent and received.

    ``training`` is the whole step that trains, ``steps_cpu`` the seconds of a core in the sites' training jobs alone.
    ``train``, ``protect`` and ``aggregate`` are seconds by the clock: of all sites, all sites, and the coordinator.
    """

    whole: Spent
    training: Spent
    steps_cpu: float
    train: float
    protect: float
    aggregate: float
    bytes_up: float
    bytes_down: float

    @property
    def rest(self) -> Spent:
        """Times without the training."""
        return Spent(*(whole - part for whole, part in zip(self.whole, self.training, strict=True)))


@dataclass
class Course:
    """Federation of one protection, with its measured rounds so far."""

    protection: Protection
    federation: LocalFederation
    setup: Spent = NOTHING
    rounds: list[RoundCosts] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._turns = self.federation.turns()
        self._steps = NOTHING
        for site in self.federation.sites:
            site.learner.run = partial(self._run_jobs, site.learner.run)  # type: ignore[method-assign]

    def _run_jobs(self, train: Callable[..., Losses | None], *given: Any) -> Losses | None:
        """Run a site's training jobs of a round, and add their cost to the present round's."""
        done: list[Losses | None] = []
        self._steps = _sum(self._steps, spent_on(lambda: done.append(train(*given))))
        return done[0]

    def set_up(self) -> None:
        """Run the set-up before the first round: roster, keys, and clustering if the method has one."""
        while self.federation.coordinator.state.round < 1:
            self.setup = _sum(self.setup, self._turn()[1])

    def advance(self) -> None:
        """Run one round, until every site has its result."""
        number, before = self.federation.pool.completed + 1, self._bytes()
        whole = training = self._steps = NOTHING
        while self.federation.pool.completed < number:
            task, spent = self._turn()
            whole = _sum(whole, spent)
            if isinstance(task, Work) and task.key.phase is Phase.PRESENCE:
                training = _sum(training, spent)
        sent = [after - earlier for after, earlier in zip(self._bytes(), before, strict=True)]
        self.rounds.append(self._part(number, whole, training, *sent))

    def _turn(self) -> tuple[Task, Spent]:
        """Do one site's task."""
        done: list[Task] = []
        spent = spent_on(lambda: done.append(next(self._turns)))
        return done[0], spent

    def _part(self, number: int, whole: Spent, training: Spent, up: float, down: float) -> RoundCosts:
        logs = self.federation.pool.logs().values()
        seconds = [report.seconds for log in logs for report in log.rounds if report.round == number]
        train, protect = (sum(parts[name] for parts in seconds) for name in ("train", "protect"))
        aggregate = next(
            record.aggregate_seconds for record in self.federation.rounds if record.round == number
        )
        return RoundCosts(whole, training, self._steps.cpu, train, protect, aggregate, up, down)

    def _bytes(self) -> tuple[float, float]:
        """Return the bytes sent and received so far, mean over sites."""
        log, names = self.federation.log, [site.name for site in self.federation.sites]
        return (
            statistics.fmean(log.payload_bytes(name, up=True) for name in names),
            statistics.fmean(log.payload_bytes(name, up=False) for name in names),
        )


def measure(plan: RoundBenchmark) -> Iterator[Case]:
    """Measure ``plain`` and each protection alternately; then the set-up, which is not part of a round.

    Raises :class:`agreement.toml_loading.ConfigError`, or :class:`secure_client.errors.DataError` if the data root
    lacks MNIST.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="protoseal-bench-")))
        executor = stack.enter_context(Workers(plan.workers)) if plan.workers else None
        divided = _divided(plan, folder)
        courses = [
            Course(protection, stack.enter_context(_federation(plan, protection, divided, folder, executor)))
            for protection in (Protection.PLAIN, *plan.protections)
        ]
        for course in courses:
            course.set_up()
        for _ in range(plan.repeats + 1):
            for course in courses:
                course.advance()
        plain, *protected = courses
        yield Case(_facts(plan, plain, divided), _whole(plain))
        for course in protected:
            what = _facts(plan, course, divided) | _ratios(course.rounds[1:], plain.rounds[1:], plan.sites)
            yield Case(what, _whole(course), _whole(plain))
        for course in courses:
            yield Case({"case": "set-up", **_named(plan, course)}, [course.setup])


def _divided(plan: RoundBenchmark, folder: Path) -> DividedData:
    config = plan.config(Protection.PLAIN, folder)
    return divide(
        config.dataset, config.split, sites=config.sites, seed=0, data_root=config.data_root, tests=1
    )


def _federation(
    plan: RoundBenchmark, protection: Protection, divided: DividedData, folder: Path, executor: Pool | None
) -> LocalFederation:
    config = plan.config(protection, folder)
    data = {site.name: site.to_data(divided.preprocessing) for site in divided.sites}
    overall = divided.overall(where=config.dataset)
    scene = Scene(config, 0, divided, data, overall)
    return LocalFederation(
        scene.agreement(plan.method),
        data,
        training=scene.training,
        testing=SiteTesting(every=_NEVER),
        executor=executor if protection.ckks_key else None,
    )


def _named(plan: RoundBenchmark, course: Course) -> dict[str, Value]:
    return {"method": plan.method.value, "protection": course.protection.value, "sites": plan.sites}


def _facts(plan: RoundBenchmark, course: Course, divided: DividedData) -> dict[str, Value]:
    """Return the parameters, the medians of the parts in seconds, and the bytes of one site and of its prototypes."""
    parts = course.rounds[1:]
    names = ("train", "protect", "aggregate")
    return {
        "case": "round",
        **_named(plan, course),
        **({"weighting": plan.weighting.value} if plan.method is Method.PFPL else {}),
        "classes": len(divided.classes),
        "dim": plan.dim,
        "model": plan.model,
        "data": plan.dataset,
        "samples": round(statistics.fmean(len(site.train.labels) for site in divided.sites)),
        "batch": plan.batch,
        "epochs": plan.epochs,
        "workers": plan.workers,
        **{f"{name}_seconds": _median(getattr(part, name) for part in parts) for name in names},
        "cpu_seconds": _median(part.whole.cpu for part in parts),
        "rest_cpu_seconds": _median(part.rest.cpu for part in parts),
        "float32_bytes": 4 * plan.dim * len(divided.classes),
        "bytes_up": round(_median(part.bytes_up for part in parts)),
        "bytes_down": round(_median(part.bytes_down for part in parts)),
        **_cost_of_a_model(course, plan.sites),
    }


def _cost_of_a_model(course: Course, sites: int) -> dict[str, Value]:
    """Return seconds of a core beside training, for a site and million averaged parameters; nothing without a model."""
    parameters = course.federation.agreement.averaging.parameters
    if not parameters:
        return {}
    beside = _median(part.whole.cpu - part.steps_cpu for part in course.rounds[1:])
    return {"parameters": parameters, "beside_cpu_per_million": beside / sites / (parameters / 1e6)}


def _ratios(ours: Sequence[RoundCosts], plain: Sequence[RoundCosts], sites: int) -> dict[str, Value]:
    """Return ratios of protected to plain, medians over pairs, of whole rounds, in wall-clock and CPU seconds.

    Training is the same under every protection, takes most of a round, and varies by more than the cost of masks. Two
    further ratios therefore assume equal training: one in CPU seconds, and one in wall-clock seconds with each site on
    its own machine, all sites training at once and then waiting for the coordinator.
    """
    pairs = list(zip(ours, plain, strict=True))
    cpu = _median(part.training.cpu for part in (*ours, *plain))
    train = _median(part.train for part in (*ours, *plain))
    return {
        "over_plain": _median(protected.whole.wall / base.whole.wall for protected, base in pairs),
        "cpu_over_plain": _median(protected.whole.cpu / base.whole.cpu for protected, base in pairs),
        "same_training_over_plain": _median(
            (cpu + protected.rest.cpu) / (cpu + base.rest.cpu) for protected, base in pairs
        ),
        "apart_over_plain": _median(
            _apart(train, protected, sites) / _apart(train, base, sites) for protected, base in pairs
        ),
    }


def _apart(train: float, part: RoundCosts, sites: int) -> float:
    """Return seconds of one site and of the coordinator."""
    return (train + part.protect) / sites + part.aggregate


def _whole(course: Course) -> list[Spent]:
    return [part.whole for part in course.rounds[1:]]


def _sum(one: Spent, other: Spent) -> Spent:
    return Spent(one.wall + other.wall, one.cpu + other.cpu)


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


@click.command(epilog=example("python -m benchmarks.round --method pfpl --sites 5 --json round.json"))
@json_option
@click.option(
    "--method",
    type=click.Choice(METHODS),
    default="pfpl",
    show_default=True,
    help="Method that the rounds run.",
)
@click.option(
    "--weighting",
    type=click.Choice(WEIGHTINGS),
    default="complement",
    show_default=True,
    help="Weights of peers under pfpl; uniform runs as a masked sum under masked.",
)
@click.option("--sites", type=click.IntRange(min=3), default=20, show_default=True, help="Number of sites.")
@click.option("--dim", type=COUNT, default=64, show_default=True, help="Dimension of a prototype.")
@click.option(
    "--samples",
    type=COUNT,
    help="Number of training samples of each site.  [default: all that the data set has, divided among the sites]",
)
@click.option("--batch", type=COUNT, default=32, show_default=True, help="Number of samples in a batch.")
@click.option(
    "--epochs",
    type=COUNT,
    default=1,
    show_default=True,
    help="Number of epochs of local training in a round.",
)
@click.option(
    "--protection",
    "protections",
    type=click.Choice([protection.value for protection in PROTECTED]),
    multiple=True,
    default=[protection.value for protection in PROTECTED],
    show_default=True,
    help="Protection that the rounds run under beside plain; repeat it for several.",
)
@click.option(
    "--repeats", type=COUNT, default=3, show_default=True, help="Number of rounds under each protection."
)
@click.option(
    "--model",
    default="small-cnn",
    show_default=True,
    help="Network that the sites train, one of the built-in models.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of worker processes for ciphertexts; with 0 this process computes them itself.",
)
@click.option(
    "--data-root",
    type=click.Path(path_type=Path),
    help="Folder with MNIST's files; without it the data are scikit-learn's digits.",
)
@one_line_errors
def main(
    path: Path | None, method: str, weighting: str, protections: Sequence[str], **settings: object
) -> None:
    """Measure whole rounds, training included, under masked and ckks beside plain."""
    protected = tuple(protection for protection in PROTECTED if protection.value in protections)
    plan = RoundBenchmark(method_named(method), Weighting(weighting), protections=protected, **settings)  # type: ignore[arg-type]  # click has checked them
    cases = record_cases("round", measure(plan), path, machine())
    show(cases, COLUMNS, CAPTION)


if __name__ == "__main__":
    main()
