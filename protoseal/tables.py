"""A run's result as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from rich.table import Table

from protoseal.files import RunResult

NO_GLOBAL_MODEL = (
    "GM, the accuracy of one global model, is left out: each site has a classifier of its own, so there is no such"
    " model."
)


def result_tables(result: RunResult) -> list[Table]:
    """Accuracy and traffic by site, seconds by round, and where there are any: personalised accuracies, groups, what
    the coordinator saw.
    """
    tables = [sites_table(result), rounds_table(result)]
    if has_personalised(result):
        tables.append(metrics_table(result))
    if result.groups:
        tables.append(groups_table(result))
    return [*tables, view_table(result)] if result.coordinator_view else tables


def sites_table(result: RunResult) -> Table:
    """Each site's accuracy beside the others', payload bytes each way, and classes withheld from it."""
    others = list(result.compared)
    table = _table(f"{result.method} under {result.protection}, {result.dataset}")
    _columns(
        table,
        ["site"],
        [f"{result.method} %", *(f"{name} %" for name in others), "train", "kB up", "kB down"],
    )
    table.add_column("withheld")
    for site in result.sites:
        beside = [percent(site.compared.get(name)) for name in others]
        numbers = [percent(site.accuracy), *beside, str(site.train_samples)]
        traffic = [f"{count / 1000:,.0f}" for count in (site.bytes_up, site.bytes_down)]
        table.add_row(site.name, *numbers, *traffic, " ".join(site.withheld) or "-")
    table.add_section()
    table.add_row("mean", percent(result.mean_accuracy), *(percent(result.compared[name]) for name in others))
    return table


def has_personalised(result: RunResult) -> bool:
    """Whether any of FedNH's personalised accuracies is known."""
    return any(
        value is not None for means in result.metrics.values() for value in means.model_dump().values()
    )


def metrics_table(result: RunResult) -> Table:
    """FedNH's personalised accuracies, means over the sites, of each method that ran."""
    table = _table("personalised accuracies, %")
    test_sets = {"own test set": "", "over all sites": "_global"}
    metrics = {"PM(V)": "pm_v", "PM(L)": "pm_l"}
    columns = {f"{m}, {t}": metrics[m] + test_sets[t] for t in test_sets for m in metrics}
    _columns(table, ["method"], list(columns))
    for name, means in result.metrics.items():
        table.add_row(name, *(percent(getattr(means, field)) for field in columns.values()))
    table.caption = NO_GLOBAL_MODEL
    return table


def groups_table(result: RunResult) -> Table:
    """Which sites averaged with each other."""
    table = _table("groups")
    _columns(table, ["group", "sites"], [])
    for number, group in enumerate(result.groups, start=1):
        table.add_row(str(number), ", ".join(group))
    return table


def rounds_table(result: RunResult) -> Table:
    """Mean accuracy and seconds of each round: the slowest site's training and protection, the coordinator's part."""
    table = _table("rounds")
    _columns(table, ["round"], ["mean %", "train s", "protect s", "aggregate s", "total s"])
    for each in result.rounds:
        seconds = (each.seconds.train, each.seconds.protect, each.seconds.aggregate, each.seconds.total)
        table.add_row(str(each.round), percent(each.mean_accuracy), *(f"{value:.2f}" for value in seconds))
    return table


def seeds_table(result: RunResult) -> Table:
    """Each seed's mean accuracy beside the others', and by how much the method is above each."""
    names = sorted({name for each in result.seeds for name in each.compared})
    table = _table("mean accuracy by seed, and paired differences")
    above = [f"- {name}" for name in names]
    _columns(table, ["seed"], [f"{result.method} %", *(f"{name} %" for name in names), *above])
    for each in result.seeds:
        differences = [_difference(each.mean_accuracy, each.compared.get(name)) for name in names]
        beside = [percent(each.compared.get(name)) for name in names]
        table.add_row(str(each.seed), percent(each.mean_accuracy), *beside, *differences)
    if len(result.seeds) > 1:
        table.add_section()
        gains = [_mean_gain(result, name) for name in names]
        table.add_row("mean", *[""] * (1 + len(names)), *gains)
    if result.spread:
        mean, deviation = percent(result.spread.mean), percent(result.spread.standard_deviation)
        table.caption = f"mean {mean}, standard deviation {deviation}"
    return table


def _mean_gain(result: RunResult, name: str) -> str:
    """Mean paired difference ± its standard error, in points."""
    pairs = [(each.mean_accuracy, each.compared.get(name)) for each in result.seeds]
    gains = [100 * (value - other) for value, other in pairs if value is not None and other is not None]
    return f"{fmean(gains):+.1f} ± {stdev(gains) / len(gains) ** 0.5:.1f}" if len(gains) > 1 else "-"


def _difference(value: float | None, other: float | None) -> str:
    return "-" if value is None or other is None else f"{100 * (value - other):+.1f}"


def view_table(result: RunResult) -> Table:
    """What the coordinator's own recording of the run shows."""
    table = _table("what the coordinator saw, from its recording")
    for name in ("", "seen", "evidence"):
        table.add_column(name, overflow="fold")
    for line in result.coordinator_view:
        table.add_row(line.what, "yes" if line.seen else "no", line.evidence)
    return table


def percent(share: float | None) -> str:
    """A share in per cent, with one decimal; "-" for none."""
    return "-" if share is None else f"{100 * share:.1f}"


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold")


def _columns(table: Table, left: Sequence[str], right: Sequence[str]) -> None:
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
