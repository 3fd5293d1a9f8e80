"""Output of ``protoseal client predict`` in a site's folder once its run is over."""

from __future__ import annotations

import json
from pathlib import Path

from protoseal.splits import SiteArrays
from tests.support.processes import Federation, Running, own_nursery


def protoseal(folder: Path, *arguments: str) -> str:
    """Return the output of the command, which succeeds."""
    done = Running(folder, *arguments, nursery=own_nursery())
    assert done.exit_code() == 0, done.log()
    return done.log()


def check_predictions(federation: Federation, site: SiteArrays, simulated: Path, *options: str) -> None:
    """Check that the site's saved model and the simulated run predict the same for all of the site's test samples."""
    asked = ("--data", "npz:data.npz", "--json", *options)
    outputs = [
        protoseal(federation.folder(site.name), "predict", "--run", each, *asked)
        for each in (".", str(simulated))
    ]
    # The channels' ranges, which the command prints on standard error, come first.
    trained, wanted = (json.loads(text[text.index("{") :]) for text in outputs)
    assert trained == wanted
    assert len(trained["predictions"]) == len(site.test)
