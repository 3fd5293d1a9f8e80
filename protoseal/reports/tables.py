"""Tables of a run's result for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from agreement import Inference
from privacy.accounting.events import Unit
from protoseal.reports.result_files import Paired, RunResult, SeedSpread, SiteFigures
from secure_client.output.site_log import Personalised, SiteRound

NO_GLOBAL_MODEL = (
    "GM, the accuracy of one global model, is left out: under most methods each site has its own classifier, "
    "so no global model exists. Where whole models are averaged, PM(V) and PM(L) are of the model that the "
    "site trained last."
)
NO_PROTOTYPE = (
    "A method that predicts by prototype has no accuracy where no prototype was released. The classifier's accuracy, "
    "beside it, says nothing of the federation then."
)
"""Note under figures for which :func:`lacks_prototypes` is true."""
METRICS = {
    "accuracy": "accuracy",
    "accuracy_global": "accuracy, over all sites",
    "accuracy_classifier": "by classifier",
    "accuracy_prototype": "by prototype",
    "pm_v": "PM(V), own test set",
    "pm_l": "PM(L), own test set",
    "pm_v_global": "PM(V), over all sites",
    "pm_l_global": "PM(L), over all sites",
}
"""Headings of a method's figures. ``accuracy`` is by the method's own inference."""


def result_tables(result: RunResult) -> list[Table]:
    """Return the tables of a result.

    The tables have accuracy and traffic by site, seconds by round, and if the result has them: personalised accuracies,
    accuracies by class, groups, and the coordinator's view. With several seeds, the last tables are their statistics,
    and the others are of the first seed.
    """
    tables = [sites_table(result), rounds_table(result)]
    if len(result.metrics) > 1 or has_personalised(result) or result.inference is Inference.PROTOTYPE:
        tables.append(metrics_table(result))
    if any(site.per_class for site in result.sites):
        tables.append(classes_table(result))
    if result.groups:
        tables.append(groups_table(result))
    if result.coordinator_view:
        tables.append(view_table(result))
    if len(result.seeds) > 1:
        tables += [summary_table(result), differences_table(result)]
    return tables


def seed_suffix(result: RunResult) -> str:
    """Return the name of the seed of these figures, where there are several."""
    return f", seed {result.seed} of {len(result.seeds)} seeds" if len(result.seeds) > 1 else ""


def sites_table(result: RunResult) -> Table:
    """Return each site's accuracy beside the others', payload bytes each way, and classes withheld from it."""
    others = list(result.compared)
    until = f", as of round {result.best_round}" if result.best_round else ""
    how = f", by {result.inference.value}" if result.inference else ""
    table = new_table(
        f"{result.method} under {result.protection}, {result.dataset}{seed_suffix(result)}{until}{how}"
    )
    add_columns(
        table,
        ["site"],
        [f"{result.method} %", *(f"{name} %" for name in others), "train", "kB up", "kB down"],
    )
    # Without noise an ε column would suggest a bound that does not exist.
    private = is_private(result)
    if private:
        table.add_column(f"epsilon{unit_suffix(result)}")
    table.add_column("withheld")
    for site in result.sites:
        beside = [percent(site.compared.get(name)) for name in others]
        numbers = [percent(site.accuracy), *beside, str(site.train_samples)]
        traffic = [f"{count / 1000:,.0f}" for count in (site.bytes_up, site.bytes_down)]
        spent = [epsilon_text(site)] if private else []
        table.add_row(site.name, *numbers, *traffic, *spent, " ".join(site.withheld) or "-")
    table.add_section()
    table.add_row("mean", percent(result.mean_accuracy), *(percent(result.compared[name]) for name in others))
    table.caption = NO_PROTOTYPE if lacks_prototypes(result) else None
    return table


def lacks_prototypes(result: RunResult) -> bool:
    """Return True if a tested site has no accuracy by the method's own inference, for want of prototypes."""
    return any(site.accuracy is None and site.accuracy_classifier is not None for site in result.sites)


def is_private(result: RunResult) -> bool:
    """Return True if any site's prototypes were noisy."""
    return any(site.epsilon is not None for site in result.sites)


def unit_suffix(result: RunResult) -> str:
    """Return the unit of ε if it is not a record: " (subject)", " (site)"."""
    privacy = result.config["privacy"]
    return "" if privacy is None or privacy["unit"] == Unit.RECORD else f" ({privacy['unit']})"


def epsilon_text(figures: SiteFigures | SiteRound) -> str:
    """Return the spent budget, with a note if it is no guarantee."""
    if figures.epsilon is None:
        return "-"
    return ("" if figures.guaranteed else "NO GUARANTEE, ") + f"{figures.epsilon:.3g}"


def accuracy_text(figures: SiteRound) -> str:
    """Return a round's accuracy in per cent, with the classifier's beside it if the two differ."""
    beside = f" (by classifier {percent(figures.accuracy_classifier)} %)"
    if figures.accuracy is None:
        return f"none, since no prototype was released{beside}"
    return f"{percent(figures.accuracy)} %{'' if figures.accuracy == figures.accuracy_classifier else beside}"


