"""Walk for as long as you like: ``python -m tests.states --seconds 600 --seed 1 --config fedpc``."""

from __future__ import annotations

import argparse
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.states.faults import FaultPlan
from tests.states.federations import FEDERATIONS, casts_of
from tests.states.play import play
from tests.states.walk import Report, shortened, walk


def main() -> int:
    """Return the exit status: 1 where a promise was broken."""
    options = _options()
    names = list(FEDERATIONS) if options.config == "all" else [options.config]
    if options.plan is not None:
        ending = play(casts_of(names[0]), FaultPlan.parse(options.plan))
        report = Report(names[0])
        report.add(FaultPlan.parse(options.plan), ending)
        print(ending, report, sep="\n")  # noqa: T201
        return int(bool(report.found))
    broken = 0
    for name in names:
        report = walk(name, options.seed, seconds=options.seconds / len(names))
        for promise, (plan, violation) in report.found.items():
            report.found[promise] = shortened(name, plan, promise) or (plan, violation)
        print(report, flush=True)  # noqa: T201
        broken += bool(report.found)
    return int(bool(broken))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.states", description=__doc__)
    parser.add_argument(
        "--config", choices=[*FEDERATIONS, "all"], default="all", help="the federation to walk"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, over all federations")
    parser.add_argument("--seed", type=int, default=1, help="the number that the plans follow from")
    parser.add_argument("--plan", help="replay this one plan, as a violation printed it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
