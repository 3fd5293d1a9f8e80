"""Bytes and seconds of masked sums over growing numbers of sites.

python -m benchmarks.pairwise --json pairwise.json
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

from agreement import MaskingSection
from agreement.errors import UserError
from benchmarks.masked_round import MaskedRound, play
from benchmarks.record import Case, Spent, Value, draw_growth, json_option, machine, record_cases, show
from crypto.pairwise.attempt import threshold
from protoseal.commands.options import COUNT, FILE, example, parse_counts
from protoseal.commands.terminal_output import one_line_errors
from protoseal_wire.messages import Phase

FLOAT32_BYTES = 4
SITE_STEPS = (Phase.SHARES, Phase.VALUES, Phase.SURVIVORS, Phase.UNMASK)
"""Steps of a masked sum whose seconds a site's figures name; in PRESENCE it trains."""
COLUMNS = {
    **{name: name for name in ("sites", "holders", "threshold", "dropped")},
    "of_float32": "bytes",
    "seconds": "site, s",
    "coordinator_seconds": "coordinator, s",
    "coordinator_unmask": "of it UNMASK, s",
}
CAPTION = "bytes: sent and received by a site, over its values as float32; seconds are of a core"
CURVES = {
    "seconds": "one site, all steps",
    "coordinator_seconds": "coordinator, all steps",
    "coordinator_unmask": "coordinator, UNMASK",
}


@dataclass(frozen=True)
class MaskedSumBenchmark:
    """Plan of a measurement: prototypes of ``classes`` × ``dim`` values each, of each number of ``sites`` in turn.

    ``dropped`` is the share of the sites that make shares and send no values. ``masking`` chooses complete or sparse
    graphs and the width of words, as an agreement does.
    """

    sites: tuple[int, ...] = (10, 20, 50, 100)
    classes: int = 10
    dim: int = 5120
    dropped: float = 0.3
    repeats: int = 3
    masking: MaskingSection = field(default_factory=MaskingSection)

    @property
    def values(self) -> int:
        """L: number of values of one site."""
        return self.classes * self.dim

    def dropped_of(self, sites: int) -> int:
        """Return the number of drop-outs among ``sites``, rounded down."""
        return int(self.dropped * sites + 1e-9)

    def played(self, sites: int, dropped: int) -> MaskedRound:
        """Play one round of ``sites`` sites, ``dropped`` of which drop out."""
        return play(sites, self.classes, self.dim, dropped, self.masking)

    def facts(self, sites: int, dropped: int, played: MaskedRound) -> dict[str, Value]:
        """Return the numbers that say what a case measured, and a site's bytes over its values as float32."""
        graph, plain = self.masking.graph(sites, sites), FLOAT32_BYTES * self.values
        return {
            "sites": sites,
            "holders": graph.holders,
            "threshold": graph.threshold,
            "dropped": dropped,
            "values": self.values,
            "ring_bits": played.ring_bits,
            "fraction_bits": played.fraction_bits,
            "sent_of_float32": played.sent / plain,
            "of_float32": (played.sent + played.received) / plain,
        }


def measure(plan: MaskedSumBenchmark) -> Iterator[Case]:
    """Yield a case for each number of sites; raise :class:`UserError` for more drop-outs than a group tolerates."""
    for sites in plan.sites:
        check_tolerated(sites, plan.dropped_of(sites))
    for sites in plan.sites:
        yield _growth(plan, sites)


def check_tolerated(sites: int, dropped: int) -> None:
    """Raise :class:`UserError` if a masked sum of so many ``sites`` cannot lose ``dropped`` of them."""
    if sites < 2:
        raise UserError("a group has 2 or more sites")
    limit = sites - threshold(sites)
    if dropped > limit:
        raise UserError(f"a group of {sites} sites continues without {limit} of them at most, not {dropped}")


def _growth(plan: MaskedSumBenchmark, sites: int) -> Case:
    """Measure rounds; seconds are of a core: of a median site that stayed, without its training, and the server's."""
    dropped = plan.dropped_of(sites)
    rounds = [plan.played(sites, dropped) for _ in range(plan.repeats)]
    return Case(
        {
            "case": "growth",
            **plan.facts(sites, dropped, rounds[-1]),
            **{
                f"site_{phase.name.lower()}": statistics.median(played.site_step(phase) for played in rounds)
                for phase in SITE_STEPS
            },
            "coordinator_seconds": statistics.median(played.coordinator_seconds for played in rounds),
            **{
                f"coordinator_{phase.name.lower()}": statistics.median(
                    played.coordinator[phase] for played in rounds
                )
                for phase in rounds[-1].coordinator
            },
        },
        [Spent(played.site_seconds, played.site_seconds) for played in rounds],
    )


@click.command(
    epilog=example("python -m benchmarks.pairwise --sites 10,20 --dim 64 --repeats 1 --json pairwise.json")
)
@json_option
@click.option(
    "--sites",
    callback=parse_counts,
    default="10,20,50,100",
    show_default=True,
    help="Numbers of sites whose vectors are added up, with commas between.",
)
@click.option(
    "--classes", type=COUNT, default=10, show_default=True, help="Number of classes, one prototype each."
)
@click.option("--dim", type=COUNT, default=5120, show_default=True, help="Dimension of a prototype.")
@click.option(
    "--dropped",
    type=click.FloatRange(0, 1),
    default=0.3,
    show_default=True,
    help="Share of the sites that drop out after they made shares.",
)
@click.option(
    "--repeats",
    type=COUNT,
    default=3,
    show_default=True,
    help="Number of rounds of each number of sites; the median counts.",
)
@click.option(
    "--complete-up-to",
    type=click.IntRange(2),
    default=100,
    show_default=True,
    help="Most sites among which every pair has a mask; larger groups use a sparse graph.",
)
@click.option(
    "--ring-bits",
    type=click.Choice(["32", "64"]),
    help="Bits of a masked word.  [default: 32 where sums fit, else 64]",
)
@click.option("--plot", type=FILE, help="File for the growth with sites, as SVG.")
@one_line_errors
def main(
    path: Path | None, plot: Path | None, ring_bits: str | None, complete_up_to: int, **settings: object
) -> None:
    """Measure masked sums: bytes and seconds of a site, and seconds of the coordinator."""
    plan = MaskedSumBenchmark(
        masking=MaskingSection.model_validate(
            {"complete_up_to": complete_up_to, "ring_bits": None if ring_bits is None else int(ring_bits)}
        ),
        **settings,  # type: ignore[arg-type]  # click has checked them
    )
    cases = record_cases("pairwise", measure(plan), path, machine())
    show(cases, COLUMNS, CAPTION)
    if plot is not None:
        draw_growth(plot, cases, "sites", CURVES, ("sites", "seconds"))


if __name__ == "__main__":
    main()