def has_personalised(result: RunResult) -> bool:
    """Return True if any of FedNH's personalised accuracies is known."""
    fields = Personalised.model_fields
    return any(getattr(means, name) is not None for means in result.metrics.values() for name in fields)


def metrics_table(result: RunResult) -> Table:
    """Return every accuracy of each method that ran, means over the sites."""
    table = new_table(f"means over the sites, %{seed_suffix(result)}")
    add_columns(table, ["method"], list(METRICS.values()))
    for name, means in result.metrics.items():
        table.add_row(name, *(percent(getattr(means, metric)) for metric in METRICS))
    table.caption = NO_GLOBAL_MODEL if has_personalised(result) else None
    return table


def classes_table(result: RunResult) -> Table:
    """Return the method's accuracy on each class at each site, and the number of sites that tested it."""
    table = new_table(f"{result.method} by class, %{seed_suffix(result)}")
    tested = [name for name in result.classes if any(name in site.per_class for site in result.sites)]
    add_columns(table, ["site"], tested)
    for site in result.sites:
        table.add_row(site.name, *(percent(site.per_class.get(name)) for name in tested))
    return table


def summary_table(result: RunResult) -> Table:
    """Return each method's means over the sites: mean and standard deviation over the seeds."""
    names = ", ".join(str(figures.seed) for figures in result.seeds)
    table = new_table(f"mean ± standard deviation over seeds {names}, %")
    add_columns(table, ["method"], list(METRICS.values()))
    for name, spreads in result.summary.items():
        table.add_row(name, *(spread_text(spreads.get(metric)) for metric in METRICS))
    return table


def differences_table(result: RunResult) -> Table:
    """Return the method's accuracy less each other method's, paired by seed: each seed, and mean ± standard error."""
    return pairs_table(f"{result.method} less each other, paired by seed, points", result.differences)


def pairs_table(title: str, differences: Mapping[str, Mapping[str, Paired]]) -> Table:
    """Return a table of the differences of each figure, for each other method or other run."""
    pairs = [pair for difference in differences.values() for pair in difference.values()]
    seeds = sorted({seed for pair in pairs for seed in pair.by_seed})
    table = new_table(title)
    add_columns(table, ["less", "of"], [*(f"seed {seed}" for seed in seeds), "mean ± s.e."])
    for name, of_figure in differences.items():
        for metric, pair in of_figure.items():
            by_seed = [points(pair.by_seed.get(seed)) for seed in seeds]
            table.add_row(name, METRICS[metric], *by_seed, paired_text(pair))
        table.add_section()
    return table


def groups_table(result: RunResult) -> Table:
    """Return the groups of sites that averaged with each other."""
    table = new_table(f"groups{seed_suffix(result)}")
    add_columns(table, ["group", "sites"], [])
    for number, group in enumerate(result.groups, start=1):
        table.add_row(str(number), ", ".join(group))
    return table


def rounds_table(result: RunResult) -> Table:
    """Return mean accuracy and seconds of each round: the slowest site's training and protection, the coordinator's."""
    table = new_table(f"rounds{seed_suffix(result)}")
    add_columns(table, ["round"], ["mean %", "train s", "protect s", "aggregate s", "total s"])
    for done in result.rounds:
        seconds = (done.seconds.train, done.seconds.protect, done.seconds.aggregate, done.seconds.total)
        table.add_row(str(done.round), percent(done.mean_accuracy), *(f"{value:.2f}" for value in seconds))
    return table


def view_table(result: RunResult) -> Table:
    """Return the contents of the coordinator's own recording of the run."""
    table = new_table("what the coordinator saw, from its recording")
    for name in ("", "seen", "evidence"):
        table.add_column(name, overflow="fold")
    for line in result.coordinator_view:
        table.add_row(line.what, "yes" if line.seen else "no", line.evidence)
    return table


def spread_text(spread: SeedSpread | None) -> str:
    """Return mean and standard deviation in per cent."""
    return "-" if spread is None else f"{percent(spread.mean)} ± {percent(spread.standard_deviation)}"


def paired_text(pair: Paired) -> str:
    """Return the mean of paired differences and its standard error, in points."""
    error = "" if pair.standard_error is None else f" ± {100 * pair.standard_error:.1f}"
    return points(pair.mean) + error


def points(share: float | None) -> str:
    """Return a difference of shares in percentage points, with its sign."""
    return "-" if share is None else f"{100 * share:+.1f}"


def percent(share: float | None) -> str:
    """Return a share in per cent, with one decimal; "-" for none."""
    return "-" if share is None else f"{100 * share:.1f}"


def new_table(title: str) -> Table:
    """Return an empty table in the style of all tables."""
    return Table(title=title, title_justify="left", title_style="bold")


def add_columns(table: Table, left: Sequence[str], right: Sequence[str]) -> None:
    """Add columns with these heads: words are set flush ``left``, numbers flush ``right``."""
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
